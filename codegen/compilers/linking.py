"""gcc commands that compile and link at once: their supported options, and the files and folders the linker reads.

Knows gcc's and GNU ld's spellings, no target. The linker's --dependency-file lists the objects and libraries; this
module finds the inputs that it does not list. A command with an unknown option is passed through.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from codegen.compilers.closure import Environment, HostCompiler
from codegen.compilers.command_parser import PassThrough, Reason
from codegen.plan import Frozen, Knowledge, Probe, ToolFile

_SPECS = ("libgomp.spec", "libitm.spec", "libsanitizer.spec")
"""Files that the driver reads if -fopenmp, -fgnu-tm or -fsanitize links a library."""
_OLDEST = (2, 35)
"""First version of GNU ld with --dependency-file."""
_VALUED = frozenset({"-rpath", "--rpath", "-rpath-link", "--rpath-link", "-soname", "--soname", "-h", "-z"})
_PLAIN = re.compile(
    r"--?(rpath|rpath-link|soname|exclude-libs)=.+|--hash-style=\w+|--build-id(=(sha1|md5|none))?|-O\d*|-E|-s|-S"
    r"|--(no-)?(as-needed|undefined|allow-shlib-undefined|whole-archive|export-dynamic|gc-sections|relax|demangle"
    r"|eh-frame-hdr|warn-common|warn-shared-textrel|fatal-warnings|warnings)|--sort-common|--start-group|--end-group"
    r"|--(enable|disable)-new-dtags|--strip-(all|debug)|--(no-)?ld-generated-unwind-info|--warn-unresolved-symbols"
    r"|-Bsymbolic(-non-weak)?(-functions)?|-B(static|dynamic|group)|--sort-section=\w+"
    r"|--unresolved-symbols=[\w-]+|--no-keep-memory|--reduce-memory-overheads|--compress-debug-sections=[\w-]+"
)
_LEFT = re.compile(
    r"-flto.*|-ffat-lto.*|-foffload.*|-fopenacc|-fuse-linker-plugin|-Xlinker.*|-m(32|16|x32|abi=.*)|-L=.*|-L\$.*"
)
"""Options that select other link tools, another machine's libraries or a sysroot."""
_SEARCH_DIR = re.compile(r'SEARCH_DIR\("([^"]*)"\)')


_LIBRARY = {"-L": "-L", "--library-path": "-L", "-l": "-l", "--library": "-l"}
"""nvcc's options for libraries and their folders, with the short one."""
_JOINED_LIBRARY = re.compile(r"(-[Ll]|--library-path(?==)|--library(?==))=?(.+)")
_TOOLKIT_LIBRARIES = (
    "lib64",
    "lib",
    *(f"targets/{target}/lib{more}" for target in ("x86_64-linux", "sbsa-linux") for more in ("", "/stubs")),
)
_DEVICE_RUNTIME = ("cudadevrt",)
_THIN = b"!<thin>"


class Linker(Frozen, frozen=True):
    """Inputs of a link that ld does not list."""

    files: tuple[ToolFile, ...]
    search: tuple[str, ...]
    """Folders that gcc and ld search by default, in order."""


def check(flags: Iterable[str]) -> None:
    """Raise PassThrough if a link with these flags is not supported.

    Args:
        flags: all of the command's flags except the source and those for output and depfile.
    """
    waiting = ""
    for flag in flags:
        if waiting == "-L" and flag.startswith(("=", "$")):
            raise PassThrough(Reason.UNSUPPORTED_OPTION, f"-L {flag}")
        waiting = "" if waiting else flag
        if _LEFT.fullmatch(flag):
            raise PassThrough(Reason.UNSUPPORTED_OPTION, flag)
    words = iter(linker_words(flags))
    for word in words:
        if word in _VALUED:
            next(words, "")
        elif not _PLAIN.fullmatch(word):
            raise PassThrough(Reason.UNSUPPORTED_OPTION, f"-Wl,{word}")


def linker_words(flags: Iterable[str]) -> Iterator[str]:
    """Yield the flags that are for the linker alone."""
    for flag in flags:
        if flag.startswith("-Wl,"):
            yield from flag.split(",")[1:]


def openmp(flags: Iterable[str], libraries: Iterable[str]) -> tuple[ToolFile, ...]:
    """Return the files that gcc reads for a link with -fopenmp and that ld does not list: its specs, in the first
    folder that has them.

    Args:
        flags: gcc's, or nvcc's that hand them on.
        libraries: the folders that gcc searches, in order.

    Raises:
        PassThrough: an installed accelerator compiler would take part in the link.
    """
    if not any("-fopenmp" in flag for flag in flags):
        return ()
    if any(os.path.isdir(os.path.join(folder, "accel")) for folder in libraries):
        raise PassThrough(Reason.LINK, "gcc has an accelerator compiler")
    return tuple(
        ToolFile(role=f"libgomp.spec {place}", path=os.path.join(folder, "libgomp.spec"))
        for place, folder in enumerate(libraries)
    )


def named_libraries(flags: Iterable[str]) -> tuple[str, ...]:
    """Return the flags of nvcc that name libraries and their folders, each as one word."""
    found, waiting = [], ""
    for word in flags:
        if waiting:
            found.append(waiting + word)
        waiting = _LIBRARY.get(word, "")
        joined = _JOINED_LIBRARY.fullmatch(word)
        if joined and not waiting:
            found.append((_LIBRARY[joined[1]] if joined[1] in _LIBRARY else joined[1]) + joined[2])
    return tuple(found)


def device_archives(flags: Iterable[str], project: str, toolkit: str) -> tuple[ToolFile, ...]:
    """Return the archives in which nvlink may find device code to link. ld may take a shared library of that name, and
    lists no archive then.

    Args:
        flags: nvcc's.
        project: the working folder.

    Raises:
        PassThrough: an archive consists of other files.
    """
    words = named_libraries(flags)
    folders = [os.path.join(project, word[2:]) for word in words if word.startswith("-L")]
    folders += [os.path.join(toolkit, place) for place in _TOOLKIT_LIBRARIES]
    names = [name for word in words if word.startswith("-l") for name in word[2:].split(",")]
    found = []
    for name in dict.fromkeys((*names, *_DEVICE_RUNTIME)):
        for place, folder in enumerate(dict.fromkeys(folders)):
            path = os.path.join(folder, f"lib{name}.a")
            try:
                with open(path, "rb") as file:
                    is_thin = file.read(len(_THIN)) == _THIN
            except OSError:
                is_thin = False
            if is_thin:
                raise PassThrough(Reason.LINK, f"{path} is a thin archive")
            found.append(ToolFile(role=f"lib{name}.a {place}", path=path))
    return tuple(found)


def describe(
    knowledge: Knowledge, driver: str, compiler: HostCompiler, environment: Environment, flags: Iterable[str]
) -> Linker:
    """Return the linker that a gcc calls.

    Raises:
        ProbesNeeded: run these probes, add their answers to `knowledge`, and call again.
        PassThrough: the linker cannot report its inputs.
    """
    ld = next((file.path for file in compiler.files if file.role == "host ld"), "")
    if not ld or compiler.clang:
        raise PassThrough(Reason.LINK, f"the linker of {driver} is not known")
    # An installed accelerator compiler would take part in the link. There is none yet; watch the folder for it.
    accelerators = tuple(os.path.join(folder, "accel") for folder in compiler.programs)
    specs = [
        Probe(
            argv=(driver, f"-print-file-name={name}"),
            environment=environment,
            files=(driver, *accelerators, *(os.path.join(folder, name) for folder in compiler.libraries)),
        )
        for name in _SPECS
    ]
    verbose, *found = knowledge.ask(Probe(argv=(ld, "--verbose"), environment=environment, files=(ld,)), *specs)
    version = re.match(r"GNU ld .*?(\d+)\.(\d+)", verbose.stdout)
    if version is None or (int(version[1]), int(version[2])) < _OLDEST:
        raise PassThrough(Reason.LINK, f"{ld} cannot list the files it reads: it is not GNU ld 2.35 or newer")
    if "-fopenmp" in flags and any(os.path.isdir(folder) for folder in accelerators):
        raise PassThrough(Reason.LINK, "gcc has an accelerator compiler")
    named = ((name, answer.stdout.strip()) for name, answer in zip(_SPECS, found, strict=True))
    folders = [os.path.normpath(folder.removeprefix("=")) for folder in _SEARCH_DIR.findall(verbose.stdout)]
    return Linker(
        files=tuple(ToolFile(role=name, path=path) for name, path in named if os.path.isabs(path)),
        search=tuple(dict.fromkeys((*compiler.libraries, *folders))),
    )
