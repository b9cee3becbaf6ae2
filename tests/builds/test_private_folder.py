"""What users read in the place of a job's private folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildd.builds.private_folder import unnamed
from buildd.processes.launch import Exit
from protocol.messages import Timing


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("{}/job-abc/ccX.s:4: Warning", "/tmp/ccX.s:4: Warning"),
        ("cannot open {}/job-abc/a.o: full", "cannot open out/a.o: full"),
        ("({}/job-abc/a.o)", "(out/a.o)"),
        ("{}/job-abc/a.o.tmp", "/tmp/a.o.tmp"),
        ("{}/job-of-a-step/a.ptx, line 26", "/tmp/a.ptx, line 26"),
        ("TMPDIR={}/job-abc", "TMPDIR=/tmp"),
        ("{}/other/ccX.s", "{}/other/ccX.s"),
        ("a.c:1: error", "a.c:1: error"),
    ],
)
def test_a_private_folder_is_called_tmp(said: str, right: str, tmp_path: Path) -> None:
    around = tmp_path / "scratch"
    around.mkdir()
    link = tmp_path / "link"
    link.symlink_to(around)
    for name in (around, link):
        exit = Exit(status=1, signal=0, timing=Timing(), stderr=said.format(around).encode())
        shown = unnamed(exit, {f"{name}/job-abc/a.o": "out/a.o"}, (str(name),))
        assert shown.stderr.decode() == right.format(around)
