"""The structure of the tests: what several test modules share is in tests/support."""

from __future__ import annotations

import ast
import re
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


def test_helpers_say_what_they_are() -> None:
    helpers: list[Path] = [path for path in (TESTS / "support").glob("*.py") if path.name != "__init__.py"]
    assert helpers and [path.name for path in helpers if not ast.get_docstring(ast.parse(path.read_text()))] == []
