"""Extensions of torch: of kind `extension`, and as torch itself builds them under `buildd run`.

Runs where torch is installed (`scripts/test-torch`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from buildd.host.proc import children_of
from tests.support.user import User

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

DEADLINE_S = 600.0
SOURCE = """
#include <torch/csrc/utils/pybind.h>
#include <ATen/ops/mul.h>
#ifndef BY
#define BY 2.0
#endif
at::Tensor scaled(at::Tensor x) { return at::mul(x, at::Scalar(BY)); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scaled", &scaled); }
"""
CALL = """
import json, sys, torch
sys.path.insert(0, sys.argv[1])
import ops
print(json.dumps(ops.scaled(torch.arange(4.0)).tolist()))
"""
LOAD = """
import json, os, sys, torch
from torch.utils.cpp_extension import load
os.makedirs(sys.argv[2], exist_ok=True)
ops = load("ops", [sys.argv[1]], extra_cflags=sys.argv[3:], build_directory=sys.argv[2])
print(json.dumps(ops.scaled(torch.arange(4.0)).tolist()))
"""
SMALL = """
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "small"};
extern "C" PyObject *PyInit_small() { return PyModule_Create(&definition); }
"""
SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension
setup(name="small", ext_modules=[CppExtension("small", ["small.cpp"])], cmdclass={"build_ext": BuildExtension})
"""
WITH_CCACHE = "#!/bin/sh\necho a ccache was called >&2\nexit 1\n"


@pytest.fixture(scope="module")
def user(user: User) -> User:
    ninja = shutil.which("ninja", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert ninja, "extra `test` brings one"
    tools = user.folder / "tools"
    tools.mkdir()
    (tools / "ninja").symlink_to(ninja)
    (tools / "ccache").write_text(WITH_CCACHE)
    (tools / "ccache").chmod(0o755)
    user.environ["PATH"] = f"{tools}:{user.environ['PATH']}"
    (user.folder / "ops.cpp").write_text(SOURCE)
    return user


def lay_out(folder: Path) -> Path:
    folder.mkdir()
    (folder / "ops.cpp").write_text(SOURCE)
    (folder / "buildd.toml").write_text('[target.ops]\nkind = "extension"\nsources = ["*.cpp"]\nflags = ["-O1"]\n')
    return folder


def test_a_target_is_a_module_that_torch_loads(user: User) -> None:
    project = lay_out(user.folder / "one")
    status, said = user.buildd("build", "-C", str(project), timeout_s=DEADLINE_S)
    assert status == 0, said
    done = subprocess.run(
        [sys.executable, "-P", "-c", CALL, str(project / "build/ops")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0.0, 2.0, 4.0, 6.0]
    twin = lay_out(user.folder / "two")
    status, said = user.buildd("warm", "--prove", "-C", str(twin))
    assert status == 0 and "2 hits" in said, "another checkout finds everything: " + said


class Program:
    """A program that loads an extension by torch's own `load`, under `buildd run`."""

    def __init__(self, user: User, folder: str, *flags: str) -> None:
        self.folder = user.folder / folder
        command = [sys.executable, "-P", "-m", "buildd", "run", "--", sys.executable, "-c", LOAD]
        self.process = subprocess.Popen(
            [*command, str(user.folder / "ops.cpp"), str(self.folder), "-O0", *flags],
            cwd=user.folder,
            env=user.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[list[float], int, int, str]:
        """What it computed, hits and misses of its compiles, and what was said."""
        output, errors = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0, errors[-3000:]
        counts = re.search(r"buildd: (\d+) hits?, (\d+) miss", errors)
        hits, misses = (int(counts[1]), int(counts[2])) if counts else (0, 0)  # a build without compiles says nothing
        return json.loads(output.splitlines()[-1]), hits, misses, errors


def test_what_torch_builds_is_found_again_and_no_lock_is_in_the_way(user: User) -> None:
    values, hits, misses, said = Program(user, "first").end()
    assert (values, hits, misses) == ([0.0, 2.0, 4.0, 6.0], 0, 1), said
    assert "ccache" not in said
    shutil.rmtree(user.folder / "first")
    # As a build leaves it that was killed before it made anything.
    (user.folder / "first").mkdir()
    (user.folder / "first" / "lock").touch()
    values, hits, misses, said = Program(user, "first").end()
    assert (values, hits, misses) == ([0.0, 2.0, 4.0, 6.0], 1, 0), said
    assert "first/lock was left behind by a killed build" in said
    assert not (user.folder / "first" / "lock").exists()


def test_killed_while_it_compiles_and_two_at_once_then(user: User) -> None:
    before = misses_of(user)
    killed = Program(user, "killed", "-DBY=3.0")
    deadline = time.monotonic() + DEADLINE_S
    builders: list[int] = []
    # The program itself has written what ninja reads, so ninja is what it starts now.
    while not builders or not any(children_of(pid) for pid in builders) or not (killed.folder / "build.ninja").exists():
        assert killed.process.poll() is None and time.monotonic() < deadline
        builders = children_of(killed.process.pid)
    for pid in builders:
        os.kill(pid, signal.SIGKILL)
    killed.process.communicate(timeout=DEADLINE_S)
    assert (killed.folder / "lock").exists()
    others = [Program(user, "killed", "-DBY=3.0") for _ in range(2)]
    found = [other.end() for other in others]
    assert [values for values, *_ in found] == [[0.0, 3.0, 6.0, 9.0]] * 2
    assert misses_of(user) - before == 1, "ninja, the shim or the daemon went on, and all others found its object"


def misses_of(user: User) -> int:
    status, said = user.buildd("cache", "stats", "--json")
    assert status == 0, said
    found = json.loads(said)["counters"]["misses"]
    assert isinstance(found, int)
    return found


def test_setuptools_build_is_found_again(user: User) -> None:
    package = user.folder / "package"
    package.mkdir()
    (package / "setup.py").write_text(SETUP)
    (package / "small.cpp").write_text(SMALL)
    for hits in ("0 hits, 1 miss", "1 hit, 0 misses"):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "buildd", "run", "--", sys.executable, "setup.py", "build_ext", "--inplace"],
            cwd=package,
            env=user.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert f"buildd: {hits}" in done.stderr
        assert list(package.glob("small.*.so"))
        shutil.rmtree(package / "build")
