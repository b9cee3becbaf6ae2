"""Edits of a foreign project's texts, and compares with the plain compiler; for tests of comments and lines."""

from __future__ import annotations

from pathlib import Path

from tests.support.foreign_project import ForeignProject

HEADER = "#pragma once\n// a comment\ninline int f() { return 1; }\n"


def answers(foreign: ForeignProject) -> Path:
    return foreign.user.store / "answers"


def without_answers(foreign: ForeignProject) -> None:
    """Only the daemon can find a result now."""
    for path in answers(foreign).iterdir():
        if path.is_file() and path.name != "code":
            path.unlink(missing_ok=True)  # the daemon may renew it


def edit(foreign: ForeignProject, name: str, old: str, new: str) -> None:
    text = (foreign.folder / name).read_text()
    assert old in text
    foreign.write(name, text.replace(old, new))


def assert_as_plain(foreign: ForeignProject, *command: str) -> None:
    made = (foreign.folder / "a.o").read_bytes()
    plain = foreign.plainly(*command)
    assert plain.returncode == 0 and (foreign.folder / "a.o").read_bytes() == made
