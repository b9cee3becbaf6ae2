"""What is kept of a trace, and a frame's compiled code made of it again.

Knows how Dynamo installs what its bytecode needs, and how AOTAutograd's cache finds a graph by its key; `trace_guards`
and `trace_sources` say whether a trace holds. Runs in the user's own process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import marshal
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any

from .inductor_late import without_compiler
from .trace_frame import Frame
from .trace_graph import check_graph
from .trace_guards import RefusedError, built, dumped, shape_of
from .trace_sources import Census, code_digest, names_in, qualname_of

_COMPILED, _BUILTINS, _IMPORT = "__compiled_fn", "__builtins_dict__", "__import_"


_GRAPH, _BUILTINS_DICT = "*graph", "*builtins"
"""In place of a module's name, which cannot begin so: there is a module `builtins` too."""
_OTHER_TORCH = (ImportError, AttributeError, KeyError, TypeError)
"""What a torch raises that notes the sizes of frames in another way."""


class ChangedError(ValueError):
    """A trace in the store does not hold for this frame."""


class TraceCapture:
    """What is learned of a trace while Dynamo makes it."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        """The keys in AOTAutograd's cache."""
        self.guards = b""
        self.checks = 0
        self.shape: list[str] = []
        self.traced: list[CodeType] = []
        self.installed: dict[str, Any] = {}
        self.refused = ""

    def refuse(self, why: str) -> None:
        self.refused = self.refused or why


_captures: list[TraceCapture] = []


@contextlib.contextmanager
def capturing() -> Iterator[TraceCapture]:
    """Learn of the trace that is made inside."""
    if _captures:
        _captures[-1].refuse("a frame inside another one")
    capture = TraceCapture()
    _captures.append(capture)
    try:
        yield capture
    finally:
        _captures.remove(capture)


def watch_guards(guards: Any) -> None:
    """Learn the guards of each trace.

    Args:
        guards: the module torch._dynamo.guards.
    """
    kind = guards.CheckFunctionManager
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, f_code: CodeType, output_graph: Any, *arguments: Any, **named: Any) -> None:
        original(self, f_code, output_graph, *arguments, **named)
        if _captures:
            _learn(_captures[-1], output_graph, self.guard_manager)

    kind.__init__ = __init__


def _learn(capture: TraceCapture, output_graph: Any, manager: Any) -> None:
    try:
        capture.checks += 1
        shapes = output_graph.shape_env
        varying = "backed_var_to_val" if hasattr(shapes, "backed_var_to_val") else "var_to_val"
        if getattr(shapes, varying) or shapes.var_to_range:
            raise RefusedError("sizes that vary")
        if output_graph.backward_state or getattr(output_graph, "torch_function_subclass_inlined", False):
            raise RefusedError("state of this process")
        capture.guards = dumped(output_graph)
        capture.shape = shape_of(manager)
        capture.traced = list(output_graph.tracing_context.traced_code)
        capture.installed = {hook.name: hook.scope[hook.name] for hook in output_graph.cleanups}
    except Exception as error:
        capture.refuse(f"{type(error).__name__}: {error}")


def watch_backend() -> None:
    """Learn under which key AOTAutograd keeps a graph, and of what Dynamo burns in without a guard."""
    from torch._dynamo.variables import builtin, functions, nn_module
    from torch._functorch._aot_autograd import autograd_cache

    key_of: Callable[..., Any] = autograd_cache.autograd_cache_key

    @functools.wraps(key_of)
    def autograd_cache_key(graph: Any, *arguments: Any, **named: Any) -> Any:
        found = key_of(graph, *arguments, **named)
        if _captures:
            _captures[-1].keys.append(found[0])
            if why := check_graph(graph):
                _captures[-1].refuse(why)
        return found

    autograd_cache.autograd_cache_key = autograd_cache_key
    constant: Callable[..., Any] = functions.invoke_and_store_as_constant

    @functools.wraps(constant)
    def invoke_and_store_as_constant(*arguments: Any, **named: Any) -> Any:
        if _captures:
            _captures[-1].refuse("a result taken as a constant")
        return constant(*arguments, **named)

    for module in (functions, builtin, nn_module):
        if hasattr(module, "invoke_and_store_as_constant"):
            module.invoke_and_store_as_constant = invoke_and_store_as_constant


# ---------------------------------------------------------------- to be kept


def record_of(frame: Frame, capture: TraceCapture, answer: Any) -> bytes:
    """A trace as it is kept. Raises RefusedError, and what Dynamo raises where its guards cannot be built again."""
    guarded = getattr(answer, "guarded_code", None)
    if capture.refused or guarded is None or capture.checks != 1 or len(capture.keys) != 1:
        raise RefusedError(capture.refused or f"{capture.checks} checks, {len(capture.keys)} graphs, {guarded}")
    manager, text, seen = built(capture.guards, frame.code, frame.f_locals, frame.f_globals)
    if shape_of(manager) != capture.shape or not manager.check(frame.f_locals):
        raise RefusedError("guards that differ when they are built again")
    scopes, census = _scopes_of(frame, capture.traced), Census()
    digest = _digest_of(census, scopes)
    for code in capture.traced:
        if code_digest(code) not in census.seen | seen:
            raise RefusedError(f"{qualname_of(code)} has no name that leads to it")
    record = {
        "guards": capture.guards,
        "said": _hash(text),
        "scopes": scopes,
        "sources": digest,
        "code": guarded.code,
        "globals": _globals_of(capture, guarded.code, text, frame.f_globals),
        "graph": capture.keys[0],
        "sizes": _sizes(frame.code),
    }
    try:
        return marshal.dumps(record)
    except ValueError as error:
        raise RefusedError("a constant that cannot be kept") from error


def _scopes_of(frame: Frame, traced: list[CodeType]) -> list[tuple[str, list[str]]]:
    """Modules whose functions were traced, each with the names that these functions look up there."""
    files: dict[str, list[str]] = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) if isinstance(module, ModuleType) else None
        if path:
            files.setdefault(os.path.abspath(path), []).append(name)
    found: dict[str, set[str]] = {}
    for code in traced:
        names = files.get(os.path.abspath(code.co_filename), [])
        if code is frame.code:
            names = [*names, frame.f_globals["__name__"]]
        if not names and not code.co_filename.startswith("<"):
            raise RefusedError(f"{code.co_filename} is no module's file")
        for name in names:
            found.setdefault(name, set()).update(names_in(code), [qualname_of(code).partition(".")[0]])
    return [(name, sorted(found[name])) for name in sorted(found)]


def _digest_of(census: Census, scopes: list[tuple[str, list[str]]]) -> str:
    lines: list[str] = []
    for name, wanted in scopes:
        module = sys.modules.get(name)
        if module is None:
            raise ChangedError(f"{name} is not imported")
        lines += census.names(module, wanted)
    return _hash("\n".join(lines))


def _globals_of(
    capture: TraceCapture, code: CodeType, text: str, f_globals: dict[str, Any]
) -> list[tuple[str, str, str]]:
    """What Dynamo has put into the frame's module, as far as the bytecode or the guards name it."""
    found = []
    used = names_in(code)
    names = {*capture.installed, *(name for name in f_globals if name.startswith(_IMPORT))}
    for name in sorted(names):
        if name not in used and f"'{name}'" not in text:
            continue
        value = capture.installed.get(name, f_globals.get(name))
        if name.startswith(_COMPILED):
            found.append((name, _GRAPH, ""))
        elif name.startswith(_BUILTINS):
            found.append((name, _BUILTINS_DICT, ""))
        elif isinstance(value, ModuleType):
            found.append((name, value.__name__, ""))
        else:
            place = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
            if not all(isinstance(part, str) for part in place) or _resolved(*place) is not value:  # type: ignore[arg-type]
                raise RefusedError(f"{name} stands for an object of this process")
            found.append((name, *place))  # type: ignore[arg-type]
    if [kind for _, kind, _ in found].count(_GRAPH) != 1:
        raise RefusedError("not one graph")
    return found


def _resolved(module: str, path: str) -> Any:
    value: Any = sys.modules.get(module)
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def _sizes(code: CodeType) -> list[tuple[str, Any, Any]]:
    """What Dynamo has noted of the frame's sizes, by which it later sees that one varies."""
    with contextlib.suppress(*_OTHER_TORCH):
        from torch._dynamo import pgo

        noted = pgo.get_code_state()[pgo.CodeId.make(code)].automatic_dynamic
        found: list[tuple[str, Any, Any]] = []
        for name, entry in noted.items():
            if type(entry.scalar) is int:
                found.append((name, entry.scalar, None))
            elif isinstance(entry.size, tuple) and all(type(one) is int for one in (*entry.size, *entry.stride)):
                found.append((name, list(entry.size), list(entry.stride)))
        return found
    return []


# ---------------------------------------------------------------- taken again


def found_trace(frame: Frame, content: bytes) -> Any:
    """What Dynamo's `_compile` returns for a frame, from what was kept. Raises ChangedError, and what Dynamo raises."""
    record = marshal.loads(content)
    if _digest_of(Census(), record["scopes"]) != record["sources"]:
        raise ChangedError("other sources")
    graph_name, added = "", []
    try:
        for name, module, path in record["globals"]:
            if module == _GRAPH:
                graph_name = name
                continue
            value = _value_of(module, path, frame.f_globals)
            if name not in frame.f_globals:
                added.append(name)
                frame.f_globals[name] = value
                _pass_number(name)
            elif frame.f_globals[name] is not value:
                raise ChangedError(f"{name} is taken")
        manager, text, _ = built(record["guards"], frame.code, frame.f_locals, frame.f_globals)
        if _hash(text) != record["said"] or not manager.check(frame.f_locals):
            raise ChangedError("other guards")
        compiled = _compiled(frame, record["graph"])
    except BaseException:
        for name in added:
            frame.f_globals.pop(name, None)
        raise
    name = f"{_COMPILED}_{uuid.uuid4().hex}"
    code = _renamed(record["code"], graph_name, name, frame.code.co_filename)
    return _answer(frame, code, manager, name, compiled, record["sizes"])


def _pass_number(name: str) -> None:
    """Keep Dynamo from giving a name that was kept, as __builtins_dict___0, once more: it counts in each process."""
    from torch._dynamo import bytecode_transformation as dynamo

    number = name.rpartition("_")[2]
    if number.isdecimal() and hasattr(dynamo, "_unique_id_counter"):
        dynamo._unique_id_counter = itertools.count(max(next(dynamo._unique_id_counter), int(number) + 1))


def _value_of(module: str, path: str, f_globals: dict[str, Any]) -> Any:
    if module == _BUILTINS_DICT:
        inside = f_globals["__builtins__"]
        return inside if isinstance(inside, dict) else inside.__dict__
    value = sys.modules.get(module) if not path else _resolved(module, path)
    if value is None:
        raise ChangedError(f"no {module} {path}")
    return value


def _compiled(frame: Frame, key: str) -> Any:
    """The graph under a key of AOTAutograd's cache, as Dynamo would call it."""
    import torch
    import torch._inductor.config as inductor
    from torch._dynamo.utils import counters
    from torch._functorch._aot_autograd import autograd_cache as cache
    from torch._inductor.cudagraph_utils import BoxedDeviceIndex
    from torch._inductor.utils import BoxedBool
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    context = torch._guards.TracingContext(FakeTensorMode(shape_env=ShapeEnv()))
    with torch._guards.tracing(context), inductor.patch(dict(frame.backend.config)), without_compiler():
        local, remote = cache.should_use_local_autograd_cache(), cache.should_use_remote_autograd_cache()
        looked = cache.AOTAutogradCache._lookup(key, local, remote, [], {}, None)
        entry = looked[0] if isinstance(looked, tuple) else looked
        if entry is None:
            raise ChangedError("no graph")
        boxes = {"cudagraphs": BoxedBool(False), "boxed_forward_device_index": BoxedDeviceIndex(None)}
        function = entry.wrap_post_compile([], entry.sanitized_aot_config, boxes)
    counters["aot_autograd"]["autograd_cache_hit"] += 1
    counters["stats"]["unique_graphs"] += 1

    def forward(*arguments: Any) -> Any:
        return function(list(arguments))

    return torch._dynamo.disable(forward, reason="do not trace Dynamo-compiled graph")


def _renamed(code: CodeType, old: str, new: str, filename: str) -> CodeType:
    return code.replace(
        co_names=tuple(new if name == old else name for name in code.co_names),
        co_consts=tuple(
            _renamed(one, old, new, filename) if isinstance(one, CodeType) else one for one in code.co_consts
        ),
        co_filename=filename,
    )


def _answer(frame: Frame, code: CodeType, manager: Any, name: str, compiled: Any, sizes: list[Any]) -> Any:
    """Install compiled code as Dynamo does."""
    from torch._dynamo import convert_frame
    from torch._dynamo.types import GuardedCode, wrap_guarded_code
    from torch._dynamo.utils import CleanupHook, CleanupManager, orig_code_map

    CleanupManager.instance[code] = [CleanupHook.create(frame.f_globals, name, compiled)]
    orig_code_map[code] = frame.code
    convert_frame.output_codes.add(code)
    with contextlib.suppress(*_OTHER_TORCH):
        from torch._dynamo import pgo

        noted = pgo.get_code_state()[pgo.CodeId.make(frame.code)].automatic_dynamic
        for source, size, stride in sizes:
            entry = pgo.FrameStateSizeEntry
            noted[source] |= (
                entry.make_scalar(size) if stride is None else entry.make_tensor(tuple(size), tuple(stride))
            )
    return wrap_guarded_code(GuardedCode(code, manager, frame.compile_id, f"Torch-Compiled Region: {frame.compile_id}"))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
