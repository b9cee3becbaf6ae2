"""Compiles a model with torch.compile and writes the entries of its caches. Run by the client's own interpreter.

Knows nothing of buildd: it imports the standard library, torch, the user's module and the script beside it that reads
models, reads a JSON spec on stdin, and writes the result of torch.compiler.save_cache_artifacts. The environment
decides which compilers the process calls.

    python artifacts_worker.py DEPFILE ARTIFACTS [ARCHIVE] < spec.json
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The folder of this script comes first on the path and holds modules of buildd, which the model must not import.
    del sys.path[0]

import importlib.util
import json
import os
import types
import warnings
from collections.abc import Iterator
from typing import Any

sys.dont_write_bytecode = True


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


_models = _module_of("export_worker.py")


def save(spec: dict[str, Any], archive: str, artifacts: str, depfile: str) -> None:
    """Compile the model of `spec` by calling it.

    Args:
        spec: source, function, factory, arguments, inputs, keyword_inputs, dims, device; mode, options,
            fullgraph, dynamic, backend; training, threads.
        archive: the file that torch.export.save wrote, instead of source.
        artifacts: path of the file to write.
        depfile: path of the list of imported modules, one per line.
    """
    where = spec["source"] or archive
    before = frozenset(sys.modules)
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", category=category)
    try:
        import torch
        import torch.export.passes
    except ImportError as error:
        raise _models.Refused(f"torch cannot be imported by {sys.executable}: {error}", where) from error
    if spec["threads"]:
        torch.set_num_threads(spec["threads"])
    torch.manual_seed(0)
    model, calls = _of_source(torch, spec) if spec["source"] else _of_archive(torch, spec, archive)
    try:
        compiled = torch.compile(
            model,
            fullgraph=spec["fullgraph"],
            dynamic=spec["dynamic"],
            backend=spec["backend"],
            mode=spec["mode"] or None,
            options=spec["options"] or None,
        )
        for given, named in calls:
            _call(torch, compiled, given, named, training=spec["training"])
        found = torch.compiler.save_cache_artifacts()
    except Exception as error:  # errors of Dynamo, Inductor, the host compiler and the user's code
        raise _models.Refused(f"cannot be compiled: {_models._said(error)}", where) from error
    if found is None:
        raise _models.Refused(
            "torch.compile left nothing in its caches: it found no graph, or the caches are turned off", where
        )
    content, info = found
    with open(artifacts, "wb") as stream:
        stream.write(content)
    made = torch._inductor.codecache.cache_dir() + os.sep
    counts = ", ".join(f"{kind} {len(keys)}" for kind, keys in sorted(info.artifacts.items()))
    print(f"{os.path.basename(artifacts)}: {counts}")
    with open(depfile, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.writelines(path + "\n" for path in _models._modules(before) if not path.startswith(made))


def _of_source(torch: Any, spec: dict[str, Any]) -> tuple[Any, Iterator[tuple[list[Any], dict[str, Any]]]]:
    """Return the model and its arguments: two sets with different sizes, if some may change."""
    model = _models._model(torch, spec, _models._load(spec["source"]))
    # As in the user's program, where a function is not a module.
    value = vars(model).get("forward", model.train(spec["training"]))
    first = _models._sizes(spec)

    def calls() -> Iterator[tuple[list[Any], dict[str, Any]]]:
        for sizes in [first, _others(spec, first)][: 2 if first else 1]:
            device = _models.device_of(spec)
            given = [_models._tensor(torch, one, sizes).to(device) for one in spec["inputs"]]
            named = spec["keyword_inputs"].items()
            yield given, {name: _models._tensor(torch, one, sizes).to(device) for name, one in named}

    return value, calls()


def _others(spec: dict[str, Any], first: dict[str, int]) -> dict[str, int]:
    """Return other sizes in the allowed range: from the second call on torch treats them as sizes that change."""
    found = {}
    for name, size in first.items():
        low, high = spec["dims"].get(name, (2, 1 << 20))
        # Far enough apart that different sizes stay different.
        found[name] = size + len(first) + 1 if size + len(first) + 1 <= high else max(low, size - 1)
    return found


def _of_archive(
    torch: Any, spec: dict[str, Any], archive: str
) -> tuple[Any, Iterator[tuple[list[Any], dict[str, Any]]]]:
    try:
        program = torch.export.load(archive)
    except Exception as error:  # torch's errors for an archive of another version, or for another file
        raise _models.Refused(
            f"cannot be loaded by torch {torch.__version__}: {_models._said(error)}", archive
        ) from error
    given, named = program.example_inputs or ((), {})
    if not (given or named):
        raise _models.Refused("has no example inputs to call the model with", archive)
    if (device := _models.device_of(spec)) != "cpu":
        program = torch.export.passes.move_to_device_pass(program, device)
        given, named = torch.utils._pytree.tree_map_only(torch.Tensor, lambda one: one.to(device), (given, named))
    return program.module(), iter([(list(given), dict(named))])


def _call(torch: Any, compiled: Any, given: list[Any], named: dict[str, Any], *, training: bool) -> None:
    if not training:
        with torch.no_grad():
            compiled(*given, **named)
        return
    outputs = torch.utils._pytree.tree_leaves(compiled(*given, **named))
    losses = [one.sum() for one in outputs if isinstance(one, torch.Tensor) and one.requires_grad]
    if losses:
        sum(losses[1:], losses[0]).backward()


def main(arguments: list[str]) -> int:
    try:
        depfile, artifacts, *archive = arguments
        save(json.load(sys.stdin), archive[0] if archive else "", artifacts, depfile)
    except _models.Refused as error:
        print(f"{error.where}: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
