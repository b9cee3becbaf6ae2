"""backend="buildd" under `buildd run`: a program whose Python has no buildd gets Inductor by that name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

REGISTRY = """\
found = {"inductor": lambda graph, inputs, **options: (graph, inputs, options)}
def register_backend(function, name):
    assert name not in found
    found[name] = function
def lookup_backend(name):
    return found[name]
"""
PROGRAM = """\
from torch._dynamo.backends import registry
print(registry.lookup_backend("buildd")("graph", [1], mode="x") if "buildd" in registry.found else "nobody")
"""


def ran(tmp_path: Path, *found: str) -> str:
    package = tmp_path / "packages/torch/_dynamo/backends"
    package.mkdir(parents=True, exist_ok=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").write_text("")
    (package / "registry.py").write_text(REGISTRY)
    path = [str(ROOT / "buildd/hooks/startup"), str(tmp_path / "packages"), *found]
    done = subprocess.run(
        [sys._base_executable, "-P", "-c", PROGRAM],  # type: ignore[attr-defined]  # no buildd is installed there
        env={"PYTHONPATH": os.pathsep.join(path), "BUILDD_DIR": str(tmp_path / "store")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_name_leads_to_inductor(tmp_path: Path) -> None:
    assert ran(tmp_path) == "('graph', [1], {'mode': 'x'})"


def test_buildds_own_backend_keeps_its_name(tmp_path: Path) -> None:
    assert ran(tmp_path, str(ROOT)) == "nobody", "torch finds it by its entry point"
