"""What a program adds to torch's compiler in code: custom operators, decompositions, lowerings and patterns.

Inductor's keys of graphs name operators and do not say what those registrations do. Runs in the user's own process;
standard library and torch only. A function counts by its code, by the values that it reads and by the files of the
modules that its own leads to.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

from .trace_sources import code_digest, names_in

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_PASSES = tuple(f"torch._inductor.fx_passes.{name}" for name in ("pre_grad", "joint_graph", "post_grad"))
_KERNELS = ("CPU", "CUDA", "HIP", "XPU", "MPS", "HPU", "MTIA", "PrivateUse1")
"""Dispatch keys of functions that run when the graph does: the graph only calls the operator."""
_ELSEWHERE = frozenset(("torch", *sys.stdlib_module_names))
_DEEPEST = 4
_noted: list[Any] = []
_found: dict[int, tuple[Any, tuple[Any, ...]]] = {}
"""Id of a registered object -> the object, and the user's functions in it."""
_files: dict[str, str] = {}
"""Module -> the digest of its file and of those that it leads to."""
_last: list[Any] = [None, []]
"""What was registered when `_theirs` looked, and what it found."""


def begin(library: Any) -> None:
    """Note the functions that are given to torch.library.Library.impl: the dispatcher gives none back.

    Args:
        library: the module torch.library, just imported.
    """
    impl = library.Library.impl

    @functools.wraps(impl)
    def noted(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", *more: Any, **named: Any) -> Any:
        if dispatch_key not in _KERNELS:
            _noted.extend(_functions_in(fn))
        return impl(self, op_name, fn, dispatch_key, *more, **named)

    library.Library.impl = noted


def mark() -> str:
    """A digest of all registrations that are not torch's own; empty where there are none."""
    told = sorted({_value(function, set(), 0) for function in _theirs()})
    return hashlib.sha256("\0".join(told).encode(errors="surrogateescape")).hexdigest() if told else ""


def _theirs() -> list[Any]:
    """All functions and methods that are not torch's own. Looked for again where something was registered since."""
    sign = (len(_noted), *(tuple(map(id, table)) for table in _tables()), *(len(one.patterns) for one in _passes()))
    if _last[0] != sign:
        found = {id(function): function for function in _noted}
        for value in _registered():
            found.update((id(function), function) for function in _functions_in(value))
        _last[:] = [sign, list(found.values())]
    return list(_last[1])


def _tables() -> Iterator[list[Any]]:
    """Lowerings, decompositions, custom operators and fake implementations."""
    lowering, decomposition = map(sys.modules.get, ("torch._inductor.lowering", "torch._inductor.decomposition"))
    yield list(getattr(lowering, "lowerings", {}).values())
    yield list(getattr(decomposition, "decompositions", {}).values())
    for table in getattr(sys.modules.get("torch._decomp"), "global_decomposition_table", {}).values():
        yield list(table.values())
    yield list(getattr(sys.modules.get("torch._library.custom_ops"), "OPDEFS", {}).values())
    yield list(getattr(_registry(), "_data", {}).values())


def _registry() -> Any:
    return getattr(sys.modules.get("torch._library.simple_registry"), "singleton", None)


def _passes() -> Iterator[Any]:
    for name in _PASSES:
        for value in list(vars(sys.modules[name]).values()) if name in sys.modules else ():
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if type(one).__name__ == "PatternMatcherPass":
                    yield one


def _registered() -> Iterator[Any]:
    """All functions that torch's compiler may call for an operator, torch's own ones too."""
    *tables, operators, entries = _tables()
    for table in tables:
        yield from table
    for one in _passes():
        yield from _entries(one)
    for operator in operators:
        yield from (value for name, value in vars(operator).items() if name not in ("_backend_fns", "_init_fn"))
    for entry in entries:
        yield getattr(getattr(getattr(entry, "fake_impl", None), "kernel", None), "func", None)
        yield from list(getattr(getattr(entry, "torch_dispatch_rules", None), "_data", {}).values())


def _entries(patterns: Any) -> Iterator[Any]:
    for entries in list(patterns.patterns.values()):
        for entry in list(entries):
            yield from vars(entry).values()


def _functions_in(value: Any) -> tuple[Any, ...]:
    """The functions and methods of others than torch in a registered object."""
    if isinstance(value, _PLAIN):
        return ()
    known = _found.get(id(value))
    if known is None or known[0] is not value:
        found: dict[int, Any] = {}
        _walk(value, found, set(), 0)
        known = _found[id(value)] = (value, tuple(found.values()))
    return known[1]


def _walk(value: Any, found: dict[int, Any], seen: set[int], depth: int) -> None:
    if depth > _DEEPEST or id(value) in seen:
        return
    seen.add(id(value))
    inner: Iterable[Any] = ()
    if isinstance(value, FunctionType):
        if not _is_torchs(value):
            found[id(value)] = value
        inner = (getattr(value, "__wrapped__", None), *_cells(value), *(value.__defaults__ or ()))
    elif isinstance(value, functools.partial):
        inner = (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, MethodType):
        if isinstance(value.__func__, FunctionType) and not _is_torchs(value.__func__):
            found[id(value)] = value
    elif isinstance(value, (list, tuple)):
        inner = value
    elif isinstance(value, dict):
        inner = value.values()
    for one in inner:
        if not isinstance(one, _PLAIN):
            _walk(one, found, seen, depth + 1)


def _is_torchs(function: FunctionType) -> bool:
    # What torch makes by exec has no module.
    return _module_of(function).partition(".")[0] in ("torch", "None")


def _module_of(function: FunctionType) -> str:
    """The module whose code a function is: `functools.wraps` gives it the name of another one."""
    return str(function.__globals__.get("__name__"))


def _cells(function: FunctionType) -> list[Any]:
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue
    return found


def _told(function: FunctionType, seen: set[int]) -> str:
    """A function in words that are the same in each process: its code, the values that it reads, and the files of all
    modules that its own leads to."""
    if id(function) in seen:
        return function.__qualname__
    seen.add(id(function))
    module = _module_of(function)
    parts = [module, function.__qualname__, code_digest(function.__code__), _files_digest(module)]
    named = [function.__globals__.get(name) for name in sorted(names_in(function.__code__))]
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    parts += [_value(value, seen, 0) for value in (*_cells(function), *defaults, *named)]
    return repr(parts)


def _value(value: Any, seen: set[int], depth: int) -> str:
    """A value that a function reads, in such words."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if depth > _DEEPEST or isinstance(value, ModuleType):
        return type(value).__name__  # its module's file counts
    if isinstance(value, FunctionType):
        return "" if _is_torchs(value) else _told(value, seen)
    if isinstance(value, MethodType):
        return f"{_value(value.__func__, seen, depth)} of {_value(value.__self__, seen, depth + 1)}"
    if isinstance(value, dict):
        return str([(_value(key, seen, depth + 1), _value(one, seen, depth + 1)) for key, one in value.items()])
    if isinstance(value, (list, tuple)):
        return str([_value(one, seen, depth + 1) for one in value])
    if isinstance(value, (set, frozenset)):
        return str(sorted(_value(one, seen, depth + 1) for one in value))
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, type) or id(value) in seen or name.partition(".")[0] == "torch":
        return name
    seen.add(id(value))
    return name + _value(getattr(value, "__dict__", None), seen, depth + 1)


def _files_digest(module: str) -> str:
    """The digest of the files of a module and of all that it leads to, other than torch and the standard library."""
    known = _files.get(module)
    if known is None:
        found: dict[str, str] = {}
        waiting = [module]
        while waiting:
            name = waiting.pop()
            here = sys.modules.get(name)
            if name in found or here is None or name.partition(".")[0] in _ELSEWHERE:
                continue
            found[name] = _file_digest(str(getattr(here, "__file__", "")), whole=name == module)
            if found[name].startswith("installed"):
                continue
            for value in list(vars(here).values()):
                leads = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
                waiting += [leads] if isinstance(leads, str) else []
        known = _files[module] = hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()
    return known


def _file_digest(path: str, *, whole: bool) -> str:
    """The digest of a file; of an installed package's only its time and size, unless it is wanted whole."""
    try:
        if not whole and f"-packages{os.sep}" in path:
            status = os.stat(path)
            return f"installed {status.st_size} {status.st_mtime_ns}"
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""
