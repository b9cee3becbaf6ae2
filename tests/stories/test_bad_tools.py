"""Tools that change behind the daemon's back, with the real nvcc: a host compiler replaced in place, a patched header.

Each change keeps size and mtime, as an upgrade by a careless package manager does. The daemon lives all the while.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.developer import Developer, end_developer, make_developer
from tests.support.own_programs import lend_programs
from tests.support.toolkit import has_nvcc, host_compiler, real_toolkit

pytestmark = pytest.mark.cuda

SOURCE = """\
__global__ void kernel(int *p) { *p = SAYS; }
extern "C" int says() { return SAYS; }
"""


@pytest.fixture
def developer(tmp_path: Path) -> Iterator[Developer]:
    """With a toolkit of links to the real one, in which nvcc and one header are files of our own."""
    if not has_nvcc() or not host_compiler():
        pytest.skip("no nvcc: pip install buildd[cuda]")
    real = real_toolkit()
    toolkit = tmp_path / "cuda"
    subprocess.run(["cp", "-rs", real, toolkit], check=True)
    # nvcc finds its parts from its own real path.
    for name in ("bin/nvcc", "include/cuda_runtime.h"):
        (toolkit / name).unlink()
        shutil.copy2(real / name, toolkit / name)
    developer = make_developer(toolkit)
    shutil.rmtree(developer.project / "src")
    developer.write("src/k.cu", SOURCE)
    yield developer
    end_developer(developer)


def swap(path: Path, before: str, after: str) -> None:
    """Change a text in place; its size and mtime stay."""
    status = path.stat()
    text = path.read_text()
    assert before in text and len(before) == len(after)
    path.write_text(text.replace(before, after))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def said_by(developer: Developer, number: int) -> int:
    """What the built library says. A library of one path is loaded once a process, so it is copied."""
    copy = shutil.copyfile(developer.library, developer.folder / f"copy{number}.so")
    return int(ctypes.CDLL(str(copy)).says())


def test_a_host_compiler_replaced_in_place(developer: Developer) -> None:
    wrapper = developer.folder / "bin" / "g++"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f'#!/bin/sh\nexec {shutil.which("g++", path="/usr/bin:/bin") or host_compiler()} -DSAYS=1 "$@"\n'
    )
    wrapper.chmod(0o755)
    toml = (developer.project / "buildd.toml").read_text()
    developer.write("buildd.toml", f'[toolchain]\nhost_compiler = "{wrapper}"\n{toml}')
    first = developer.build()
    assert first.status == 0, first.text
    assert said_by(developer, 1) == 1
    assert developer.build().compiled == 0
    swap(wrapper, "-DSAYS=1", "-DSAYS=2")
    second = developer.build("--explain")
    assert second.status == 0 and second.compiled == 2, second.text
    assert said_by(developer, 2) == 2
    assert "content changed" in second.text and "tool nvcc" in second.text, second.text
    swap(wrapper, "-DSAYS=2", "-DSAYS=1")
    assert developer.build().compiled == 0 and said_by(developer, 3) == 1


@pytest.mark.slow  # test_foreign_edits.py upgrades a header of the toolkit
def test_a_toolkit_header_patched(developer: Developer) -> None:
    header = Path(developer.environ["CUDA_HOME"]) / "include" / "cuda_runtime.h"
    header.chmod(0o644)
    header.write_text(header.read_text() + "\n#define SAYS 1\n")
    first = developer.build()
    assert first.status == 0, first.text
    assert said_by(developer, 1) == 1
    assert developer.build().compiled == 0
    swap(header, "#define SAYS 1", "#define SAYS 2")
    second = developer.build("--explain")
    assert second.status == 0 and second.compiled == 2, second.text
    assert said_by(developer, 2) == 2
    assert f"input {header}: content changed" in second.text or "cuda_runtime.h: content changed" in second.text


def test_a_store_and_a_project_whose_names_a_shell_would_take_apart(developer: Developer) -> None:
    """nvcc hands link options to a shell and splits them at commas; depfiles have their own rules for blanks."""
    developer.environ["BUILDD_DIR"] = str(developer.folder / "a store, of $mine")
    lend_programs(developer.folder / "a store, of $mine")
    developer.write("src/k.cu", SOURCE.replace("SAYS", "7"))
    project = shutil.copytree(developer.project, developer.folder / "it's a, $project")
    first = developer.build(project=project)
    assert first.status == 0 and "not stored" not in first.text, first.text
    shutil.rmtree(project / "build")
    assert developer.build(project=project).compiled == 0
