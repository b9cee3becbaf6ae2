"""Depfiles, in which tools list the files that they read -> paths. Pure.

Knows the formats of `codegen.plan.Discovery`, not what the paths are used for.
"""

from __future__ import annotations

import re

from codegen.plan import LINKED, Discovery

# Make's escapes: a space or a hash after a backslash, a dollar doubled. Everything else is literal.
_TOKEN = re.compile(rb"(?:\\\n|\s)*((?:\\[ #:\\]|\$\$|[^\s])+)")
# clang -cc1 writes each name as in a C string.
_ESCAPED = re.compile(rb'\\([\\"])')


def parts(discovery: Discovery) -> tuple[tuple[Discovery, str], ...]:
    """The depfiles of a tool: the format of each, and the ending of its name."""
    if discovery is Discovery.GCC_LINKER:
        return ((Discovery.GCC, ""), (Discovery.LINKER, LINKED))
    return ((discovery, ""),)


def parse(discovery: Discovery, content: bytes) -> tuple[str, ...]:
    """Paths in the order in which they were first named, each once, as the tool spelled them."""
    found: list[bytes]
    match discovery:
        case Discovery.NONE | Discovery.GCC_LINKER:
            return ()  # GCC_LINKER is several files, each of its own format
        case Discovery.GCC:
            found = _make_rules(content)
        case Discovery.LINKER:
            found = _linker_rule(content)
        case Discovery.CLANG:
            # CC_PRINT_HEADERS_FILE has no marks of depth, other than -H: a leading dot belongs to the name.
            found = [_ESCAPED.sub(rb"\1", line) for line in content.split(b"\n") if line]
        case Discovery.REPORTED:
            found = [line for line in content.splitlines() if line]
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
