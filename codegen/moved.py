"""Folders that have another name each time, such as those that pip builds in: roots, so that keys do not hold them.

Knows their names and where a command line of gcc, clang or nvcc mentions them; no file. A root's folder is still part
of the key where its path reaches the output, unless the user turned mapping on: then the compiler is told to write the
root's name instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from codegen.flags import inspect
from codegen.parsing import Compile, Family, Makes
from codegen.plan import MAPPED, Argument, Place, Ref

MAP_PATHS = "BUILDD_MAP_PATHS"
"""Variable with the folder of a build whose paths are mapped away; empty: none are."""

# pip, build and uv: <temporary folder>/<kind>-<random>, below that perhaps <project>_<random>; Python's own; CMake's.
_TEMPORARY = re.compile(
    r"(/(?:[^/]+/)*?"
    r"(?:(?P<pip>pip-[a-z-]+|build-env|build-via-sdist)-(?P<pip_random>[a-z0-9_]{8})(?:/[^/]+_[0-9a-f]{32}(?=/|$))?"
    r"|(?P<uv>builds-v\d+)/\.tmp(?P<uv_random>[A-Za-z0-9]{6})"
    r"|(?P<python>tmp)(?P<python_random>[a-z0-9_]{8})"
    r"|CMakeScratch/(?P<cmake>TryCompile)-(?P<cmake_random>[A-Za-z0-9]{6}))"
    r"(?:/(?:[^/]+/)*?CMakeScratch/TryCompile-[A-Za-z0-9]{6}(?=/|$))?)(?=/|$)"
)
_TRIED = re.compile(r"\bcmTC_[0-9a-f]+\b")
"""What CMake calls the target of a try_compile: another name each time."""
_FOLDER = re.compile(
    r"((?:-I|-isystem|-iquote|-idirafter|-include|--include-path|--system-include)=?|)(/.*)", re.DOTALL
)
_DEBUG = re.compile(r"-g([0-3]|dwarf(-[2-5])?|gdb[0-3]?)?|-fdebug-prefix-map=.*")
_HOLDS = re.compile(r"-f(no-)?record-.*|-g(no-)?record-.*|-fplugin.*")
"""What such an object holds of the command line is not known."""
_PACKED = re.compile(r"(.*[=,])?-flto.*|-dlto|-lto")
"""What such an object holds cannot be seen. gcc's holds names of files as they are mapped."""

Roots = tuple[tuple[str, str], ...]
"""Name and folder of each."""


def roots_of(compile: Compile, folder: str, mapped: str, *, clang: bool = False) -> Roots:
    """The moving folders that a compile mentions, each under the name that it has in every build of this kind.

    Args:
        folder: where it is called.
        mapped: MAP_PATHS.
        clang: it is the compiler.
    """
    if compile.family is Family.HIPCC or any(_HOLDS.fullmatch(flag) for flag in compile.flags):
        return ()  # hipcc names modules after the source's absolute path
    if compile.makes is Makes.HEADER:
        return ()
    if compile.family is Family.NVCC and (compile.relocatable or compile.makes is Makes.LINKED):
        return ()  # of two folders with one name each object needs a module of its own: they may be linked together
    # Where a link leads to the folder the compiler may write either name.
    mark = MAPPED if os.path.isabs(mapped) and os.path.realpath(folder) == folder else ""
    packed = any(_PACKED.fullmatch(flag) for flag in compile.flags)
    if packed and (clang or not mark or compile.family is Family.NVCC):
        return ()
    found: dict[str, str] = {}
    for text in (*compile.arguments, folder):
        match = _FOLDER.fullmatch(text)
        root = _TEMPORARY.match(match[2]) if match else None
        if root and root[1] not in found.values():
            kind = next(kind for kind in (root["pip"], root["uv"], root["python"], root["cmake"]) if kind)
            found[f"{mark}{kind}{len(found) or ''}"] = root[1]
    if mark and os.path.realpath(mapped) == mapped != "/":
        found[f"{mark}build"] = mapped
    # One in another first: its paths are its own.
    return tuple(sorted(found.items(), key=lambda item: (-len(item[1]), item)))


def referring(texts: Iterable[str], roots: Roots) -> tuple[Argument, ...]:
    """Words of a command line, with references to roots."""
    found: list[Argument] = []
    for text in texts:
        match = _FOLDER.fullmatch(text)
        found.append(_reference(text, match[1], match[2], roots) if match else text)
    return tuple(found)


def mapping(family: Family, roots: Roots) -> tuple[Argument, ...]:
    """Flags that map roots away, where the user turned that on."""
    if not _are_mapped(roots):
        return ()
    option = "-Xcompiler=-ffile-prefix-map=" if family is Family.NVCC else "-ffile-prefix-map="
    # Of several that fit the compiler takes the last.
    return tuple(
        Ref(place=Place.ROOT, name=name, prefix=option, suffix=f"=/{name.removeprefix(MAPPED)}")
        for name, _ in reversed(roots)
    )


def named(path: str, roots: Roots) -> str:
    """A path as it is called in every build of this kind."""
    argument = _reference(path, "", path, roots)
    text = argument if isinstance(argument, str) else f"{{{argument.name}}}{argument.suffix}"
    return _TRIED.sub("cmTC", text) if roots else text


def is_below(path: str, roots: Roots) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for _, folder in roots)


def names_in(content: bytes, roots: Roots, *, lines: bool = False) -> set[str]:
    """The roots whose folder a file mentions, in whatever form: what is random in its name stands there.

    Args:
        lines: it is a preprocessed text, whose line markers do not count.
    """
    found = set()
    for name, folder in roots:
        match = _TEMPORARY.match(folder)
        random = match and next(filter(None, match.group("pip_random", "uv_random", "python_random", "cmake_random")))
        if random and _mentions(content, random.encode(), lines=lines):
            found.add(name)
    return found


def _mentions(content: bytes, word: bytes, *, lines: bool) -> bool:
    place = content.find(word)
    while lines and place >= 0 and content.startswith(b"#", content.rfind(b"\n", 0, place) + 1):
        place = content.find(word, max(place + 1, content.find(b"\n", place)))
    return place >= 0


def is_mapped(flags: Sequence[str], roots: Roots, folder: str) -> bool:
    """Whether mapping leaves no absolute path in the output: the folder is below a root, and only debug information
    would hold it."""
    rest = inspect(flag for flag in flags if not _DEBUG.fullmatch(flag))
    return is_below(folder, roots) and _are_mapped(roots) and not rest.path_sensitive


def _are_mapped(roots: Roots) -> bool:
    return any(name.startswith(MAPPED) for name, _ in roots)


def _reference(text: str, option: str, path: str, roots: Roots) -> Argument:
    for name, folder in roots:
        if path == folder or path.startswith(f"{folder}/"):
            return Ref(place=Place.ROOT, name=name, prefix=option, suffix=path[len(folder) :])
    return text


def listed(roots: Roots, paths: Iterable[str]) -> bytes:
    """Files that a tool has read, with the roots as they were; each string with a final NUL."""
    head = [part for root in roots for part in root]
    return b"".join(os.fsencode(part) + b"\0" for part in (*(("", *head, "") if head else ()), *paths))


def read(content: bytes, roots: Roots) -> tuple[list[str], list[tuple[bytes, bytes]]]:
    """What `listed` wrote, as it is called now; and for texts of then: what stands for what now.

    Args:
        roots: of now.
    """
    parts = [os.fsdecode(part) for part in content.split(b"\0")[:-1]]
    if not parts or parts[0]:
        return parts, []
    end = parts.index("", 1)
    now = dict(roots)
    before = list(zip(parts[1:end:2], parts[2:end:2], strict=True))
    moves = [(folder, now[name]) for name, folder in before if now.get(name, folder) != folder]
    paths = [_moved(path, moves) for path in parts[end + 1 :]]
    return paths, [(os.fsencode(old), os.fsencode(new)) for old, new in moves]


def _moved(path: str, moves: Iterable[tuple[str, str]]) -> str:
    for old, new in moves:
        if path == old or path.startswith(f"{old}/"):
            return new + path[len(old) :]
    return path
