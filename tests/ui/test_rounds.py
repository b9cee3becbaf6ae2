"""The screen of `buildd watch`: what is shown of which round."""

from __future__ import annotations

import io
from typing import Any

from buildd.ui.narrator import Narrator, Telling
from buildd.ui.plain import PlainView
from buildd.ui.rounds import Rounds, measured_line
from buildd.ui.text import Style
from buildd.ui.view import Writer
from protocol import messages as m

KERNEL = m.Kernel(name="k", arch="sm_80", registers=10, shared_bytes=0)


class Screen:
    """Rounds on a text, fed with bodies."""

    def __init__(self, *, partial: bool = False) -> None:
        self.stream = io.StringIO()
        self.notified: list[tuple[str, str]] = []
        self.compared: list[m.Compared] = []
        writer = Writer(self.stream)
        self.rounds = Rounds(
            writer,
            lambda name: PlainView(writer, Narrator(Telling())),
            clear=False,
            partial=partial,
            notify=lambda *words: self.notified.append(words),
            compared=self.compared.append,
        )
        self._number = 0

    def round(self, *bodies: m.EventBody, changed: str = "") -> str:
        """What a round adds to the text."""
        before = len(self.stream.getvalue())
        self._number += 1
        name = m.BuildId(str(self._number))
        self.rounds.begin(name, m.Changed(paths=(changed,)) if changed else None)
        for sequence, body in enumerate(bodies, start=1):
            self.rounds.event(m.Event(request_id=m.RequestId(name), sequence=sequence, time_ns=0, body=body))
        return self.stream.getvalue()[before:]


def compiled(*kernels: m.Kernel) -> tuple[m.EventBody, ...]:
    job = m.JobId(1)
    return (
        m.Planned(targets=("t",), actions=1),
        m.Queued(job_id=job, action="a.o", expected_s=1.0),
        m.Started(job_id=job, action="a.o", command="nvcc -c a.cu"),
        m.Finished(job_id=job, action="a.o", timing=m.Timing(wall_s=1.0), kernels=kernels),
        m.Done(outcome=m.Outcome.BUILT, misses=1),
    )


def test_the_end_of_a_command_is_a_line_unless_another_run_follows() -> None:
    screen = Screen()
    screen.rounds.running(("./t", "a b"))
    screen.rounds.running(("./t",), again=True)
    for ran in (
        m.Ran(command=("./t",), exit_status=0, wall_s=1.0),
        m.Ran(command=("./t",), exit_status=2),
        m.Ran(command=("./t",), signal=11),
        m.Ran(command=("./t",), signal=15, stopped=True),
        m.Ran(command=("./t",), message="Permission denied"),
    ):
        screen.rounds.ran(ran)
    assert screen.stream.getvalue().splitlines() == [
        "running ./t 'a b'",
        "ending the last run, then running ./t",
        "./t ended with status 0 after 1.0 s",
        "./t ended with status 2 after 0.0 s",
        "signal 11 (Segmentation fault) ended ./t after 0.0 s",
        "cannot run ./t: Permission denied; the next good build tries again",
    ]


NOTHING = (m.Planned(targets=("t",), actions=1), m.Done(outcome=m.Outcome.BUILT, hits=1))
FAILURE = (
    m.Failed(job_id=m.JobId(1), action="a.o", kind=m.FailureKind.COMPILE_ERROR, message="ended with status 1"),
    m.Done(outcome=m.Outcome.FAILED, failures=1),
)


def test_the_first_round_shows_every_kernel_and_a_later_one_what_moved() -> None:
    screen = Screen()
    assert "10" in screen.round(*compiled(KERNEL))
    assert "resource use is the same" in screen.round(*compiled(KERNEL), changed="a.cu")
    more = m.Kernel(name="k", arch="sm_80", registers=12, shared_bytes=0)
    text = screen.round(*compiled(more), changed="a.cu")
    assert "changed: a.cu" in text and "1 of 1 kernel changed resource use" in text and "10 -> 12" in text


def test_how_many_kernels_are_other_code_than_before() -> None:
    screen = Screen()
    one, two = (m.Kernel(name=name, arch="sm_80", registers=10, code="old") for name in "ab")
    screen.round(*compiled(one, two))
    assert "0 of 2 kernels changed; resource use is the same" in screen.round(*compiled(one, two), changed="a.cu")
    other = m.Kernel(name="b", arch="sm_80", registers=10, code="new")
    assert "1 of 2 kernels changed; resource use is the same" in screen.round(*compiled(one, other), changed="a.cu")
    other = m.Kernel(name="b", arch="sm_80", registers=11, code="newer")
    assert "1 of 2 kernels changed; 1 changed resource use" in screen.round(*compiled(one, other), changed="a.cu")
    screen.round(*compiled(other), changed="a.cu")
    assert screen.compared == [
        m.Compared(kernels=2),
        m.Compared(kernels=2),
        m.Compared(kernels=2, recoded=1),
        m.Compared(kernels=2, recoded=1, moved=1),
        m.Compared(kernels=1, went=1),
    ]


def test_of_amds_kernels_there_are_scalar_registers() -> None:
    kernel = m.Kernel(name="k", arch="gfx90a", registers=4, scalar_registers=8, spilled_registers=3)
    text = Screen().round(*compiled(kernel))
    assert "scalar" in text and "spilled" in text and "spill stores" not in text


def test_a_round_in_which_nothing_ran_is_not_shown() -> None:
    screen = Screen()
    screen.round(*compiled(KERNEL))
    assert screen.round(*NOTHING, changed="a.cu") == ""


def test_an_edit_that_is_taken_back_is_shown_though_nothing_ran() -> None:
    def found(*kernels: m.Kernel) -> tuple[m.EventBody, ...]:
        hit = m.CacheHit(job_id=m.JobId(0), action="a.o", reason="same inputs", kernels=kernels)
        return (NOTHING[0], hit, NOTHING[1])

    screen = Screen()
    more = m.Kernel(name="k", arch="sm_80", registers=12, shared_bytes=0)
    screen.round(*compiled(KERNEL))
    screen.round(*compiled(more), changed="a.cu")
    text = screen.round(*found(KERNEL), changed="a.cu")
    assert "changed: a.cu" in text and "12 -> 10" in text
    assert screen.round(*found(KERNEL), changed="a.cu") == ""


def test_kernels_of_actions_that_are_there_no_more_are_not_counted() -> None:
    screen = Screen()
    screen.round(*compiled(KERNEL))
    (planned, queued, started, finished, done) = compiled(m.Kernel(name="other", arch="sm_80", registers=12))
    finished = m.Finished(job_id=m.JobId(1), action="b.o", timing=m.Timing(), kernels=finished.kernels)
    text = screen.round(planned, queued, started, finished, done, changed="buildd.toml")
    assert "1 added, 1 removed" in text and "+ other" in text and "- k" in text
    # A tool that tells only of what it ran has the others still.
    screen = Screen(partial=True)
    screen.round(*compiled(KERNEL))
    text = screen.round(planned, queued, started, finished, done, changed="a.cu")
    assert "1 added" in text and "+ other" in text and "removed" not in text


def test_a_warning_leaves_the_screen_with_the_next_round() -> None:
    screen = Screen()
    screen.round(*compiled(KERNEL))
    warning = m.Notice(text="buildd.toml is broken; built as the last good one says", severity=m.Severity.WARNING)
    assert "is broken" in screen.round(warning, *NOTHING, changed="a.cu")
    assert "changed: buildd.toml" in screen.round(*NOTHING, changed="buildd.toml")
    assert screen.round(*NOTHING, changed="a.cu") == ""


def test_after_a_failure_the_next_round_is_shown_whatever_it_did() -> None:
    screen = Screen()
    screen.round(*compiled(KERNEL))
    assert "FAILED" in screen.round(*FAILURE, changed="a.cu")
    assert "built" in screen.round(*NOTHING, changed="a.cu")
    assert screen.round(*NOTHING, changed="a.cu") == ""


def test_after_a_build_without_an_end_the_next_round_is_shown_whatever_it_did() -> None:
    """A save that is undone while its build runs: nothing runs any more, and the screen would stay at that build."""
    screen = Screen()
    screen.round(*compiled(KERNEL))
    assert "changed: a.cu" in screen.round(*compiled(KERNEL)[:3], changed="a.cu")
    assert "built" in screen.round(*NOTHING, changed="a.cu")
    assert screen.round(*NOTHING, changed="a.cu") == ""


def test_what_moved_is_told_of_the_last_good_build() -> None:
    screen = Screen()
    screen.round(*compiled(KERNEL))
    screen.round(*FAILURE, changed="a.cu")
    more = m.Kernel(name="k", arch="sm_80", registers=12, shared_bytes=0)
    assert "10 -> 12" in screen.round(*compiled(more), changed="a.cu")


def test_events_of_a_round_that_was_replaced_are_not_shown() -> None:
    screen = Screen()
    screen.round(*compiled(KERNEL))
    screen.round(*compiled(KERNEL)[:2], changed="a.cu")
    assert "b.cu" in screen.round(*compiled(KERNEL), changed="b.cu")


def test_what_a_kernel_did_stands_beside_the_last_time() -> None:
    def line(**fields: Any) -> tuple[str, Style]:
        given = {"outcome": "measured", "time_us": 10.0, "tflops": 25.0, "spread": 0.02, "error": 2e-4, **fields}
        return tuple(measured_line(m.Measured(target="g", problem="8x8x8", gpu="A100", **given)))

    assert line() == ("g 8x8x8: 10.0 us, 25.0 TFLOP/s, error 2.0e-04, on A100", Style.PLAIN)
    text, style = line(before_us=12.5)
    assert "(-20.0%, 12.5 us before)" in text and style is Style.GOOD
    assert line(before_us=8.0)[1] is Style.WARNING
    assert line(before_us=9.9)[1] is Style.PLAIN, "no more than the samples differ among each other"
    assert "30% spread" in line(spread=0.3)[0]
    text, style = line(outcome="wrong", time_us=0.0, message="element 3 is 7")
    assert text == "g 8x8x8: wrong: element 3 is 7, on A100" and style is Style.ERROR


def test_a_failure_and_its_mending_are_notified_and_nothing_else() -> None:
    screen = Screen()
    screen.round(*compiled(KERNEL))
    screen.round(m.Done(outcome=m.Outcome.CANCELLED), changed="a.cu")
    screen.round(*compiled(KERNEL), changed="a.cu")
    assert not screen.notified
    screen.round(*FAILURE, changed="a.cu")
    found = m.Diagnostic(severity=m.Severity.ERROR, message="expected a ;", file="a.cu", line=3)
    failed = m.Failed(
        job_id=m.JobId(1), action="a.o", kind=m.FailureKind.COMPILE_ERROR, message="no", diagnostics=(found,)
    )
    screen.round(failed, FAILURE[1], changed="a.cu")
    screen.round(*NOTHING, changed="b.cu")
    screen.round(*compiled(KERNEL), changed="c.cu")
    assert screen.notified == [
        ("build failed", "a.o: ended with status 1"),
        ("build failed", "a.cu(3): expected a ;"),
        ("the build works again", "changed: b.cu"),
    ]
