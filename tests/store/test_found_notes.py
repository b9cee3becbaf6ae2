"""Kernels and graphs that programs found, as the `buildd run` above them counts them."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from buildd.client.foreign_build import summary
from buildd.hooks.entries import FOUND_FOLDER, FOUND_GRAPH, FOUND_KERNEL, FOUND_TRACE, note_found
from buildd.store.found_notes import FoundKernels, FoundNotes
from protocol.messages import BuildFigures


def test_what_programs_find_is_counted_while_the_build_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDD_BUILD_ID", "abc123")
    note_found(str(tmp_path), FOUND_KERNEL)  # nobody listens yet
    with FoundNotes(tmp_path, "abc123") as notes, FoundNotes(tmp_path, "other") as others:
        assert notes.found() == FoundKernels()
        for kind in (FOUND_KERNEL, FOUND_GRAPH, FOUND_KERNEL, FOUND_TRACE):
            note_found(str(tmp_path), kind)
        assert notes.found() == FoundKernels(kernels=2, graphs=1, traces=1)
        assert others.found() == FoundKernels()
    note_found(str(tmp_path), FOUND_KERNEL)
    assert list((tmp_path / FOUND_FOLDER).iterdir()) == []


def test_a_build_that_was_killed_leaves_no_file_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on NFS, which grants an exclusive lock only to those who may write."""

    def as_nfs_locks(descriptor: int, kind: int) -> None:
        if kind & fcntl.LOCK_EX and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        lock(descriptor, kind)

    lock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", as_nfs_locks)
    (tmp_path / FOUND_FOLDER).mkdir(parents=True)
    (tmp_path / FOUND_FOLDER / "dead").write_bytes(b"k")
    with FoundNotes(tmp_path, "living"):
        assert [path.name for path in (tmp_path / FOUND_FOLDER).iterdir()] == ["living"]


def test_a_name_that_is_a_path_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / FOUND_FOLDER).mkdir(parents=True)
    (tmp_path / "victim").write_bytes(b"")
    monkeypatch.setenv("BUILDD_BUILD_ID", "../../victim")
    note_found(str(tmp_path), FOUND_KERNEL)
    assert (tmp_path / "victim").read_bytes() == b""


@pytest.mark.parametrize(
    ("figures", "found", "line"),
    [
        (BuildFigures(), FoundKernels(), ""),
        (BuildFigures(), FoundKernels(kernels=1, graphs=2), "2 graphs and 1 Triton kernel from the store"),
        (BuildFigures(), FoundKernels(1, 1, 3), "1 graph, 1 Triton kernel and 3 JAX programs from the store"),
        (BuildFigures(passed_through={"link": 2}), FoundKernels(), "nothing to compile in 2 compiler calls (link 2)"),
        (
            BuildFigures(cancelled=2, passed_through={"query": 1}),
            FoundKernels(),
            "2 cancelled, 1 compiler check",
        ),
        (
            BuildFigures(passed_through={"query": 3, "unknown-option": 1}),
            FoundKernels(),
            "1 passed through (unknown-option 1), 3 compiler checks",
        ),
        (
            BuildFigures(misses=1, passed_through={"query": 3}),
            FoundKernels(),
            "0 hits, 1 miss, 3 compiler checks",
        ),
        (BuildFigures(), FoundKernels(graphs=2, traces=1), "1 Dynamo trace and 2 graphs from the store"),
        (
            BuildFigures(hits=1, saved_s=22.0),
            FoundKernels(graphs=1),
            "1 hit, 0 misses, 1 graph from the store, 22 s saved",
        ),
        (BuildFigures(misses=1), FoundKernels(), "0 hits, 1 miss"),
        # A configure step: nothing is amiss.
        (
            BuildFigures(hits=1, passed_through={"trial": 2, "query": 1}),
            FoundKernels(),
            "1 hit, 0 misses, 3 compiler checks, 0.00 s saved",
        ),
        (BuildFigures(passed_through={"query": 1}), FoundKernels(), "nothing to compile in 1 compiler check"),
        (
            BuildFigures(passed_through={"query": 2, "link": 1}),
            FoundKernels(),
            "nothing to compile in 1 compiler call (link 1) and 2 compiler checks",
        ),
        # A compile that failed is no miss, too.
        (BuildFigures(misses=1, failures=1), FoundKernels(), "0 hits, 0 misses, 1 failed"),
        (BuildFigures(misses=3, failures=1, missed={"new": 2}), FoundKernels(), "0 hits, 2 misses (new 2), 1 failed"),
    ],
)
def test_the_summary_has_no_zeros_without_need(figures: BuildFigures, found: FoundKernels, line: str) -> None:
    assert summary(figures, found) == line
