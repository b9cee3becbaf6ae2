"""--cuda, --rocm and --host-compiler: they go before the project's [toolchain] and the shell's variables."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

import msgspec
import pytest

from buildd.builds.up_to_date import name_of
from buildd.client.request import add_request_arguments, request_from
from codegen.errors import RequestError
from codegen.plan import Plan
from protocol.messages import Mode, Request
from tests.support.carry_out import plan_for, request_for

PROJECT = '[toolchain]\ncuda = "/nowhere"\nhost_compiler = "gcc"\n[target.t]\nkind = "cuda"\nsources = ["k.cu"]\n'


def requested(folder: Path, *arguments: str, **environment: str) -> Request:
    command = argparse.ArgumentParser()
    add_request_arguments(command)
    options = command.parse_args(["-C", str(folder), "--arch", "sm_80", *arguments])
    environ = {"PATH": os.environ.get("PATH", os.defpath), "BUILDD_DIR": str(folder / "store"), **environment}
    return request_from(options, (), Mode.BUILD, environ)


def toolkit(folder: Path) -> Path:
    """A folder through which this machine's nvcc is found."""
    real = next((path for site in sys.path if os.access(path := f"{site}/nvidia/cu13/bin/nvcc", os.X_OK)), "")
    if not real:
        pytest.skip("no nvcc")
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/nvcc").write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    (folder / "bin/nvcc").chmod(0o755)
    return folder


@pytest.mark.cuda
def test_an_option_goes_before_the_file_and_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    (tmp_path / "buildd.toml").write_text(PROJECT)
    (tmp_path / "k.cu").write_text("")
    chosen = toolkit(tmp_path / "chosen")
    monkeypatch.chdir(tmp_path)
    request = requested(tmp_path, "--cuda", "chosen", "--host-compiler", "g++", AIT_NVCC_CCBIN="gcc", CUDA_HOME="/gone")
    assert request.toolchain == {"cuda": str(chosen), "host_compiler": "g++"}
    plan: Plan = plan_for(request)
    assert dict(plan.tools[0].roots)["nvcc"] == str(chosen / "bin")
    argv = [str(word) for word in plan.actions[0].argv]
    assert argv[argv.index("-ccbin") + 1] == "g++"
    assert name_of(request) != name_of(msgspec.structs.replace(request, toolchain={})), "a record is of one toolchain"


def test_a_tool_that_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "buildd.toml").write_text(PROJECT)
    for arguments in (("--cuda", "gone"), ("--rocm", str(tmp_path)), ("--host-compiler", "no-such-compiler")):
        with pytest.raises(RequestError, match=f"{arguments[0]} .*there is no") as caught:
            requested(tmp_path, *arguments)
        assert caught.value.code == "compiler-not-found"


@pytest.mark.hip
def test_rocm_names_the_folder_of_hipcc(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/hipcc").write_text(f'#!/bin/sh\nexec {shutil.which("hipcc")} "$@"\n')
    (tmp_path / "bin/hipcc").chmod(0o755)
    (tmp_path / "k.hip").write_text("")
    (tmp_path / "buildd.toml").write_text(
        '[toolchain]\nhip = "/nowhere"\n[target.t]\nkind = "hip"\nsources = ["k.hip"]\narch = ["gfx90a"]\n'
    )
    request = msgspec.structs.replace(requested(tmp_path, "--rocm", str(tmp_path)), arch=())
    assert dict(plan_for(request).tools[0].roots)["hip"] == str(tmp_path)


def test_a_key_that_no_project_file_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "buildd.toml").write_text(PROJECT)
    with pytest.raises(RequestError, match='"cud" is no key of'):
        plan_for(request_for(tmp_path, file="buildd.toml", toolchain={"cud": "/x"}))
