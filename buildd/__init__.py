"""The build daemon: store, keys, scheduling, and the command line around them."""

__version__ = "0.1.0"
