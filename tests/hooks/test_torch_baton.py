"""torch's lock on the build of an extension: what a killed build left behind is taken over, builds are waited for."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from buildd.hooks import torch_baton

BATON = """
import os, sys, time

class FileBaton:
    # What torch's does.
    def __init__(self, path):
        self.lock_file_path, self.wait_seconds, self.fd = path, 0.01, None
    def try_acquire(self):
        try:
            self.fd = os.open(self.lock_file_path, os.O_CREAT | os.O_EXCL)
            return True
        except FileExistsError:
            return False
    def wait(self):
        while os.path.exists(self.lock_file_path):
            time.sleep(self.wait_seconds)
    def release(self):
        if self.fd is not None:
            os.close(self.fd)
        os.remove(self.lock_file_path)
"""
HOLDER = """
baton = FileBaton(sys.argv[1])
print(baton.try_acquire(), flush=True)
sys.stdin.readline()
baton.release()
print("released", flush=True)
"""
OURS = """
from types import SimpleNamespace
from buildd.hooks import torch_baton
torch_baton._SILENT_S = 0.0
torch_baton.begin(SimpleNamespace(FileBaton=FileBaton))
"""


class Process:
    """A program that takes the lock, says so, and gives it back at a word."""

    def __init__(self, lock: Path, *, stock: bool) -> None:
        code = BATON + ("" if stock else OURS) + HOLDER
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(lock)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def told(self) -> str:
        """A line of its stderr."""
        assert self.process.stderr is not None
        return self.process.stderr.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture
def started() -> Iterator[list[Process]]:
    found: list[Process] = []
    yield found
    for process in found:
        process.end()


def held(lock: Path, started: list[Process], *, stock: bool) -> Process:
    one = Process(lock, stock=stock)
    started.append(one)
    assert one.said() == "True"
    return one


@pytest.mark.parametrize("stock", [True, False], ids=["plain", "ours"])
def test_what_a_killed_process_left_behind_is_taken_over(lock: Path, started: list[Process], stock: bool) -> None:
    held(lock, started, stock=stock).end()
    assert lock.exists()
    later = held(lock, started, stock=False)
    assert later.told() == f"buildd: {lock} was left behind by a killed build; taking it over"
    later.go_on()
    assert later.said() == "released" and not lock.exists()


@pytest.mark.parametrize("stock", [True, False], ids=["plain", "ours"])
def test_who_builds_is_waited_for_and_has_built_then(lock: Path, started: list[Process], stock: bool) -> None:
    first = held(lock, started, stock=stock)
    second = Process(lock, stock=False)
    started.append(second)
    assert second.told() == f"buildd: waiting for the build of process {first.process.pid}"
    first.go_on()
    assert first.said() == "released"
    assert second.said() == "False" and not lock.exists()


def test_of_those_who_wait_for_one_that_is_killed_one_builds(lock: Path, started: list[Process]) -> None:
    first = held(lock, started, stock=True)
    others = [Process(lock, stock=False) for _ in range(3)]
    started += others
    assert all(other.told().startswith("buildd: waiting for ") for other in others)
    first.end()
    # The others wait for the one that took it over.
    running = {process.process.stdout: process for process in others}
    (builds,) = ready(running)
    assert builds.said() == "True" and lock.exists()
    builds.go_on()
    assert builds.said() == "released"
    assert [other.said() for other in others if other is not builds] == ["False", "False"]


def ready(running: dict[object, Process]) -> list[Process]:
    import select

    found, _, _ = select.select(list(running), [], [], 60.0)
    return [running[stream] for stream in found]


def test_the_ninja_of_a_killed_program_goes_on_and_is_waited_for(lock: Path, started: list[Process]) -> None:
    held(lock, started, stock=True).end()
    tool = lock.parent / "ninja"
    shutil.copy(shutil.which("cat") or "", tool)
    ninja = subprocess.Popen([tool], cwd=lock.parent, stdin=subprocess.PIPE)
    try:
        later = Process(lock, stock=False)
        started.append(later)
        assert later.told() == f"buildd: waiting for the build of process {ninja.pid}"
    finally:
        ninja.communicate()
    assert later.said() == "True"


def test_a_lock_of_which_nothing_can_be_known_is_held(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock.touch()

    def refuse(opened: int, command: int, value: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(torch_baton, "fcntl", SimpleNamespace(fcntl=refuse, F_SETSIG=0, F_SETLEASE=0, F_WRLCK=0))
    opened, is_held = torch_baton._look(str(lock))
    os.close(opened)
    assert is_held


def test_a_look_at_it_harms_nobody_who_looks_too(lock: Path) -> None:
    lock.touch()
    before = signal.getsignal(signal.SIGURG)
    first, held_first = torch_baton._look(str(lock))
    second, held_second = torch_baton._look(str(lock))
    assert (held_first, held_second) == (False, True), "the first still has it open"
    for opened in (first, second):
        os.close(opened)
    assert signal.getsignal(signal.SIGURG) == before
