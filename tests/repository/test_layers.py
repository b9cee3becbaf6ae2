"""A room imports only rooms that stand above it in this list. Imports inside functions and for types alone count."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter

import pytest

from tests.support.paths import ROOT

ROOMS = (
    *(
        "protocol",
        "codegen.errors",
        "codegen.plan",
        "codegen.reach",
        "codegen.rendering",
        "codegen.flags",
        "codegen.search",
        "codegen.sources",
    ),
    *("codegen.variables", "codegen.project", "codegen.compilers", "codegen.context", "codegen.steps"),
    *("codegen.foreign", "codegen.compiled", "codegen.arrays", "codegen.gemm", "codegen.models", "codegen.python"),
    *("codegen.cmake_project", "codegen.clangd", "codegen.generate", "codegen.tuning", "codegen.workers"),
    *(
        "buildd.identity",
        "buildd.errors",
        "buildd.exits",
        "buildd.lazy",
        "buildd.caller",
        "buildd.hooks",
        "buildd.runtime",
    ),
    *("buildd.state", "buildd.host", "buildd.processes", "buildd.native", "buildd.files", "buildd.store"),
    *(
        "buildd.tier",
        "buildd.cluster",
        "buildd.keys",
        "buildd.artifacts",
        "buildd.builds",
        "buildd.watch",
        "buildd.shims",
        "buildd.scheduling",
    ),
    *(
        "buildd.ui",
        "buildd.client",
        "buildd.trees",
        "buildd.profiling",
        "buildd.editor",
        "buildd.programs",
        "buildd.web",
    ),
    *("buildd.daemon", "buildd.commands", "buildd.cli_client", "buildd.cli_server", "buildd.cli"),
    *("buildd.__main__", "buildd.jax_plugin", "buildd.loader", "buildd.torch_backend"),
)
"""From the ground up. What stands below `buildd.commands` are the doors: nothing imports them."""
ALONE = ("buildd.hooks", "codegen.workers")
"""Files that run in the user's own Python: they import nothing of the three packages outside their room."""
SEVERAL = {"buildd": "buildd.identity", "codegen": "codegen.plan"}
"""The `__init__` of a package that is divided into rooms holds a version and nothing else: it counts as ground."""
SELF_CONTAINED = {"codegen.workers": {"Refused"}}
"""Classes that each script of a room defines for itself, because it imports none of the others."""

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("protocol", "codegen", "buildd")
    for path in (ROOT / package).rglob("*.py")
}


def room(module: str) -> str:
    prefixes = [name for name in ROOMS if module == name or module.startswith(f"{name}.")]
    return prefixes[0] if prefixes else SEVERAL[module]


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
