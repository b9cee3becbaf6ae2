"""Divides a command that compiles several sources, or compiles and links, into commands with one source each.

The shim carries them out, compiles side by side (shims/several.c). A compile that comes from it is like any other one:
found again, in steps. The link is the user's own command with objects in the place of sources: nvcc's and gcc's are
found again, those of clang and hipcc run each time. Reads no file but response files; a command that is not surely the
same in parts is not divided.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from codegen.compilers.command_parser import PARTS, Compile, Family, Makes, Parser, language_of
from codegen.foreign.command_line import read_command
from codegen.plan import Frozen

_LINKED = re.compile(r".*\.(o|obj|a|so|so\.[\d.]+)")
"""Files that a compiler only passes on to the linker."""
_NAMED_AFTER_OUTPUT = re.compile(
    r"--?coverage|-ftest-coverage|-fprofile.*|-fauto-profile.*|-fstack-usage|-fcallgraph-info.*|-fopt-info.*|-gsplit.*"
)
"""Options with which a compiler writes or reads other files, named after its output."""

_FOR_LINKER = re.compile(
    r"(-shared|-s|-rdynamic|-static-lib(?:gcc|stdc\+\+)|-(?:no-)?pie|-fuse-ld=.*|-Wl,.*|-[lL].+)|-[lL]|-Xlinker"
)
"""Words that clang calls unused if it only compiles; the value of the last ones is the next word."""
_UNUSED = re.compile(r"-nostdinc|-undef|-Wa,.*")
"""Words that it calls unused if it only links objects."""


class Parts(Frozen, frozen=True):
    """The commands to which one command comes, each with the tool's path as its first word."""

    commands: tuple[tuple[str, ...], ...]
    folder: str = ""
    """A new folder for the objects of the first commands, which the last one links; empty if no command links."""
    reads_options: bool = False
    """Some of the words came from a response file."""
    keeps_going: bool = False
    """After a compile that fails, the compiler compiles the other sources, and links nothing."""


def new_folder(random: bytes) -> str:
    """Return the path of a folder for objects. Args: random: 8 bytes."""
    return PARTS + random.hex()


def folder_of(command: Sequence[str], folder: str, user: int) -> str:
    """Return the folder for the objects of a command that is the same each time: with -lineinfo, nvcc's link writes an
    object's path into the program.

    Args:
        folder: the working folder, absolute.
        user: the caller's user id.
    """
    words = "\0".join((str(user), folder, *command)).encode(errors="surrogateescape")
    return new_folder(hashlib.blake2b(words, digest_size=8).digest())


def is_better_divided(compile: Compile) -> bool:
    """Tell whether this command with one source is better carried out in parts: nvcc compiles a source in steps, and
    finds it from another checkout, if the same command does not link."""
    return compile.family is Family.NVCC and compile.makes is Makes.LINKED and not compile.objects


def divided(command: Sequence[str], folder: str, objects: str) -> Parts | None:
    """Return the parts of a command; None if it has only one, or if they could make something else.

    Args:
        command: the tool's path, then its arguments.
        folder: the working folder, absolute.
        objects: path of a folder that does not exist.

    Raises:
        PassThrough: the command has an option that no compile may have.
    """
    parser, family, read = read_command(command, folder)
    names = [parser.kept[index] for index in parser.sources]
    compiled = [name for name in names if not (_LINKED.fullmatch(name) or language_of(name) == "")]
    links = not parser.compiles
    if (
        parser.stop
        or parser.assembles
        or parser.lists
        or parser.device_links
        or not compiled
        or len(compiled) + links < 2
        or (links and parser.dep_kind)
        or (parser.output and not links)
        or parser.dep_path
        or parser.dep_targets
        or (len(compiled) < len(names) and (parser.language or not links))
        or any(not _LINKED.fullmatch(name) for name in names if name not in compiled)
        or any(_NAMED_AFTER_OUTPUT.fullmatch(word) for word in parser.kept)
        or " ".join(parser.kept).count("-x ") > 1
        or (not links and len({_stem(name) for name in compiled}) < len(compiled))
    ):
        return None
    tool = command[0]
    # Such a warning may even be an error.
    warns = family is Family.HIPCC or "clang" in os.path.basename(os.path.realpath(tool))
    if links and warns and any(map(_UNUSED.fullmatch, parser.kept)):
        return None
    rules = tuple(word for word, given in ((parser.dep_kind, True), ("-MP", parser.dep_phony)) if given and word)
    host = ("-ccbin", parser.host) if parser.host else ()
    # The key of nvcc's objects has their path in it: one program may contain two objects of one source.
    place = objects + os.path.join(folder, parser.output or "a.out")
    commands: list[tuple[str, ...]] = []
    made: dict[int, str] = {}
    for index in parser.sources:
        if parser.kept[index] not in compiled:
            continue
        own = [word for at, word in enumerate(parser.kept) if at not in parser.sources or at == index]
        if links and warns:
            own = list(_without_linkers(own))
        if links:
            made[index] = f"{place}/{len(made)}/{_stem(parser.kept[index])}.o"
            own += ["-c", "-o", made[index]]
        commands.append((tool, *host, *own, *rules))
    if links:
        linked = [made.get(at, word) for at, word in enumerate(_without_language(parser))]
        commands.append((tool, *host, *filter(None, linked), *(("-o", parser.output) if parser.output else ())))
    return Parts(
        commands=tuple(commands),
        folder=objects if links else "",
        reads_options=bool(read),
        keeps_going=family is Family.GCC,
    )


def _stem(source: str) -> str:
    return os.path.splitext(os.path.basename(source))[0]


def _without_linkers(words: Iterable[str]) -> Iterator[str]:
    """Yield words without those for the linker."""
    rest = iter(words)
    for word in rest:
        match = _FOR_LINKER.fullmatch(word)
        if match is None:
            yield word
        elif match[1] is None:
            next(rest, "")


def _without_language(parser: Parser) -> list[str]:
    """Return the words without -x, as empty ones: it would make sources of objects."""
    words = list(parser.kept)
    for at, word in enumerate(words):
        if re.fullmatch(r"--?x", word) and parser.language:
            words[at : at + 2] = ["", ""]
        elif re.fullmatch(r"--?x=.*|-x" + re.escape(parser.language), word) and parser.language:
            words[at] = ""
    return words
