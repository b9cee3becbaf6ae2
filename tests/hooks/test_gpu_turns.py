"""Tuners in users' processes take the same turns as leases, and run on where there are none."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from buildd.hooks import gpu_turns
from buildd.host.gpu_lock import FOLDER, lock, processes
from tests.support.gpu_locks import GPU, UUID, is_free
from tests.support.paths import ROOT
from tests.support.waiting import until_async


def torch_with(uuid: str = UUID, *, there: bool = True, hip: str | None = None) -> types.ModuleType:
    torch: Any = types.ModuleType("torch")
    torch.version = types.SimpleNamespace(hip=hip)
    torch.cuda = types.SimpleNamespace(
        is_available=lambda: there,
        current_device=lambda: 0,
        get_device_properties=lambda device: types.SimpleNamespace(uuid=uuid),
    )
    found: types.ModuleType = torch
    return found


def test_both_lock_the_same_files() -> None:
    assert gpu_turns.FOLDER == FOLDER


def test_a_timing_holds_the_gpu_and_one_inside_another_is_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_with())
    seen: list[bool] = []

    def inner() -> None:
        seen.append(is_free(tmp_path))

    def outer() -> int:
        gpu_turns.in_turn(inner, str(tmp_path))()
        seen.append(is_free(tmp_path))
        return 7

    assert gpu_turns.in_turn(outer, str(tmp_path))() == 7
    assert seen == [False, False] and is_free(tmp_path)
    with pytest.raises(ZeroDivisionError):
        gpu_turns.in_turn(lambda: 1 // 0, str(tmp_path))()
    assert is_free(tmp_path)


@pytest.mark.parametrize("torch", [torch_with(there=False), torch_with(hip="6.4"), types.ModuleType("torch"), None])
def test_without_a_gpu_of_nvidia_nothing_is_held_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: types.ModuleType | None
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
    assert gpu_turns.in_turn(lambda: 7, str(tmp_path / "a" / "b"))() == 7
    assert not list(tmp_path.iterdir())


def test_a_holder_that_hangs_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_with())
    monkeypatch.setattr(gpu_turns, "_MOST_WAIT_S", 0.05)
    with open(tmp_path / GPU, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert gpu_turns.in_turn(lambda: 7, str(tmp_path))() == 7


LOOP = """
import sys, types
sys.path.insert(0, {root!r})
torch = types.ModuleType("torch")
torch.version = types.SimpleNamespace(hip=None)
torch.cuda = types.SimpleNamespace(is_available=lambda: True, current_device=lambda: 0,
    get_device_properties=lambda device: types.SimpleNamespace(uuid={uuid!r}))
sys.modules["torch"] = torch
from buildd.hooks import gpu_turns
timed = gpu_turns.in_turn(lambda: print("timed", flush=True), {folder!r})
while True:
    timed()
"""


def test_a_tuner_that_times_without_a_pause_leaves_others_their_turn(tmp_path: Path) -> None:
    """And it is seen to wait, so that the holder leaves it one."""
    script = LOOP.format(root=str(ROOT), uuid=UUID, folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as tuner:
        assert tuner.stdout is not None
        tuner.stdout.readline()
        os.set_blocking(tuner.stdout.fileno(), False)

        async def work() -> None:
            for _ in range(5):
                async with lock(GPU, str(tmp_path)):
                    await until_async(lambda: (tuner.pid, False) in [each[1:] for each in processes(str(tmp_path))])
                    assert tuner.stdout is not None
                    tuner.stdout.read()
                    assert tuner.stdout.read() is None, "it times beside the holder"

        try:
            asyncio.run(asyncio.wait_for(work(), 30.0))
        finally:
            tuner.kill()


def test_a_fifo_in_the_shared_folder_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_with())
    os.mkfifo(tmp_path / GPU)
    assert gpu_turns.in_turn(lambda: 7, str(tmp_path))() == 7


def test_a_child_that_is_forked_in_a_turn_does_not_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a loader of data forks its workers while a kernel is tuned."""
    monkeypatch.setitem(sys.modules, "torch", torch_with())

    def fork() -> int:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        return child

    child = gpu_turns.in_turn(fork, str(tmp_path))()
    try:
        assert is_free(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of locks, for functions that are wrapped without naming one."""
    monkeypatch.setitem(sys.modules, "torch", torch_with())
    monkeypatch.setattr(gpu_turns.in_turn, "__defaults__", (str(tmp_path), gpu_turns.torch_gpus))
    return tmp_path


def test_every_timing_of_inductors_has_the_gpu_to_itself(here: Path) -> None:
    """As torch._inductor.runtime.benchmarking: one kind times by another's means, and both are called."""
    seen: list[bool] = []

    class Benchmarker:
        def benchmark(self) -> float:
            return self.benchmark_gpu()

        def benchmark_gpu(self) -> float:
            seen.append(is_free(here))
            return 1.0

    class Inherits(Benchmarker):
        pass

    class Overrides(Benchmarker):
        def benchmark_gpu(self) -> float:
            return super().benchmark_gpu()

    module = types.SimpleNamespace(A=Benchmarker, B=Inherits, C=Overrides, benchmarker=Overrides(), other=7)
    gpu_turns.begin_inductor(module)
    assert [module.A().benchmark(), module.B().benchmark(), module.benchmarker.benchmark_gpu()] == [1.0] * 3
    assert seen == [False] * 3 and is_free(here)


@pytest.mark.triton
def test_every_timing_of_tritons_tuner_has_the_gpu_to_itself(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    autotuner = pytest.importorskip("triton.runtime.autotuner")
    seen: list[bool] = []
    monkeypatch.setattr(autotuner.Autotuner, "_bench", lambda *words, config, **meta: seen.append(is_free(here)))
    gpu_turns.begin_triton(autotuner)
    function = types.SimpleNamespace(arg_names=["x"], fn=lambda x: x, __name__="k")
    configs = [autotuner.Config({"BLOCK": size}) for size in (64, 128)]
    tuner = autotuner.Autotuner(function, ["x"], configs, ["x"], None, None)
    for config in configs:
        tuner._bench(1, config=config)
    assert seen == [False] * 2 and is_free(here)
