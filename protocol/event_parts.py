"""What the bodies of `Event` are made of: diagnostics, outputs, kernels, steps, times. SPEC.md is the document.

Knows no event; `messages` exports these names too.
"""

from __future__ import annotations

from enum import Enum
from typing import NewType

import msgspec

Digest = NewType("Digest", str)
"""A BLAKE3 digest, 64 hexadecimal characters."""


class Severity(Enum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Diagnostic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finding of a compiler. `line` and `column` count from 1; 0 means unknown."""

    severity: Severity
    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    code: str = ""


class Timing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Time and memory that a job used."""

    wall_s: float = 0.0
    user_s: float = 0.0
    system_s: float = 0.0
    peak_rss_bytes: int = 0


class Output(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file that an action made. `path` is relative to the project unless absolute."""

    path: str
    digest: Digest
    size_bytes: int


class Kernel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Resource use of one kernel on one architecture, as its assembler reports it; -1 if unknown."""

    name: str
    """Mangled, as in the object file."""
    arch: str
    registers: int = -1
    shared_bytes: int = -1
    """Static shared memory (LDS on AMD GPUs)."""
    constant_bytes: int = -1
    """Constant memory, of all banks."""
    stack_bytes: int = -1
    spill_store_bytes: int = -1
    spill_load_bytes: int = -1
    scalar_registers: int = -1
    """SGPRs of AMD GPUs; `registers` are their VGPRs, `stack_bytes` their scratch memory."""
    spilled_registers: int = -1
    """On AMD GPUs: registers of both kinds."""
    max_threads: int = -1
    """Most threads of a block by its launch bounds; -1 also if it has none."""
    code: str = ""
    """Digest of its machine code; empty if unknown."""


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One compile step of a job."""

    name: str
    start_s: float
    """Seconds after the job's start."""
    wall_s: float = 0.0
    peak_rss_bytes: int = 0
    hit: bool = False
    """It did not run."""
    node: str = ""
    """Name of the machine of a cluster that it ran on; empty for the daemon's own."""


class FailureKind(Enum):
    COMPILE_ERROR = "compile_error"
    KILLED = "killed"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    TOOL_MISSING = "tool_missing"
    OUTPUT_MISSING = "output_missing"
    STORE = "store"
    """A disk is full or a folder is read-only: the tool itself did not fail."""
    INTERNAL = "internal"
