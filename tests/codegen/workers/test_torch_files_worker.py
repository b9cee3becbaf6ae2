"""The files of a compile with torch, with the real host compiler and without torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from codegen.workers import torch_files_worker as files


@pytest.fixture
def headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the compiler's wrapper lists headers. What the worker sets in its own process is taken back."""
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_HOME", "TRITON_CACHE_DIR", "HOME", "USER", "PATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    real = shutil.which("g++")
    assert real is not None
    (tmp_path / "private").mkdir()
    listed = files.private_places(str(tmp_path / "private"))
    files.write_compiler(str(tmp_path / "private"), real, str(tmp_path / "torch"), listed)
    return listed


def test_headers_that_the_host_compiler_reads_are_inputs_and_generated_ones_are_not(
    tmp_path: Path, headers: str
) -> None:
    (tmp_path / "private/made.h").write_text("")
    (tmp_path / "with space.h").write_text("")
    (tmp_path / "private/m.cpp").write_text(f'#include "made.h"\n#include "{tmp_path}/with space.h"\n')
    subprocess.run(["g++", "-c", "m.cpp", "-o", "m.o"], cwd=tmp_path / "private", check=True)
    found = files.inputs(str(tmp_path / "private"), str(tmp_path / "torch"), headers, frozenset(sys.modules))
    assert str(tmp_path / "with space.h") in found
    assert not any(path.startswith(f"{tmp_path}/private/") for path in found)


def test_an_object_names_neither_the_jobs_folder_nor_torchs(tmp_path: Path, headers: str) -> None:
    (tmp_path / "private/m.cpp").write_text("const char *file = __FILE__;\n")
    subprocess.run(["g++", "-g", "-c", f"{tmp_path}/private/m.cpp", "-o", f"{tmp_path}/m.o"], check=True)
    content = (tmp_path / "m.o").read_bytes()
    assert b"/model/m.cpp" in content and f"{tmp_path}/private".encode() not in content


def test_modules_of_the_worker_and_of_the_standard_library_are_no_inputs(tmp_path: Path, headers: str) -> None:
    before = frozenset(name for name in sys.modules if name not in ("json", files.__name__))
    assert files.inputs(str(tmp_path / "private"), str(tmp_path / "torch"), headers, before) == []
