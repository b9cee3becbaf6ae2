"""The check of `buildd doctor` about torch, Triton and JAX in the Python that the user's programs run in.

Asks that Python for its packages' versions; imports none of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping

import msgspec

from buildd.client.machine_checks import Finding, Level

_PACKAGES = ("torch", "triton", "jax")
_ASK = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_TIMEOUT_S = 20.0


def programs(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Whether compiles of torch, Triton and JAX would be taken; nothing where that Python has none of them."""
    path = environ.get("PATH", os.defpath)
    python = shutil.which("python", path=path) or shutil.which("python3", path=path)
    if python is None:
        return
    command = [python, "-c", _ASK, *_PACKAGES]
    try:
        done = subprocess.run(
            command, env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=True
        )
        found = msgspec.json.decode(done.stdout, type=dict[str, str])
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        yield Finding(Level.WARN, "programs", f"{python} does not say which packages it has: {error}")
        return
    if not found:
        return
    named = ", ".join(f"{name} {version}" for name, version in found.items())
    yield Finding(
        Level.OK,
        "programs",
        f"{named} in {python}: under `buildd run` their compiles go through the cache, otherwise not "
        "(nothing has to be installed in that Python)",
        "buildd run -- python PROGRAM",
    )
