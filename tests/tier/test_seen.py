"""What people see of a tier: `buildd status`, `buildd doctor`, `buildd cache stats` and `buildd cache push`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.client.machine_checks import Level, tier
from buildd.commands import cache
from buildd.store import signing
from buildd.ui.daemon_status import tier_lines
from protocol.messages import TierStatus
from tests.support.scheduler_harness import Workspace
from tests.support.tier_builds import built, machine
from tests.support.tiers import Fault, HttpCache, http_cache, tier_at


@pytest.fixture
def server() -> Iterator[HttpCache]:
    with http_cache() as made:
        yield made


@pytest.fixture
def environ(tmp_path: Path, server: HttpCache) -> dict[str, str]:
    home = tmp_path / "home"
    (home / ".config/buildd").mkdir(parents=True)
    return {"HOME": str(home), "BUILDD_TIER": server.url.replace("//", "//me:secret@")}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = machine(tmp_path, "first")
    built(made, None)
    return made


def test_the_doctor_asks_it_once_and_says_what_is_wrong(environ: dict[str, str], server: HttpCache) -> None:
    (unknown, found) = tier(environ)
    assert (unknown.level, found.level) == (Level.WARN, Level.OK)
    assert "buildd cache trust" in unknown.text and "trusts nobody" in found.text
    assert "secret" not in found.text and f"{server.url} (Bazel's HTTP cache)" in found.text
    assert len(server.asked) == 1
    signing.own(environ)
    server.fault = Fault.NO_RIGHTS
    (refused,) = tier({**environ, "BUILDD_TIER_WRITE": "1"})
    assert refused.level is Level.WARN and "refuses access" in refused.text
    assert list(tier({**environ, "BUILDD_TIER": "no"})) == []


def test_the_doctor_names_what_is_to_be_corrected(environ: dict[str, str]) -> None:
    (wrong,) = tier({**environ, "BUILDD_TIER": "htp://x"})
    assert "cannot be read: 'htp://x'" in wrong.text and wrong.next_step == "correct BUILDD_TIER"
    file = Path(environ["HOME"], ".config/buildd/config.toml")
    file.write_text('[tier]\nurl = "htp://x"\n')
    (wrong,) = tier({**environ, "BUILDD_TIER": ""})
    assert wrong.next_step == f"correct {file}"


def test_the_doctor_says_what_a_reapi_server_can_do(environ: dict[str, str]) -> None:
    pytest.importorskip("grpc", reason="no grpcio (extra `tier`)")
    from tests.support.reapi_cache import reapi_cache

    with reapi_cache() as server:
        asked = {**environ, "BUILDD_TIER": server.url, "BUILDD_TIER_HEADERS": "authorization=Bearer t0ken"}
        (_, found) = tier(asked)
        assert found.level is Level.OK and "t0ken" not in found.text
        assert f"{server.url} (REAPI over gRPC: takes results, 4 MiB in one message) answered in" in found.text
        assert server.headers[0]["authorization"] == "Bearer t0ken"
        server.takes_results = False
        signing.own(environ)
        (found,) = tier({**asked, "BUILDD_TIER_WRITE": "1"})
        assert "does not take results" in found.text


def push(environ: dict[str, str], workspace: Workspace, *more: str) -> int:
    return cache.run(["--store", str(workspace.store), "push", *more], environ=environ)


def test_a_push_writes_everything_and_another_machine_hits(
    tmp_path: Path,
    environ: dict[str, str],
    workspace: Workspace,
    server: HttpCache,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = signing.own(environ)
    assert push({**environ, "BUILDD_TIER_WRITE": "1"}, workspace, "--json") == 0
    said = {"written": 3, "entries": 0, "profiles": 0, "waiting": 0, "problem": ""}
    assert json.loads(capsys.readouterr().out) == said
    second = machine(tmp_path, "second")
    assert built(second, tier_at(server.url, believes=(own,))).ran() == []
    assert cache.run(["--store", str(second.store), "stats"], environ=environ) == 0
    shown = capsys.readouterr().out
    assert "3         of all, fetched from the tier" in shown and "3         hits" in shown


def test_a_push_without_the_right_to_write_says_what_to_do(
    environ: dict[str, str], workspace: Workspace, server: HttpCache, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(environ["HOME"], ".config/buildd/config.toml")
    named, write = "which BUILDD_TIER names, is only read", "set BUILDD_TIER_WRITE=1, then push again"
    for more, words, step in (
        ({}, named, write),
        ({"BUILDD_TIER_WRITE": "1"}, "there is no signing key", "run `buildd cache key`, then push again"),
        ({"BUILDD_TIER": "no"}, "there is no shared tier", "set BUILDD_TIER and BUILDD_TIER_WRITE=1, or write url"),
    ):
        assert push({**environ, **more}, workspace) == 2
        told = capsys.readouterr().err
        assert words in told and f"  next: {step}" in told and "  file:" not in told
    assert push({**environ, "BUILDD_TIER": "htp://x"}, workspace) == 2
    assert "'htp://x'" in (told := capsys.readouterr().err) and "  file: BUILDD_TIER\n" in told
    # The file is named only if it names the tier.
    file.write_text(f'[tier]\nurl = "{server.url}"\n')
    assert push({"HOME": environ["HOME"]}, workspace) == 2
    told = capsys.readouterr().err
    assert f"{server.url} is only read\n  file: {file}\n  next: add `write = true` below [tier]" in told
    assert server.asked == []


def test_what_a_push_could_not_write_is_said_and_kept(
    environ: dict[str, str], workspace: Workspace, server: HttpCache, capsys: pytest.CaptureFixture[str]
) -> None:
    signing.own(environ)
    server.fault = Fault.FULL
    assert push({**environ, "BUILDD_TIER_WRITE": "1"}, workspace) == 3
    said = capsys.readouterr().out
    assert "3 results wait" in said and "has no room" in said and "cache push" in said
    server.fault = Fault.NONE
    assert push({**environ, "BUILDD_TIER_WRITE": "1"}, workspace) == 0


def test_the_status_shows_the_tier_and_its_breaker() -> None:
    assert list(tier_lines(None)) == []
    assert list(tier_lines(TierStatus(url="", problem="no key"))) == ["tier  not used: no key"]
    shown = TierStatus(
        url="https://host/x",
        kind="Bazel's HTTP cache",
        believed=("ci",),
        usual_s=0.021,
        counts={"hits": 3, "refused entries": 1},
        waiting=2,
        unread_for_s=8.0,
        problem="cannot be reached: x\x1b[2J",
    )
    first, *others = tier_lines(shown)
    assert first.startswith("tier  https://host/x (Bazel's HTTP cache), answers in ") and first.endswith(
        ", trusts ci, only read"
    )
    assert others[0] == "  3 hits, 1 refused entries, 2 waiting"
    assert "not asked for the next" in others[1] and "\x1b" not in others[2]


def test_a_flush_leaves_nothing_to_write(
    environ: dict[str, str], workspace: Workspace, server: HttpCache, capsys: pytest.CaptureFixture[str]
) -> None:
    """A result that the user dropped meanwhile is not written."""
    signing.own(environ)
    server.fault = Fault.FULL
    push({**environ, "BUILDD_TIER_WRITE": "1"}, workspace)
    cache.run(["--store", str(workspace.store), "flush"], environ=environ)
    server.fault = Fault.NONE
    server.asked.clear()
    assert push({**environ, "BUILDD_TIER_WRITE": "1"}, workspace) == 0
    assert server.asked == []
