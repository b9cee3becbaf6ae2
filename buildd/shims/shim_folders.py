"""Folders of shims: the C program under the compilers' names, in the layout of the toolkit that it replaces.

Knows no build. A place is permanent, and lies outside the store, which may be removed at any time: paths that torch and
CMake record still work tomorrow, with or without a daemon. All names are links to one program, which finds its tool by
its own path (launcher.c), may have the answer already (answer.c), and starts a daemon if there is none (start.c).
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from buildd.errors import BuilddError
from buildd.native import bare_text
from buildd.native.programs import (
    NATIVE,
    NoProgram,
    check_owner,
    compile_program,
    find_compilers,
    is_sound,
    place_of,
    put,
)
from buildd.shims import interposition
from buildd.shims.interposition import LAUNCHER
from buildd.store import ownership
from buildd.store.location import usual_place
from codegen.foreign.called_tool import MARK, sent_variables, without_shims
from codegen.foreign.command_line import TOOLS
from protocol.places import choose_base
from protocol.problem import message_and_step

PLACES = "launchers"
"""Folder of all places of shims, in the permanent folder."""
FORMER_PLACES = "toolkits"
"""Folder in a store where they were once, and may still be called."""
BUILDERS = ("make", "gmake", "ninja")
"""Build tools; they have shims to learn of a jobserver."""
CONFIGURER = "cmake"
"""Under this name the program lets cmake find the compilers behind the shims (configure.c)."""
TREES = "trees"
"""File in the permanent folder: trees that cmake configured with a launcher, one a line, some more than once."""
_SOURCES = (
    *(
        Path(__file__).with_name(name)
        for name in (
            "launcher.c",
            "answer.c",
            "command.c",
            "configure.c",
            "content.c",
            "digest.c",
            "endpoint.c",
            "folders.c",
            "host.c",
            "message.c",
            "program_name.c",
            "question.c",
            "remote.c",
            "rule.c",
            "several.c",
            "start.c",
            "wrapper.c",
            "program_name.h",
            "shim.h",
        )
    ),
    *bare_text.SOURCES,
)
_PROGRAM = tuple(source for source in _SOURCES if source.suffix == ".c")
START = "start"
"""File that says how shims start a daemon; every folder of shims has a link to it in `MARK`."""
PLACE = "place"
"""File in `MARK` that names the store and the runtime folder of the shims beside it, where they are not the usual ones:
what calls the shims may have none of buildd's variables."""
START_ARGUMENTS = ("-P", "-m", "buildd", "up")
"""Arguments of the interpreter. -P: a folder `codegen` in the current folder must not be taken for buildd's."""
_TOOLKIT_PROGRAMS = (
    "nvcc.profile",
    *("bin2c", "crt", "cu++filt", "cudafe++", "cuobjdump", "fatbinary", "nvdisasm", "nvlink", "nvprune", "ptxas"),
    *("compute-sanitizer", "cuda-gdb", "__nvcc_device_query"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """A folder of shims in the layout of a toolkit."""

    root: Path
    tools: Mapping[str, str]
    """Name -> the tool that its shim replaces."""

    @property
    def programs(self) -> Path:
        return self.root / "bin"


def find_tools(environ: Mapping[str, str]) -> dict[str, str]:
    """The compilers of this environment: name -> the first one on its PATH, and nvcc of CUDA_HOME."""
    path = without_shims(environ.get("PATH", os.defpath))
    found = {name: os.path.abspath(place) for name in TOOLS if (place := shutil.which(name, path=path))}
    for name in ("CUDA_HOME", "CUDA_PATH"):
        place = os.path.join(environ.get(name, ""), "bin", "nvcc")
        if os.path.isabs(place) and os.access(place, os.X_OK) and "nvcc" not in found:
            found["nvcc"] = place
    return found


def program(store: Path, path: str) -> Path:
    """The C program; compiled if it is missing or damaged.

    Args:
        store: the program is kept there.
        path: where to search for the host compiler, as $PATH.

    Raises: BuilddError.
    """
    ownership.check(store)
    names = f'-DNAMES="{",".join(sent_variables())}"'
    folder = store / NATIVE
    why = ""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        message, next_step = message_and_step(error)
        next_step = f"{next_step}, or name another folder in BUILDD_DIR" if next_step else "name another in BUILDD_DIR"
        raise BuilddError(f"cannot make the store: {message}", next_step=next_step) from error
    try:
        check_owner(os.stat(folder))
        # Statically linked it starts in half the time; not every machine has the static libraries.
        for compiler in find_compilers(path):
            for flags in (("-O2", "-static", names), ("-O2", names)):
                place = place_of(folder, _SOURCES, flags, compiler, ".launcher")
                if place.exists():
                    check_owner(os.lstat(place))
                failure = "" if is_sound(place) else compile_program(compiler, flags, _PROGRAM, place)
                if not failure:
                    return place
            why = why or failure
    except OSError as error:
        message, next_step = message_and_step(error)
        raise BuilddError(f"cannot make the shim: {message}", next_step=next_step) from error
    except (NoProgram, subprocess.SubprocessError) as error:
        why = str(error)
    if os.strerror(errno.ENOSPC) in why:
        raise BuilddError(f"cannot compile the shim: {why}", next_step=f"free some space on the disk of {folder}")
    raise BuilddError(f"cannot compile the shim: {why}", next_step="install a C compiler (Debian: apt install gcc)")


def permanent_folder(environ: Mapping[str, str], store: Path) -> Path:
    """The folder of all that must outlive the store; the store itself if this user has no other. Makes nothing.

    Args:
        environ: XDG_DATA_HOME and HOME are read.
    """
    home, data = environ.get("HOME", ""), environ.get("XDG_DATA_HOME", "")
    base = data if os.path.isabs(data) else os.path.join(home, ".local", "share")
    if not os.path.isabs(base):
        return store
    folder = Path(base, "buildd")
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    # Without a home, as some users of services are, nobody may write to "/".
    return folder if os.access(existing, os.W_OK) and existing != Path("/") else store


def toolkit(store: Path, environ: Mapping[str, str]) -> Place:
    """Make or complete the permanent place of shims for the compilers of this environment.

    Raises: BuilddError, OSError.
    """
    path = environ.get("PATH", os.defpath)
    tools = find_tools(environ)
    if cmake := shutil.which(CONFIGURER, path=without_shims(path)):
        tools[CONFIGURER] = os.path.abspath(cmake)
    binary = program(store, path)
    place = stand_for(store, tools, environ, binary)
    _put(binary, place.programs / LAUNCHER)
    interpose = interposition.library(store, path)
    if interpose is not None:
        _put(interpose, place.programs / interposition.LIBRARY)
    if "nvcc" in place.tools:
        _shape(Path(place.tools["nvcc"]).parents[1], place)
    return place


def stand_for(store: Path, tools: Mapping[str, str], environ: Mapping[str, str], binary: Path | None = None) -> Place:
    """Make or complete the permanent place of shims for these tools.

    Args:
        tools: name -> absolute path.
        binary: the C program, if it has just been found.

    Raises: BuilddError, OSError.
    """
    binary = binary or program(store, environ.get("PATH", os.defpath))
    permanent = permanent_folder(environ, store)
    unusual = _unusual_places(store, environ)
    about = f"{sorted(tools.items())!r}{unusual}"
    name = blake3(about.encode(errors="surrogateescape")).hexdigest()[:16]
    place = Place(permanent / PLACES / name, tools)
    (place.programs / MARK).mkdir(parents=True, exist_ok=True)
    _tell_of_start(permanent, place.programs)
    _tell_of_places(unusual, place.programs)
    for tool, real in tools.items():
        _link(real, place.programs / MARK / tool)
        _put(binary, place.programs / tool)
    return place


def mark_tools(folder: Path, tools: Mapping[str, str]) -> None:
    """Note the tools that calls by their path may be helped with, in a folder of shims."""
    for name, real in tools.items():
        _link(real, folder / MARK / name)


def _shape(real: Path, place: Place) -> None:
    """Link everything beside bin/ from the real toolkit, so that CUDA_HOME and the like may name this place."""
    for entry in os.scandir(real):
        if entry.name != "bin":
            _link(entry.path, place.root / entry.name)
    if not (real / "lib64").exists() and (real / "lib").is_dir():
        _link(str(real / "lib"), place.root / "lib64")
    for name in _TOOLKIT_PROGRAMS:
        if (real / "bin" / name).exists():
            _link(str(real / "bin" / name), place.programs / name)


def _tell_of_start(permanent: Path, folder: Path) -> None:
    """Have the shims of a folder start a daemon of this code, until `permanent` is removed."""
    words = "".join(f"{word}\n" for word in (sys.executable, *START_ARGUMENTS))
    place = permanent / START
    try:
        known = place.read_text(errors="surrogateescape")
    except OSError:
        known = ""
    if known != words:
        permanent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_private(place, words)
    _link(str(place), folder / MARK / START)


def _unusual_places(store: Path, environ: Mapping[str, str]) -> str:
    """The lines of `PLACE`: the variables without which shims would find another store or daemon."""
    usual = {name: value for name, value in environ.items() if name not in ("BUILDD_DIR", "BUILDD_RUNTIME_DIR")}
    lines = []
    if str(store) != usual_place(usual):
        lines.append(f"BUILDD_DIR={store}\n")
    runtime = environ.get("BUILDD_RUNTIME_DIR", "")
    if runtime and Path(runtime) != choose_base(usual):
        lines.append(f"BUILDD_RUNTIME_DIR={runtime}\n")
    return "" if any("\n" in line[:-1] for line in lines) else "".join(lines)


def _tell_of_places(lines: str, folder: Path) -> None:
    """Have the shims of a folder know these variables, whatever calls them."""
    place = folder / MARK / PLACE
    try:
        known = place.read_text(errors="surrogateescape")
    except OSError:
        known = ""
    if known == lines:
        return
    if lines:
        _write_private(place, lines)
    else:
        place.unlink()


def install(folder: Path, store: Path, environ: Mapping[str, str]) -> list[str]:
    """Put shims of this environment's compilers into a folder of the user's, for good; returns their names.

    Each replaces the next program of its name on PATH.

    Raises: BuilddError if something else has one of the names; OSError.
    """
    path = environ.get("PATH", os.defpath)
    binary = program(store, path)
    names = [*find_tools(environ), CONFIGURER, LAUNCHER]
    ours = (folder / MARK).is_dir()
    for name in names:
        if not ours and os.path.lexists(folder / name):
            raise BuilddError(
                f"{folder / name} exists and is not a shim",
                file=str(folder / name),
                next_step="name another folder",
            )
    (folder / MARK).mkdir(parents=True, exist_ok=True)
    _tell_of_start(permanent_folder(environ, store), folder)
    _tell_of_places(_unusual_places(store, environ), folder)
    for name in names:
        _put(binary, folder / name)
    # Shims look through wrappers with it.
    interpose = interposition.library(store, path)
    if interpose is not None:
        _put(interpose, folder / interposition.LIBRARY)
    return names


def programs(store: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """All of buildd's own programs and libraries: in the store, in the permanent folder and on PATH."""
    path = environ.get("PATH", os.defpath)
    ours = [Path(folder) for folder in path.split(os.pathsep) if os.path.isdir(os.path.join(folder, MARK))]
    places = [place for place in (store / NATIVE).glob("*") if not place.name.startswith(".")]
    made = permanent_folder(environ, store).glob(f"{PLACES}/*/bin")
    for folder in dict.fromkeys((*made, *store.glob(f"{FORMER_PLACES}/*/bin"), *ours)):
        places += (folder / name for name in (*TOOLS, *BUILDERS, CONFIGURER, LAUNCHER, interposition.LIBRARY))
    yield from (place for place in dict.fromkeys(places) if os.path.lexists(place) and not place.is_symlink())


def verify(store: Path, environ: Mapping[str, str]) -> tuple[int, int]:
    """Check all of buildd's own programs; returns their number and how many were damaged.

    Damaged shims are made again, or removed if there is no compiler. Damaged libraries are removed; the next user makes
    them again.
    """
    path = environ.get("PATH", os.defpath)
    found = list(programs(store, environ))
    damaged = [place for place in found if not is_sound(place)]
    binary: Path | None = None
    with contextlib.suppress(BuilddError):
        binary = program(store, path) if damaged else None
    for place in damaged:
        with contextlib.suppress(OSError):
            if place.parent == store / NATIVE or place.name == interposition.LIBRARY:
                if place != binary:
                    place.unlink()
            elif binary is not None:
                _put(binary, place)
            else:
                place.unlink()
    return len(found), len(damaged)


def _write_private(place: Path, text: str) -> None:
    """Write a file that shims believe: it is this user's, and no one else may write it."""
    aside = place.with_name(f".{place.name}.{os.getpid()}")
    aside.write_text(text, errors="surrogateescape")
    aside.chmod(0o600)
    put(aside, place)


def _put(binary: Path, place: Path) -> None:
    """Give the program another name: a hard link, or a copy on another file system."""
    try:
        # Another store's program, if it is the same, stays: it may be running.
        if os.path.samefile(binary, place) or filecmp.cmp(binary, place, shallow=False):
            return
    except OSError:
        pass
    aside = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        os.link(binary, aside)
    except OSError:
        shutil.copy2(binary, aside)
        put(aside, place)
    else:
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
