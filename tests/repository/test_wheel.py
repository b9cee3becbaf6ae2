"""A wheel holds every file that an editable installation finds in the checkout, and its rooms can be imported."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from buildd.client import machine_checks
from tests.support.paths import ROOT

PACKAGES = ("buildd", "codegen", "protocol")
IMPORT_ALL = """
import importlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(root))
for place in sorted(root.rglob("__init__.py")):
    module = importlib.import_module(".".join(place.parent.relative_to(root).parts))
    assert pathlib.Path(module.__file__) == place, module.__file__
import buildd.cli, buildd.loader
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "docs/man", source / "docs/man")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = folder.glob("buildd-*.whl")
    return zipfile.ZipFile(path)


def test_it_holds_every_file(wheel: zipfile.ZipFile) -> None:
    packed = {name for name in wheel.namelist() if name.partition("/")[0] in PACKAGES}
    there = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == there
    assert any(name.endswith("data/share/man/man1/buildd.1") for name in wheel.namelist())


def test_every_room_is_imported_from_it(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    subprocess.run([sys.executable, "-P", "-c", IMPORT_ALL, str(tmp_path)], check=True)


def test_its_entry_points_keep_their_names(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    points = wheel.read(name).decode()
    assert "buildd = buildd.cli:main" in points and "buildd = buildd.torch_backend:compile_graph" in points
    assert "buildd = buildd.jax_plugin" in points


def test_doctor_looks_for_all_that_the_wheel_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*machine_checks.PACKAGES} == {each.partition(">=")[0] for each in project["dependencies"]}
