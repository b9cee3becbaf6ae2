"""Variables that a command itself reads: from the shell, from the project's file and from the user's."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from buildd.client.request import request_from, with_files
from buildd.ui.narrator import Telling, Verbosity
from buildd.ui.screen import telling_from
from protocol.messages import Mode

OPTIONS = Namespace(directory="", file="", jobs=None, arch=[])


@pytest.mark.parametrize("place", ["shell", "buildd.toml", "config.toml"])
def test_a_commands_own_variables_act_from_each_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "BUILDD_DIR": str(tmp_path / "store")}
    files = {"buildd.toml": tmp_path / "buildd.toml", "config.toml": tmp_path / ".config/buildd/config.toml"}
    files["config.toml"].parent.mkdir(parents=True)
    files["buildd.toml"].write_text("")
    if place == "shell":
        environ |= {"BUILDD_JOBS": "3", "LOGLEVEL": "ERROR"}
    else:
        files[place].write_text('[environment]\nBUILDD_JOBS = 3\nLOGLEVEL = "ERROR"\n')
    request = request_from(OPTIONS, (), Mode.BUILD, environ)
    assert request.jobs == 3
    assert request_from(Namespace(**{**vars(OPTIONS), "jobs": 2}), (), Mode.BUILD, environ).jobs == 2
    told = with_files(environ, request.project, request.file)
    assert telling_from(told, Telling()).verbosity is Verbosity.ERROR
    assert ("BUILDD_JOBS" in request.environment) == (place == "shell"), "a request carries the shell's variables"


def test_a_misspelt_variable_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "buildd.toml").write_text("")
    environ = {"HOME": str(tmp_path), "BUILDD_DIR": str(tmp_path / "store"), "AIT_NDEBG": "1", "AIT_NDEBUG": "1"}
    request = request_from(OPTIONS, (), Mode.BUILD, environ)
    assert "AIT_NDEBG" not in request.environment and request.environment["AIT_NDEBUG"] == "1"
    assert capsys.readouterr().err.count("did you mean AIT_NDEBUG?") == 1
