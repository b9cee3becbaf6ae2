"""A project of kind jax for tests: its target, its builds, and programs that load what was built."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT
from tests.support.user import User


class Project:
    """A project of kind jax, of a user with a daemon."""

    def __init__(self, user: User, name: str, code: str) -> None:
        self.user, self.folder = user, user.folder / name
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.write(code)
        shutil.copy(ROOT / "tests/data/h100.txtpb", self.folder)
        self.target()

    def write(self, code: str) -> None:
        (self.folder / "net.py").write_text(code)

    def target(self, **changes: Any) -> None:
        table: dict[str, Any] = {
            "kind": "jax",
            "source": "net.py",
            "function": "step",
            "inputs": [{"function": "parameters", "donate": True}, {"function": "state"}, {"shape": [4, 16]}],
            "static": {"layers": 3},
            **changes,
        }
        lines = (f"{key} = {toml(value)}\n" for key, value in table.items())
        (self.folder / "buildd.toml").write_text("[target.step]\n" + "".join(lines))

    def build(self, *arguments: str) -> tuple[int, str]:
        return self.user.buildd("build", "-C", str(self.folder), *arguments, timeout_s=200)

    def python(self, code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env={**self.user.environ, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            timeout=120,
        )

    @property
    def package(self) -> Path:
        return self.folder / "build/step/step.jax"

    def described(self) -> dict[str, Any]:
        with zipfile.ZipFile(self.package) as stream:
            found: dict[str, Any] = json.loads(stream.read("description.json"))
        return found


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + " }"
    return "[" + ", ".join(map(toml, value)) + "]" if isinstance(value, list) else json.dumps(value)
