"""`buildd completion`: real shells complete commands, options, targets and what `buildd run` starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from buildd.cli import COMMANDS, main
from buildd.commands.completion import SHELLS, all_commands
from tests.support.terminal import Terminal
from tests.support.waiting import until

TABLE = '[target.saxpy]\nkind = "cuda"\n\n[target.softmax]\nkind = "rowwise"\n'
LINES = {
    "buildd w": {"watch", "warm"},
    "buildd build s": {"saxpy", "softmax"},
    "buildd -C .. build --rec": {"--recache"},
    "buildd cache f": {"flush"},
    "buildd cache export --al": {"--all"},
    "buildd build --color n": {"never"},
    "buildd run -- buildd-pro": {"buildd-program"},
    "buildd run -j 3 buildd-pro": {"buildd-program"},
    "buildd run --record kern": {"kernels.txt"},
    "buildd completion f": {"fish"},
    "buildd watch --profile sa": {"saxpy"},
    "buildd explain so": {"softmax", "some.cu"},
    "buildd build -C fold": {"folder"},
    "buildd trace la": {"last"},
}
"""What is typed -> the words that a shell offers."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "buildd.toml").write_text(TABLE)
    (tmp_path / "folder").mkdir()
    for name in ("kernels.txt", "some.cu"):
        (tmp_path / name).write_text("")
    (tmp_path / "bin").mkdir()
    for name, text in (("buildd", f'exec {sys.executable} -P -m buildd "$@"'), ("buildd-program", "")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def environ(place: Path) -> dict[str, str]:
    return {
        "PATH": f"{place}/bin:/usr/bin:/bin",
        "HOME": str(place),
        "BUILDD_DIR": str(place / "store"),
        "BUILDD_RUNTIME_DIR": str(place / "run"),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
    }


def script(shell: str, place: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", shell]) == 0
    path = place / f"completion.{shell}"
    path.write_text(capsys.readouterr().out)
    return path


def offered(command: list[str], place: Path) -> set[str]:
    done = subprocess.run(command, cwd=place, env=environ(place), capture_output=True, text=True, timeout=60)
    return {line.rstrip("/ ") for line in done.stdout.splitlines()}


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_bash(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script("bash", place, capsys)
    for line, words in LINES.items():
        typed = " ".join(f"'{word}'" for word in line.split(" "))
        asked = (
            f'COMP_WORDS=({typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _buildd; printf "%s\\n" "${{COMPREPLY[@]}}"'
        )
        assert offered(["bash", "-c", f"source {path}; {asked}"], place) == words, line


@pytest.mark.skipif(not shutil.which("fish"), reason="no fish (Debian: apt install fish)")
def test_fish(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script("fish", place, capsys)
    for line, words in LINES.items():
        if " -j 3 " in line:
            continue  # fish itself completes a command that comes directly after `run` or `run --`
        ask = f"source {path}; complete -C '{line}' | string split -f1 \\t"
        assert offered(["fish", "-c", ask], place) == words, line


@pytest.mark.slow  # a zsh on a terminal has been seen to offer nothing for a minute on a busy machine
@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh (Debian: apt install zsh)")
def test_zsh(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script("zsh", place, capsys)
    shell = shutil.which("zsh")
    assert shell
    with Terminal(shell, "-f", environ=environ(place), columns=200, cwd=str(place)) as terminal:
        terminal.type(f"PS1='> '; autoload -U compinit; compinit -u -D; source {path}; print rea''dy\n".encode())
        until(lambda: b"ready" in terminal.output, "zsh does not start")
        for line, words in LINES.items():
            seen = len(terminal.output)
            terminal.type(line.encode() + b"\t\t")

            def shown(seen: int = seen) -> set[str]:
                text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]|\x08", b" ", terminal.output[seen:]).decode(errors="replace")
                return {word.rstrip("/") for word in text.split()}

            until(
                lambda words=words, shown=shown: words <= shown(),
                f"zsh offers for {line!r}: {terminal.output[seen:]!r}",
            )
            terminal.type(b"\x15")
        assert b"_arguments" not in terminal.output and b"bad option" not in terminal.output


def test_every_command_is_described_and_nothing_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    commands = all_commands(COMMANDS)
    assert [command.name for command in commands] == list(COMMANDS)
    assert all(command.options and command.usage.startswith(f"buildd {command.name}") for command in commands)
    (cache,) = (command for command in commands if command.name == "cache")
    assert "cache export" in {action.name for action in cache.below}
    assert capsys.readouterr() == ("", "")
    assert main(["completion", "tcsh"]) == 2 and all(shell in capsys.readouterr().err for shell in SHELLS[:1])
