"""Folders of stand-ins: the C program under the names of the compilers, shaped as the toolkit that they stand for.

Knows no build. A place is permanent: what torch and CMake write down of it still works tomorrow, with or without a
daemon. All names are links to one program, which finds out by its own path what it stands for (launcher.c), and may
know the answer already (answer.c).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from buildd.errors import BuilddError
from buildd.native import NATIVE, Unusable, check_owner, compile_program, find_compiler, place_of
from codegen.commandline import TOOLS
from codegen.foreign import MARK, sent_variables, without_stand_ins

LAUNCHER = "buildd-cc"
"""The name under which the program takes the compiler as its first argument."""
_SOURCES = tuple(Path(__file__).with_name(name) for name in ("launcher.c", "answer.c", "content.c", "launcher.h"))
_TOOLKIT_PROGRAMS = (
    "nvcc.profile",
    *("bin2c", "crt", "cu++filt", "cudafe++", "cuobjdump", "fatbinary", "nvdisasm", "nvlink", "nvprune", "ptxas"),
    *("compute-sanitizer", "cuda-gdb", "__nvcc_device_query"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """A folder of stand-ins that has the shape of a toolkit."""

    root: Path
    tools: Mapping[str, str]
    """Name -> the tool that it stands for."""

    @property
    def programs(self) -> Path:
        return self.root / "bin"


def find_tools(environ: Mapping[str, str]) -> dict[str, str]:
    """The compilers that this environment has: what each name means on its PATH, and nvcc of CUDA_HOME."""
    path = without_stand_ins(environ.get("PATH", os.defpath))
    found = {name: os.path.abspath(place) for name in TOOLS if (place := shutil.which(name, path=path))}
    for name in ("CUDA_HOME", "CUDA_PATH"):
        place = os.path.join(environ.get(name, ""), "bin", "nvcc")
        if os.path.isabs(place) and os.access(place, os.X_OK) and "nvcc" not in found:
            found["nvcc"] = place
    return found


def program(store: Path, path: str) -> Path:
    """The C program, compiled if it is not there.

    Args:
        store: it is kept there.
        path: where the host compiler is searched for.

    Raises: BuilddError.
    """
    names = f'-DNAMES="{",".join(sent_variables())}"'
    folder = store / NATIVE
    why = ""
    try:
        compiler = find_compiler(path)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_owner(os.stat(folder))
        # Without shared libraries it starts in half the time; not every machine has the others.
        for flags in (("-O2", "-static", names), ("-O2", names)):
            place = place_of(folder, _SOURCES, flags, compiler, ".launcher")
            if place.exists():
                check_owner(os.lstat(place))
                return place
            why = compile_program(compiler, flags, _SOURCES[:-1], place)
            if not why:
                return place
    except (OSError, Unusable, subprocess.SubprocessError) as error:
        why = str(error)
    raise BuilddError(f"there is no stand-in: {why}", next_step="install a C compiler (Debian: apt install gcc)")


def toolkit(store: Path, environ: Mapping[str, str]) -> Place:
    """The permanent place of stand-ins for the compilers of this environment, made or completed.

    Raises: BuilddError, OSError.
    """
    place = stand_for(store, find_tools(environ), environ)
    _put(program(store, environ.get("PATH", os.defpath)), place.programs / LAUNCHER)
    if "nvcc" in place.tools:
        _shape(Path(place.tools["nvcc"]).parents[1], place)
    return place


def stand_for(store: Path, tools: Mapping[str, str], environ: Mapping[str, str]) -> Place:
    """The permanent place of stand-ins for these tools, made or completed.

    Args:
        tools: name -> absolute path.

    Raises: BuilddError, OSError.
    """
    binary = program(store, environ.get("PATH", os.defpath))
    name = blake3(repr(sorted(tools.items())).encode(errors="surrogateescape")).hexdigest()[:16]
    place = Place(store / "toolkits" / name, tools)
    (place.programs / MARK).mkdir(parents=True, exist_ok=True)
    for tool, real in tools.items():
        _link(real, place.programs / MARK / tool)
        _put(binary, place.programs / tool)
    return place


def _shape(real: Path, place: Place) -> None:
    """Beside bin/ everything that the real toolkit has, so that CUDA_HOME and the like may name this place."""
    for entry in os.scandir(real):
        if entry.name != "bin":
            _link(entry.path, place.root / entry.name)
    if not (real / "lib64").exists() and (real / "lib").is_dir():
        _link(str(real / "lib"), place.root / "lib64")
    for name in _TOOLKIT_PROGRAMS:
        if (real / "bin" / name).exists():
            _link(str(real / "bin" / name), place.programs / name)


def install(folder: Path, binary: Path, tools: Iterable[str]) -> list[str]:
    """Put stand-ins into a folder of the user's, for good; the names that are there now.

    Each stands for the next program of its name on PATH.

    Raises: BuilddError where something else has one of the names; OSError.
    """
    names = [*tools, LAUNCHER]
    ours = (folder / MARK).is_dir()
    for name in names:
        if not ours and os.path.lexists(folder / name):
            raise BuilddError(
                f"{folder / name} is there already and is no stand-in",
                file=str(folder / name),
                next_step="name another folder",
            )
    (folder / MARK).mkdir(parents=True, exist_ok=True)
    for name in names:
        _put(binary, folder / name)
    return names


def _put(binary: Path, place: Path) -> None:
    """The program under another name: a hard link, or a copy on another file system."""
    try:
        if os.path.samefile(binary, place):
            return
    except OSError:
        pass
    aside = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        os.link(binary, aside)
    except OSError:
        shutil.copy2(binary, aside)
    os.replace(aside, place)


def _link(target: str, place: Path) -> None:
    try:
        if os.readlink(place) == target:
            return
    except OSError:
        pass
    aside = place.with_name(f".{place.name}.{os.getpid()}")
    os.symlink(target, aside)
    os.replace(aside, place)
