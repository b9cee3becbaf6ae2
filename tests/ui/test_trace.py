"""Chrome traces from recorded builds."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buildd.ui.trace import TraceView, chrome_trace
from protocol.messages import Event, Step
from tests.support.recorded import events, failed_build, finished, good_build, replay, started


def traced(recorded: list[Event]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(chrome_trace(recorded))
    return entries


def of_phase(entries: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [entry for entry in entries if entry["ph"] == phase]


def test_jobs_are_complete_events_in_microseconds() -> None:
    entries = traced(good_build())
    d, a = of_phase(entries, "X")
    assert (a["name"], a["cat"], a["ts"], a["dur"]) == ("saxpy/src/a.cu.o", "nvcc", 40_000, 3_200_000)
    assert (d["name"], d["ts"], d["dur"]) == ("norm/src/d.cu.o", 50_000, 2_100_000)
    assert a["args"]["wall_s"] == 3.2
    assert a["args"]["user_s"] == 1.6
    assert a["args"]["peak_rss_bytes"] == 1 << 20
    assert a["args"]["reasons"] == ["input src/a.cu changed"]


def test_steps_are_drawn_below_their_job_side_by_side_where_they_ran_so() -> None:
    steps = tuple(
        Step(name=name, start_s=start_s, wall_s=wall_s)
        for name, start_s, wall_s in (("host", 0.0, 1.0), ("device", 0.0, 2.0), ("link", 2.0, 1.0))
    )
    done = msgspec.structs.replace(finished(1, "a", 3.0), steps=(*steps, Step(name="found", start_s=0.5, hit=True)))
    entries = traced(events((1, started(1, "a")), (4, done)))
    drawn = {entry["name"]: entry for entry in of_phase(entries, "X")}
    assert set(drawn) == {"a", "host", "device", "link"}
    assert drawn["host"]["tid"] == drawn["link"]["tid"] != drawn["device"]["tid"]
    assert drawn["link"]["ts"] == drawn["a"]["ts"] + 2e6 and drawn["link"]["dur"] == 1e6
    names = [entry["args"]["name"] for entry in of_phase(entries, "M") if entry["name"] == "thread_name"]
    assert names == ["hits", "slot 1", "slot 1, steps", "slot 1, steps"]


def test_hits_are_instants_on_their_own_lane() -> None:
    entries = traced(good_build())
    hits = of_phase(entries, "i")
    assert [entry["name"] for entry in hits] == ["saxpy/src/b.cu.o", "norm/src/c.cu.o"]
    assert {entry["tid"] for entry in hits} == {0}
    assert {entry["tid"] for entry in of_phase(entries, "X")}.isdisjoint({0})


def test_a_lane_is_used_again_once_it_is_free() -> None:
    entries = traced(
        events(
            (0, started(1, "a")),
            (0, started(2, "b")),
            (1, finished(1, "a", 1.0)),
            (1, started(3, "c")),
            (2, finished(2, "b", 2.0)),
            (2, finished(3, "c", 1.0)),
        )
    )
    jobs = of_phase(entries, "X")
    assert {job["name"]: job["tid"] for job in jobs} == {"a": 1, "b": 2, "c": 1}
    by_lane: dict[int, list[tuple[float, float]]] = {}
    for job in jobs:
        by_lane.setdefault(job["tid"], []).append((job["ts"], job["ts"] + job["dur"]))
    for spans in by_lane.values():
        spans.sort()
        assert all(left[1] <= right[0] for left, right in pairwise(spans))
    names = [entry["args"]["name"] for entry in of_phase(entries, "M")]
    assert names == ["buildd", "hits", "slot 1", "slot 2"]


def test_failed_and_unfinished_jobs_are_there() -> None:
    (failed,) = of_phase(traced(failed_build()), "X")
    assert failed["args"]["failed"] == "nvcc ended with status 2"
    (unfinished,) = of_phase(traced(events((0, started(1, "a")), (2, started(2, "b")))[:1]), "X")
    assert unfinished["args"]["unfinished"] is True


def test_a_clock_that_goes_backwards_gives_no_negative_times() -> None:
    recorded = events((5, started(1, "a")), (1, finished(1, "a", 0.5)), (0, started(2, "b")), (2, finished(2, "b", 1)))
    assert all(entry["ts"] >= 0 and entry["dur"] >= 0 for entry in of_phase(traced(recorded), "X"))


def test_the_view_writes_its_file_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    replay(TraceView(str(path)), good_build())
    assert json.loads(path.read_bytes()) == traced(good_build())


def test_a_place_that_cannot_be_written_is_found_out_first(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        TraceView(str(tmp_path / "missing" / "trace.json"))


def test_each_node_of_a_cluster_has_lanes_of_its_own() -> None:
    recorded = events(
        (0, started(1, "here.o")),
        (0, started(2, "a.o")),
        (0, started(3, "b.o")),
        (1_000, finished(2, "a.o", 1.0, node="beta")),
        (2_000, finished(3, "b.o", 2.0, node="beta")),
        (2_500, started(4, "c.o")),
        (3_000, finished(4, "c.o", 0.5, node="gamma")),
        (3_000, finished(1, "here.o", 3.0)),
    )
    entries = traced(recorded)
    places = {entry["name"]: (entry["pid"], entry["tid"]) for entry in of_phase(entries, "X")}
    assert places == {"a.o": (2, 1), "b.o": (2, 2), "c.o": (3, 1), "here.o": (1, 1)}
    names = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in of_phase(entries, "M") if e["pid"] > 1}
    assert names == {
        ("process_name", 2, 0): "beta",
        ("thread_name", 2, 1): "beta 1",
        ("thread_name", 2, 2): "beta 2",
        ("process_name", 3, 0): "gamma",
        ("thread_name", 3, 1): "gamma 1",
    }


def test_steps_on_a_node_are_drawn_there_and_inside_their_job() -> None:
    """One job ran here and gave a step away; another one went to the node whole."""
    shared = (Step(name="cudafe++", start_s=0.0, wall_s=1.0), Step(name="cicc", start_s=0.5, wall_s=1.5, node="beta"))
    whole = (Step(name="cc1plus", start_s=0.25, wall_s=0.5, node="beta"), Step(name="as", start_s=0.75, node="beta"))
    here = msgspec.structs.replace(finished(1, "a.o", 3.0), steps=shared)
    there = msgspec.structs.replace(finished(2, "b.o", 1.0, node="beta"), steps=whole)
    entries = traced(events((0, started(1, "a.o")), (1, started(2, "b.o")), (2, there), (3, here)))
    drawn = [(e["name"], e["pid"], e["tid"], e["ts"] / 1e6) for e in of_phase(entries, "X")]
    assert sorted(drawn) == [
        ("a.o", 1, 1, 0.0),
        ("a.o: cicc", 2, 2, 0.5),
        ("as", 2, 1000, 1.75),
        ("b.o", 2, 1, 1.0),
        ("cc1plus", 2, 1000, 1.25),
        ("cicc", 1, 1001, 0.5),
        ("cudafe++", 1, 1000, 0.0),
    ]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in of_phase(entries, "M") if e["name"] == "thread_name"}
    assert names[1, 1001] == "slot 1, steps" and names[2, 1000] == "beta 1, steps" and names[2, 2] == "beta 2"
    assert {e["args"].get("node") for e in of_phase(entries, "X") if e["name"].endswith("cicc")} == {"beta"}
