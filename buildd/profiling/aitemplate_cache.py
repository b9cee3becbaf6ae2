"""Reads AITemplate's own profile database (cuda.db) and turns it into buildd's rows.

Knows the tables of version 3: a row names the kernel that won, but no GPU, toolkit or time. A kernel that buildd's
generator can make becomes a choice for it; every other row keeps AITemplate's own names, so that nothing is lost.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from buildd.errors import StoreError
from buildd.store.profiles import Outcome, Profile
from codegen.errors import RequestError
from codegen.gemm.best_kernels import Setting
from codegen.gemm.kernel_options import Candidate, problem_of
from codegen.gemm.spec import EPILOGUES, kernel_for
from codegen.project.target import GemmTarget

_TABLE = re.compile(r"cuda_(gemm|conv|conv3d)_\d+|cuda_normalization")
_ALGO = re.compile(r"cutlass_tensorop_(?:(f16|bf16)_)?([sh])\d+gemm(?:_(f16|bf16|tf32))?_(\d+)x(\d+)_(\d+)x(\d+)_.*")
_OPERATOR = re.compile(r"gemm_(rcr|rrr|ccr)((?:_[a-z]+)*)")
_SIZES = re.compile(r"([MNK]) == (\d+)")
_TYPES = {"f16": "fp16", "bf16": "bf16", "tf32": "tf32"}
_WORDS = {"swish": "silu", "fast_gelu": "gelu"}
_WARPS = {(256, 128): (4, 2, 1), (128, 256): (2, 4, 1), (256, 64): (4, 1, 1), (64, 256): (1, 4, 1)}


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """The number of rows in a database."""

    rows: int
    usable: int
    """Rows for kernels that buildd's generator can make."""


def read(file: Path) -> list[Profile]:
    """Read AITemplate's database. It may be in use.

    Raises: StoreError: the file is missing, or no such database.
    """
    if not file.is_file():
        raise StoreError(
            "AITemplate's profile database does not exist",
            file=str(file),
            next_step="AITemplate keeps ~/.aitemplate/cuda.db",
        )
    now_ns = time.time_ns()
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=10.0)) as opened:
            opened.row_factory = sqlite3.Row
            names = [row[0] for row in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            tables = [name for name in names if _TABLE.fullmatch(name)]
            if not tables:
                raise StoreError(
                    "this file is not a profile database of AITemplate",
                    file=str(file),
                    next_step="name the cuda.db in the folder that CACHE_DIR named",
                )
            # The last row of a key counts: the tables do not keep a key from being there twice.
            return [
                _profile(table, dict(row), now_ns)
                for table in tables
                for row in opened.execute(f'SELECT * FROM "{table}" ORDER BY id')
            ]
    except sqlite3.Error as error:
        raise StoreError(
            f"AITemplate's database cannot be read: {error}", file=str(file), next_step="check this file"
        ) from error


def figures(profiles: list[Profile]) -> Imported:
    """Count the rows."""
    return Imported(rows=len(profiles), usable=sum(profile.problem.startswith("gemm ") for profile in profiles))


def _profile(table: str, row: dict[str, Any], now_ns: int) -> Profile:
    candidate = _text(row, "algo")
    problem = " ".join((f"aitemplate {table}", *_described(row)))
    for target, arch, usable in _targets(row):
        with contextlib.suppress(RequestError):
            kernel_for(usable.of(target), arch)
            problem, candidate = problem_of(target, arch), usable.name
    device = _text(row, "device")
    return Profile(
        setting=Setting(gpu="", driver="", toolkit="", library="", flags="", capability=_capability(device)),
        problem=problem,
        candidate=candidate,
        outcome=Outcome.IMPORTED,
        workspace_bytes=max(0, row["workspace"]) if isinstance(row.get("workspace"), int) else 0,
        measured_ns=now_ns,
        note=f"{_text(row, 'algo')} split_k={row.get('split_k', 1)}",
    )


def _targets(row: dict[str, Any]) -> Iterator[tuple[GemmTarget, str, Candidate]]:
    """The row as a choice for buildd's generator; nothing if the generator cannot make that kernel."""
    algo, operator = _ALGO.fullmatch(_text(row, "algo")), _OPERATOR.fullmatch(_text(row, "op_type"))
    sizes = dict(_SIZES.findall(_text(row, "exec_entry")))
    device = _text(row, "device")
    if algo is None or operator is None or set(sizes) != set("MNK") or not device.isdecimal():
        return
    split = row.get("split_k")
    words = operator[2].strip("_")
    for theirs, ours in _WORDS.items():
        words = words.replace(theirs, ours)
    tile = (int(algo[4]), int(algo[5]), int(algo[6]))
    if (words or "none") not in EPILOGUES:
        return
    target = GemmTarget(
        name="imported",
        m=int(sizes["M"]),
        n=int(sizes["N"]),
        k=int(sizes["K"]),
        layout=operator[1],
        dtype=_TYPES[algo[3] or algo[1] or "f16"],
        accumulator="fp16" if algo[2] == "h" else "",
        epilogue=words or "none",
        # The row is for targets with this split: in buildd the project file sets it.
        split_k=split if isinstance(split, int) and split > 1 else 1,
    )
    candidate = Candidate(tile=tile, warps=_WARPS.get(tile[:2], (2, 2, 1)), stages=int(algo[7]))
    yield target, f"sm_{device}", candidate


def _described(row: dict[str, Any]) -> Iterator[str]:
    """Everything that AITemplate looks a row up by."""
    result = ("id", "algo", "workspace", "duration", "split_k", "created_at", "template_ver", "exec_entry_sha1")
    for name, value in row.items():
        if name not in result:
            yield f"{name}={value}"


def _text(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else "" if value is None else str(value)


def _capability(device: str) -> str:
    return f"{int(device) / 10:.1f}" if device.isdecimal() else ""
