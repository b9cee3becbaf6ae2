"""Lowers a function of the user's Python code with JAX. Run by the client's own interpreter.

Knows nothing of buildd: it imports the standard library, JAX and the user's module, reads a JSON spec on stdin and
writes the lowered function that is named on its command line. Whatever the code prints goes where this script's output
goes.

    python jax_trace_worker.py DEPFILE LOWERED [TOPOLOGY] < spec.json
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The folder of this script comes first on the path and holds modules of buildd, which the user's must not import.
    del sys.path[0]

import importlib.util
import json
import os
import re
import traceback
import types
from typing import Any

sys.dont_write_bytecode = True


class Refused(Exception):
    """One message for the user: `where` is "FILE:LINE" or "FILE"."""

    def __init__(self, message: str, where: str) -> None:
        super().__init__(message)
        self.where = where


def _module_of(name: str) -> types.ModuleType:
    """Return a script beside this one as a module."""
    # No user's module has such a name.
    found = importlib.util.spec_from_file_location(
        f"buildd {name}", os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    )
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


_worker = _module_of("jax_worker.py")


def lower(spec: dict[str, Any], lowered: str, depfile: str, topology: str = "") -> None:
    """Lower the function of `spec`.

    Args:
        spec: as `LoweringSpec` of `codegen.python.jax_function`.
        lowered: path of the result.
        depfile: path of the list of imported modules, one per line.
        topology: file that describes the GPUs; empty for the CPU, and for the GPUs of this machine.
    """
    source = spec["source"]
    try:
        jax = warm_up()
        content = _content(topology) if topology else b""
        devices = _devices_of(jax, spec, content, topology)
    except _worker.Refused as error:
        raise Refused(str(error), error.where or source) from error
    before = frozenset(sys.modules)  # with the modules of JAX's plugins
    module = _load(source)
    mesh = _worker._devices.mesh_of(jax, spec["mesh"], devices) if spec["mesh"] else None
    try:
        # Inside, a PartitionSpec alone is enough for with_sharding_constraint and shard_map.
        with jax.set_mesh(mesh) if mesh is not None else _worker._devices.kernels_for(jax, devices[0]):
            arguments, results = _split(jax, spec, module, mesh)
            function, donated = _function(jax, spec, module, results)
            given, named = _given(jax, spec, module, devices[0], mesh, arguments)
            made = function.lower(*given, **named, **spec["static"])
    except Refused:
        raise
    except (Exception, SystemExit) as error:  # the user's code, while JAX traces it
        raise Refused(f"{spec['function']} cannot be traced: {_said(error)}", _where_raised(error, source)) from error
    described = _described(jax, spec, made, given, named)
    # EasyDeL and others add flags when they are imported, each time: a child of such a process has them twice.
    flags = dict.fromkeys(reversed(_worker._devices.xla_flags()))
    described |= {"donated": donated, "topology_file": topology, "xla_flags": " ".join(reversed(flags))}
    # Those that the user's own jax.jit gives the function.
    described["options"] = dict(made._lowering._compiler_options_kvs)
    _check_effects(made, spec)
    from jax._src.interpreters import mlir

    text = mlir.module_to_bytecode(_without_places(made.compiler_ir("stablehlo")))
    parts = {"description.json": json.dumps(described, sort_keys=True).encode(), "module": text}
    _worker._pack(lowered, parts | ({"topology": content} if content else {}))
    with open(depfile, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.writelines(path + "\n" for path in _modules(before))


def warm_up() -> Any:
    """Import JAX, so that processes forked from this one need not."""
    return _worker.warm_up()


def _devices_of(jax: Any, spec: dict[str, Any], content: bytes, topology: str) -> list[Any]:
    count = _worker._devices.size_of(spec["mesh"])
    if content:
        found = _worker._devices.compile_only(jax, content, topology, count)
    elif spec["device"] == "cpu":
        found = _worker._devices.processors(jax, count)
    else:
        found = _worker._devices.gpus(jax, count)
    return list(found)


def _load(source: str) -> types.ModuleType:
    path = os.path.abspath(source)
    sys.path[:0] = list(dict.fromkeys((os.path.dirname(path), os.getcwd())))
    name = os.path.basename(path).removesuffix(".py")
    if name in sys.modules or not name.isidentifier():
        name = "_function_" + re.sub(r"\W", "_", name)
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None and found.loader is not None  # its name ends in .py
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except SyntaxError as error:
        raise Refused(f"{error.msg}", f"{_shown(error.filename or source)}:{error.lineno or 1}") from error
    except (Exception, SystemExit) as error:  # The user's code may raise anything while it is imported.
        raise Refused(f"cannot be imported: {_said(error)}", _where_raised(error, source)) from error
    return module


def _named(module: types.ModuleType, name: str, source: str) -> Any:
    value = getattr(module, name, None)
    if value is None:
        here = [key for key, item in vars(module).items() if getattr(item, "__module__", "") == module.__name__]
        hint = f"; it has {', '.join(sorted(here))}" if here else ""
        raise Refused(f"there is no {name}{hint}", source)
    if not callable(value):
        raise Refused(f"{name} is a {type(value).__name__}, not a function", source)
    return value


def _function(jax: Any, spec: dict[str, Any], module: types.ModuleType, results: dict[str, Any]) -> tuple[Any, bool]:
    """Return the function as JAX compiles it, and whether it gives arguments away. `results` has its out_shardings."""
    name, source = spec["function"], spec["source"]
    value = _named(module, name, source)
    places = [place for place, one in enumerate(spec["inputs"]) if one.get("donate")]
    names = [key for key, one in spec["keyword_inputs"].items() if one.get("donate")]
    if hasattr(value, "lower") and hasattr(value, "trace"):
        if places or names:
            raise Refused(f"{name} is compiled by jax.jit already: write donate_argnums there, not `donate`", source)
        if results:
            raise Refused(f"{name} is compiled by jax.jit already: its out_shardings have to stand there", source)
        return value, False
    return jax.jit(
        value,
        static_argnames=tuple(spec["static"]),
        donate_argnums=tuple(places),
        donate_argnames=tuple(names),
        **results,
    ), bool(places or names)


def _split(jax: Any, spec: dict[str, Any], module: types.ModuleType, mesh: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return in_shardings, one for each argument by position, and out_shardings as jax.jit takes them."""
    name, source = spec["shardings"], spec["source"]
    if not name:
        return [None] * len(spec["inputs"]), {}
    found = _named(module, name, source)(mesh)
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[0], tuple | list):
        raise Refused(f"{name}() has to return (in_shardings, out_shardings), as jax.jit takes them", source)
    arguments, results = list(found[0]), found[1]
    if len(arguments) != len(spec["inputs"]):
        raise Refused(f"{name}() has {len(arguments)} in_shardings, and there are {len(spec['inputs'])} inputs", source)
    if results is None:
        return arguments, {}
    placed = jax.tree_util.tree_map(lambda one: _sharding(jax, one, mesh), results, is_leaf=_is_spec)
    return arguments, {"out_shardings": placed}


def _is_spec(value: Any) -> bool:
    return value is None or type(value).__name__ == "PartitionSpec"


def _sharding(jax: Any, value: Any, mesh: Any) -> Any:
    """Return a PartitionSpec as a sharding of the mesh; a sharding and None stay as they are."""
    is_spec = isinstance(value, jax.sharding.PartitionSpec)
    return jax.sharding.NamedSharding(mesh, value) if is_spec else value


def _given(
    jax: Any, spec: dict[str, Any], module: types.ModuleType, device: Any, mesh: Any, arguments: list[Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the shapes of the arguments with their places, by position and by name."""

    def shapes(one: dict[str, Any], given: Any) -> Any:
        here: Any = jax.sharding.SingleDeviceSharding(device)
        if mesh is not None:
            parts = (part or None for part in one.get("sharding", ()))
            here = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*parts))
        tree = _shapes(jax, spec, one, module)
        places = [here] * len(jax.tree_util.tree_leaves(tree))
        if given is not None:
            spread = broadcast_prefix(given, tree, is_leaf=_is_spec)
            places = [here if place is None else _sharding(jax, place, mesh) for place in spread]
        leaves, structure = jax.tree_util.tree_flatten(tree)
        return structure.unflatten(
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)
            for leaf, place in zip(leaves, places, strict=True)
        )

    from jax._src.tree_util import broadcast_prefix

    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        given = [shapes(one, place) for one, place in zip(spec["inputs"], arguments, strict=True)]
        return given, {name: shapes(one, None) for name, one in spec["keyword_inputs"].items()}


def _shapes(jax: Any, spec: dict[str, Any], one: dict[str, Any], module: types.ModuleType) -> Any:
    source = spec["source"]
    if one.get("function"):
        function = _named(module, one["function"], source)
        try:
            tree = jax.eval_shape(function)
        except (Exception, SystemExit) as error:  # the user's code
            where = _where_raised(error, source)
            raise Refused(f"{one['function']}() has no shapes: {_said(error)}", where) from error
    else:
        wanted = one.get("dtype", "float32")
        try:
            kind = jax.numpy.dtype(wanted)
        except TypeError as error:
            raise Refused(f'JAX knows no dtype "{wanted}"', source) from error
        if jax.dtypes.canonicalize_dtype(kind) != kind:
            raise Refused(f"{wanted} needs 64 bits, which are off in JAX: set JAX_ENABLE_X64=1", source)
        tree = jax.ShapeDtypeStruct(tuple(one.get("shape", ())), kind)
    return tree


# ---------------------------------------------------------------- the description


def _described(jax: Any, spec: dict[str, Any], made: Any, given: list[Any], named: dict[str, Any]) -> dict[str, Any]:
    leaves, tree = jax.tree_util.tree_flatten_with_path((tuple(given), named))
    if not leaves:
        raise Refused(f"{spec['function']} has no array among its arguments: its result is a constant", spec["source"])
    for _, leaf in leaves:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
            raise Refused(
                f"an argument has the dtype {leaf.dtype}: pass the numbers themselves (jax.random.key_data)",
                spec["source"],
            )
    children = tree.children()
    inputs: dict[Any, Any] = {
        **dict(enumerate(children[0].children())),
        **dict(zip(sorted(named), children[1].children(), strict=True)),
    }
    lowering = made._lowering.compile_args
    results = jax.tree_util.tree_leaves(made.out_info)
    return {
        "format": _worker.FORMAT,
        "name": spec["function"],
        "platform": spec["device"],
        "arguments": [
            {
                "name": _place(jax, path),
                "shape": list(leaf.shape),
                "dtype": str(leaf.dtype),
                "split": _worker._devices.written(leaf.sharding.spec) if spec["mesh"] else [],
            }
            for path, leaf in leaves
        ],
        "mesh": spec["mesh"],
        "results": [list(one.shape) for one in results],
        "free": ["Unspecified" in type(one).__name__ for one in lowering["out_shardings"]],
        "kept": sorted(lowering["kept_var_idx"]),
        "static": spec["static"],
        "result": _structure(made.out_tree, inputs, spec),
    }


def _place(jax: Any, path: Any) -> str:
    """Return the place of an array among the arguments, as the loader and people name it."""
    first = path[1].idx if hasattr(path[1], "idx") else path[1].key
    name = f"argument {first + 1}" if isinstance(first, int) else first
    return f"{name}{jax.tree_util.keystr(path[2:])}"


def _structure(tree: Any, inputs: dict[Any, Any], spec: dict[str, Any]) -> Any:
    """Return the structure of the result as JSON. A class of containers is named by an argument that has the same."""
    data = tree.node_data()
    if data is None:
        return "array" if tree.num_leaves else None
    kind, names = data
    if kind in (tuple, list):
        return {kind.__name__: [_structure(child, inputs, spec) for child in tree.children()]}
    if kind is type(None):
        return None
    if kind is dict and all(isinstance(name, str) for name in names):
        return {"dict": [[n, _structure(c, inputs, spec)] for n, c in zip(names, tree.children(), strict=True)]}
    for place, one in inputs.items():
        if one == tree:
            return {"like": place}
    raise Refused(
        f"{spec['function']} returns a {kind.__module__}.{kind.__qualname__}, which no argument is: return tuples,"
        " lists and dicts, or something with the structure of an argument",
        spec["source"],
    )


def _check_effects(made: Any, spec: dict[str, Any]) -> None:
    arguments = made._lowering.compile_args
    if arguments["host_callbacks"] or arguments["keepalive"]:
        raise Refused(
            f"{spec['function']} calls back into Python, which no file can hold: take the callback out", spec["source"]
        )
    if arguments["ordered_effects"] or arguments["unordered_effects"]:
        raise Refused(f"{spec['function']} has side effects (prints?): take them out", spec["source"])
    if made._lowering.const_args:
        raise Refused(
            f"{spec['function']} has constants outside of its program: leave jax_use_simplified_jaxpr_constants off",
            spec["source"],
        )
    count = _worker._devices.size_of(spec["mesh"])
    if arguments["num_devices"] != count:
        raise Refused(
            f"{spec['function']} is spread over {arguments['num_devices']} devices, and the target's mesh has {count}:"
            " write `mesh`, and take the mesh that `shardings` gets",
            spec["source"],
        )


def _without_places(module: Any) -> Any:
    """Return the module without the lines that it came from, which are those of one checkout."""
    from jax._src.lib.mlir import passmanager

    with module.context:
        copy = type(module).parse(str(module)) if not hasattr(module.operation, "clone") else module.operation.clone()
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(getattr(copy, "operation", copy))
    return copy


def _modules(before: frozenset[str]) -> list[str]:
    """Return the user's modules, which are outside the folders of installed packages; sorted."""
    import sysconfig

    installed = tuple(path + os.sep for path in sysconfig.get_paths().values())
    loaded = [getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if name not in before]
    found = {os.path.abspath(path) for path in loaded if path} - {os.path.abspath(__file__)}
    return sorted(path for path in found if not path.startswith(installed) and os.path.isfile(path))


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError as error:
        raise Refused(f"cannot be read: {error}", path) from error


# ---------------------------------------------------------------- messages


def _said(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = "; ".join(lines[:3]) or "no message"
    return f"{type(error).__name__}: {text[:1000]}"


def _shown(path: str) -> str:
    """Return a path relative to the project."""
    inside = os.path.relpath(path)
    return path if inside.startswith("..") else inside


def _where_raised(error: BaseException, source: str) -> str:
    """Return the last line of the project's own code in a traceback."""
    here = os.getcwd() + os.sep
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(here)]
    return f"{_shown(own[-1].filename)}:{own[-1].lineno}" if own else source


def main(arguments: list[str]) -> int:
    try:
        depfile, lowered, *topology = arguments
        lower(json.load(sys.stdin), lowered, depfile, *topology)
    except Refused as error:
        print(f"{error.where}: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
