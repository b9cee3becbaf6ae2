"""The devices that a function of JAX is compiled for: processors, GPUs of this machine or of a topology; their mesh.

Knows nothing of buildd, as `jax_worker.py`, which loads it. Compiles nothing.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any


class Refused(Exception):
    """One message for the user: `where` is a file, if it is known."""

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message)
        self.where = where


def said(error: BaseException) -> str:
    """Return the type and the first lines of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = "; ".join(lines[:3]) or "no message"
    return f"{type(error).__name__}: {text[:1000]}"


def jaxlib_version() -> str:
    """Return the version of the jaxlib that JAX has imported."""
    return str(sys.modules["jaxlib"].__version__)


def processors(jax: Any, count: int) -> list[Any]:
    """Return so many devices of this processor. Has to run before JAX starts its first backend."""
    if count > 1:
        jax.config.update("jax_num_cpu_devices", count)
    found = list(jax.local_devices(backend="cpu"))
    if len(found) < count:
        raise Refused(f"JAX was started with {len(found)} CPU devices, and the mesh takes {count}")
    return found[:count]


def gpus(jax: Any, count: int) -> list[Any]:
    """Return the first GPUs of this machine."""
    try:
        found = list(jax.local_devices(backend="cuda"))
    except RuntimeError as error:
        raise Refused(f"JAX sees no GPU: {said(error)}") from error
    if len(found) < count:
        raise Refused(f"the mesh takes {count} GPUs, and JAX sees {len(found)} here: name a `topology` of so many")
    return found[:count]


def compile_only(jax: Any, content: bytes, where: str, count: int) -> list[Any]:
    """Return devices of a topology: they compile and run nothing.

    Args:
        content: what `write_topology` of `jax_worker.py` wrote, or XLA's GpuTargetConfigProto as text.
        where: its file, for messages.
        count: how many devices a function takes. The text describes one GPU, and stands for any number of them.
    """
    from jax._src import xla_bridge
    from jax._src.lib import xla_client

    try:
        jax.local_devices(backend="cpu")  # this looks for plugins, too
        if not content.lstrip().startswith(b"{"):
            shape = f"1x1x{count}"
            made = xla_bridge.make_pjrt_topology(
                "cuda", shape, topology=shape, target_config=content.decode(errors="replace")
            )
        else:
            described = json.loads(content)
            if described["jaxlib"] != jaxlib_version():
                raise Refused(
                    f"was made by jaxlib {described['jaxlib']}; this one is {jaxlib_version()}: make it again with"
                    " the jaxlib of the target",
                    where,
                )
            if not hasattr(xla_client.DeviceTopology, "deserialize"):
                raise Refused(f"cannot be read by jaxlib {jaxlib_version()}: take 0.11 or newer", where)
            made = xla_client.DeviceTopology.deserialize(base64.b64decode(described["topology"]))
        found = list(made._make_compile_only_devices())
    except (KeyError, ValueError, TypeError) as error:
        raise Refused(f"is not a file of `buildd topology`: {said(error)}", where) from error
    except NotImplementedError as error:
        raise Refused(f"no plugin of JAX compiles for it: {said(error)}", where) from error
    except jax.errors.JaxRuntimeError as error:
        raise Refused(f"cannot be used: {said(error)}", where) from error
    if len(found) < count:
        raise Refused(
            f"describes {len(found)} GPUs, and the mesh takes {count}: write it with"
            f" `buildd topology --devices {count}` on a machine that has so many",
            where,
        )
    return found[:count]


def kernels_for(jax: Any, device: Any) -> Any:
    """Return a context in which Pallas makes kernels for a GPU that is not here: from jax 0.11 on it asks for the
    GPU's name, and otherwise looks for a GPU of this machine."""
    sharding = jax.sharding
    if device.platform == "cpu" or not hasattr(sharding, "AbstractDevice") or _sees_gpu(jax):
        return contextlib.nullcontext()
    try:
        abstract = sharding.AbstractDevice(device_kind=device.device_kind, num_cores=None, platform="gpu")
    except TypeError:  # before 0.11 it had no platform, and Pallas did not ask
        return contextlib.nullcontext()
    return sharding.use_abstract_mesh(sharding.AbstractMesh((), (), abstract_device=abstract))


def _sees_gpu(jax: Any) -> bool:
    try:
        return bool(jax.local_devices(backend="cuda"))
    except RuntimeError:
        return False


# ---------------------------------------------------------------- meshes


def size_of(axes: Sequence[Sequence[Any]]) -> int:
    """Return the number of devices of a mesh, which is 1 without any axis."""
    count = 1
    for _, size in axes:
        count *= size
    return count


def mesh_of(jax: Any, axes: Sequence[Sequence[Any]], devices: list[Any]) -> Any:
    """Return the mesh with these axes, [["data", 2], ["model", 4]]."""
    import numpy

    grid = numpy.empty(len(devices), dtype=object)
    grid[:] = devices
    return jax.sharding.Mesh(grid.reshape([size for _, size in axes]), tuple(name for name, _ in axes))


def written(spec: Any) -> list[Any]:
    """Return a PartitionSpec as JSON: for each dimension None, an axis or a list of axes."""
    return [list(part) if isinstance(part, tuple) else part for part in spec]


def result_specs(executable: Any, mesh: Any, count: int) -> list[list[Any]]:
    """Return how XLA has split each result over the mesh, as JSON."""
    from jax._src import sharding_impls
    from jax._src.interpreters import pxla

    _, found = pxla.get_op_sharding_from_executable(executable)
    specs = [sharding_impls.parse_flatten_op_sharding(one, mesh)[0] for one in found]
    if len(specs) == 1:  # XLA writes equal ones once
        specs *= count
    if len(specs) != count:
        raise Refused(f"XLA says of {len(specs)} results how they are split, and the function has {count}")
    return [written(spec) for spec in specs]


def xla_flags() -> list[str]:
    """Return the words of XLA_FLAGS, or those of the file that it names."""
    value = os.environ.get("XLA_FLAGS", "").strip()
    if value and not value.startswith("-"):
        with contextlib.suppress(OSError), open(value, encoding="utf-8") as file:
            value = file.read()
    return value.split()
