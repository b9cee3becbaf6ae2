"""What of a source's text can reach the result of a compile: all, its tokens and their lines, or its tokens alone.

Pure; knows flags and no text. In doubt all of it can: then a comment costs a compile. A compiler's messages show lines
of the text, whatever the flags: `keys.filing` knows what it said. Texts that a warning reads in comments have these
comments in their bare form (`native.bare_text`), so -Wcomment and -Wimplicit-fallthrough need no flag here, but for the
level at which every comment counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache

from codegen.flags import split, words
from codegen.plan import Argument, TextUse
from codegen.steps.nvcc_commands import DEBUG, DEVICE_PATHS, LINES

_EXTENSIONS = (".cc", ".cpp", ".cxx", ".c++", ".cp", ".C", ".CPP", ".cu", ".hip")
_OLDER_EXTENSIONS = (".c",)
_LANGUAGES = ("c++", "cu", "cuda", "hip")
_OLDER_LANGUAGES = ("c",)
_STANDARD = re.compile(r"(?:-{1,2}std=?)?(?:c|gnu)\+\+(?:14|1y|17|1z|20|2a|23|2b|26|2c)")
"""Those in which `1'0` is a number and R"(...)" a raw string."""
_OLDER_STANDARD = re.compile(
    r"(?:-{1,2}std=?)?(?:(?:c|gnu)(?:\+\+(?:98|03|0x|11)|99|9x|11|1x|17|18|2x|23|2y)|iso9899:(?:1999|199x|2011|2017|2018))"
)
"""Those in which one of these, or both, may be something else. In C before 1999, two slashes begin no comment."""
_READS = re.compile(
    r"-CC?|-P|-E|-traditional.*|-fdirectives-only|-fpreprocessed|-{1,2}save-temps.*|-fverbose-asm|-finput-charset.*"
    r"|-ansi|-W(error=)?c90-c99-compat|-fno-dollars-in-identifiers|-ftabstop.*|-W(error=)?implicit-fallthrough=0*1"
    r"|-W(error=)?documentation.*|-Weverything|-fparse-all-comments|-fcomment-.*"
    r"|-W(error=)?(trailing|leading)-whitespace.*|-fplugin.*|-fpass-plugin.*|-load|-verify.*|-gembed-source|-fmodule.*"
    r"|-fno-show-source-location|-fdiagnostics-(?!color|show|plain).*|-fno-diagnostics-show-line-numbers"
    r"|-Wa,.*|-{1,2}(src|source)-in-ptx|-fdump-.*|-fopt-info.*|-ftime-.*|--coverage|-ftest-coverage|@.*|-Xpreprocessor"
)
"""Options by which a comment, or where the comments are, can reach an output or a message."""
_ARCHITECTURE = re.compile(r"-{1,2}(gencode|generate-code|gpu-.*)(=.*)?")
"""Options that begin like those of debug information."""
_UNIT = "-cuid="
"""The name of a source's unit, which no other source has."""
_LINE = re.compile(r".*(LINE|COLUMN|source_location).*")


def text_use(source: str, flags: Iterable[str], *, clang: bool, nvcc_whole: bool) -> TextUse:
    """Return what of the text of a source and its headers can reach the result of its compile.

    Args:
        flags: all of them, also those of the environment.
        clang: clang preprocesses. It writes digests of the files into debug information, and lines into names.
        nvcc_whole: nvcc runs as one command: what cicc and ptxas are told of the files is not known.
    """
    if os.path.splitext(source)[1] not in (*_EXTENSIONS, *_OLDER_EXTENSIONS):
        return TextUse.CONTENT
    return _use(tuple(flag for flag in flags if not flag.startswith(_UNIT)), clang, nvcc_whole)


@lru_cache(maxsize=256)
def _use(flags: tuple[str, ...], clang: bool, nvcc_whole: bool) -> TextUse:
    """What flags leave to the text. Thousands of sources of a target have the same ones."""
    all_words = [word for word in words(flags) if not _ARCHITECTURE.fullmatch(word)]
    if not _is_known_language(all_words):
        return TextUse.CONTENT
    if any(_READS.fullmatch(word) for word in all_words):
        return TextUse.CONTENT
    debug = [word for word in all_words if DEBUG.fullmatch(word) or DEVICE_PATHS.fullmatch(word)]
    if debug and (clang or nvcc_whole):
        return TextUse.CONTENT
    if clang or debug or any(LINES.fullmatch(word) or _LINE.fullmatch(word) for word in all_words):
        return TextUse.LINES
    return TextUse.TOKENS


def spelled(arguments: Iterable[Argument], environment: Iterable[tuple[str, str]]) -> list[str]:
    """Return the flags of a command and those in its environment; no other variable's value looks like one."""
    flags = [word if isinstance(word, str) else word.prefix + word.suffix for word in arguments]
    return flags + [flag for _, value in environment for flag in split(value) if flag.startswith("-")]


def is_older(source: str, flags: Iterable[str]) -> bool:
    """Return whether the language of a source is not surely C++ of 2014 or later.

    Args:
        flags: as of `text_use`.
    """
    return os.path.splitext(source)[1] in _OLDER_EXTENSIONS or any(
        word in _OLDER_LANGUAGES or word in ("-xc", "-x=c", "--x=c") or _OLDER_STANDARD.fullmatch(word)
        for word in words(flags)
    )


def _is_known_language(all_words: list[str]) -> bool:
    before = ""
    for word in all_words:
        is_standard = _STANDARD.fullmatch(word) or _OLDER_STANDARD.fullmatch(word)
        if re.match(r"-{1,2}std", word) and word not in ("-std", "--std") and not is_standard:
            return False
        if before in ("-std", "--std") and not is_standard:
            return False
        named = word if before in ("-x", "--x") else word[2:].removeprefix("=") if re.match(r"-x.", word) else ""
        if named and named not in (*_LANGUAGES, *_OLDER_LANGUAGES):
            return False
        before = word
    return True
