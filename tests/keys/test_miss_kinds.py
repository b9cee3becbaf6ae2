"""The kind of a miss is the one that tells most."""

from __future__ import annotations

from buildd.keys.miss_kinds import MissKind, kind_of


def test_an_edit_comes_before_a_variable() -> None:
    assert kind_of(["variable CPATH: new (/a)", "input a.cu: content changed"]) is MissKind.INPUT
    assert kind_of(["locale: C -> C.UTF-8", "variable CPATH: new (/a)"]) is MissKind.VARIABLE


def test_each_reason_has_its_kind() -> None:
    kinds = {
        "never built before": MissKind.NEW,
        "command: added -O3": MissKind.COMMAND,
        "tool nvcc: content changed": MissKind.TOOL,
        "locale: C -> C.UTF-8": MissKind.LOCALE,
        "folder /a: the result may contain its path, which is now /b": MissKind.FOLDER,
        "searched first now: /a": MissKind.FOLDER,
        "no longer searched: /a": MissKind.FOLDER,
        "asked to run again": MissKind.ASKED,
        "its result was evicted": MissKind.NOT_STORED,
    }
    assert {reason: kind_of([reason]) for reason in kinds} == kinds
    assert kind_of([]) is MissKind.NOT_STORED
