"""The structure of the tests: what several test modules share is in tests/support."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT, TESTS

# Also in the text of a program that a test runs.
_IMPORT = re.compile(r"^\s*(?:from|import)\s+tests\.(?:\w+\.)*test_\w+.*$", re.MULTILINE)


def programs() -> list[Path]:
    """The Python files of tests/ and scripts/, those without an ending too."""
    return sorted(
        path
        for folder in (TESTS, ROOT / "scripts")
        for path in folder.rglob("*")
        if path.is_file() and (path.suffix == ".py" or path.read_bytes()[:80].startswith(b"#!/usr/bin/env python"))
    )


def imported_tests(text: str) -> list[str]:
    """Imports of test modules: statements, and lines of programs that are strings."""
    found = _IMPORT.findall(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            module = f"{'tests.' * bool(node.level)}{node.module or ''}"
            names = [*module.split("."), *(alias.name for alias in node.names)]
            if names[0] == "tests" and any(name.startswith("test_") for name in names):
                found.append(ast.unparse(node))
    return found


def test_no_test_module_is_imported() -> None:
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in programs()
        if (found := imported_tests(path.read_text(encoding="utf-8")))
    }
    assert len(programs()) > 100 and wrong == {}, "move what they share into tests/support"


@pytest.mark.parametrize(
    "text",
    [
        "from tests.room.test_thing import helper",
        "from tests.room import test_thing",
        "from .test_thing import helper",
        "from . import test_thing",
        "def late():\n    import tests.room.test_thing",
        'PROGRAM = """\nfrom tests.room.test_thing import helper\n"""',
    ],
)
def test_an_import_of_a_test_module_is_found(text: str) -> None:
    assert imported_tests(text)


_FINDS_NVCC = ("small_toolkit", "real_toolkit")


def toolkits_of_imports(text: str) -> list[str]:
    """Calls that ask for nvcc as soon as the module is imported; the body of a function does so later."""
    found: list[str] = []
    nodes: list[ast.AST] = [ast.parse(text)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _FINDS_NVCC:
            found.append(ast.unparse(node))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes += [*node.decorator_list, node.args]
        elif isinstance(node, ast.Lambda):
            nodes.append(node.args)
        else:
            nodes += ast.iter_child_nodes(node)
    return found


def test_no_module_needs_nvcc_to_be_imported() -> None:
    """Every tier collects all test modules, and that of JAX has no nvcc."""
    paths = list(TESTS.rglob("*.py"))
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in paths
        if (found := toolkits_of_imports(path.read_text(encoding="utf-8")))
    }
    assert len(paths) > 100 and wrong == {}, "ask for the toolkit in a function"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('NVCC = small_toolkit() / "bin/nvcc"', 1),
        ("if True:\n    NVCC = toolkit.real_toolkit()", 1),
        ("@mark(small_toolkit())\ndef test() -> None: ...", 1),
        ("def test(nvcc=small_toolkit()) -> None: ...", 1),
        ("class Build:\n    nvcc = small_toolkit()", 1),
        ("def test() -> None:\n    small_toolkit()", 0),
        ("nvcc = lambda: small_toolkit()", 0),
        ("class Build:\n    def nvcc(self) -> None:\n        small_toolkit()", 0),
    ],
)
def test_a_toolkit_that_an_import_asks_for_is_found(text: str, count: int) -> None:
    assert len(toolkits_of_imports(text)) == count


@pytest.mark.parametrize("tool", ["cuobjdump", "nvcc"])
def test_wheels_of_other_tools_are_no_nvcc(tmp_path: Path, tool: str) -> None:
    (tmp_path / "nvidia/cu13/bin").mkdir(parents=True)
    (tmp_path / "nvidia/cu13/bin" / tool).touch(0o755)
    found = subprocess.run(
        # Without packages: this environment may have an nvcc.
        [sys.executable, "-S", "-c", "from tests.support.toolkit import has_nvcc\nprint(has_nvcc())"],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == f"{tool == 'nvcc'}\n"


def test_helpers_say_what_they_are() -> None:
    helpers: list[Path] = [path for path in (TESTS / "support").glob("*.py") if path.name != "__init__.py"]
    assert helpers and [path.name for path in helpers if not ast.get_docstring(ast.parse(path.read_text()))] == []
