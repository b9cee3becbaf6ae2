"""Recorded builds: lists of events as a daemon sends them, for tests of what consumes them."""

from __future__ import annotations

from collections.abc import Iterable

from protocol import messages
from protocol.messages import Digest, Event, EventBody, JobId, Outcome, RequestId, Timing

START_NS = 1_700_000_000_000_000_000
REQUEST = RequestId("r1")
DIGEST = Digest("0" * 64)


def events(*steps: tuple[float, EventBody], start_ns: int = START_NS) -> list[Event]:
    """Events from (seconds since the start, body)."""
    return [
        Event(request_id=REQUEST, sequence=number, time_ns=start_ns + int(at_s * 1e9), body=body)
        for number, (at_s, body) in enumerate(steps, 1)
    ]


def started(number: int, action: str, *, expected_s: float = 0.0, command: str = "") -> messages.Started:
    command = command or f"/usr/bin/nvcc -c {action}"
    return messages.Started(job_id=JobId(number), action=action, command=command, expected_s=expected_s)


def finished(number: int, action: str, wall_s: float, **more: object) -> messages.Finished:
    timing = Timing(wall_s=wall_s, user_s=wall_s / 2, system_s=0.1, peak_rss_bytes=1 << 20)
    return messages.Finished(job_id=JobId(number), action=action, timing=timing, **more)  # type: ignore[arg-type]


def hit(number: int, action: str, saved_s: float = 2.1) -> messages.CacheHit:
    return messages.CacheHit(job_id=JobId(number), action=action, reason="all inputs are as before", saved_s=saved_s)


def line(number: int, text: str) -> messages.LogLine:
    return messages.LogLine(job_id=JobId(number), stream="stderr", text=text)


def good_build() -> list[Event]:
    """Four actions: two hits, two compiles side by side, one artifact."""
    return events(
        (0.0, messages.Planned(targets=("saxpy", "norm"), actions=4, expected_s=4.0)),
        (0.01, hit(1, "saxpy/src/b.cu.o")),
        (0.02, hit(2, "norm/src/c.cu.o", saved_s=89.9)),
        (0.03, messages.Queued(job_id=JobId(3), action="saxpy/src/a.cu.o", reasons=("input src/a.cu changed",))),
        (0.04, started(3, "saxpy/src/a.cu.o", expected_s=3.0)),
        (0.05, started(4, "norm/src/d.cu.o", command="cd /p && CUDA=1 /opt/cuda/bin/nvcc -c src/d.cu")),
        (0.06, messages.Progress(done=2, total=4, hits=2, misses=2, running=2, eta_s=3.0)),
        (1.0, line(4, "src/d.cu(3): warning #177-D: variable was declared but never referenced")),
        (2.15, finished(4, "norm/src/d.cu.o", 2.1)),
        (3.24, finished(3, "saxpy/src/a.cu.o", 3.2)),
        (3.25, messages.Artifact(target="saxpy", name="lib", path="build/saxpy.so", digest=DIGEST, size_bytes=1258291)),
        (3.26, messages.Done(outcome=Outcome.BUILT, hits=2, misses=2, wall_s=3.26, saved_s=92.0)),
    )


def failed_build() -> list[Event]:
    """One compile error, said by the compiler and again as a diagnostic; one more diagnostic that nobody has said."""
    message = 'identifier "blockIdy" is undefined'
    return events(
        (0.0, messages.Planned(targets=("saxpy",), actions=2)),
        (0.1, started(1, "saxpy/src/a.cu.o", command="nvcc -c 'src/a b.cu'")),
        (0.5, line(1, f"src/a.cu(7): error: {message}")),
        (0.5, line(1, "          ^")),
        (
            0.6,
            messages.Failed(
                job_id=JobId(1),
                action="saxpy/src/a.cu.o",
                kind=messages.FailureKind.COMPILE_ERROR,
                message="nvcc ended with status 2",
                exit_status=2,
                command="nvcc -c 'src/a b.cu'",
                next_step="fix src/a.cu, line 7",
                diagnostics=(
                    messages.Diagnostic(
                        severity=messages.Severity.ERROR, message=message, file="src/a.cu", line=7, column=3
                    ),
                    messages.Diagnostic(severity=messages.Severity.ERROR, message="expected a )", file="src/x.h"),
                ),
                timing=Timing(wall_s=0.5),
            ),
        ),
        (0.7, messages.Done(outcome=Outcome.FAILED, hits=0, misses=1, failures=1, wall_s=0.7)),
    )


def replay(view: object, recorded: Iterable[Event]) -> None:
    """Send events to a view and close it."""
    for event in recorded:
        view.event(event)  # type: ignore[attr-defined]
    view.close()  # type: ignore[attr-defined]
