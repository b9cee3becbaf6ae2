"""What an executable of JAX depends on besides JAX's own key: this processor, and the exact builds of JAX's libraries.

Runs in the user's own process: standard library only. Knows /proc/cpuinfo and how pip records what it installed. JAX's
key has the version of jaxlib, and for a CPU nothing about the processor that XLA wrote the code for.
"""

import hashlib
import os

from . import entries

_PROCESSOR = (
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "flags",
    "CPU implementer",
    "CPU part",
    "Features",
    "isa",
)
_CORE_BYTES = 1 << 14
"""More than the description of one core."""
_WHEELS = ("jaxlib-", "jax_cuda", "jax_rocm", "jax_plugins", "libtpu", "nvidia_")
_MOST_RECORD_BYTES = 16 << 20


def processor(described: str = "/proc/cpuinfo") -> str:
    """Digest of the kind of this processor and its instruction sets.

    Args:
        described: the kernel's file about it.
    """
    found = [os.uname().machine]
    try:
        with open(described, encoding="utf-8", errors="replace") as file:
            core = file.read(_CORE_BYTES).partition("\n\n")[0]
    except OSError:
        core = ""
    for line in core.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in _PROCESSOR:
            found.append(f"{name.strip()}:{value.strip()}")
    return _short("\n".join(found))


def libraries(site: str) -> str:
    """Digest of the builds of jaxlib and of what its plugins bring.

    Args:
        site: the folder that jaxlib was imported from, such as site-packages.

    Raises: OSError.
    """
    found = []
    for name in sorted(os.listdir(site)):
        if name.startswith(_WHEELS) and name.endswith(".dist-info"):
            found.append(name)
            # NVIDIA's own wheels are known by their versions, which are never published twice.
            if not name.startswith("nvidia_"):
                found += _recorded(os.path.join(site, name, "RECORD"))
    if not any(name.startswith("jaxlib-") and not name.endswith(".dist-info") for name in found):
        # Not installed from a wheel: only this very copy is known to be the same.
        found += [repr(entries.stamp_of(path)) for path in _programs(os.path.join(site, "jaxlib"))]
    return _short("\n".join(found))


def _recorded(record: str) -> "list[str]":
    """The lines about machine code in the list of an installed wheel's files, each with a digest."""
    try:
        with open(record, encoding="utf-8", errors="replace") as file:
            text = file.read(_MOST_RECORD_BYTES)
    except OSError:
        return []
    wheel = os.path.basename(os.path.dirname(record)).partition(".dist-info")[0]
    lines = (line.split(",") for line in text.splitlines())
    return sorted(f"{wheel} {words[0]} {words[1]}" for words in lines if len(words) > 1 and _is_code(words[0]))


def _is_code(path: str) -> bool:
    return path.endswith(".so") or ".so." in path


def _programs(folder: str) -> "list[str]":
    found = []
    for where, _, names in os.walk(folder):
        found += [os.path.join(where, name) for name in names if _is_code(name)]
    return sorted(found)


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=12).hexdigest()
