"""XLA's timings of a GPU: between files of kind `jax` (NAME.autotune) and rows of the profiles.

A row is one of the files that XLA keeps for a fusion; `note` has its bytes. buildd does not read them: only XLA knows
their form, which differs between versions. So a row has no time, and no plan chooses by it.
"""

from __future__ import annotations

import base64
import io
import json
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import msgspec
from blake3 import blake3

from buildd.errors import StoreError
from buildd.files.atomic_write import replace_file
from buildd.store.profiles import Outcome, Profile
from codegen.gemm.best_kernels import Setting

ABOUT = "about.json"
"""The part of a file that says for which GPU and versions its timings are; jax_worker.py writes it."""
_PROBLEM = "xla "
_LIBRARY = "XLA of jaxlib "
_MOST_BYTES = 1 << 20


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Where timings were made."""

    device_kind: str
    platform_version: str
    jaxlib: str


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """How many timings a file has, for people."""

    gpu: str
    jaxlib: str
    timings: int


def read(file: Path) -> list[Profile]:
    """Return the rows of a file of timings.

    Raises:
        StoreError: it is missing, or no such file.
    """
    now_ns = time.time_ns()
    try:
        with zipfile.ZipFile(file) as stream:
            about = msgspec.json.decode(stream.read(ABOUT), type=About)
            setting = Setting(
                gpu=about.device_kind,
                driver="",
                toolkit=about.platform_version.splitlines()[-1] if about.platform_version else "",
                library=_LIBRARY + about.jaxlib,
                flags="",
            )
            rows = [_row(setting, part, stream, now_ns) for part in stream.infolist() if part.filename != ABOUT]
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise StoreError(
            f"these are no timings of XLA: {error}",
            file=str(file),
            next_step="name the NAME.autotune that `buildd build` made on a machine with the GPU",
        ) from error
    if not rows:
        raise StoreError(
            "there are no timings in it", file=str(file), next_step="XLA tunes no kernel of this function: leave it out"
        )
    return rows


def _row(setting: Setting, part: zipfile.ZipInfo, stream: zipfile.ZipFile, now_ns: int) -> Profile:
    """Raises ValueError."""
    name = PurePosixPath(part.filename)
    if name.is_absolute() or ".." in name.parts or str(name) != part.filename:
        raise ValueError(f"{part.filename} is outside of it")
    if part.file_size > _MOST_BYTES:
        raise ValueError(f"{part.filename} is too large")
    content = stream.read(part)
    return Profile(
        setting=setting,
        problem=_PROBLEM + part.filename,
        candidate=blake3(content).hexdigest()[:16],
        outcome=Outcome.KEPT,
        measured_ns=now_ns,
        note=base64.b64encode(content).decode(),
    )


def figures(profiles: list[Profile]) -> Timings:
    """Count rows that `read` has returned."""
    setting = profiles[0].setting
    return Timings(gpu=setting.gpu, jaxlib=setting.library.removeprefix(_LIBRARY), timings=len(profiles))


def write(profiles: Iterable[Profile], gpu: str, file: Path) -> Timings:
    """Write all timings of a GPU as a file for `autotune`: of several results for a fusion the newest.

    Args:
        profiles: all rows; those that are not XLA's are left out.
        gpu: the GPU's name or a part of it, and perhaps jaxlib's version; "" if there are timings of one GPU only.

    Raises:
        StoreError: there are no such timings, or those of several GPUs or versions.
    """
    newest: dict[Setting, dict[str, Profile]] = {}
    words = gpu.lower().split()
    for row in profiles:
        title = _title(row.setting)
        if row.problem.startswith(_PROBLEM) and all(word in title.lower() for word in words):
            found = newest.setdefault(row.setting, {})
            if row.problem not in found or found[row.problem].measured_ns <= row.measured_ns:
                found[row.problem] = row
    if len(newest) != 1:
        several = "; ".join(sorted(map(_title, newest)))
        raise StoreError(
            f"there are timings of several GPUs or versions: {several}" if several else "there are no such timings",
            file=str(file),
            next_step="name one with --gpu" if several else "import some first: `buildd cache import --xla FILE`",
        )
    ((setting, rows),) = newest.items()
    jaxlib = setting.library.removeprefix(_LIBRARY)
    about = {"device_kind": setting.gpu, "jaxlib": jaxlib, "platform_version": setting.toolkit}
    parts = {ABOUT: json.dumps(about, sort_keys=True).encode()}
    parts |= {problem.removeprefix(_PROBLEM): base64.b64decode(row.note) for problem, row in sorted(rows.items())}
    _pack(file, parts)
    return Timings(gpu=setting.gpu, jaxlib=jaxlib, timings=len(rows))


def _title(setting: Setting) -> str:
    return f"{setting.gpu}, {setting.library}, {setting.toolkit}"


def _pack(file: Path, parts: dict[str, bytes]) -> None:
    """Write a zip file that depends on its content only: it is part of a key."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as stream:
        for name, content in parts.items():
            stream.writestr(zipfile.ZipInfo(name), content, compress_type=zipfile.ZIP_DEFLATED, compresslevel=1)
    replace_file(file, packed.getvalue())
