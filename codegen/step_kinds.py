"""What the steps of all compilers have in common: their kinds, and the names that stand in a template for what differs
from source to source.

Knows no compiler. Templates are `nvcc_steps`' and `hipcc_steps`'; `expansion` puts a source's own names into one.
"""

from __future__ import annotations

from enum import Enum

STEM = "buildd_source"
SOURCE = f"/buildd_probe/{STEM}"
"""Of the source that a dry run is asked about, without its extension."""
OBJECT = "/buildd_probe/object.o"
FOLDER = "buildd_probe.steps"
"""Of step files."""
MAIN = "buildd_main_file"
"""The source's bare name, as it gets into the object."""
UNIT = "b01dd0b01dd0b01d"
"""The name of a translation unit in its program, for `-cuid`."""
IMAGE = "buildd_frame.ptx"
"""What a `FRAME` holds. Its path is the same for all sources: they share the step."""
IMAGE_TEXT = b".version 8.0\n.target sm_80\n.address_size 64\n"
BUNDLE_FRAME = f"{FOLDER}/{STEM}.frame.hipfb"
"""The same for clang, which takes in any data: what its bundles begin with."""
BUNDLE_TEXT = b"__CLANG_OFFLOAD_BUNDLE__"
BUNDLE_TWIN = b"bundle"
USED = ".used"
"""Behind the fatbin's path: the twin of an object, which says what fatbin is in it."""


class NotUnderstood(Exception):
    """This dry run is not of the known shape; the message says what of it."""


class Kind(Enum):
    """A step's program, and what stands for it in events and in the history."""

    PREPROCESS = "preprocess"
    HEADERS = "host headers"
    """No step of nvcc's: what the headers that the host compile reads are, under its own flags."""
    CUDAFE = "cudafe++"
    CICC = "cicc"
    PTXAS = "ptxas"
    FATBINARY = "fatbinary"
    FRAME = "fatbin frame"
    """No step of nvcc's: a fatbin with something else in it, for the host compile, which waits for no ptxas."""
    DEVICE = "device compile"
    """clang's, for one AMD architecture."""
    DEVICE_LINK = "device link"
    BUNDLE = "bundle"
    """clang's fatbinary."""
    HOST = "host compile"


def placeholder(name: str) -> str:
    """Stands for the folder of a tool's root in the command line of a dry run, and so in what it prints."""
    return f"/buildd_root_{name}_"
