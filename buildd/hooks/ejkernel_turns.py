"""ejkernel's tuners take turns on a GPU, as Inductor's do.

Runs in the user's own process; standard library only. Knows which functions of ejkernel time a candidate, and how JAX's
devices are named; `gpu_turns` knows the locks. ejkernel compiles a candidate where it times it, so a turn is one
candidate: its compile and its runs.
"""

import contextlib
import ctypes
import functools
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_NESTED = 4
"""Depth to which arguments are searched for arrays."""


def begin_selection(selection: "Any", turns: "Any") -> None:
    """Wrap the measuring of a candidate in ejkernel.ops.config.selection, just imported."""
    selection.Tuner.measure = turns.in_turn(selection.Tuner.measure, gpus=jax_gpus)


def begin_tuning(tuning: "Any", turns: "Any") -> None:
    """Wrap the timings of ejkernel.ops.execution.tuning, just imported."""
    tuning.benchmark = turns.in_turn(tuning.benchmark, gpus=jax_gpus)
    tuning.FNAutotuner._time_fn = turns.in_turn(tuning.FNAutotuner._time_fn, gpus=jax_gpus)
    # `self` is the first argument, what makes a candidate's function the second.
    tuning.Autotuner.autotune = _each_in_turn(tuning.Autotuner.autotune, turns, 1, "make_fn")


def begin_tilelang(ffi: "Any", turns: "Any") -> None:
    """Wrap the tuner of ejkernel.callib._tilelang_ffi, just imported."""
    ffi.autotune_tilelang_ffi = _each_in_turn(ffi.autotune_tilelang_ffi, turns, 0, "prim_func_builder")


def _each_in_turn(function: "Callable[..., Any]", turns: "Any", position: int, name: str) -> "Callable[..., Any]":
    """A tuner that times each candidate in a turn of its own, from the call that makes the candidate to the next one.

    Args:
        position, name: of the argument that makes a candidate.
    """

    @functools.wraps(function)
    def tuned(*arguments: "Any", **named: "Any") -> "Any":
        with contextlib.ExitStack() as turn:
            make = named[name] if name in named else arguments[position]

            def in_turn(*words: "Any", **more: "Any") -> "Any":
                turn.close()
                turn.enter_context(turns.turn(turns.FOLDER, lambda: jax_gpus(arguments, named)))
                return make(*words, **more)

            if name in named:
                return function(*arguments, **{**named, name: in_turn})
            return function(*arguments[:position], in_turn, *arguments[position + 1 :], **named)

    return tuned


def jax_gpus(*given: "Any") -> "list[str]":
    """Names of the locks of the NVIDIA GPUs where JAX's arrays among some arguments are; otherwise of JAX's default
    device."""
    jax = sys.modules.get("jax")
    if jax is None:
        return []
    devices = {device for array in _arrays(given, jax.Array) for device in _devices(array)}
    if not devices:
        default = jax.config.jax_default_device
        devices = {default if hasattr(default, "platform") else jax.local_devices()[0]}
    from . import gpu_turns

    found = set()
    for device in devices:
        if device.platform == "gpu" and "rocm" not in device.client.platform_version.lower():
            uuid = _uuid(device.local_hardware_id)
            if uuid:
                found.add(gpu_turns.lock_name(uuid))
    return sorted(found)


def _arrays(value: "Any", kind: type, depth: int = _NESTED) -> "Iterator[Any]":
    if isinstance(value, kind):
        yield value
    elif depth and isinstance(value, (tuple, list)):
        for each in value:
            yield from _arrays(each, kind, depth - 1)
    elif depth and isinstance(value, dict):
        for each in value.values():
            yield from _arrays(each, kind, depth - 1)


def _devices(array: "Any") -> "Any":
    try:
        return array.devices()
    except Exception:
        return ()  # a tracer, an array that was given away: it is nowhere


def _uuid(ordinal: int) -> str:
    """UUID of a device as the CUDA driver numbers it in this process; empty without one.

    JAX does not tell it. The driver is loaded and works, since JAX has made the device.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    device, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    if driver.cuDeviceGet(ctypes.byref(device), ordinal):
        return ""
    # The second version tells the UUID of a part of a divided GPU, the first one that of the whole.
    ask = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
    if ask(ctypes.byref(uuid), device):
        return ""
    text = bytes(uuid).hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
