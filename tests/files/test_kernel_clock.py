"""The kernel's clock against real stamps: a trusted stamp is changed by each later write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from buildd.files import kernel_clock
from buildd.files.stamp import Stamp, stamp_of, trustworthy

PLACES = [place for place in ("/dev/shm", "") if not place or os.access(place, os.W_OK)]


@pytest.mark.parametrize("place", PLACES)
def test_a_write_after_its_stamp_is_trusted_changes_the_stamp(place: str, tmp_path: Path) -> None:
    path = Path(place or tmp_path, f"buildd-clock-{os.getpid()}")
    try:
        for number in range(150):
            path.write_bytes(b"%d" % (number % 10))
            before = stamp_of(str(path))
            assert before is not None
            while not trustworthy(before, kernel_clock.now_ns()):
                pass
            with path.open("r+b") as file:
                file.write(b"x")
            assert stamp_of(str(path)) != before
    finally:
        path.unlink()


def test_a_stamp_of_the_tick_that_stands_is_not_trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the kernel has no finer stamps, a write in the same tick leaves the stamp as it is."""
    device, tick_ns = os.stat(tmp_path).st_dev, 1_700_000_000_123_456_789
    monkeypatch.setattr("time.clock_gettime_ns", lambda clock: tick_ns)
    moments = [kernel_clock.now_ns() for _ in range(1000)]
    assert moments == sorted(set(moments)), "what came first is less"
    stamp = Stamp(device, 1, 1, tick_ns, tick_ns)
    assert not any(trustworthy(stamp, moment) for moment in moments)
    monkeypatch.setattr("time.clock_gettime_ns", lambda clock: tick_ns + kernel_clock.step_ns(device))
    assert not trustworthy(stamp, kernel_clock.now_ns()), "the next tick may have come late"


def test_a_stamp_is_trusted_later_where_another_machine_may_have_made_it(tmp_path: Path) -> None:
    now_ns = kernel_clock.now_ns()
    unknown = Stamp(os.makedev(0, 0xFFFFF), 1, 1, now_ns + 1, now_ns + 1)
    assert kernel_clock.step_ns(unknown.device) == kernel_clock.STEP_NS >= kernel_clock.step_below(str(tmp_path))
    assert not trustworthy(unknown, now_ns + kernel_clock.STEP_NS)
    assert trustworthy(unknown, now_ns + kernel_clock.STEP_NS + 2)
