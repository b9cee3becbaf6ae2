"""Runs the transcripts in tests/transcripts: commands and the exact output that a user sees.

A transcript is text: `#` starts a comment, `-- file NAME` ... `-- end` writes a file, `$ COMMAND` runs in a shell, and
the lines up to the next blank line before one of those are its output (stdout and stderr as they came), with `[N]` last
where it exits with N. Numbers that differ from run to run stand as <time>, <size>, <pid> and <id>; folders as $PROJECT
and $HOME. `BUILDD_UPDATE_TRANSCRIPTS=1 pytest tests/stories/test_transcripts.py` writes what came instead of comparing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.own_programs import lend_programs
from tests.support.paths import FAKES, TESTS
from tests.support.toolkit import has_nvcc

FOLDER = TESTS / "transcripts"
_STEP = ("$ ", "-- file ", "#")
_NORMALISED = (
    (re.compile(r"\b\d+ (?:min \d+ s|h \d+ min)|\b\d+(?:\.\d+)? s\b"), "<time>"),
    (re.compile(r" +(?=<time>)"), " "),
    (re.compile(r"\b\d+(?:\.\d+)? (?:B|KiB|MiB|GiB)\b"), "<size>"),
    (re.compile(r"\bpid \d+"), "pid <pid>"),
    (re.compile(r"(?<= )\S*/nvcc (?=-)"), "nvcc "),
    (re.compile(r"\b[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "<date>"),
)


def test_there_are_transcripts() -> None:
    assert list(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_transcript(path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if "\n# needs nvcc\n" in text and not has_nvcc():
        pytest.skip("no nvcc: pip install buildd[cuda]")
    session = Session(tmp_path)
    try:
        came = session.play(text)
    finally:
        session.run("buildd down --now")
    if os.environ.get("BUILDD_UPDATE_TRANSCRIPTS"):
        path.write_text(came, encoding="utf-8")
    assert came == text


class Session:
    """A user's shell in a project's folder of their own, with a home, a store and a daemon of their own."""

    def __init__(self, root: Path) -> None:
        self.project, self.home = root / "project", root / "home"
        tools = root / "bin"
        for folder in (self.project, self.home, tools, root / "run"):
            folder.mkdir(mode=0o700)
        lend_programs(self.home / ".cache/buildd")
        program = tools / "buildd"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m buildd "$@"\n')
        program.chmod(0o755)
        self.environ = {
            "HOME": str(self.home),
            "PATH": f"{tools}:{FAKES}:/usr/bin:/bin",
            "BUILDD_RUNTIME_DIR": str(root / "run"),
            "LC_ALL": "C.UTF-8",
            "COLUMNS": "120",
            # The daemon ends by itself even if a test is killed before it says so.
            "BUILDD_IDLE_TIMEOUT_S": "60",
        }

    def play(self, text: str) -> str:
        """The transcript with what came in place of what stands there."""
        lines = text.splitlines()
        came: list[str] = []
        at = 0
        while at < len(lines):
            line = lines[at]
            came.append(line)
            at += 1
            if line.startswith("-- file "):
                end = lines.index("-- end", at)
                target = self.project / line.removeprefix("-- file ")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text("".join(f"{content}\n" for content in lines[at:end]), encoding="utf-8")
                came += lines[at : end + 1]
                at = end + 1
            elif line.startswith("$ "):
                came += self.run(line.removeprefix("$ "))
                while at < len(lines) and not self._ends(lines, at):
                    at += 1
        return "".join(f"{line}\n" for line in came)

    @staticmethod
    def _ends(lines: list[str], at: int) -> bool:
        """Whether the output of a command ends before line `at`: it may hold blank lines itself."""
        following = lines[at + 1] if at + 1 < len(lines) else "#"
        return lines[at].startswith("$ ") or (lines[at] == "" and following.startswith(_STEP))

    def run(self, command: str) -> list[str]:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.project,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
        )
        output = done.stdout.decode("utf-8", "backslashreplace")
        for folder, name in ((self.project, "$PROJECT"), (self.home, "$HOME"), (self.project.parent, "$ROOT")):
            output = output.replace(str(folder), name)
        for pattern, shim in _NORMALISED:
            output = pattern.sub(shim, output)
        return output.splitlines() + ([f"[{done.returncode}]"] if done.returncode else [])
