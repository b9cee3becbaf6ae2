"""Bytecode in the store: the code of a source's own text, kept where Python keeps none, and never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from buildd.hooks import bytecode
from buildd.shims.framework_environment import variables
from buildd.store import shared_kernels

PROGRAM = """
import sys
compiled = []
sys.addaudithook(lambda event, given: compiled.append(given[1]) if event == "compile" else None)
sys.path[:0] = sys.argv[1:]
import triton, triton.language
ours = [name for name in compiled if isinstance(name, str) and "/triton/" in name]
print(len(ours), triton.VALUE, triton.where.__code__.co_filename == triton.__file__, triton.language.VALUE)
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    made = tmp_path / "store"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "site" / "triton"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("VALUE = 1\ndef where(): pass\n")
    (folder / "language.py").write_text("VALUE = 2\n")
    return folder


def says(store: Path, *packages: Path, **more: str) -> str:
    """(how many modules of triton were compiled, what is in them) in a program under `buildd run`."""
    plain = {"PATH": os.environ["PATH"], "BUILDD_DIR": str(store), "PYTHONDONTWRITEBYTECODE": "1", **more}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *(str(package.parent) for package in packages)],
        env={name: value for name, value in {**plain, **variables(plain)}.items() if value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.strip()


def entries(store: Path) -> list[Path]:
    return sorted((store / bytecode.FOLDER).glob("*"))


def test_a_module_is_compiled_once_for_each_text(store: Path, package: Path) -> None:
    assert says(store, package) == "2 1 True 2"
    assert says(store, package) == "0 1 True 2"
    before = package.joinpath("language.py").stat()
    (package / "language.py").write_text("VALUE = 3\n")
    os.utime(package / "language.py", ns=(before.st_atime_ns, before.st_mtime_ns))  # no stamp tells
    assert says(store, package) == "1 1 True 3"
    assert says(store, package) == "0 1 True 3"


def test_the_same_text_at_another_place_knows_its_place(store: Path, package: Path, tmp_path: Path) -> None:
    assert says(store, package) == "2 1 True 2"
    other = tmp_path / "other" / "triton"
    other.mkdir(parents=True)
    for path in package.glob("*.py"):
        (other / path.name).write_bytes(path.read_bytes())
    assert says(store, other) == "2 1 True 2"


def test_what_is_damaged_or_anothers_is_compiled(store: Path, package: Path) -> None:
    says(store, package)
    first, second = (path for path in entries(store) if b"triton" in path.read_bytes())
    content = first.read_bytes()
    for bad in (b"", content[:-1], content[:60] + bytes([content[60] ^ 1]) + content[61:], second.read_bytes()):
        first.write_bytes(bad)
        assert says(store, package) == "1 1 True 2"
        assert says(store, package) == "0 1 True 2"


def test_where_python_keeps_it_or_the_user_wants_none_nothing_is_kept(store: Path, package: Path) -> None:
    assert says(store, package, BUILDD_DISABLE="1") == "2 1 True 2"
    assert says(store, package, PYTHONDONTWRITEBYTECODE="") == "2 1 True 2"
    assert says(store, package, PYTHONDONTWRITEBYTECODE="") == "0 1 True 2"
    assert not [path for path in entries(store) if b"site/triton" in path.read_bytes()]


def test_a_folder_that_others_can_write_to_is_not_used(store: Path, package: Path) -> None:
    (store / bytecode.FOLDER).mkdir()
    (store / bytecode.FOLDER).chmod(0o777)
    assert says(store, package) == "2 1 True 2"
    assert entries(store) == []


def test_it_shares_the_bound_of_kernels_and_is_flushed(store: Path, package: Path) -> None:
    says(store, package)
    assert entries(store) and shared_kernels.held(store) == (0, 0)
    size = sum(path.stat().st_size for path in entries(store))
    assert shared_kernels.trim(store, size) == size
    assert shared_kernels.trim(store, size - 1) < size
    shared_kernels.clear(store)
    assert entries(store) == []
