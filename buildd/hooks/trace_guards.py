"""The guards of one of Dynamo's traces: kept, built again on the values of another process, and put into words.

A trace holds for a frame if its guards, built on what the frame has now, say the same as they said when it was traced:
the same types, constants, sizes, functions by content. So nothing is taken from the other process but which questions
to ask. Knows `torch._dynamo.guards` and `torch._guards`; runs in the user's own process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import io
import logging
import pickle
import re
from collections.abc import Iterator
from types import CodeType
from typing import Any

from .trace_sources import Census, UnnamedError

_ID = re.compile(r"(___check_(?:obj|type)_id\(.*), (\d+)\)(, type=<.*>)?")
_COMMENT = re.compile(r"\s+(# .*|\(HINT: .*\))?$")
_NO_HOOKS = "top_saved_tensors_hooks ids == "
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_LONG = re.compile(r"(?<!\w)\d{9,}(?!\w)")
_SCOPES = ("local_scope", "global_scope", "_guards", "global_state_guard")
_EMPTY = ("torch_function_mode_stack", "functorch_layers", "export_constraints", "current_device")
"""Parts of a state that have to be empty: they hold objects of one process."""
_FROM = ("torch._dynamo.source", "torch._guards", "torch._dynamo.guards")
_NAMES = {"functools": {"partial"}, "builtins": {"set", "frozenset", "getattr", "slice", "complex"}, "torch": {"Size"}}


_KNOWN = frozenset(
    [
        "AUTOGRAD_SAVED_TENSORS_HOOKS",
        "BOOL_MATCH",
        "BUILTIN_MATCH",
        "CLASS_MATCH",
        "CLOSURE_MATCH",
        "CONSTANT_MATCH",
        "CONSTANT_SUBCLASS_MATCH",
        "DEFAULT_DEVICE",
        "DETERMINISTIC_ALGORITHMS",
        "DICT_CONTAINS",
        "DICT_KEYS_MATCH",
        "DICT_NOT_CONTAINS",
        "DISPATCH_KEY_SET_MATCH",
        "DUAL_LEVEL",
        "DUPLICATE_INPUT",
        "EMPTY_NN_MODULE_HOOKS_DICT",
        "EQUALS_MATCH",
        "FUNCTION_MATCH",
        "FUNCTORCH_STACK_MATCH",
        "GLOBAL_STATE",
        "GRAD_MODE",
        "HASATTR",
        "ID_MATCH",
        "MAPPING_KEYS_CHECK",
        "MODULE_MATCH",
        "NAME_MATCH",
        "NONE_MATCH",
        "NOT_NONE_MATCH",
        "NOT_PRESENT_IN_GENERIC_DICT",
        "RANGE_ITERATOR_MATCH",
        "SEQUENCE_LENGTH",
        "SET_CONTAINS",
        "SET_NOT_CONTAINS",
        "SHAPE_ENV",
        "TENSOR_MATCH",
        "TORCH_FUNCTION_STATE",
        "TUPLE_ITERATOR_LEN",
        "TYPE_MATCH",
    ]
)
"""Guards that say in words all that they ask. Those that look into an object say no more than its class."""


class RefusedError(ValueError):
    """A trace that cannot be kept."""


class _Seen:
    """What is seen while guards are built: objects by the number that stands for them in a guard."""

    def __init__(self) -> None:
        self.objects: dict[int, object] = {}
        self.hooks: list[str] = []
        """Dictionaries of hooks that are not empty; Dynamo has no guard for that."""


_seen: list[_Seen] = []


def watch(guards: Any) -> None:
    """Learn which object each number in a guard stands for.

    Args:
        guards: the module torch._dynamo.guards.
    """
    kind = guards.CheckFunctionManager
    original = kind.id_ref

    @functools.wraps(original)
    def id_ref(self: Any, value: object, *arguments: Any, **named: Any) -> Any:
        found = original(self, value, *arguments, **named)
        if _seen:
            _seen[-1].objects[found] = value
        return found

    kind.id_ref = id_ref
    builder = guards.GuardBuilder
    hooks = builder.EMPTY_NN_MODULE_HOOKS_DICT

    @functools.wraps(hooks)
    def EMPTY_NN_MODULE_HOOKS_DICT(self: Any, guard: Any) -> Any:
        if _seen and len(self.get(guard if _takes_guards(builder) else guard.name)):
            _seen[-1].hooks.append(guard.name)
        return hooks(self, guard)

    builder.EMPTY_NN_MODULE_HOOKS_DICT = EMPTY_NN_MODULE_HOOKS_DICT


@functools.lru_cache(maxsize=1)
def _takes_guards(builder: Any) -> bool:
    return next(iter(list(inspect.signature(builder.get).parameters)[1:])) != "name"


@contextlib.contextmanager
def watching() -> Iterator[_Seen]:
    """What is seen while guards are built inside."""
    seen = _Seen()
    _seen.append(seen)
    try:
        yield seen
    finally:
        _seen.remove(seen)


def dumped(output_graph: Any) -> bytes:
    """The guards of a trace. Raises RefusedError."""
    state = output_graph.dump_guards_state()
    for guard in state._guards:
        if guard.create_fn_name() not in _KNOWN:
            raise RefusedError(f"a guard {guard.create_fn_name()}")
    for name in _EMPTY:
        if getattr(state, name, None):
            raise RefusedError(name)
    kept = {
        field.name: getattr(state, field.name)
        for field in dataclasses.fields(state)
        if field.name not in (*_SCOPES, *_EMPTY)
    }
    kept["input_source_to_sizes_strides"] = _static_sizes(kept.get("input_source_to_sizes_strides") or {})
    listed = [
        (guard.originating_source, _plain(guard.create_fn))
        for guard in sorted(state._guards)
        if guard.create_fn_name() != "SHAPE_ENV"  # sizes are constants here
    ]
    try:
        content = pickle.dumps((kept, listed), protocol=5)
        _loads(content)
    except RefusedError:
        raise
    except Exception as error:  # anything may be in a guard
        raise RefusedError(f"guards: {error!r}") from error
    return content


def _plain(create: Any) -> Any:
    if not isinstance(create, functools.partial):
        return create
    if any("weakref" in type(one).__name__.lower() for one in (*create.args, *create.keywords.values())):
        # What a guard on a tensor holds on to; built again, it takes the frame's own.
        return functools.partial(create.func)
    return create


def _static_sizes(sizes: dict[Any, Any]) -> dict[Any, Any]:
    found: dict[Any, dict[str, Any]] = {}
    for source, parts in sizes.items():
        found[source] = {}
        for name, value in parts.items():
            several = value if isinstance(value, list | tuple) else (value,)
            if any(one is not None and type(one) is not int for one in several):
                raise RefusedError("a size that is no constant")
            found[source][name] = value
    return found


class _Unpickler(pickle.Unpickler):
    """Reads guards, and refuses objects of the process that wrote them. No defence: an entry is code, and is signed."""

    def find_class(self, module: str, name: str) -> Any:
        if module in _FROM or name in _NAMES.get(module, ()):
            return super().find_class(module, name)
        raise RefusedError(f"guards name {module}.{name}")


def _loads(content: bytes) -> Any:
    return _Unpickler(io.BytesIO(content)).load()


def built(
    content: bytes, code: CodeType, f_locals: dict[str, Any], f_globals: dict[str, Any]
) -> tuple[Any, str, set[str]]:
    """A guard manager for a frame, what it says of the frame, and the digests of the functions that it says it of.

    Raises whatever Dynamo does where a guard asks for something that the frame has not, and UnnamedError.
    """
    import torch
    from torch._dynamo import guards, output_graph
    from torch._guards import Guard, GuardsSet
    from torch.utils._ordered_set import OrderedSet

    kept, listed = _loads(content)
    # Not by `add`, which notes the present stack in each, for a comment.
    found = GuardsSet(OrderedSet(Guard(source, create) for source, create in listed))
    kept["skip_guards_check"] = True
    state = output_graph.OutputGraphGuardsState(
        local_scope=f_locals,
        global_scope=f_globals,
        global_state_guard=torch._C._dynamo.guards.GlobalStateGuard(),
        _guards=found,
        torch_function_mode_stack=[],
        functorch_layers=[],
        current_device=None,
        **kept,
    )
    common = getattr(output_graph, "OutputGraphCommon", None)
    with watching() as seen, _silence(logging.getLogger("torch._guards")):
        manager = guards.CheckFunctionManager(code, state if common is None else common(state)).guard_manager
    if seen.hooks:
        raise RefusedError(f"hooks of modules: {seen.hooks[0]}")
    census = Census()
    return manager, said(manager, seen.objects, census), census.seen


@contextlib.contextmanager
def _silence(log: logging.Logger) -> Iterator[None]:
    """A guard that asks for what a frame has not is no error here: the trace is another one's."""
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def said(manager: Any, objects: dict[int, object], census: Census) -> str:
    """What guards say, with what stands for an object in every process in place of its number. Raises UnnamedError."""

    def name(match: re.Match[str]) -> str:
        if int(match[2]) not in objects:
            raise UnnamedError(match[0])
        return f"{match[1]}, {census.identity(objects[int(match[2])])})"

    lines = []
    for line in str(manager).splitlines():
        text = _ID.sub(name, line)
        if _ADDRESS.search(text) or (_NO_HOOKS in text and f"{_NO_HOOKS}None" not in text):
            raise UnnamedError(text)
        if "DICT_VERSION" in text or any(int(number) in objects for number in _LONG.findall(text)):
            raise UnnamedError(text)
        lines.append(text)
    return "\n".join(lines)


def shape_of(manager: Any) -> list[str]:
    """What a guard manager asks, without answers and comments: to compare one that was kept with the original."""
    return [_ID.sub(r"\1", _COMMENT.sub("", line)) for line in str(manager).splitlines()]
