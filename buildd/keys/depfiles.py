"""Depfiles, in which tools list the files that they read -> paths. Pure.

Knows the formats of `codegen.plan.Discovery`, not what the paths are used for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from codegen.plan import LINKED, RULES, Discovery

# Make's escapes: a space or a hash after a backslash, a dollar doubled. Everything else is literal.
_TOKEN = re.compile(rb"(?:\\\n|\s)*((?:\\[ #:\\]|\$\$|[^\s])+)")
_LEADING_DOT = re.compile(r"\A(\./+)+(?=[^/])")
# clang -cc1 writes each name as in a C string.
_ESCAPED = re.compile(rb'\\([\\"])')


def parts(discovery: Discovery) -> tuple[tuple[Discovery, str], ...]:
    """The depfiles of a tool: the format of each, and the ending of its name."""
    if discovery is Discovery.GCC_LINKER:
        return ((Discovery.GCC, ""), (Discovery.LINKER, LINKED))
    if discovery is Discovery.CLANG_RULES:
        return ((Discovery.GCC, RULES), (Discovery.CLANG, ""))
    return ((discovery, ""),)


@dataclass(frozen=True, slots=True)
class Listing:
    """The files that a tool's own depfile lists, as it spells them, if those are not just all that it read."""

    files: tuple[str, ...]
    user: tuple[str, ...] | None = None
    """Those that -MMD lists; None if only the folders of system headers tell them from the others."""


def read_files(discovery: Discovery, content_of: Callable[[str], bytes | None]) -> tuple[str, ...] | None:
    """All files that a tool read; None where it has not listed them.

    Args:
        content_of: returns the content of the depfile whose name has this ending.
    """
    found: dict[str, None] = {}
    for part, suffix in parts(discovery):
        content = content_of(suffix)
        if content is None:
            return None
        found.update(dict.fromkeys(parse(part, content)))
    if discovery is Discovery.CLANG_RULES:
        opened = parse(Discovery.CLANG, content_of("") or b"")
        if any("\\" in path for path in opened):
            return opened  # in make rules, clang writes a slash for a backslash
        return tuple(path for path in found if path == without_dot(path) or without_dot(path) not in found)
    return tuple(found)


def own_listing(discovery: Discovery, content_of: Callable[[str], bytes | None]) -> Listing | None:
    """What the tool's own depfile lists; None where that is all that it read. Args: as `read_files`."""
    suffix = {Discovery.CLANG_RULES: RULES, Discovery.GCC_LINKER: ""}.get(discovery)
    content = None if suffix is None else content_of(suffix)
    return Listing(parse(Discovery.GCC, content)) if content is not None else None


def without_dot(path: str) -> str:
    """A path as gcc and clang write it into make rules: without "./" at its beginning."""
    return _LEADING_DOT.sub("", path)


def parse(discovery: Discovery, content: bytes) -> tuple[str, ...]:
    """Paths in the order in which they were first named, each once, as the tool spelled them."""
    found: list[bytes]
    match discovery:
        case Discovery.NONE | Discovery.GCC_LINKER | Discovery.CLANG_RULES:
            return ()  # some are several files, each of its own format
        case Discovery.GCC:
            found = _make_rules(content)
        case Discovery.LINKER:
            found = _linker_rule(content)
        case Discovery.CLANG:
            # CC_PRINT_HEADERS_FILE has no marks of depth, other than -H: a leading dot belongs to the name.
            found = [_ESCAPED.sub(rb"\1", line) for line in content.split(b"\n") if line]
        case Discovery.REPORTED:
            # The other lines are what a worker asked of the file system: `questions`.
            found = [line for line in content.split(b"\n") if line.startswith(b"/")]
    return tuple(dict.fromkeys(path.decode(errors="surrogateescape") for path in found))


def _linker_rule(content: bytes) -> list[bytes]:
    """Prerequisites as GNU ld writes them: a line each, nothing in the names escaped. lld has the same lines with
    escapes (ld/ldmain.c `write_dependency_file`, lld/ELF/Driver.cpp `writeDependencyFile`)."""
    _, separator, listed = content.partition(b": \\\n  ")
    if not separator:
        return _make_rules(content)
    found = listed.split(b" \\\n  ")
    found[-1] = found[-1].partition(b"\n")[0]
    return [_unescape(path) for path in found]


def _make_rules(content: bytes) -> list[bytes]:
    """Prerequisites of all rules of a make file that holds nothing else."""
    found: list[bytes] = []
    plain = content.replace(b"\\\n", b" ")
    if b"\\" not in plain and b"$" not in plain:
        # Nothing is escaped, as in nearly all depfiles: this takes a tenth of the time.
        for line in plain.split(b"\n"):
            target, colon, prerequisites = line.partition(b": ")
            if not colon and not target.endswith(b":") and target.strip():
                break
            found.extend(prerequisites.split())
        else:
            return found
        found.clear()
    # A rule ends where a line ends without a backslash.
    for rule in re.split(rb"(?<!\\)\n", content):
        _, colon, prerequisites = _split_target(rule)
        if colon:
            found.extend(_unescape(m.group(1)) for m in _TOKEN.finditer(prerequisites))
    return [path for path in found if path != b"\\"]


def _split_target(rule: bytes) -> tuple[bytes, bytes, bytes]:
    # The colon that ends the target is followed by white space or the end; others belong to names.
    match = re.search(rb":(?=\s|\\\n|$)", rule)
    return (rule, b"", b"") if match is None else (rule[: match.start()], b":", rule[match.end() :])


def _unescape(token: bytes) -> bytes:
    return re.sub(rb"\\([ #:])", rb"\1", token).replace(b"$$", b"$")
