"""The words of a dry run: as /bin/sh reads them, and as the host compiler gets them from nvcc itself."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from codegen.flags import inspect
from codegen.steps.nvcc_commands import command_words
from codegen.steps.step_kinds import NotUnderstood
from tests.support.quoting import compare

PIECES = (
    *"aZ09/=.,:+@%^-_",
    *"  \t'\"\\",
    "''",
    '""',
    "'a b'",
    '"a b"',
    "\\'",
    '\\"',
    "\\\\",
    "\\$",
    "\\ ",
    "é",
    "\r",
    "\x0c",
)
SHELL_READS_MORE = (*"$`~*?[]{}()<>|&;#!\n", "$x", '"$x"', '"`x`"', "$((1))", "'", '"', "\\")


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Seeded anew each time. BUILDD_SEED repeats a run."""
    seed = int(os.environ.get("BUILDD_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"BUILDD_SEED={seed}")
    return random.Random(seed)


def ours(line: str) -> list[str] | None:
    try:
        return command_words(line, {})
    except NotUnderstood:
        return None


def as_the_shell_reads(lines: list[str]) -> list[list[str]]:
    script = "\n".join(f"printf '%s\\0' {line}; printf '\\1\\0'" for line in lines)
    done = subprocess.run(("/bin/sh", "-c", script), capture_output=True, check=True)
    assert not done.stderr
    calls = done.stdout.decode().split("\1\0")[:-1]
    return [call.split("\0")[:-1] for call in calls]


def test_words_are_those_of_the_shell(chance: random.Random) -> None:
    lines = ["x " + "".join(chance.choices(PIECES, k=chance.randrange(1, 14))) for _ in range(4_000)]
    understood = [line for line in lines if ours(line) is not None]
    assert len(understood) > 500
    for line, words in zip(understood, as_the_shell_reads(understood), strict=True):
        assert ours(line) == words, line


@pytest.mark.parametrize("piece", SHELL_READS_MORE)
def test_what_a_shell_reads_as_more_than_words_is_refused(piece: str) -> None:
    for line in (f"x {piece}", f"x a{piece}b", f"x 'a'{piece}\"b\"", f"x a {piece}"):
        if (piece in ("'", '"', "\\") and '"b"' in line) or (piece == "\\" and line.endswith("b")):
            continue  # a whole pair
        assert ours(line) is None, line


def test_a_variable_stands_for_its_value_whatever_is_in_it() -> None:
    assert command_words('"$CICC_PATH/cicc" -x', {"CICC_PATH": '/a "b"/$c\\d'}) == ['/a "b"/$c\\d/cicc', "-x"]
    with pytest.raises(NotUnderstood):
        command_words('"$OTHER/cicc" -x', {"CICC_PATH": "/a"})


@pytest.mark.parametrize(
    "flags",
    [("-Xcompiler", "'-g'"), ("--compiler-options='-O2 \"-g\"'",), ("-Xcompiler=-'g'",), ("-Xcompiler", "\\-g")],
)
def test_quotes_hide_no_option(flags: tuple[str, ...]) -> None:
    assert inspect(flags).path_sensitive


def test_debug_information_that_is_turned_off_brings_no_path() -> None:
    assert not inspect(("-Xcompiler", "-g0", "-ggdb0")).path_sensitive
    assert inspect(("-g0", "-ggdb")).path_sensitive and inspect(("-g0", "-g1")).path_sensitive


@pytest.mark.parametrize("flag", ["-DX=`cat version`", "-DX=$(cat version)", "-Xcompiler=-DX='`cat version`'"])
def test_a_command_in_a_flag_may_read_anything(flag: str) -> None:
    assert "command" in inspect((flag,)).uncacheable


@pytest.mark.cuda
def test_a_step_gets_the_arguments_that_nvcc_gives_it(chance: random.Random, tmp_path: Path) -> None:
    """Options and names of files with blanks, quotes, dollars, backslashes and line breaks."""
    compared = compare(chance, tmp_path, options=30, names=6)
    assert compared.differing == []
    assert compared.options > 6 and compared.names > 1
