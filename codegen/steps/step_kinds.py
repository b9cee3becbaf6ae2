"""The parts that the steps of all compilers share: their kinds, and a template's placeholders for a source's names.

Knows no compiler. `nvcc_steps` and `hipcc_steps` make templates; `expansion` fills in a source's own names.
"""

from __future__ import annotations

from enum import Enum

STEM = "buildd_source"
SOURCE = f"/buildd_probe/{STEM}"
"""Path of the source in a dry run, without its extension."""
OBJECT = "/buildd_probe/object.o"
FOLDER = "buildd_probe.steps"
"""Folder of step files."""
MAIN = "buildd_main_file"
"""The source's bare name, which the object contains."""
UNIT = "b01dd0b01dd0b01d"
"""Name of a translation unit that is unique in its program, for `-cuid`."""
IMAGE = "buildd_frame.ptx"
"""Content of a `FRAME`. Its path is the same for all sources, so that they share the step."""
IMAGE_TEXT = b".version 8.0\n.target sm_80\n.address_size 64\n"
BUNDLE_FRAME = f"{FOLDER}/{STEM}.frame.hipfb"
"""The frame for clang, which includes any data: the beginning of a bundle."""
BUNDLE_TEXT = b"__CLANG_OFFLOAD_BUNDLE__"
PACKED_BUNDLE_TEXT = b"CCOB"
"""How a bundle begins that is compressed (`--offload-compress`)."""
BUNDLES = (BUNDLE_TEXT, PACKED_BUNDLE_TEXT)
BUNDLE_EQUIVALENT = b"bundle"
USED = ".used"
"""Suffix of the fatbin's path: the equivalence digest of an object, which identifies the fatbin inside it."""

CHECKED = "checked"
"""Output of a step that only checks its input and writes no file. It is empty."""


class NotUnderstood(Exception):
    """A dry run is not of the known form; the message names the difference."""


class StepKind(Enum):
    """A step's program, and its name in events and in the history."""

    PREPROCESS = "preprocess"
    HEADERS = "host headers"
    """Not a step of nvcc: the headers that the host compile reads under its own flags."""
    CUDAFE = "cudafe++"
    CICC = "cicc"
    PTXAS = "ptxas"
    FATBINARY = "fatbinary"
    FRAME = "fatbin frame"
    """Not a step of nvcc: a fatbin with other content, so that the host compile need not wait for ptxas."""
    DEVICE = "device compile"
    """A step of clang for one AMD architecture."""
    DEVICE_LINK = "device link"
    BUNDLE = "bundle"
    """clang's counterpart of fatbinary."""
    HOST = "host compile"


OWN_KINDS = (StepKind.HEADERS.value, StepKind.FRAME.value)
"""Kinds of steps that nvcc does not have: what they print is not part of nvcc's output."""


PLACEHOLDER = r"/buildd_root_([+\w-]+?)_(?=\W|$)"
"""Pattern of what `placeholder` returns."""


def placeholder(name: str) -> str:
    """Return the placeholder of a root's folder in the command line of a dry run, and therefore in its output."""
    return f"/buildd_root_{name}_"
