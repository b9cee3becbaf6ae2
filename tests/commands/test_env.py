"""`buildd env` as a process: what it shows of an environment, and what it never shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = "import sys; from buildd.commands.env import run; sys.exit(run(sys.argv[1:]))"


def env(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`buildd env` in `folder` with these variables and nothing else that buildd honours."""
    environ = {"HOME": str(folder), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **variables}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=60,
        check=False,
    )


def entries(folder: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    result = env(folder, "--json", *arguments, **variables)
    assert result.returncode == 0, result.stderr
    return {entry["name"]: entry for entry in json.loads(result.stdout)}


def test_what_is_set_is_shown_aligned_with_source_and_effect(tmp_path: Path) -> None:
    result = env(tmp_path, NUM_BUILDERS="4", AIT_NDEBUG="0", UNKNOWN_THING="x")
    assert result.returncode == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert "\x1b" not in result.stdout
    column = lines[0].index("SOURCE")
    by_name = {line.split()[0]: line for line in lines[1:] if line.strip()}
    assert by_name["NUM_BUILDERS"].split()[:3] == ["NUM_BUILDERS", "4", "environment"]
    assert by_name["NUM_BUILDERS"].endswith("most jobs of this request at once")
    assert all(by_name[name].index("environment") == column for name in ("NUM_BUILDERS", "AIT_NDEBUG"))
    assert "UNKNOWN_THING" not in result.stdout


def test_secrets_are_hidden_everywhere(tmp_path: Path) -> None:
    for arguments in ((), ("--all",), ("--json",), ("--all", "--json")):
        result = env(tmp_path, *arguments, OPENAI_API_KEY="tell-nobody", EASYDEL_GCS_CLIENT="tell-nobody")
        assert "tell-nobody" not in result.stdout + result.stderr
        assert "OPENAI_API_KEY" in result.stdout
    assert "(set, hidden)" in env(tmp_path, OPENAI_API_KEY="tell-nobody").stdout
    entry = entries(tmp_path, OPENAI_API_KEY="tell-nobody")["OPENAI_API_KEY"]
    assert (entry["value"], entry["source"], entry["secret"], entry["sent"]) == (None, "environment", True, False)


def test_all_lists_every_variable_with_every_field(tmp_path: Path) -> None:
    everything = entries(tmp_path, "--all", AIT_USE_FAST_MATH="0")
    assert len(everything) > 380
    entry = everything["AIT_USE_FAST_MATH"]
    assert entry["value"] == "0"
    assert entry["classes"] == ["key"]
    assert entry["default"] == "1"
    assert entry["type"] == "on if 1"
    assert entry["section"] == "aitemplate"
    assert entry["acts"] is True
    assert everything["TORCHINDUCTOR_*"]["pattern"] is True
    assert everything["XLA_FLAGS"]["value"] is None
    names = {line.split()[0] for line in env(tmp_path, "--all").stdout.splitlines() if line.strip()}
    assert set(everything) - {"AIT_USE_FAST_MATH"} <= names


def test_precedence_names_the_winner(tmp_path: Path) -> None:
    (tmp_path / "buildd.toml").write_text("[environment]\nNUM_BUILDERS = 2\nAIT_NDEBUG = true\n")
    (tmp_path / ".config/buildd").mkdir(parents=True)
    (tmp_path / ".config/buildd/config.toml").write_text(
        '[environment]\nNUM_BUILDERS = 9\nBUILDD_CACHE_SIZE = "1GiB"\n'
    )
    shown = entries(tmp_path, NUM_BUILDERS="4")
    assert {
        name: (shown[name]["value"], shown[name]["source"]) for name in shown if name not in ("HOME", "PYTHONPATH")
    } == {
        "NUM_BUILDERS": ("4", "environment"),
        "AIT_NDEBUG": ("1", "buildd.toml"),
        "BUILDD_CACHE_SIZE": ("1GiB", "config.toml"),
    }


def test_a_bad_value_and_an_unknown_name_of_ours_are_said(tmp_path: Path) -> None:
    result = env(tmp_path, NUM_BUILDERS="many", BUILDD_JOB="3", AIT_NDEBUG="yes")
    assert result.returncode == 0
    assert 'NUM_BUILDERS="many" cannot be read; accepted: a whole number, 1 or more' in result.stderr
    assert "BUILDD_JOB: no such variable; did you mean BUILDD_JOBS?" in result.stderr
    assert 'AIT_NDEBUG="yes" counts as off' in result.stderr


def test_a_value_that_a_tool_would_not_know_is_said_with_those_it_knows(tmp_path: Path) -> None:
    name = "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_SEARCH_SPACE"
    assert f'{name}="bogus" is none of DEFAULT, EXHAUSTIVE' in env(tmp_path, **{name: "bogus"}).stderr
    assert env(tmp_path, **{name: "exhaustive"}).stderr == ""


def test_a_misspelt_variable_is_said_once(tmp_path: Path) -> None:
    result = env(tmp_path, NUM_BUILDER="3", AIT_USE_FASTMATH="1", TORCHINDUCTOR_MAX_AUTOTUNES="1", HOSTNAME="h")
    assert result.stderr.splitlines() == [
        "NUM_BUILDER: buildd does not know it; did you mean NUM_BUILDERS?",
        "AIT_USE_FASTMATH: no such variable; did you mean AIT_USE_FAST_MATH?",
        "TORCHINDUCTOR_MAX_AUTOTUNES: did you mean TORCHINDUCTOR_MAX_AUTOTUNE?",
    ]


def test_values_that_a_terminal_would_obey_are_escaped(tmp_path: Path) -> None:
    result = env(tmp_path, CXX="\x1b[31mred\n", CPATH=os.fsdecode(b"/caf\xe9"))
    assert result.returncode == 0
    assert "\x1b" not in result.stdout
    assert "\\x1b[31mred\\x0a" in result.stdout
    assert "CPATH: not UTF-8, so it is not sent" in result.stderr


def test_nothing_set(tmp_path: Path) -> None:
    assert env(tmp_path, "--bogus").returncode == 2
