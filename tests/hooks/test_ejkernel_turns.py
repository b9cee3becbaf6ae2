"""ejkernel's tuners hold the lock of the GPU where JAX computes, one candidate at a time."""

from __future__ import annotations

import ctypes
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from buildd.hooks import ejkernel_turns, gpu_turns
from tests.support.gpu_locks import GPU, UUID, is_free

OTHER = "89abcdef-0123-0123-0123-0123456789ab"


class Device:
    """A device as JAX shows it."""

    def __init__(self, ordinal: int, platform: str = "gpu", version: str = "cuda 13000") -> None:
        self.local_hardware_id, self.platform = ordinal, platform
        self.client = types.SimpleNamespace(platform_version=version)


class Array:
    def __init__(self, *devices: Device, gone: bool = False) -> None:
        self._devices, self._gone = set(devices), gone

    def devices(self) -> set[Device]:
        if self._gone:
            raise RuntimeError("Array has been deleted")
        return self._devices


@pytest.fixture
def default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Device:
    """JAX's default device, the first of two GPUs; locks are in `tmp_path`."""
    device = Device(0)
    jax: Any = types.ModuleType("jax")
    jax.Array = Array
    jax.config = types.SimpleNamespace(jax_default_device=None)
    jax.local_devices = lambda: [device]
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setattr(gpu_turns, "FOLDER", str(tmp_path))
    monkeypatch.setattr(ejkernel_turns, "_uuid", lambda ordinal: (UUID, OTHER)[ordinal])
    return device


def test_the_gpus_are_those_of_the_arrays_else_the_default_one(default: Device) -> None:
    second = Device(1)
    assert ejkernel_turns.jax_gpus((1.0, "text"), {}) == [GPU]
    assert ejkernel_turns.jax_gpus(({"x": [Array(second)]},), {}) == [f"GPU-{OTHER}"]
    assert ejkernel_turns.jax_gpus((Array(default), Array(second, default)), {"y": Array(gone=True)}) == [
        GPU,
        f"GPU-{OTHER}",
    ]


@pytest.mark.parametrize("device", [Device(0, "cpu", "cpu"), Device(0, "gpu", "rocm 60401")])
def test_other_devices_have_no_lock_here(default: Device, device: Device) -> None:
    assert ejkernel_turns.jax_gpus((Array(device),)) == []


def test_without_jax_there_is_nothing_to_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)  # type: ignore[arg-type]
    assert ejkernel_turns.jax_gpus() == []


def test_a_measuring_is_a_turn(default: Device, tmp_path: Path) -> None:
    class Tuner:
        def measure(self, fn: Any, *arguments: Any) -> float:
            return float(fn(*arguments))

    selection = types.SimpleNamespace(Tuner=Tuner)
    turns = types.SimpleNamespace(
        in_turn=lambda function, gpus: gpu_turns.in_turn(function, str(tmp_path), gpus), turn=gpu_turns.turn
    )
    ejkernel_turns.begin_selection(selection, turns)
    assert Tuner().measure(lambda: not is_free(tmp_path)) == 1.0
    assert is_free(tmp_path)


def test_each_candidate_has_its_turn_and_the_last_one_ends_it(default: Device, tmp_path: Path) -> None:
    """Also where a candidate cannot be made, and where the tuner fails."""
    (tmp_path / GPU).touch()
    between: list[bool] = []

    class Autotuner:
        def autotune(self, make_fn: Any, args: Any, kwargs: Any, candidates: Any) -> list[bool]:
            assert is_free(tmp_path)
            held = []
            for candidate in candidates:
                try:
                    make_fn(candidate)
                except ValueError:
                    pass
                held.append(not is_free(tmp_path))
            return held

    class Timed:
        def _time_fn(self) -> None:
            raise ZeroDivisionError

    def make(candidate: int) -> None:
        between.append(not is_free(tmp_path))
        if candidate == 1:
            raise ValueError

    tuning = types.SimpleNamespace(Autotuner=Autotuner, benchmark=lambda: None, FNAutotuner=Timed)
    ejkernel_turns.begin_tuning(tuning, gpu_turns)
    assert Autotuner().autotune(make, (), {}, range(3)) == [True] * 3 == between
    assert is_free(tmp_path)
    assert Autotuner().autotune(make_fn=make, args=(), kwargs={}, candidates=range(2)) == [True] * 2
    with pytest.raises(ZeroDivisionError):
        Timed()._time_fn()
    assert is_free(tmp_path)


def test_the_driver_is_asked_for_the_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Device 1 of this process is asked; its bytes are read in the order in which NVML writes them."""

    class Driver:
        def cuDeviceGet(self, device: Any, ordinal: int) -> int:
            device._obj.value = 100 + ordinal
            return 0 if ordinal == 1 else 101

        def cuDeviceGetUuid_v2(self, uuid: Any, device: Any) -> int:
            assert device.value == 101
            uuid._obj[:] = bytes.fromhex(UUID.replace("-", ""))
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    assert ejkernel_turns._uuid(1) == UUID
    assert ejkernel_turns._uuid(2) == ""
