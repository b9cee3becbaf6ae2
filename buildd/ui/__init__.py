"""The user interface: terminal progress, plain lines, traces. Consumes events; knows no socket."""
