"""The rooms of the three packages, from the ground up, and the modules in them."""

from __future__ import annotations

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
    *("buildd.__main__", "buildd.ccache_storage", "buildd.jax_plugin", "buildd.loader", "buildd.torch_backend"),
)
"""From the ground up. What stands below `buildd.commands` are the doors: nothing imports them."""
SEVERAL = {"buildd": "buildd.identity", "codegen": "codegen.plan"}
"""The `__init__` of a package that is divided into rooms holds a version and nothing else: it counts as ground."""
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("protocol", "codegen", "buildd")
    for path in (ROOT / package).rglob("*.py")
}


def room(module: str) -> str:
    prefixes = [name for name in ROOMS if module == name or module.startswith(f"{name}.")]
    return prefixes[0] if prefixes else SEVERAL[module]
