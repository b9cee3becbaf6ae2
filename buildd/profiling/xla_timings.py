"""XLA's timings of a GPU: between files of kind `jax` (NAME.autotune), what JAX programs keep in the store
(`hooks.jax_timings`), and rows of the profiles.

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
from contextlib import suppress
from pathlib import Path, PurePosixPath

import msgspec
from blake3 import blake3

from buildd.errors import StoreError
from buildd.files.atomic_write import replace_file
from buildd.hooks import jax_timings
from buildd.store.profile_cache import ProfileCache
from buildd.store.profiles import Outcome, Profile
from codegen.gemm.best_kernels import Setting

ABOUT = "about.json"
"""The part of a file that says for which GPU and versions its timings are; jax_worker.py writes it."""
_PROBLEM = "xla "
_LIBRARY = "XLA of jaxlib "
_MOST_BYTES = 1 << 20
_UNFINISHED = "tmp"
"""XLA writes its files in a folder of this name before it renames them."""


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
            setting = _setting(stream.read(ABOUT))
            parts = [part for part in stream.infolist() if part.filename != ABOUT]
            if large := next((part.filename for part in parts if part.file_size > _MOST_BYTES), ""):
                raise ValueError(f"{large} is too large")
            rows = [_row(setting, part.filename, stream.read(part), now_ns) for part in parts]
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


def _setting(about: bytes) -> Setting:
    """Raises ValueError."""
    found = msgspec.json.decode(about, type=About)
    return Setting(
        gpu=found.device_kind,
        driver="",
        toolkit=found.platform_version.splitlines()[-1] if found.platform_version else "",
        library=_LIBRARY + found.jaxlib,
        flags="",
    )


def _row(setting: Setting, name: str, content: bytes, measured_ns: int) -> Profile:
    """Raises ValueError."""
    if not _is_inside(name):
        raise ValueError(f"{name} is outside of it")
    return Profile(
        setting=setting,
        problem=_PROBLEM + name,
        candidate=blake3(content).hexdigest()[:16],
        outcome=Outcome.KEPT,
        measured_ns=measured_ns,
        note=base64.b64encode(content).decode(),
    )


def _is_inside(name: str) -> bool:
    """Whether a name leads to a file below the folder that it is in."""
    path = PurePosixPath(name)
    return name.isprintable() and not path.is_absolute() and ".." not in path.parts and str(path) == name != "."


def take_in(store: Path, cache: ProfileCache) -> None:
    """Make rows of the timings that JAX programs keep in a store. Raises StoreError."""
    rows = []
    for about in sorted((store / jax_timings.FOLDER).glob(f"*{jax_timings.ABOUT}")):
        # What a killed process or a full disk left behind is no timing, and programs remove files.
        with suppress(OSError, ValueError):
            setting, kept = _setting(about.read_bytes()), about.with_suffix("")
            for path in sorted(kept.rglob("*")):
                name = path.relative_to(kept)
                with suppress(OSError, ValueError):
                    if path.is_file() and _UNFINISHED not in name.parts:
                        rows.append(_row(setting, str(name), path.read_bytes(), path.stat().st_mtime_ns))
    if rows:
        cache.save(rows, older=False)


def put_out(store: Path, rows: Iterable[Profile]) -> None:
    """Put timings of XLA where JAX programs find them, as far as that is possible; those that are there stay.

    Args:
        rows: of any kind and from any origin: a row of a bundle may have any name.
    """
    for row in rows:
        name = row.problem.removeprefix(_PROBLEM)
        if row.problem.startswith(_PROBLEM) and _is_inside(name):
            # XLA times again what it does not find.
            with suppress(OSError, ValueError):
                place = Path(jax_timings.made(str(store), _about(row.setting)), name)
                if not place.exists():
                    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    replace_file(place, base64.b64decode(row.note))


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
        is_xlas = row.problem.startswith(_PROBLEM) and _is_inside(row.problem.removeprefix(_PROBLEM))
        if is_xlas and all(word in title.lower() for word in words):
            found = newest.setdefault(row.setting, {})
            if row.problem not in found or found[row.problem].measured_ns <= row.measured_ns:
                found[row.problem] = row
    if len(newest) != 1:
        several = "; ".join(sorted(map(_title, newest)))
        raise StoreError(
            f"there are timings of several GPUs or versions: {several}" if several else "there are no such timings",
            file=str(file),
            next_step="name one with --gpu"
            if several
            else "run a JAX program below `buildd run` on the GPU, or import some: `buildd cache import --xla FILE`",
        )
    ((setting, rows),) = newest.items()
    about = _about(setting)
    parts = {ABOUT: json.dumps(about, sort_keys=True).encode()}
    parts |= {problem.removeprefix(_PROBLEM): base64.b64decode(row.note) for problem, row in sorted(rows.items())}
    _pack(file, parts)
    return Timings(gpu=setting.gpu, jaxlib=about["jaxlib"], timings=len(rows))


def _about(setting: Setting) -> dict[str, str]:
    jaxlib = setting.library.removeprefix(_LIBRARY)
    return {"device_kind": setting.gpu, "jaxlib": jaxlib, "platform_version": setting.toolkit}


def _title(setting: Setting) -> str:
    return f"{setting.gpu}, {setting.library}, {setting.toolkit}"


def _pack(file: Path, parts: dict[str, bytes]) -> None:
    """Write a zip file that depends on its content only: it is part of a key."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as stream:
        for name, content in parts.items():
            stream.writestr(zipfile.ZipInfo(name), content, compress_type=zipfile.ZIP_DEFLATED, compresslevel=1)
    replace_file(file, packed.getvalue())
