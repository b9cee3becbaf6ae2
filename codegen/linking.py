"""gcc that compiles and links in one step: which options such a link may have, and what the linker reads and searches.

Knows gcc's and GNU ld's spellings, no target. Objects and libraries themselves are learned from the linker (its
--dependency-file); here is what it does not list. What is neither known nor harmless is left to the tool.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from codegen.closure import Environment, HostCompiler
from codegen.parsing import HandThrough, Reason
from codegen.plan import Frozen, Knowledge, Probe, ToolFile

_SPECS = ("libgomp.spec", "libitm.spec", "libsanitizer.spec")
"""What the driver reads where -fopenmp, -fgnu-tm or -fsanitize links a library."""
_OLDEST = (2, 35)
"""GNU ld has --dependency-file since then."""
_VALUED = frozenset({"-rpath", "--rpath", "-rpath-link", "--rpath-link", "-soname", "--soname", "-h", "-z"})
_PLAIN = re.compile(
    r"--?(rpath|rpath-link|soname|exclude-libs)=.+|--hash-style=\w+|--build-id(=(sha1|md5|none))?|-O\d*|-E|-s|-S"
    r"|--(no-)?(as-needed|undefined|allow-shlib-undefined|whole-archive|export-dynamic|gc-sections|relax|demangle"
    r"|eh-frame-hdr|warn-common|warn-shared-textrel|fatal-warnings|warnings)|--sort-common|--start-group|--end-group"
    r"|--(enable|disable)-new-dtags|--strip-(all|debug)|--(no-)?ld-generated-unwind-info|--warn-unresolved-symbols"
    r"|--unresolved-symbols=[\w-]+|--no-keep-memory|--reduce-memory-overheads|--compress-debug-sections=[\w-]+"
)
_LEFT = re.compile(
    r"-flto.*|-ffat-lto.*|-foffload.*|-fopenacc|-fuse-linker-plugin|-Xlinker.*|-m(32|16|x32|abi=.*)|-L=.*|-L\$.*"
)
"""Links with other tools, for another machine's libraries, or below a sysroot."""
_SEARCH_DIR = re.compile(r'SEARCH_DIR\("([^"]*)"\)')


class Linker(Frozen, frozen=True):
    """What a link depends on besides the files that ld lists."""

    files: tuple[ToolFile, ...]
    search: tuple[str, ...]
    """Folders that gcc and ld search by themselves, in order."""


def check(flags: Iterable[str]) -> None:
    """Raises HandThrough where a link with these flags is not understood.

    Args:
        flags: all of the command but its source, its output and what concerns the depfile.
    """
    waiting = ""
    for flag in flags:
        if waiting == "-L" and flag.startswith(("=", "$")):
            raise HandThrough(Reason.UNSUPPORTED_OPTION, f"-L {flag}")
        waiting = "" if waiting else flag
        if _LEFT.fullmatch(flag):
            raise HandThrough(Reason.UNSUPPORTED_OPTION, flag)
    words = iter(linker_words(flags))
    for word in words:
        if word in _VALUED:
            next(words, "")
        elif not _PLAIN.fullmatch(word):
            raise HandThrough(Reason.UNSUPPORTED_OPTION, f"-Wl,{word}")


def linker_words(flags: Iterable[str]) -> Iterator[str]:
    """What of the flags is for the linker alone."""
    for flag in flags:
        if flag.startswith("-Wl,"):
            yield from flag.split(",")[1:]


def describe(
    knowledge: Knowledge, driver: str, compiler: HostCompiler, environment: Environment, flags: Iterable[str]
) -> Linker:
    """The linker behind a gcc.

    Raises:
        ProbesNeeded: run these, tell `knowledge` the answers, and call again.
        HandThrough: it is not one whose inputs can be learned.
    """
    ld = next((file.path for file in compiler.files if file.role == "host ld"), "")
    if not ld or compiler.clang:
        raise HandThrough(Reason.LINK, f"the linker of {driver} is not known")
    # A compiler for an accelerator takes part where one is installed: none is there yet, and it is seen to come.
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
        raise HandThrough(Reason.LINK, f"{ld} cannot list what it reads: it is no GNU ld of 2.35 or newer")
    if "-fopenmp" in flags and any(os.path.isdir(folder) for folder in accelerators):
        raise HandThrough(Reason.LINK, "gcc has a compiler for an accelerator")
    named = ((name, answer.stdout.strip()) for name, answer in zip(_SPECS, found, strict=True))
    folders = [os.path.normpath(folder.removeprefix("=")) for folder in _SEARCH_DIR.findall(verbose.stdout)]
    return Linker(
        files=tuple(ToolFile(role=name, path=path) for name, path in named if os.path.isabs(path)),
        search=tuple(dict.fromkeys((*compiler.libraries, *folders))),
    )
