"""Where the arrays of a package of kind `jax` lie: on one device, or split over a mesh of several.

Finds the devices, and says what differs where they do not fit. Knows no package's code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class PackageError(RuntimeError):
    """A package that cannot be used here; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The places of a package's arguments and results."""

    devices: tuple[Any, ...]
    mesh: Any
    """A jax.sharding.Mesh, or None for one device."""
    arguments: tuple[Any, ...]
    """A sharding for each argument."""
    results: tuple[Any, ...]
    """A sharding for each result; empty for one device."""
    shapes: tuple[tuple[int, ...], ...]
    """The whole shape of each result."""

    def fits(self, number: int, array: Any) -> bool:
        """Tell whether an array lies where an argument has to."""
        if self.mesh is None:
            return bool(array.sharding.device_set == {self.devices[0]})
        return bool(array.sharding.is_equivalent_to(self.arguments[number], array.ndim))

    def is_elsewhere(self, number: int, array: Any) -> bool:
        """Tell whether the program has put an array in another place, as `jax.device_put` does."""
        return bool(array.committed and not self.fits(number, array))

    def shown(self, number: int) -> str:
        """Return the place of an argument for people."""
        if self.mesh is None:
            return str(self.devices[0])
        return f"{self.arguments[number].spec} of {axes_text(self.mesh.shape.items())}"

    def joined(self, jax: Any, made: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the results from their parts on the devices."""
        if self.mesh is None:
            return [parts[0] for parts in made]
        return [
            jax.make_array_from_single_device_arrays(shape, place, list(parts))
            for shape, place, parts in zip(self.shapes, self.results, made, strict=True)
        ]


def placement(jax: Any, path: str, described: dict[str, Any], given: Sequence[Any] | None) -> Placement:
    """Return the places of a package's arrays here.

    Args:
        path: the package, for messages.
        given: devices that the program has chosen; by default the first ones of the package's platform.

    Raises:
        PackageError: there are too few devices, or they are not those that the package was compiled for.
    """
    axes = [(str(name), int(size)) for name, size in described["mesh"]]
    count = math.prod(size for _, size in axes)
    devices = tuple(given) if given is not None else _first(jax, path, described["platform"], count)
    if len(devices) != count:
        over = f" ({axes_text(axes)})" if axes else ""
        need = f"{count} devices{over}" if count > 1 else "one device"
        step = "build it with another `mesh`"
        if described["platform"] == "cpu":
            step += f", or set jax_num_cpu_devices to {count} before JAX starts"
        raise PackageError(f"{path} was compiled for {need}, and there are {len(devices)} here: {step}")
    for device in devices:
        if device.platform not in (("cpu",) if described["platform"] == "cpu" else ("gpu", "cuda")):
            raise PackageError(f"{path} is for {described['platform']}, and {device} is none: choose other devices")
        if device.device_kind != described["device_kind"]:
            raise PackageError(
                f"{path} was compiled for {described['device_kind']}, and {device} is {device.device_kind}: build it"
                " with the topology of this GPU"
            )
    if not axes:
        here = jax.sharding.SingleDeviceSharding(devices[0])
        return Placement(devices, None, tuple(here for _ in described["arguments"]), (), ())
    import numpy

    grid = numpy.empty(count, dtype=object)
    grid[:] = devices
    mesh = jax.sharding.Mesh(grid.reshape([size for _, size in axes]), tuple(name for name, _ in axes))

    def place(split: list[Any]) -> Any:
        parts = (tuple(part) if isinstance(part, list) else part for part in split)
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*parts))

    return Placement(
        devices,
        mesh,
        tuple(place(one["split"]) for one in described["arguments"]),
        tuple(map(place, described["splits"])),
        tuple(map(tuple, described["results"])),
    )


def axes_text(axes: Any) -> str:
    """Return a mesh for people: "data=2, model=4"."""
    return ", ".join(f"{name}={size}" for name, size in axes)


def _first(jax: Any, path: str, platform: str, count: int) -> tuple[Any, ...]:
    try:
        return tuple(jax.local_devices(backend=platform)[:count])
    except RuntimeError as error:
        raise PackageError(f"{path} is for {platform}, and JAX has no such device here: {error}") from error
