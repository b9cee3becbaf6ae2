"""A room imports only rooms that stand before it in `ROOMS`. Imports inside functions and for types alone count."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter

import pytest

from tests.support.paths import ROOT
from tests.support.rooms import MODULES, ROOMS, SEVERAL, room

ALONE = ("buildd.hooks", "codegen.workers")
"""Files that run in the user's own Python: they import nothing of the three packages outside their room."""
SELF_CONTAINED = {"codegen.workers": {"Refused"}}
"""Classes that each script of a room defines for itself, because it imports none of the others."""


def imported(module: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in MODULES else node.module for name in names)


@cache
def imports() -> dict[str, set[str]]:
    """What each module imports. Not read when this file is: pytest reads it in each of its processes."""
    return {module: set(imported(module)) - {module} for module in MODULES}


def test_rooms_import_rooms_above_them_in_the_list_alone() -> None:
    assert {room(module) for module in MODULES} == set(ROOMS)
    wrong = [
        f"{module} imports {other}"
        for module, others in imports().items()
        for other in others
        if ROOMS.index(room(other)) > ROOMS.index(room(module))
        or (room(module) in ALONE and room(other) not in (room(module), SEVERAL["buildd"]))
    ]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    order = list(TopologicalSorter(imports()).static_order())  # raises CycleError
    assert len(order) == len(MODULES)


def test_the_hall_stays_small() -> None:
    flat = [path.name for path in (ROOT / "buildd").glob("*.py") if path.name != "__init__.py"]
    assert len(flat) <= 12, flat


@pytest.mark.parametrize("package", ["protocol", "codegen", "buildd"])
def test_a_package_defines_no_public_class_twice(package: str) -> None:
    defined: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        if module.partition(".")[0] != package:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            if node.name not in SELF_CONTAINED.get(room(module), set()):
                defined.setdefault(node.name, []).append(module)
    assert {name: modules for name, modules in defined.items() if len(modules) > 1} == {}
