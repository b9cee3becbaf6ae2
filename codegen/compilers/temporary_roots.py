"""Treats folders with random names, such as pip's build folders, as roots, so that keys do not contain their paths.

Knows the patterns of such names and where a command line of gcc, clang or nvcc mentions them; knows no file. If a
root's path reaches the output, its folder is still part of the key, unless the user turned mapping on: then the
compiler writes the root's name instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from codegen.compilers.command_parser import PARTS, Compile, Family, Makes
from codegen.flags import inspect
from codegen.plan import MAPPED, Argument, Place, Ref

MAP_PATHS = "BUILDD_MAP_PATHS"
"""Variable with the folder of a build whose paths are replaced in outputs; empty: only paths of folders that pip, uv,
build, scikit-build-core, meson-python, setuptools or Go made for one build are replaced."""
NOT_MAPPED = "no"
"""Value of MAP_PATHS with which no paths are replaced."""

BUILD = f"{MAPPED}build"
"""Name of the folder of a build whose paths are replaced."""
_INDUCTOR = f"{MAPPED}inductor"
"""Name of the folder of Inductor's cache (TORCHINDUCTOR_CACHE_DIR). Inductor compiles its C++ with -g1 and absolute
names, so that this path would be in each library."""
_INDUCTOR_HEADERS = f"{_INDUCTOR}-headers"
"""Name of the folder of Inductor's precompiled headers. It may lie in the cache's folder."""
SEARCHED_WHOLE = (BUILD, _INDUCTOR, _INDUCTOR_HEADERS)
"""Names of roots whose path has no random part: a file that mentions one contains the whole path."""

# pip, build and uv: <temporary folder>/<kind>-<random>, below that perhaps <project>_<random>; setuptools, for an
# editable installation: <temporary folder>/tmp<random>.<kind>; meson-python: <sources>/.mesonpy-<random>; Python's own;
# go's; CMake's. The last of meson-python and CMake may lie in one of the others.
_TEMPORARY = re.compile(
    r"(/(?:[^/]+/)*?"
    r"(?:(?P<pip>pip-[a-z-]+|build-env|build-via-sdist)-(?P<pip_random>[a-z0-9_]{8})(?:/[^/]+_[0-9a-f]{32}(?=/|$))?"
    r"|(?P<uv>builds-v\d+)/\.tmp(?P<uv_random>[A-Za-z0-9]{6})"
    r"|tmp(?P<setuptools_random>[a-z0-9_]{8})\.(?P<setuptools>build-(?:temp|lib))"
    r"|(?P<meson>\.mesonpy)-(?P<meson_random>[a-z0-9_]{8})"
    r"|(?P<python>tmp)(?P<python_random>[a-z0-9_]{8})"
    r"|(?P<go>go-build)(?P<go_random>[0-9]{6,10})"
    r"|CMakeScratch/(?P<cmake>TryCompile)-(?P<cmake_random>[A-Za-z0-9]{6}))"
    r"(?:/(?:[^/]+/)*?(?:CMakeScratch/TryCompile-[A-Za-z0-9]{6}|\.mesonpy-[a-z0-9_]{8})(?=/|$))?)(?=/|$)"
)
_FRONT_ENDS = ("pip", "uv", "setuptools", "meson", "go")
"""Groups of the pattern that match a folder which a front end removes after its build."""
_KINDS = (*_FRONT_ENDS, "python", "cmake")
_SCIKIT_BUILD, _OF_SCIKIT_BUILD = "scikit-build", "wheel/metadata"
"""Name of a folder of scikit-build-core, which has Python's name, and a folder that is in each of them."""
_INDUCTOR_SOURCE = re.compile(r"(/.+)/([a-z2-7]{2})/c\2[a-z2-7]{49}(?:\.[a-z]+)?\.cpp")
_INDUCTOR_HEADER = re.compile(r"(/.+)/c[a-z2-7]{51}\.h")
_PART = re.compile(rf"({re.escape(PARTS)}[0-9a-f]{{16}})/.*/(\d+)/[^/]+")
"""An object of a command that was divided (`codegen.foreign.several_sources`)."""
_COMMAND = "this command"
"""Name of the folder of a divided command's objects. People read it in explanations of misses."""
_TRIED = re.compile(r"\bcmTC_[0-9a-f]+\b")
"""CMake's random name for the target of a try_compile."""
_TARGET = re.compile(r".*/CMakeScratch/TryCompile-[A-Za-z0-9]{6}/CMakeFiles/cmTC_[0-9a-f]+\.dir(?=/)")
"""The folder of its objects."""
_FOLDER = re.compile(
    r"((?:-I|-isystem|-iquote|-idirafter|-include|--include-path|--system-include|-L)=?|"
    r"(?:-Xcompiler=?|--compiler-options=)?-f(?:file|debug|macro)-prefix-map=|)(/.*)",
    re.DOTALL,
)
PREFIX_MAP = "-prefix-map="
"""Its value is OLD=NEW."""
_DEBUG = re.compile(
    r"-g([0-3]|dwarf(-[2-5])?|gdb[0-3]?)?|-fdebug-prefix-map=.*|-{1,2}lineinfo|-{1,2}generate-line-info"
)
_HOLDS = re.compile(r"-frecord-.*|-grecord-.*|-fplugin.*|-Wmissing-include-dirs|-fmessage-length=0*[1-9].*")
"""Flags that put an unknown part of the command line into the object, one that warns of folders which no file is found
in, and one with which a path's length decides where messages break."""
_HIDES_IN_HIP = re.compile(
    r"--genco|--(cuda|offload)-device-only|-f(no-)?gpu-rdc|-fuse-cuid=.*|-{1,2}(no-)?offload-new-driver|-g.*|-f(profile|coverage|sanitize|offload-lto|lto).*"
)
PACKED = re.compile(r"(.*[=,])?-flto.*|-{1,2}lto|-dlto|--dlink-time-opt|(.*[=,\[])?lto_\d.*|-{1,2}optix-ir")
"""Flags that make the object's content unreadable: nvcc encrypts what it writes for a link or for OptiX. gcc's LTO
objects contain mapped file names, and the working folder."""

Roots = tuple[tuple[str, str], ...]
"""Name and folder of each root."""


def roots_of(compile: Compile, folder: str, mapped: str, *, clang: bool = False) -> Roots:
    """Return the temporary folders that a compile mentions, each under a name that is the same in every such build.

    Args:
        folder: the working folder of the compile.
        mapped: value of MAP_PATHS.
        clang: the compiler is clang.
    """
    if compile.objects:
        parts = {os.path.dirname(os.path.dirname(path)) for path in compile.objects if is_part(path)}
        return (*(((_COMMAND, parts.pop()),) if len(parts) == 1 else ()), *_tried_link(compile, folder))
    if compile.cuda or any(_HOLDS.fullmatch(flag) for flag in compile.flags):
        return ()
    if compile.family is Family.HIPCC and (compile.makes is not Makes.OBJECT or hides_folders(compile.flags)):
        return ()
    if compile.makes is Makes.HEADER:
        return ()
    nvcc = compile.family is Family.NVCC
    if nvcc and compile.makes is Makes.LINKED:
        return ()
    matches: dict[str, re.Match[str]] = {}
    for text in (*compile.arguments, folder):
        match = _FOLDER.fullmatch(text)
        if match and (root := _TEMPORARY.match(match[2])):
            matches.setdefault(root[1], root)
    scikit = [path for path, root in matches.items() if root["python"] and os.path.isdir(f"{path}/{_OF_SCIKIT_BUILD}")]
    front_ends = [path for path, root in matches.items() if path in scikit or any(root[kind] for kind in _FRONT_ENDS)]
    of_inductor = {} if mapped == NOT_MAPPED else _folders_of_inductor(compile)
    # A front end links the objects of one such folder, in which no two have one name, and so does CMake. Objects from
    # two other folders with one name need different module ids: they may be linked together.
    source = os.path.join(folder, compile.source)
    alone = [*front_ends, *(path for path, root in matches.items() if root["cmake"])]
    if nvcc and compile.relocatable and not any(source.startswith(f"{path}/") for path in alone):
        matches, front_ends = {}, []
    asked = os.path.isabs(mapped)
    if not (matches or of_inductor or asked):
        return ()
    # If a link leads to a folder, the compiler may write either name.
    real = all(os.path.realpath(path) == path for path in (folder, *matches, *of_inductor.values()))
    mark = MAPPED if real and (asked or of_inductor or (front_ends and mapped != NOT_MAPPED)) else ""
    packed = any(map(PACKED.fullmatch, compile.flags))
    if packed and (clang or not mark or nvcc):
        return ()
    found = dict(of_inductor) if mark else {}
    for path, root in matches.items():
        if path in found.values():
            continue
        kind = _SCIKIT_BUILD if mark and path in scikit else next(root[kind] for kind in _KINDS if root[kind])
        found[f"{mark}{kind}{len(found) or ''}"] = path
    if mark and asked and os.path.realpath(mapped) == mapped != "/":
        found[BUILD] = mapped
    # Nested folders first: their paths are not the outer folder's.
    return tuple(sorted(found.items(), key=lambda item: (-len(item[1]), item)))


def with_tried_objects(compile: Compile, folder: str) -> Compile:
    """Return a link by nvcc in the folder of a try_compile with the absolute names of its objects, which can refer to
    roots; any other compile unchanged."""
    if not (compile.objects and _tried_link(compile, folder)):
        return compile
    names = {path: os.path.join(folder, path) for path in compile.objects}
    return msgspec.structs.replace(
        compile,
        source=names[compile.source],
        objects=tuple(names.values()),
        arguments=tuple(names.get(word, word) for word in compile.arguments),
    )


def _tried_link(compile: Compile, folder: str) -> Roots:
    """Return the folders of a try_compile, and of its target's objects, if nvcc links in it. CMake removes both, and
    what is made there."""
    root = _TEMPORARY.fullmatch(folder)
    if compile.family is not Family.NVCC or root is None or root["cmake"] is None or ".." in compile.output:
        return ()
    if not is_below(os.path.join(folder, compile.output), (("", folder),)):
        return ()
    targets = {match[0] for path in compile.objects if (match := _TARGET.match(os.path.join(folder, path)))}
    kind = root["cmake"]
    return (*(((f"{kind} objects", targets.pop()),) if len(targets) == 1 else ()), (kind, folder))


def _folders_of_inductor(compile: Compile) -> dict[str, str]:
    """Return the folder of Inductor's cache, if the source lies there, and the folder of its precompiled header."""
    match = _INDUCTOR_SOURCE.fullmatch(compile.source)
    if compile.family is not Family.GCC or match is None:
        return {}
    found = {_INDUCTOR: match[1]}
    for option, path in pairwise(compile.flags):
        if option == "-include" and (header := _INDUCTOR_HEADER.fullmatch(path)):
            found[_INDUCTOR_HEADERS] = header[1]
    return found


def hides_folders(flags: Iterable[str]) -> bool:
    """Tell whether a flag has clang put a digest of the source's path into an object of HIP, or pack device code so
    that a path in it is not found. Debug information has paths in more forms than the mapped one."""
    return any(map(_HIDES_IN_HIP.fullmatch, flags))


def folders_in(texts: Iterable[str]) -> list[str]:
    """Return the absolute paths in the words of a command line, as far as the words can refer to roots."""
    matches = (_FOLDER.fullmatch(text) for text in texts)
    return [os.path.normpath(match[2]) for match in matches if match and not match[1].endswith(PREFIX_MAP)]


def referring(texts: Iterable[str], roots: Roots) -> tuple[Argument, ...]:
    """Return words of a command line with references to roots."""
    found: list[Argument] = []
    for text in texts:
        match = _FOLDER.fullmatch(text)
        found.append(_reference(text, match[1], match[2], roots) if match else text)
    return tuple(found)


def mapping(family: Family, roots: Roots) -> tuple[Argument, ...]:
    """Return flags that replace the paths of roots in the output, if the user turned mapping on."""
    if not _are_mapped(roots):
        return ()
    option = "-Xcompiler=-ffile-prefix-map=" if family is Family.NVCC else "-ffile-prefix-map="
    # If several flags match, the compiler uses the last. The user's own come behind these.
    return tuple(
        Ref(place=Place.ROOT, name=name, prefix=option, suffix=f"=/{name.removeprefix(MAPPED)}")
        for name, _ in reversed(roots)
        if name.startswith(MAPPED)
    )


def named(path: str, roots: Roots) -> str:
    """Return a path under the name that is the same in every such build. The folder of a divided command's objects
    is left out."""
    if match := _PART.fullmatch(path):
        path = path[match.end(1) :]
    if not roots:
        return path
    argument = _reference(path, "", path, roots)
    text = argument if isinstance(argument, str) else f"{{{argument.name}}}{argument.suffix}"
    # setuptools puts the object of /tmp/p/a.cu into build/tmp/p/a.o.
    for name, folder in roots:
        text = text.replace(f"{folder}/", f"{{{name}}}/")
    return _TRIED.sub("cmTC", text)


def is_part(path: str) -> bool:
    """Tell whether this is an object of a command that was divided."""
    return _PART.fullmatch(path) is not None


def part_number(path: str) -> int:
    """Return the place of this object's source among those of a divided command; -1 for another file."""
    match = _PART.fullmatch(path)
    return -1 if match is None else int(match[2])


def is_below(path: str, roots: Iterable[tuple[str, str]]) -> bool:
    """Tell whether a path is one of the roots' folders or below one."""
    return any(path == folder or path.startswith(f"{folder}/") for _, folder in roots)


def is_moving(name: str, folder: str) -> bool:
    """Tell whether a root is a folder of one build alone, or a mapped one."""
    if name.startswith(MAPPED):
        return True
    root = _TEMPORARY.fullmatch(folder)
    return root is not None and any(root[kind] and name.startswith(root[kind]) for kind in _KINDS)


def names_in(content: bytes, roots: Roots, *, lines: bool = False) -> set[str]:
    """Return the roots that a file mentions in any form: it contains the random part of the folder's name.

    Args:
        lines: the file is preprocessed text, and its line markers do not count.
    """
    found = set()
    for name, folder in roots:
        match = _TEMPORARY.match(folder)
        random = match and next(match[f"{kind}_random"] for kind in _KINDS if match[f"{kind}_random"])
        if folder.startswith(PARTS):
            random = folder[len(PARTS) :].partition("/")[0]
        if random and _mentions(content, random.encode(), lines=lines):
            found.add(name)
    return found


def _mentions(content: bytes, word: bytes, *, lines: bool) -> bool:
    place = content.find(word)
    while lines and place >= 0 and content.startswith(b"#", content.rfind(b"\n", 0, place) + 1):
        place = content.find(word, max(place + 1, content.find(b"\n", place)))
    return place >= 0


def is_mapped(flags: Sequence[str], roots: Roots, folder: str) -> bool:
    """Tell whether mapping removes every absolute path from the output: the folder is below a root, and only debug
    information would contain its path."""
    return is_below(folder, [root for root in roots if root[0].startswith(MAPPED)]) and shows_in_debug_alone(flags)


def shows_in_debug_alone(flags: Iterable[str]) -> bool:
    """Tell whether no flag but those for debug information puts paths into the output."""
    return not inspect(flag for flag in flags if not _DEBUG.fullmatch(flag)).path_sensitive


def _are_mapped(roots: Roots) -> bool:
    return any(name.startswith(MAPPED) for name, _ in roots)


def _reference(text: str, option: str, path: str, roots: Roots) -> Argument:
    ends = ("/", "=") if option.endswith(PREFIX_MAP) else ("/",)
    for name, folder in roots:
        if path == folder or path.startswith(tuple(folder + end for end in ends)):
            if ".." in path and not is_below(os.path.normpath(path), ((name, folder),)):
                continue  # it leads to another place from another folder
            return Ref(place=Place.ROOT, name=name, prefix=option, suffix=path[len(folder) :])
    return text


def listed(roots: Roots, paths: Iterable[str], *depfiles: Iterable[str]) -> bytes:
    """Return the files that a tool has read and the roots of that time; each string ends with NUL.

    Args:
        depfiles: the files that the tool's own depfile lists, if these are others, and then those that -MMD lists.
    """
    head = [part for root in roots for part in root]
    lists = [part for depfile in depfiles for part in ("", *depfile)]
    return b"".join(os.fsencode(part) + b"\0" for part in (*(("", *head, "") if head else ()), *paths, *lists))


def read(content: bytes, roots: Roots) -> tuple[list[str], list[tuple[bytes, bytes]]]:
    """Return the files from `listed` under their present names, and the (old, new) pairs of texts to replace.

    Args:
        roots: the present roots.
    """
    return read_lists(content, roots)[0], moves(content, roots)


def read_lists(content: bytes, roots: Roots) -> list[list[str]]:
    """Return all lists from `listed` under their present names: the files that were read first. Args: as `read`."""
    head, listed_paths = _parted(content)
    moved = _moves(head, roots)
    lists: list[list[str]] = [[]]
    for path in _texts(listed_paths):
        if not path:
            lists.append([])
        else:
            lists[-1].append(_moved(path, moved) if moved else path)
    return lists


def moves(content: bytes, roots: Roots) -> list[tuple[bytes, bytes]]:
    """As `read`, the pairs alone: the files of a compile are hundreds."""
    return [(os.fsencode(old), os.fsencode(new)) for old, new in _moves(_parted(content)[0], roots)]


def _parted(content: bytes) -> tuple[bytes, bytes]:
    """The roots in what `listed` has given, and the files."""
    if not content.startswith(b"\0"):
        return b"", content
    head, _, paths = content[1:].partition(b"\0\0")
    return head + b"\0", paths


def _texts(parts: bytes) -> list[str]:
    return os.fsdecode(parts).split("\0")[:-1]


def _moves(head: bytes, roots: Roots) -> list[tuple[str, str]]:
    parts, now = _texts(head), dict(roots)
    before = zip(parts[::2], parts[1::2], strict=True)
    return [(folder, now[name]) for name, folder in before if now.get(name, folder) != folder]


def _moved(path: str, moves: Iterable[tuple[str, str]]) -> str:
    for old, new in moves:
        if path == old or path.startswith(f"{old}/"):
            return new + path[len(old) :]
    return path
