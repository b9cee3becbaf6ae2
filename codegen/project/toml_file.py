"""Reads a TOML file, and finds the lines of its tables and keys.

Knows no table of buildd.toml by name.
"""

from __future__ import annotations

import errno
import re
import tomllib
from typing import Any

from codegen.errors import RequestError
from codegen.reach import read_regular

MOST_BYTES = 16 << 20
"""A larger project file is refused. One of 20,000 targets has about 3 MiB."""
_KEY = re.compile(r"""\s*(?:([A-Za-z0-9_-]+)|["']([^"']*)["'])\s*[=.]""")
_MARKS = re.compile(r'"""(?:\\.|[^\\])*?"""|' r"'''.*?'''" r'|"(?:\\.|[^"\\\n])*"|' r"'[^'\n]*'|#[^\n]*|[\[\]{}]", re.S)
"""Strings and comments, in which brackets mean nothing, and brackets."""
_BARE = re.compile(r"[^\s,\[\]{}=#\"']++(?!\s*=)")
_ASSIGNED = re.compile(r"\s*([A-Za-z0-9_.\"'-]+)\s*=")
_HEADER = re.compile(r"\s*\[[^,=]*\]\s*(?:#.*)?")
_HEAD = re.compile(r"\s*\[\s*([^\]]*?)\s*\]")


def read_toml(path: str, file: str) -> tuple[str, dict[str, Any]]:
    """Return a file's text and its tables.

    Args:
        file: the file's name in messages about its lines.

    Raises:
        RequestError: the file cannot be read, or is not TOML.
    """
    try:
        # Some editors begin a file with a byte order mark, which TOML does not allow.
        text = read_regular(path, MOST_BYTES).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError as error:
        raise RequestError(
            "bad-project",
            f"the project file {path} does not exist",
            file=path,
            next_step="run buildd in the project's folder, or name the folder with -C DIR or the file with -f FILE",
        ) from error
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise RequestError(
            "bad-project",
            f"{path} cannot be read: line {number} is not UTF-8 text",
            file=path,
            next_step="save the file as UTF-8",
        ) from error
    except OSError as error:
        raise RequestError(
            "bad-project",
            f"{path} cannot be read: {error.strerror}",
            file=path,
            next_step=f"name a regular file of at most {MOST_BYTES >> 20} MiB"
            if error.errno == errno.EINVAL
            else "check the file's owner and permissions",
        ) from error
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(error, text, file) from error
    except RecursionError as error:
        raise RequestError(
            "bad-project", "not valid TOML: too deeply nested", file=file, next_step="use fewer levels of brackets"
        ) from error


def _not_toml(error: tomllib.TOMLDecodeError, text: str, file: str) -> RequestError:
    at = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
    line, column = (int(at[1]), int(at[2])) if at else (text.count("\n") + 1, 0)
    what, step = re.sub(r" \(at .*\)$", "", str(error)), "correct the file at this line"
    place = f"{file}:{line}:{column}" if at else f"{file}:{line}"
    word = _bare_word(text, line, column) if what == "Invalid value" else ""
    begun = _begun(text, line, column) if not word and what.startswith(("Unclosed", "Invalid value")) else 0
    if begun:
        place = f"{file}:{begun}"
        what, step = "the array or table that begins here is not closed", "close it with ] or }"
        if at:
            what += f" before line {line}, or a comma or a value is missing there"
            step += f", or correct line {line}"
    elif word:
        what = f"{word} stands without quotes"
        step = f"write {word.lower()}" if word.lower() in ("true", "false") else f'write "{word}"'
    elif earlier := _set_before(what, text, line):
        what, step = earlier
    return RequestError("bad-project", f"not valid TOML: {what}", file=place, next_step=step)


def _bare_word(text: str, line: int, column: int) -> str:
    """The word without quotes at a place; empty if there is none, or if it is a key or a table's name."""
    whole = text.split("\n")[line - 1]
    match = None if _HEADER.fullmatch(whole) else _BARE.match(whole, column - 1)
    return match[0] if match else ""


def _set_before(what: str, text: str, line: int) -> tuple[str, str] | None:
    """What to say and what to do about a key or a table that is there already; None if it is another mistake.

    Args:
        what: tomllib's words.
        line: where it found the second one.
    """
    lines = text.split("\n")
    if table := re.fullmatch(r"Cannot declare \((.+)\) twice", what):
        name = ".".join(re.findall(r"'([^']*)'", table[1]))
        first = TomlLines(text, "").line_of(name)
        return (f"[{name}] is there already, in line {first}", "put the keys of both into one") if first else None
    if what != "Cannot overwrite a value":
        return None
    keys: dict[str, int] = {}
    again = 0
    for number, one in enumerate(lines[:line], 1):
        if _HEADER.fullmatch(one):
            keys = {}
        elif match := _ASSIGNED.match(one):
            # The last of these keys is the one: a value may have several lines, and tomllib names the last one.
            first, again = keys.setdefault(match[1], number), number
            name = match[1]
    if not again or first == again:
        return None
    return f"{name} is set already, in line {first}", "remove one of them, or put both values into one list"


def _begun(text: str, line: int, column: int) -> int:
    """The line where the array or inline table begins that is open at a place; 0 if there is none, or if it begins in
    the same line."""
    lines = text.split("\n")
    before = "\n".join((*lines[: line - 1], lines[line - 1][: max(0, column - 1)]))
    opened: list[int] = []
    for mark in _MARKS.finditer(before):
        if mark[0] in ("[", "{"):
            opened.append(mark.start())
        elif mark[0] in ("]", "}") and opened:
            opened.pop()
    begun = before.count("\n", 0, opened[0]) + 1 if opened else 0
    return begun if begun < line else 0


class TomlLines:
    """Finds the line of a table or key, which tomllib does not report. Reads the file once: it may have thousands of
    tables."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self._lines = text.splitlines()
        self._tables: dict[str, int] = {}
        for number, line in enumerate(self._lines, 1):
            if line.lstrip()[:1] == "[" and (head := _HEAD.match(line)):
                first, _, rest = head[1].partition(".")
                name = ".".join(part.strip().strip("\"'") for part in (first, rest) if part)
                self._tables.setdefault(name, number)

    def line_of(self, table: str) -> int:
        """Return the number of a table's line; 0 if there is no such table."""
        return self._tables.get(table, 0)

    def keys(self, table: str) -> dict[str, str]:
        """Return the keys that are written in a table, each with its file and line."""
        found: dict[str, str] = {}
        start = self._tables.get(table)
        for number in range(start + 1, len(self._lines) + 1) if start is not None else ():
            line = self._lines[number - 1]
            if line.lstrip()[:1] == "[":
                break
            if match := _KEY.match(line):
                found.setdefault(match[1] or match[2], f"{self.file}:{number}")
        return found

    def where(self, table: str, key: str = "") -> str:
        """Return the file and line of a table, or of a key in it, which may be a table of its own; the file alone if
        there is no such table."""
        start = self._tables.get(table)
        if key and (below := self._tables.get(f"{table}.{key}")) is not None:
            return f"{self.file}:{below}"
        if start is None:
            return self.file
        wanted = re.compile(rf"""\s*["']?{re.escape(key)}["']?\s*[=.]""")
        for number in range(start + 1, len(self._lines) + 1) if key else ():
            line = self._lines[number - 1]
            if line.lstrip()[:1] == "[":
                break
            if wanted.match(line):
                return f"{self.file}:{number}"
        return f"{self.file}:{start}"
