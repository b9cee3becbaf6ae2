"""`buildd topology`: what it writes, and what it says where there is no GPU. The worker is a small script here."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildd.commands.topology import run


def python(folder: Path, script: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_the_file_is_replaced_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gpu.topology"
    file.write_text("old")
    written = python(tmp_path, 'test "$2 $JAX_PLATFORMS" = "--topology cuda,cpu" && echo new > "$3"')
    assert run([str(file), "--python", written]) == 0
    assert file.read_text() == "new\n" and 'device = "cuda"' in capsys.readouterr().out
    failing = python(tmp_path, 'echo half > "$3"; echo "error: JAX sees no GPU: no driver" >&2; exit 1')
    assert run([str(file), "--python", failing]) == 1
    said = capsys.readouterr().err
    assert "JAX sees no GPU: no driver" in said and "next:" in said
    assert file.read_text() == "new\n" and sorted(path.name for path in tmp_path.iterdir()) == [
        "gpu.topology",
        "python",
    ]


def test_a_python_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([str(tmp_path / "gpu.topology"), "--python", str(tmp_path / "absent")]) == 2
    assert "absent" in capsys.readouterr().err
