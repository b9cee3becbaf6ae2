"""The contract between clients and the build daemon: messages, wire format, endpoint, client.

Knows nothing of compilers, stores or scheduling. `SPEC.md` beside this file is the document; the code follows it.
"""
