"""Keeps Inductor's compiler out of a process that only runs graphs from the store: its import takes about a second.

torch imports it in places that need none of it: for the settings of `torch.compile`, in the text of each compiled graph
(`extern_kernels` and `align`), when a graph is loaded (`GraphLowering`, and the decompositions that its compile was
given), and when it is called (whether calls are recorded). If something else of it is asked for, it is imported then.
So is networkx, which AOTAutograd imports for a way to divide graphs that few programs ask for. Runs in the user's own
process; standard library and torch only.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

COMPILER = "torch._inductor.compile_fx"
DEBUG = "torch._inductor.debug"
DECOMPOSITION = "torch._inductor.decomposition"
GRAPH = "torch._inductor.graph"
SELECTION = "torch._inductor.select_algorithm"
PLANNING = "torch._inductor.codegen.memory_planning"
ALIGN = "_align"
TABLE = "select_decomp_table"
OF_NETWORKS = {"graph_info_provider": "GraphInfoProvider", "knapsack_evaluator": "KnapsackEvaluator"}
"""Modules of torch._functorch._activation_checkpointing that import networkx, with what AOTAutograd imports of each."""
DIRECT = ("addmm", "baddbmm", "bmm", "convolution", "mm")
"""Kernels of `extern_kernels` that are torch's functions of the same names."""


def begin(torch: types.ModuleType) -> None:
    """Have `torch.compile` read Inductor's settings without its compiler.

    Args:
        torch: the module torch, just imported.
    """
    wrapper = torch._TorchCompileInductorWrapper
    if "get_patched_config_dict" not in wrapper.get_compiler_config.__code__.co_names:
        return

    def get_compiler_config(self: Any) -> Any:
        import torch._inductor
        from torch._inductor import config

        _offer_modules(torch._inductor)
        with config.patch(self.config):
            return config.get_config_copy()

    wrapper.get_compiler_config = get_compiler_config


def without_networks(package: types.ModuleType) -> None:
    """Let AOTAutograd's partitioners be imported without networkx.

    Args:
        package: torch._functorch._activation_checkpointing, just imported.
    """
    for name, kind in OF_NETWORKS.items():
        module = f"{package.__name__}.{name}"
        if module not in sys.modules and importlib.util.find_spec(module) is not None:
            sys.modules[module] = _stand_in(module, kind, _Late(module, kind))


def with_networks(partitioners: types.ModuleType) -> None:
    """Let everybody else import the modules themselves.

    Args:
        partitioners: torch._functorch.partitioners, just imported.
    """
    for name in OF_NETWORKS:
        module = f"{partitioners.__package__}._activation_checkpointing.{name}"
        if isinstance(sys.modules.get(module), _StandIn):
            del sys.modules[module]


def _offer_modules(package: types.ModuleType) -> None:
    """Let programs find the package's modules by attribute, as if the compiler had imported them."""
    if COMPILER in sys.modules or hasattr(package, "__getattr__"):
        return

    def __getattr__(name: str) -> Any:
        # Python's import asks whether a module that it is to import is there already.
        is_import = sys._getframe(1).f_code.co_filename.startswith("<frozen importlib")
        if not is_import and name == "debug":
            # Each call of a graph asks whether it is to be recorded, until somebody imports the module.
            found = vars(package)[name] = _stand_in(DEBUG, "RECORD_GRAPH_EXECUTION", False)
            return found
        if not is_import and not name.startswith("__"):
            with contextlib.suppress(ModuleNotFoundError):
                return importlib.import_module(f"{package.__name__}.{name}")
        raise AttributeError(f"module {package.__name__!r} has no attribute {name!r}")

    vars(package)["__getattr__"] = __getattr__


class Kernels:
    """`extern_kernels` of Inductor, for a graph: its kernels, imported once they are called."""

    def __getattr__(self, name: str) -> Any:
        import torch

        if name.startswith("__"):
            raise AttributeError(name)
        if name in DIRECT:
            found = getattr(torch, name)
        else:
            importlib.import_module(COMPILER)  # as ever, it defines all of them
            found = getattr(importlib.import_module(SELECTION).extern_kernels, name)
        setattr(self, name, found)
        return found


class _Lowering:
    """`GraphLowering` of Inductor before somebody has set anything of it."""

    save_output_code = None


class _Late:
    """A function or class of a module that is imported once it is called, or once something of it is asked for."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._imported()(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._imported(), name)

    def _imported(self) -> Any:
        module = importlib.import_module(self._module)
        return getattr(module.loaded() if isinstance(module, _StandIn) else module, self._name)


class _StandIn(types.ModuleType):
    """Stands for a module of which one thing is used; becomes it as soon as anything else of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.loaded(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            setattr(self.loaded(), name, value)

    def loaded(self) -> types.ModuleType:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


def _stand_in(module: str, name: str, value: Any) -> _StandIn:
    made = _StandIn(module)
    vars(made)[name] = value
    return made


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """While it lasts, a graph from the store is loaded without Inductor's compiler."""
    given = {
        SELECTION: ("extern_kernels", Kernels()),
        GRAPH: ("GraphLowering", _Lowering),
        DECOMPOSITION: (TABLE, _Late(DECOMPOSITION, TABLE)),
        PLANNING: (ALIGN, _Late(PLANNING, ALIGN)),
    }
    stand_ins = []
    for module, (name, value) in given.items():
        if module not in sys.modules:
            sys.modules[module] = stand_in = _stand_in(module, name, value)
            stand_ins.append(stand_in)
    try:
        yield
    finally:
        for stand_in in stand_ins:
            if sys.modules.get(stand_in.__name__) is stand_in:
                del sys.modules[stand_in.__name__]
