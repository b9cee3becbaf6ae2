"""A function that kind `jax` compiled, loaded into the user's program and called with JAX's arrays.

A package is a zip file: a description in JSON, and XLA's executable. It is native code, so it is loaded only where it
can run, and called only with the arguments that it was compiled for. Knows no store. JAX is imported when a package is
loaded.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buildd.runtime.jax_placement import PackageError, Placement, axes_text, placement

FORMAT = 2


@dataclass(frozen=True, slots=True)
class Argument:
    """An array among the arguments."""

    name: str
    """ "argument 1['w']", or with the keyword's name in place of the number."""
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


class JaxProgram:
    """A loaded function; see `buildd.loader.load_jax`."""

    def __init__(self, jax: Any, executable: Any, place: Placement, described: dict[str, Any]) -> None:
        self.name: str = described["name"]
        self.arguments = tuple(Argument(a["name"], tuple(a["shape"]), a["dtype"]) for a in described["arguments"])
        self.is_tuned: bool | None = described["tuned"]
        """Whether XLA had a timing for each kernel that it tunes; None for a CPU, where it tunes none."""
        self._jax = jax
        self._executable = executable
        self._place = place
        self.mesh: Any = place.mesh
        """The jax.sharding.Mesh over which arguments and results are split; None for one device."""
        self._kept: tuple[int, ...] | None = tuple(described["kept"])
        if len(self._kept) == len(self.arguments):
            self._kept = None
        self._result = described["result"]
        self._kinds = tuple((one.shape, jax.numpy.dtype(one.dtype)) for one in self.arguments)
        self._known: dict[Any, Any] = {}
        """Structure of arguments that fits -> structure of the result."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function; returns what it returns, on the devices of the package.

        Raises:
            ValueError: an argument is missing, or has another structure, shape or type than the function was compiled
                for.
        """
        leaves, tree = self._jax.tree_util.tree_flatten((arguments, named))
        result = self._known.get(tree)
        if result is None:
            result = self._known[tree] = self._fitting(arguments, named)
        arrays = [
            leaf if self._fits(number, leaf, kind) else self._array(number, leaf)
            for number, (leaf, kind) in enumerate(zip(leaves, self._kinds, strict=True))
        ]
        if self._kept is not None:
            arrays = [arrays[number] for number in self._kept]
        made = self._executable.execute_sharded(arrays).disassemble_into_single_device_arrays()
        return self._jax.tree_util.tree_unflatten(result, self._place.joined(self._jax, made))

    def _fits(self, number: int, leaf: Any, kind: tuple[tuple[int, ...], Any]) -> bool:
        return (
            isinstance(leaf, self._jax.Array)
            and not isinstance(leaf, self._jax.core.Tracer)
            and (leaf.shape, leaf.dtype) == kind
            and self._place.fits(number, leaf)
        )

    def _array(self, number: int, value: Any) -> Any:
        """Return an argument as an array at its place. Raises ValueError."""
        wanted, (shape, dtype) = self.arguments[number], self._kinds[number]
        if isinstance(value, self._jax.core.Tracer):
            raise ValueError(f"{self.name} is compiled already: call it outside of jax.jit, jax.grad and jax.vmap")
        if isinstance(value, bool | int | float | complex):
            value = self._jax.numpy.asarray(value, dtype)  # as jax.jit: a Python number takes the type
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            raise ValueError(f"{self.name}: {wanted.name} has to be {wanted}, not a {type(value).__name__}")
        if (tuple(value.shape), value.dtype) != (shape, dtype):
            found = Argument(wanted.name, tuple(value.shape), str(value.dtype))
            raise ValueError(f"{self.name}: {wanted.name} has to be {wanted}, not {found}; build the target with it")
        if isinstance(value, self._jax.Array) and self._place.is_elsewhere(number, value):
            raise ValueError(
                f"{self.name}: {wanted.name} is on {_shown(value.sharding)}, and the function runs on"
                f" {self._place.shown(number)}"
            )
        return self._jax.device_put(value, self._place.arguments[number])

    def _fitting(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the structure of the result. Raises ValueError if these arguments have another structure."""
        flat, _ = self._jax.tree_util.tree_flatten_with_path((arguments, named))
        found = [self._name(path) for path, _ in flat]
        wanted = [one.name for one in self.arguments]
        if found != wanted:
            missing = [f"{one.name}, {one}," for one in self.arguments if one.name not in found]
            more = [name for name in found if name not in wanted]
            words = [f"{' '.join(missing)} is missing"] if missing else []
            words += [f"it has no {', '.join(more)}"] if more else []
            raise ValueError(f"{self.name}: {'; '.join(words) or 'the arguments stand in another order'}")
        return self._structure(self._result, arguments, named)

    def _name(self, path: Any) -> str:
        first = path[1].idx if hasattr(path[1], "idx") else path[1].key
        name = f"argument {first + 1}" if isinstance(first, int) else first
        return f"{name}{self._jax.tree_util.keystr(path[2:])}"

    def _structure(self, described: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return self._jax.tree_util.tree_structure(self._example(described, arguments, named))

    def _example(self, described: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return something with the structure of the result, or of a part of it."""
        if described is None:
            return None
        if described == "array":
            return 0
        ((kind, parts),) = described.items()
        if kind == "like":
            return arguments[parts] if isinstance(parts, int) else named[parts]
        if kind == "dict":
            return {name: self._example(part, arguments, named) for name, part in parts}
        several = [self._example(part, arguments, named) for part in parts]
        return several if kind == "list" else tuple(several)


def _shown(sharding: Any) -> str:
    """Return the place of an array for people."""
    if getattr(sharding, "spec", None) is not None:
        return f"{sharding.spec} of {axes_text(sharding.mesh.shape.items())}"
    return ", ".join(sorted(map(str, sharding.device_set)))


def load(
    path: str | os.PathLike[str], *, device: Any = None, devices: Sequence[Any] | None = None, untuned: bool = False
) -> JaxProgram:
    """Load a package; see `buildd.loader.load_jax`."""
    executable, described = _read(os.fspath(path))
    try:
        import jax
        from jax._src import compiler
        from jax._src.lib import xla_client
    except ImportError as error:
        raise PackageError(f"{path} needs jax {described['jax']} in this Python: {error}") from error
    here, jaxlib = str(path), sys.modules["jaxlib"].__version__
    if described["jaxlib"] != jaxlib:
        raise PackageError(f"{here} was compiled by jaxlib {described['jaxlib']}, and this is {jaxlib}: build it again")
    if described["tuned"] is False and not untuned:
        missing = f"{described['missing']} kernels have" if described["missing"] else "XLA had"
        raise PackageError(
            f"{here} is untuned: {missing} no timing, so it may run several times slower than what JAX compiles itself;"
            " name a profile with `autotune` and build it again, or load it with untuned=True"
        )
    chosen = devices if devices is not None else None if device is None else (device,)
    place = placement(jax, here, described, chosen)
    if missing_sets := _missing_instructions(described["processor"]):
        raise PackageError(
            f"{here} was compiled for a processor with {', '.join(missing_sets[:5])}, which this one has not:"
            " build it here"
        )
    import numpy

    first = place.devices[0]
    assigned = numpy.array([[one.id for one in place.devices]])
    settings = compiler.get_compile_options(1, len(place.devices), device_assignment=assigned, backend=first.client)
    try:
        loaded = first.client.deserialize_executable(executable, xla_client.DeviceList(place.devices), settings)
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raise PackageError(f"{here} cannot be loaded: {error}; build it again") from error
    return JaxProgram(jax, loaded, place, described)


def _read(path: str) -> tuple[bytes, dict[str, Any]]:
    try:
        with zipfile.ZipFile(path) as stream:
            described: dict[str, Any] = json.loads(stream.read("description.json"))
            executable = stream.read("executable")
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise PackageError(f"{path} is damaged, or is no package of kind jax: {error}; build it again") from error
    if described.get("format") != FORMAT:
        raise PackageError(
            f"{path} was built by another version of buildd (format {described.get('format')}): build it again"
        )
    return executable, described


def _missing_instructions(described: str) -> list[str]:
    """Return the instruction sets that code was compiled for, and that this processor lacks."""
    if not described:
        return []
    from codegen.compilers import processor

    # The first word of a line begins with the line's name, as in "vendor_id:"; the others are instruction sets.
    return sorted(word for word in set(described.split()) - set(processor.features().split()) if ":" not in word)
