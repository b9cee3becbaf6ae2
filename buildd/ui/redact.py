"""Removes from a text what a bug tracker must not see: names of people and machines, folders, secrets.

Pure. Rather removes too much: readers of a report do not need the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "(hidden)"

_SECRET_NAME = r"(?:token|secret|passw(?:or)?d|passphrase|api[-_]?key|access[-_]?key|private[-_]?key|credential|auth)"
_ASSIGNMENT = re.compile(
    rf"(?i)([\w.-]*{_SECRET_NAME}[\w.-]*[\"']?\s*[=:]\s*)(?:(?:bearer|basic)\s+)?(\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)"
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
_URL_USER = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s@]+@")
_KNOWN_TOKEN = re.compile(
    r"\b(?:gh[pousr]_\w{20,}|github_pat_\w{20,}|hf_\w{20,}|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}"
    r"|glpat-[\w-]{16,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
_ADDRESS = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
_HOME = re.compile(r"/(?:home|Users)/(?!USER\b)[^/\s:'\"]+")


class Redactor:
    """Replaces what is private in texts.

    Args:
        homes: home folders; become "~". "/" is not counted as one.
        users: names of people and accounts; become "USER".
        hosts: names of machines; become "HOST".
    """

    def __init__(self, *, homes: Iterable[str], users: Iterable[str], hosts: Iterable[str]) -> None:
        self._homes = sorted({home.rstrip("/") for home in homes if len(home.rstrip("/")) > 1}, key=len, reverse=True)
        # Word borders: a user called "a" must not remove every "a".
        self._names = [
            (re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"), stand_in)
            for names, stand_in in ((hosts, "HOST"), (users, "USER"))
            for name in sorted({name for name in names if name}, key=len, reverse=True)
            if name not in ("root", "localhost")
        ]

    def __call__(self, text: str) -> str:
        for home in self._homes:
            text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
        text = _URL_USER.sub(rf"\1{HIDDEN}@", text)
        text = _ASSIGNMENT.sub(rf"\1{HIDDEN}", text)
        text = _BEARER.sub(rf"\1 {HIDDEN}", text)
        text = _KNOWN_TOKEN.sub(HIDDEN, text)
        text = _ADDRESS.sub("USER@HOST", text)
        text = _HOME.sub("/home/USER", text)
        for pattern, stand_in in self._names:
            text = pattern.sub(stand_in, text)
        return text
