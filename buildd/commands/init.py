"""`buildd init`: writes a buildd.toml for the CUDA, HIP and C++ sources of a folder.

Reads sources for their includes and for main(); runs no compiler and knows no build system's files.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from buildd.client.request import PROJECT_FILE
from buildd.exits import OK
from buildd.files.atomic_write import replace_file
from buildd.ui.problems import parser
from buildd.ui.text import count
from codegen.errors import RequestError

CUDA, HIP, HOST = (".cu",), (".hip",), (".cpp", ".cc", ".cxx")
_HEADERS = (".h", ".hh", ".hpp", ".hxx", ".cuh", ".inl")
_SKIPPED = frozenset({"build", "node_modules", "__pycache__", "site-packages"})
_MARKS = frozenset({"pyvenv.cfg", "CMakeCache.txt"})
"""A folder with such a file holds no sources of the project."""
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">]', re.MULTILINE)
_MAIN = re.compile(r"^[ \t]*(?:extern[ \t]+\"C\"[ \t]+)?(?:int|auto)[ \t\n]+main[ \t]*\(", re.MULTILINE)
_LIBRARIES = {
    "cublas_v2.h": "cublas",
    "cublasLt.h": "cublasLt",
    "cudnn.h": "cudnn",
    "cufft.h": "cufft",
    "curand.h": "curand",
    "cusolverDn.h": "cusolver",
    "cusparse.h": "cusparse",
    "hipblas/hipblas.h": "hipblas",
    "nccl.h": "nccl",
    "rocblas/rocblas.h": "rocblas",
}
_CUDA_HEADERS = frozenset({"cuda.h", "cuda_runtime.h", "cuda_runtime_api.h"})
_OWN_KINDS = {
    "torch/extension.h": 'it includes torch: write a target of kind "extension"',
    "pybind11/pybind11.h": "it includes pybind11: give its folder with `include`",
}
_ARCHS = {"cuda": ["sm_80"], "hip": ["gfx90a"]}
"""Where neither an option nor this machine says which."""
_GUESSED = "# a guess: the GPU that will run it is not known"
_NO_UNDEFINED = {
    kind: f'# link_flags = ["{flag}"]    # then a link with undefined symbols fails'
    for kind, flag in (("cuda", "-Xlinker=-z,defs"), ("hip", "-Wl,-z,defs"))
}
_MOST_BYTES = 4 << 20


class SourceText(NamedTuple):
    """A file, and what it asks for."""

    path: str
    """Relative to the project, with slashes."""
    includes: tuple[tuple[str, str], ...]
    """(`"` or `<`, name)"""
    has_main: bool


class SortedSources(NamedTuple):
    """The sources of a folder, sorted out."""

    sources: tuple[str, ...]
    """All of them."""
    library: tuple[str, ...]
    programs: tuple[str, ...]
    include: tuple[str, ...]
    libraries: tuple[str, ...]
    left_out: Mapping[str, str]
    """SourceText -> the reason."""
    hip: frozenset[str] = frozenset()
    """The sources that hipcc compiles: by their ending, or because they include HIP's headers and not CUDA's."""


def run(arguments: list[str]) -> int:
    """Carry out `buildd init`; returns the exit status."""
    command = parser("init", f"Write a {PROJECT_FILE} for the CUDA, HIP and C++ sources of a folder.")
    command.add_argument("-C", "--directory", metavar="DIR", default="", help="the folder (default: this one)")
    command.add_argument("--arch", metavar="A", action="append", default=[], help="architectures, as in sm_90a,gfx90a")
    options = command.parse_args(arguments)
    folder = Path(os.path.abspath(options.directory or "."))
    place = folder / PROJECT_FILE
    if not folder.is_dir():
        raise RequestError("bad-project", f"no folder {folder}", next_step="check the argument of -C")
    if os.path.lexists(place):
        raise RequestError(
            "bad-project",
            f"there is a {PROJECT_FILE} already",
            file=str(place),
            next_step="edit it, or remove it first",
        )
    files = sources_in(folder)
    found = sort_out(files, folder)
    if not found.library and not found.programs:
        headers_alone = bool(files) and not found.sources
        raise RequestError(
            "missing-source",
            f"only headers below {folder}, such as {next(iter(files))}: nothing there is compiled by itself"
            if headers_alone
            else f"no CUDA, HIP or C++ source that can be compiled below {folder}",
            next_step="write a source that includes them, such as test.cu, and run buildd init again"
            if headers_alone
            else f"write the {PROJECT_FILE} by hand: a table [target.NAME] with kind, sources and arch",
        )
    archs = [arch for given in options.arch for arch in re.split(r"[,;\s]+", given) if arch]
    archs = archs or list(_here())
    text, targets = project_text(folder.name, found, archs, build_dir=_build_dir(folder))
    replace_file(place, text.encode())
    print(f"wrote {place}, with {count(len(targets), 'target')}: {', '.join(targets)}")
    if _GUESSED in text:
        print("  no GPU here: the architectures are a guess; change them, or remove the file and give --arch")
    for path, why in found.left_out.items():
        print(f"  left out {path}: {why}")
    if found.left_out:
        print(f"  to add one, write it into `sources` in {PROJECT_FILE}, and the folders of its headers into `include`")
    print("next: buildd build, or buildd watch, which builds on every save")
    return OK


def _here() -> tuple[str, ...]:
    """The architecture of this machine's first NVIDIA GPU."""
    from buildd.profiling.gpus import find_gpus

    gpus, _ = find_gpus(os.environ)
    return tuple(f"sm_{gpu.capability.replace('.', '')}" for gpu in gpus[:1])


def sources_in(folder: Path) -> dict[str, SourceText]:
    """The sources and headers below a folder."""
    found: dict[str, SourceText] = {}
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _SKIPPED
            and _MARKS.isdisjoint(os.listdir(os.path.join(place, name)))
        )
        for name in sorted(files):
            path = os.path.join(place, name)
            if name.endswith((*CUDA, *HIP, *HOST, *_HEADERS)) and os.path.getsize(path) <= _MOST_BYTES:
                with open(path, encoding="utf-8", errors="replace") as file:
                    text = file.read()
                relative = PurePosixPath(os.path.relpath(path, folder)).as_posix()
                found[relative] = SourceText(relative, tuple(_INCLUDE.findall(text)), bool(_MAIN.search(text)))
    return found


def sort_out(files: Mapping[str, SourceText], root: Path) -> SortedSources:
    """Tell libraries' sources, programs and include folders apart.

    Args:
        root: the folder that the files are below. What they include by a way out of it needs only to be there.
    """
    by_name = defaultdict(list)
    for path in files:
        by_name[PurePosixPath(path).name].append(path)
    sources = [path for path in files if path.endswith((*CUDA, *HIP, *HOST))]
    include: dict[str, None] = {}
    included: set[str] = set()
    asked: set[str] = set()
    left_out: dict[str, str] = {}
    hip: set[str] = set()
    for path in sources:
        missing, why = "", ""
        own: dict[str, None] = {}
        reached = [path]
        names: set[str] = set()
        for one in reached:  # grows while it is walked
            for quote, name in files[one].includes:
                names.add(name)
                hit, folder = _resolved(one, quote, name, files, by_name)
                if hit:
                    own.update({folder: None} if folder else {})
                    reached += [] if hit in reached else [hit]
                elif quote == '"' and not (root / os.path.dirname(one) / name).is_file():
                    missing = missing or name
                why = why or _OWN_KINDS.get(name, "")
        if why or missing:
            left_out[path] = why or f'it includes "{missing}", which is not below this folder'
            continue
        include.update(own)
        included.update(reached[1:])
        asked |= names
        for_hip = any(name.startswith("hip/") for name in names) and names.isdisjoint(_CUDA_HEADERS)
        hip |= {path} if path.endswith(HIP) or (path.endswith(CUDA) and for_hip) else set()
    compiled = [path for path in sources if path not in left_out and path not in included]
    return SortedSources(
        sources=tuple(sources),
        library=tuple(path for path in compiled if not files[path].has_main),
        programs=tuple(path for path in compiled if files[path].has_main),
        include=tuple(include),
        libraries=tuple(sorted({library for name, library in _LIBRARIES.items() if name in asked})),
        left_out=left_out,
        hip=frozenset(hip),
    )


def _resolved(
    path: str, quote: str, name: str, files: Mapping[str, SourceText], by_name: Mapping[str, list[str]]
) -> tuple[str, str]:
    """(the file below the project that an include names, the include folder that it needs); both empty if none is."""
    beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
    if quote == '"' and beside in files:
        return beside, ""
    ending = f"/{os.path.normpath(name)}"
    fitting = sorted((one for one in by_name[PurePosixPath(name).name] if f"/{one}".endswith(ending)), key=len)
    return (fitting[0], f"/{fitting[0]}"[: -len(ending)].lstrip("/") or ".") if fitting else ("", "")


def _build_dir(folder: Path) -> str:
    """Another folder than `build` if another tool builds there; empty for the default."""
    theirs = any((folder / "build" / name).exists() for name in ("CMakeCache.txt", "build.ninja", "Makefile"))
    return "build-buildd" if theirs else ""


def project_text(
    name: str, found: SortedSources, archs: Iterable[str], *, build_dir: str = ""
) -> tuple[str, list[str]]:
    """The text of the project file, and the names of its targets."""
    own = re.sub(r"[^\w-]+", "-", name).strip("-") or "project"
    compiled = found.library + found.programs
    is_cuda = found.hip.isdisjoint(compiled) or any(path.endswith(CUDA) and path not in found.hip for path in compiled)
    place = f"build_dir = {_text(build_dir)}    # another tool builds in build/\n" if build_dir else ""
    keys = "# Written by `buildd init`. For a key that it does not know, `buildd build` lists the keys of the kind.\n"
    blocks = [f"{keys}[project]\nname = {_text(own)}\n{place}"]
    names: list[str] = []

    def add(target: str, sources: Iterable[str], kind: str, more: Iterable[str] = ()) -> None:
        while target in names:
            target += "-program"
        names.append(target)
        suited = [arch for arch in archs if arch.startswith("gfx") == (kind == "hip")]
        guessed = "" if suited else f"    {_GUESSED}"
        lines = [f"[target.{target}]", f'kind = "{kind}"', f"sources = {_list(sources)}", *more]
        lines += [f"include = {_list(found.include)}"] if found.include else []
        lines += [f"libraries = {_list(found.libraries)}"] if found.libraries else []
        lines += ['flags = ["-O3"]', f"arch = {_list(suited or _ARCHS[kind])}{guessed}"]
        lines += [] if any(line.startswith("output") for line in more) else [_NO_UNDEFINED[kind]]
        blocks.append("\n".join([*lines, ""]))

    groups = {
        "cuda": [path for path in found.library if is_cuda and path not in found.hip],
        "hip": [path for path in found.library if not is_cuda or path in found.hip],
    }
    libraries: dict[str, str] = {}
    for kind, group in groups.items():
        if group:
            add(own if kind == "cuda" or not groups["cuda"] else f"{own}-hip", _patterns(group, found), kind)
            libraries[kind] = names[-1]
    for path in found.programs:
        kind = "hip" if path in found.hip or not is_cuda else "cuda"
        more = ['output = "executable"', *([f"deps = {_list([libraries[kind]])}"] if kind in libraries else [])]
        add(re.sub(r"[^\w-]+", "-", PurePosixPath(path).stem), [path], kind, more)
    return "\n".join(blocks), names


def _patterns(group: Iterable[str], found: SortedSources) -> Iterator[str]:
    """The files, as globs where a folder's files of one ending are all among them."""
    members = frozenset(group)
    others = (PurePosixPath(path) for path in found.sources if path not in members)
    apart = {(str(path.parent), path.suffix) for path in others}
    seen: set[tuple[str, str]] = set()
    for path in sorted(members):
        place = (str(PurePosixPath(path).parent), PurePosixPath(path).suffix)
        if place in apart:
            yield path
        elif place not in seen:
            seen.add(place)
            yield f"{place[0]}/*{place[1]}".removeprefix("./")


def _list(words: Iterable[str]) -> str:
    return f"[{', '.join(map(_text, words))}]"


def _text(word: str) -> str:
    import json

    return json.dumps(word, ensure_ascii=False)
