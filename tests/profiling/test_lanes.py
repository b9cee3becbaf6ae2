"""The GPUs of a campaign: how much of their time they measured."""

from __future__ import annotations

from buildd.profiling.lanes import GpuUse


def test_a_gpu_lies_unused_only_while_something_is_ready() -> None:
    now = [100.0]
    use = GpuUse(1, clock_s=lambda: now[0])
    assert (use.idle, use.unused) == (0.0, 0.0)
    use.note(ready=1)
    now[0] += 1
    with use.turn():
        now[0] += 2
    use.note(ready=-1)
    now[0] += 4
    use.note(ready=1)
    with use.turn():
        now[0] += 1
    assert (use.busy_s, use.idle, use.unused) == (3.0, 1 - 3 / 8, 1 / 8)
