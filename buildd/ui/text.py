"""Text for people: durations, sizes, styled lines, and names that may hold any byte.

Knows no events and no terminal; the result of `clean` can be written anywhere.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

# `re` compiles each pattern at its first use and keeps it: short commands use none.
_ESCAPES = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])"
_UNPRINTABLE = "[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
_PREPARES = r"(?:cd |: |\S*cmake -E (?:rm|remove|make_directory) )"
_LAUNCHERS = ("buildd-cc", "ccache", "sccache", "distcc")
_WORD = r"(?:'[^']*'|[^\s'])+"
_ERROR = (
    r"(?i)\b(?:fatal )?error\b\s*(?:[:#A-Z(]|$)|undefined reference to|multiple definition of|\bfatal\b\s*:"
    r"|\bld(?:\.\w+)?: .*(?:cannot find |final link failed|file format not recognized)"
)
_OF_ERRORS = ("rror", "RROR", "ndefined", "fatal", "multiple d", "ld: ", "ld.")
"""One of these is in each line that has an error: to look for them is quick."""
_WARNING = r"(?i)\bwarning\b\s*(?:[:#A-Z(]|$)"


class Style(Enum):
    """The kind of a line; the value is its SGR parameters."""

    PLAIN = ""
    HEADING = "1"
    GOOD = "32"
    FAINT = "2"
    WARNING = "33"
    ERROR = "1;31"


class Line(NamedTuple):
    """One line for people, without its newline. Not a dataclass: compilers print a hundred thousand of them."""

    text: str
    style: Style = Style.PLAIN

    def encoded(self, colour: bool) -> str:
        """The line with its newline; with `colour` inside its SGR sequence."""
        if colour and self.style is not Style.PLAIN:
            return f"\x1b[{self.style.value}m{self.text}\x1b[0m\n"
        return self.text + "\n"


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # A byte that was not UTF-8, carried by surrogateescape.
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def clean(text: str) -> str:
    """`text` without escape sequences and with every control or undecodable character spelled out.

    A compiler's colours are dropped (lines get buildd's own), a lone carriage return would overwrite other text, and
    bidirectional overrides could make an error name another file than the one it is about (CVE-2021-42574).
    """
    if text.isprintable():
        return text
    if "\x1b" in text:
        text = re.sub(_ESCAPES, "", text)
    return re.sub(_UNPRINTABLE, _visible, text.rstrip("\r\n"))


def spelled(name: str) -> str:
    """A name, or words that quote one, with escape sequences spelled out too: without them it would be another name."""
    return clean(name.replace("\x1b", "\\x1b"))


def compiler_line(text: str) -> Line:
    """A line of a tool's output, styled as an error or a warning if it looks like one."""
    text = clean(text)
    if any(word in text for word in _OF_ERRORS):
        if re.search(_ERROR, text):
            return Line(text, Style.ERROR)
    elif ("arning" in text or "WARNING" in text) and re.search(_WARNING, text):
        return Line(text, Style.WARNING)
    return Line(text)


def duration(seconds: float) -> str:
    """ "0.04 s", "3.2 s", "92 s", "2 min 30 s", "1 h 05 min"."""
    seconds = max(0.0, seconds)
    if seconds < 0.095:
        return f"{seconds:.2f} s"
    if seconds < 19.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(count_bytes: int) -> str:
    """ "812 B", "3.4 KiB", "1.9 GiB"."""
    value = float(count_bytes)
    if value < 1024:
        return f"{count_bytes} B"
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1023.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"


def count(number: int, noun: str, plural: str = "") -> str:
    """ "1 target", "5 targets"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def tool_of(command: str) -> str:
    """The tool's short name from a command line for people: "nvcc" of "cd /p && /usr/bin/nvcc -c a.cu".

    Empty if the command does not start with a tool. Splitting a whole CUTLASS command with shlex costs milliseconds,
    so only the first words are looked at. Of several commands, the first that makes something counts: CMake writes
    ": && c++ ..." for a link, and "cmake -E rm ... && ar ..." for an archive. Launchers such as ccache are no tools.
    """
    command = command[:8192]
    while (rest := command.partition(" && ")[2]) and re.match(_PREPARES, command):
        command = rest
    for match in re.finditer(_WORD, command[:4096]):
        word = match[0].replace("'", "")
        if (
            word.rpartition("/")[2] in _LAUNCHERS
            or word == "env"
            or ("=" in word and "/" not in word.partition("=")[0])
            or word.startswith("-")
        ):
            continue
        return clean(word.rpartition("/")[2])
    return ""


def broken(text: str, columns: int) -> list[str]:
    """`text` in lines of at most so many columns, broken between words; a longer word has a line of its own. 0: any."""
    if not columns or len(text) <= columns:
        return [text]
    import textwrap

    return textwrap.wrap(
        text, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )


def shortened(text: str, width: int) -> str:
    """`text` in at most `width` columns, cut in the middle: both the folder and the file's name matter."""
    if len(text) <= width:
        return text
    if width <= 4:
        return text[-max(0, width) :] if width > 0 else ""
    tail = (width - 1) * 2 // 3
    # A tilde would be read as a home folder, and two dots as the folder above.
    return f"{text[: width - 1 - tail]}\u2026{text[len(text) - tail :]}"
