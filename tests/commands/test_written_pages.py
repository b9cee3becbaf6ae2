"""The pages that a command has written are told, and the next fork has them copied before it writes."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from collections.abc import Callable

import pytest

from buildd.cli_server import written_pages
from buildd.cli_server.spare import forked

_PAGES = 64


@pytest.fixture
def memory() -> mmap.mmap:
    """Pages that a fork shares with this process."""
    memory = mmap.mmap(-1, _PAGES * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"x" * len(memory))
    return memory


def in_fork(action: Callable[[], bytes]) -> bytes:
    """What an action in a fork returns."""
    ours, its = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(its, action())
        finally:
            os._exit(0)
    os.close(its)
    with open(ours, "rb") as end:
        told = end.read()
    os.waitpid(pid, 0)
    return told


def write_some(memory: mmap.mmap) -> None:
    for page in range(0, _PAGES, 2):
        memory[page * mmap.PAGESIZE] = 0


def faults_of_writing(memory: mmap.mmap) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    write_some(memory)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def told_by_a_fork_that_writes(memory: mmap.mmap) -> bytes:
    def write_and_tell() -> bytes:
        write_some(memory)
        return written_pages.written()

    told = in_fork(write_and_tell)
    if not told:
        pytest.skip("this kernel does not tell a process its pages")
    return told


def test_pages_that_one_fork_has_written_are_the_next_ones_own_before_it_writes(memory: mmap.mmap) -> None:
    told = told_by_a_fork_that_writes(memory)

    def copy_and_count() -> bytes:
        written_pages.copy(told, lambda: False)
        return str(faults_of_writing(memory)).encode()

    plain = int(in_fork(lambda: str(faults_of_writing(memory)).encode()))
    assert plain >= _PAGES // 2
    if int(in_fork(copy_and_count)) >= plain:
        pytest.skip("this kernel does not copy pages ahead")
    assert int(in_fork(copy_and_count)) <= plain - _PAGES // 2


def test_pages_that_were_only_read_are_not_told(memory: mmap.mmap) -> None:
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert bytes(memory[1:2]) == b"x"
    told = {
        (address - start) // mmap.PAGESIZE
        for first, length in written_pages.RUN.iter_unpack(told_by_a_fork_that_writes(memory))
        for address in range(first, first + length, mmap.PAGESIZE)
    }
    assert told & set(range(_PAGES)) == set(range(0, _PAGES, 2))


def test_a_command_that_waits_ends_the_copying(memory: mmap.mmap) -> None:
    told = told_by_a_fork_that_writes(memory)
    asked: list[bool] = []

    def is_awaited() -> bool:
        asked.append(True)
        return len(asked) == 2

    def copy() -> bytes:
        written_pages.copy(told, is_awaited)
        return str(len(asked)).encode()

    assert in_fork(copy) == b"2"


def test_a_fork_that_ends_without_a_word_tells_no_pages() -> None:
    fork = forked(lambda _: 0, [], ahead=b"", tells=True)
    os.kill(fork.pid, 9)
    assert fork.end() == b""
