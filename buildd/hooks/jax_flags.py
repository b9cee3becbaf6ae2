"""XLA's flags before JAX starts its first backend: each once, and none that this jaxlib does not know.

Runs in the user's own process; standard library only. XLA ends the whole process with SIGABRT at an unknown flag, and
jaxlib changes its flags with each version; so a fork of this process tries them. Libraries such as EasyDeL append their
flags whenever they are imported, so a child of such a process has them twice, which is another key for JAX.
"""

import functools
import os
import re
import resource
import select
import signal
import sys
import time
import warnings

from .entries import is_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FLAGS = "XLA_FLAGS"
_LISTS = (FLAGS, "LIBTPU_INIT_ARGS")
_UNKNOWN = re.compile(rb"Unknown flags? in XLA_FLAGS: ([^\n]*)")
_MOST_WAIT_S = 10.0
_MOST_BYTES = 1 << 16


class UnknownFlagError(SystemExit):
    """XLA would abort this process: the message names the flags."""


def begin(bridge: "Any") -> None:
    """Wrap the start of backends in jax._src.xla_bridge, just imported."""
    if is_on("BUILDD_DISABLE"):
        return
    start = bridge.backends
    tried: list[bool] = []

    @functools.wraps(start)
    def backends() -> "Any":
        if not tried:
            tried.append(True)
            prepare(bridge.xla_client)
        return start()

    bridge.backends = backends


def prepare(xla_client: "Any") -> None:
    """Make the flags of the environment ready for XLA. Raises UnknownFlagError."""
    if content := content_of_file(os.environ.get(FLAGS, "")):
        os.environ[FLAGS] = content  # JAX's key has the value of the variable
    for name in _LISTS:
        words = os.environ.get(name, "").split()
        if len(set(words)) < len(words):
            os.environ[name] = " ".join(reversed(dict.fromkeys(reversed(words))))
    if not os.environ.get(FLAGS, "").strip():
        return
    said = _UNKNOWN.search(_tried(xla_client.CompileOptions))
    if said:
        flags = said[1].decode(errors="replace").strip()
        version = getattr(sys.modules.get("jaxlib"), "__version__", "")
        raise UnknownFlagError(
            f"buildd: error: jaxlib {version} does not know {flags}, and XLA would abort this process\n"
            f"  next: remove it from {FLAGS} (EASYDEL_AUTO=0 keeps EasyDeL from adding flags), or take the jaxlib that"
            " it is for"
        )


def content_of_file(value: str) -> str:
    """The flags in the file that a value of XLA_FLAGS names; empty where it names none.

    XLA takes a value for a file's name if it does not begin with a hyphen (xla/parse_flags_from_env.cc).
    """
    value = value.strip(" \t\r\n")
    if not value or value.startswith("-"):
        return ""
    try:
        with open(value, encoding="utf-8", errors="surrogateescape") as file:
            return " ".join(file.read().split())
    except (OSError, ValueError):
        return ""


def _tried(parse: "Any") -> bytes:
    """What a fork of this process says when XLA reads its flags there."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # The fork calls one function of XLA, and ends.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        try:
            if "faulthandler" in sys.modules:
                sys.modules["faulthandler"].disable()  # the end of the fork is no news
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.dup2(writing, 2)
            os.dup2(writing, 1)
            parse()
        finally:
            os._exit(0)
    os.close(writing)
    said, deadline = b"", time.monotonic() + _MOST_WAIT_S
    try:
        while len(said) < _MOST_BYTES and (left := deadline - time.monotonic()) > 0:
            if not select.select([reading], [], [], left)[0]:
                break
            part = os.read(reading, _MOST_BYTES)
            if not part:
                break
            said += part
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return said
