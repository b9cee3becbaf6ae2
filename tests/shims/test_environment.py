"""What `buildd run` changes in a command's environment, and what it leaves as the user has it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from buildd.client.foreign_build import variables
from buildd.client.machine_checks import Level
from buildd.client.machine_checks import variables as checked_variables
from buildd.client.run_settings import complete
from buildd.hooks import inductor_cache
from buildd.hooks.entries import name_of
from buildd.programs.recording import recording
from buildd.shims import framework_environment
from buildd.shims.environment import LAUNCHERS
from buildd.shims.environment import variables as in_a_process_that_runs
from tests.support.own_programs import lend_programs

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="no host compiler")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "bin").mkdir()
    for name in ("nvcc", "g++"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    lend_programs(tmp_path / "store")
    return {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "BUILDD_DIR": str(tmp_path / "store"),
        "BUILDD_RUNTIME_DIR": str(tmp_path),
    }


SEEN = ("PATH", "PYTORCH_NVCC", "TORCH_NO_COMPILER_WRAPPER", *LAUNCHERS)


@needs_compiler
def test_no_path_that_a_program_may_write_down_is_changed(environ: dict[str, str]) -> None:
    found = variables(environ, "build")
    assert not found.keys() & set(SEEN)
    assert found["LD_PRELOAD"].endswith("/libbuildd-interpose.so")
    assert set(SEEN) <= variables({**environ, "BUILDD_INTERPOSE": "0"}, "build").keys(), "there is no other way"
    assert set(SEEN) <= in_a_process_that_runs(environ, "build", runs_already=True).keys()


@needs_compiler
def test_a_run_sets_what_the_user_has_not_set(environ: dict[str, str]) -> None:
    environ["BUILDD_INTERPOSE"] = "0"
    found = variables(environ, "build", 3)
    assert found["TORCH_NO_COMPILER_WRAPPER"] == "1"
    assert found["PYTORCH_NVCC"].endswith("/nvcc") and environ["HOME"] in found["PYTORCH_NVCC"]
    assert found["MAKEFLAGS"] == "-j3" and found["MAX_JOBS"] == "3"
    own = {"TORCH_NO_COMPILER_WRAPPER": "0", "PYTORCH_NVCC": "/mine/nvcc"}
    found = variables({**environ, **own, "MAKEFLAGS": "-k"}, "build", 3)
    assert not own.keys() & found.keys() and found["MAKEFLAGS"] == "-k -j3"


def test_the_users_file_sets_the_width_of_extensions(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / ".config/buildd").mkdir(parents=True)
    (tmp_path / ".config/buildd/config.toml").write_text("[environment]\nBUILDD_JOBS = 5\n")
    assert framework_environment.variables(environ)["MAX_JOBS"] == "5"
    assert framework_environment.variables({**environ, "BUILDD_JOBS": "2"})["MAX_JOBS"] == "2"


def test_easydels_wrong_cache_is_named_once_and_left_as_it_is(environ: dict[str, str], tmp_path: Path) -> None:
    for value in ("1", "easy", "True"):
        own = {**environ, "EASYDEL_CACHE_COMPILES": value}
        (line,) = complete(own, says=True)
        assert "static values" in line and "unset EASYDEL_CACHE_COMPILES" in line
        assert list(complete(own, says=False)) == [] and own["EASYDEL_CACHE_COMPILES"] == value
        assert [one.subject for one in checked_variables(own)] == ["EASYDEL_CACHE_COMPILES"]
    assert list(complete({**environ, "EASYDEL_CACHE_COMPILES": "on"}, says=True)) == []
    (tmp_path / ".config/buildd").mkdir(parents=True)
    (tmp_path / ".config/buildd/config.toml").write_text('[environment]\nEASYDEL_CACHE_COMPILES = "yes"\n')
    assert len(list(complete(dict(environ), says=True))) == 1


@pytest.mark.parametrize("name", ["AIT_TRACE_MAKE", "AIT_BUILD_CACHE_DIR", "AIT_BUILD_CACHE_SKIP_PERCENTAGE"])
def test_the_doctor_warns_of_what_harms_below_a_run(name: str) -> None:
    (finding,) = checked_variables({name: "1"})
    assert finding.level is Level.WARN and finding.subject == name and name in finding.next_step
    assert list(checked_variables({})) == []


def test_a_cache_of_the_users_own_keeps_buildds_away(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE", raising=False)
    assert inductor_cache.is_wanted()
    monkeypatch.setenv("TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE", "0")
    assert not inductor_cache.is_wanted()
    for folder in ("", "runtime"):
        (tmp_path / "own/triton" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "own/triton" / folder / "__init__.py").write_text("")
    (tmp_path / "own/triton/runtime/cache.py").write_text(
        "class FileCacheManager: pass\nclass knobs:\n class cache: manager_class = None\n"
    )
    code = "import triton.runtime.cache as cache; print(cache.knobs.cache.manager_class is None)"
    hooked = {**environ, "PYTHONPATH": f"{framework_environment.HOOKS}:{tmp_path / 'own'}"}
    assert says(hooked, code) == "False"
    assert says({**hooked, "TRITON_CACHE_MANAGER": "mine:Manager"}, code) == "True"


def says(environ: dict[str, str], code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_kernel_without_its_stages_has_another_name() -> None:
    assert name_of("key", "group", environ={"TRITON_STORE_BINARY_ONLY": "1"}) != name_of("key", "group", environ={})


def test_a_recording_run_tells_its_programs_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"HOME": str(tmp_path)}
    with recording(tmp_path / "kernels.jsonl", environ):
        assert Path(environ["BUILDD_RECORD"]).is_dir() and environ["BUILDD_RECORD_ROOT"] == str(tmp_path)
