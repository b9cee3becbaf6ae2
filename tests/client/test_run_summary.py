"""`buildd run --summary` and `--fail-on-miss`, and the line about a shared cache that cannot help."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from buildd.client.run_summary import checked, tier_trouble
from protocol.messages import BuildFigures, Explained, TierStatus
from tests.support.toolkit import host_compiler
from tests.support.user import User

KEYS = {
    "looked_up",
    "hits",
    "misses",
    "failures",
    "cancelled",
    "missed",
    "passed_through",
    "saved_s",
    "from_store",
    "status",
}


def run(user: User, *arguments: str, **variables: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "buildd", *arguments],
        cwd=user.folder,
        env={**user.environ, **variables},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def summary(user: User) -> dict[str, object]:
    found = json.loads((user.folder / "summary.json").read_text())
    assert isinstance(found, dict) and set(found) == KEYS
    return found


@pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
def test_a_build_goes_on_and_fails_at_its_end_if_something_was_compiled(user: User) -> None:
    (user.folder / "a.c").write_text("int a;\n")
    tier = {"BUILDD_TIER": str(user.folder / "tier")}
    (user.folder / "tier").mkdir()
    options = ("run", "--fail-on-miss", "--summary", "summary.json", "--")
    status, _, said = run(user, *options, "gcc", "-c", "a.c", **tier)
    assert status == 1 and (user.folder / "a.o").exists()
    assert f"buildd: ran {user.folder}/a.c: never built before\n" in said
    assert f"buildd: --fail-on-miss: 1 compile ran: {user.folder}/a.c\n" in said
    # Once a build, though the output is a pipe.
    assert said.count("is not read, because no key is trusted: buildd cache trust KEY NAME") == 1
    found = summary(user)
    assert (found["hits"], found["misses"], found["missed"], found["status"]) == (0, 1, {"new": 1}, 0)
    assert found["from_store"] == {"kernels": 0, "graphs": 0, "programs": 0, "traces": 0}

    status, _, said = run(user, *options, "gcc", "-c", "a.c", **tier)
    assert status == 0 and "--fail-on-miss" not in said
    assert (summary(user)["hits"], summary(user)["misses"]) == (1, 0)
    listed = json.loads(run(user, "log", "--json", "-n", "1")[1])
    assert listed["summary"]["misses"] == 0

    # The command's own failure wins; a build without buildd proves nothing.
    (user.folder / "a.c").write_text("int b;\n")
    assert run(user, *options, "sh", "-c", "gcc -c a.c; exit 7", **tier)[0] == 7
    assert run(user, *options, "true", BUILDD_DISABLE="1")[0] == 1 and summary(user)["looked_up"] is False


def test_the_status_is_the_commands_unless_it_succeeded_with_a_miss() -> None:
    call = Explained(action="/w/a.c", would_run=True, reasons=("never built before",))
    link = Explained(action="gcc a.o", would_run=True, reasons=("passed through: link",))
    assert "the build was up to date, so nothing was checked" in checked(0, BuildFigures(), [], looked_up=True)[1][0]
    asked = BuildFigures(passed_through={"query": 1})
    assert "COMMAND compiled nothing, so nothing was checked" in checked(0, asked, [], looked_up=True)[1][0]
    assert checked(7, BuildFigures(misses=1), [call], looked_up=True) == (7, [])
    assert checked(0, BuildFigures(hits=1), [link], looked_up=True) == (0, [])
    assert checked(0, BuildFigures(misses=1), [link, call], looked_up=True) == (
        1,
        ["ran /w/a.c: never built before", "--fail-on-miss: 1 compile ran: /w/a.c"],
    )
    several = [Explained(action=f"/w/{n}.c", would_run=True, reasons=("input x.h: content changed",)) for n in range(7)]
    _, lines = checked(0, BuildFigures(misses=7), several, looked_up=True)
    assert lines[0] == "ran /w/0.c: input x.h: content changed" and lines[4].startswith("ran /w/4.c")
    assert lines[5] == "`buildd explain --last` says why the others ran" and len(lines) == 7
    # The command went on without the daemon that cancelled it.
    assert checked(0, BuildFigures(cancelled=1), [], looked_up=True)[0] == 1


@pytest.mark.parametrize(
    ("tier", "says"),
    [
        (None, ""),
        (TierStatus(url="/t", believed=("ci",), counts={"hits": 1}), ""),
        (TierStatus(url="/t", believed=("ci",), counts={"failures": 1, "hits": 1}), ""),
        (TierStatus(url="", problem="no such scheme"), "is not used: no such scheme"),
        (TierStatus(url="/t"), "no key is trusted"),
        (
            TierStatus(url="/t", believed=("ci",), unread_for_s=9, problem="slow"),
            "is not asked for the next 9.0 s: slow",
        ),
        (TierStatus(url="/t", believed=("ci",), counts={"failures": 1}, problem="refused"), "did not answer: refused"),
    ],
)
def test_a_shared_cache_that_cannot_help_is_named(tier: TierStatus | None, says: str) -> None:
    lines = list(tier_trouble(tier))
    assert len(lines) == bool(says) and says in "".join(lines)
