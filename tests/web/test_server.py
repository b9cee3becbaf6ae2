"""The server of `buildd ui` as a process: link, data, exports, metrics; two thousand builds of history."""

from __future__ import annotations

import json
import re
import signal
import stat
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from buildd.store.store import Store
from buildd.web import serve
from buildd.web.app import asset, asset_names
from protocol.messages import Done, Notice, Outcome
from tests.support.pages import History, Site, a_build, site_of
from tests.support.paths import ROOT
from tests.support.serving import short_folder
from tests.support.user import User
from tests.support.waiting import until

MARKUP = "</script><script>alert(1)</script>"


@pytest.fixture(scope="module")
def server() -> Iterator[User]:
    with short_folder() as folder:
        user = User(folder)
        yield user
        assert user.end() == []


@pytest.fixture(scope="module")
def history(server: User) -> History:
    made = History(server.store)
    made.add(a_build())
    return made


@pytest.fixture(scope="module")
def site(server: User, history: History) -> Iterator[Site]:
    with site_of(server) as found:
        yield found


def test_the_place_is_the_users_alone(server: User, site: Site) -> None:
    for name in ("ui.json", "ui.token"):
        (path,) = server.run_folder.rglob(name)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == site.place.token


def test_each_page_and_each_file_of_the_front_end_is_there(site: Site) -> None:
    for path in ("/", "/build/x", "/cache", "/kernels", "/profiles", "/programs", "/target", "/search"):
        status, headers, content = site.ask(path)
        assert (status, content) == (200, asset("index.html"))
        assert headers["content-type"].startswith("text/html")
    for name in asset_names():
        assert site.ask(f"/assets/{name}", Authorization="")[0] == 200
    assert site.ask("/assets/..%2fguard.py")[0] == 404
    assert site.ask("/no-such-page")[0] == 404


def test_a_build_exports_to_one_file_and_to_perfetto(site: Site, history: History) -> None:
    name = history.add(a_build(target=MARKUP), targets=(MARKUP,))
    status, headers, content = site.ask(f"/build/{name}/export.html")
    assert status == 200 and "attachment" in headers["content-disposition"]
    assert MARKUP.encode() not in content, "a name cannot end the script"
    assert b"http://" not in content.replace(b"http://www.w3.org", b"") and b"src=" not in content
    _, _, trace = site.ask(f"/build/{name}/trace.json")
    assert {entry["cat"] for entry in json.loads(trace) if entry["ph"] == "X"} == {"nvcc", "g++", "step"}
    assert site.ask("/build/unknown/export.html")[0] == site.ask("/build/unknown/trace.json")[0] == 404


def test_the_command_writes_the_same_file(server: User, history: History) -> None:
    name = history.add(a_build())
    place = server.folder / "build.html"
    assert server.buildd("ui", name, "--export", str(place)) == (0, "")
    assert name.encode() in place.read_bytes()
    status, said = server.buildd("ui", "nothing-like-it", "--export", str(place))
    assert status == 2 and "the log has no build" in said


def test_metrics_are_prometheus_text(site: Site, history: History) -> None:
    status, headers, content = site.ask("/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(content.decode())}
    assert families["buildd_up"].samples[0].value == 0
    assert families["buildd_store_limit_bytes"].type == "gauge"
    assert families["buildd_hits"].type == "counter"
    outcomes = {sample.labels["outcome"]: sample.value for sample in families["buildd_log_builds"].samples}
    assert outcomes["built"] >= 1
    assert all(family.documentation for family in families.values())


def test_the_dashboard_and_the_documents_name_metrics_that_exist(site: Site) -> None:
    text = site.ask("/metrics")[2].decode()
    known = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    source = (ROOT / "buildd/web/metrics.py").read_text()
    for document in ("dashboard.json", "pages-and-metrics.md"):
        named = set(re.findall(r"buildd_[a-z_]+", (ROOT / "docs" / document).read_text()))
        assert named and all(name in known or f'"{name}"' in source for name in named), document


def test_metrics_know_a_daemon_that_runs(server: User, site: Site) -> None:
    assert server.buildd("up")[0] == 0
    text = site.ask("/metrics")[2].decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["buildd_up"].samples[0].value == 1
    assert families["buildd_cpu_tokens"].samples[0].value >= 1
    assert "requests" in {sample.labels["event"] for sample in families["buildd_daemon_events"].samples}
    assert server.buildd("down")[0] == 0


def test_a_second_server_is_not_started(server: User, site: Site) -> None:
    status, said = server.buildd("ui", "abc", "--no-open")
    assert status == 0
    assert site.place.link("/build/abc") in said


def test_a_link_file_leads_a_browser_there(server: User, site: Site) -> None:
    file = serve.opener(server.environ, site.place, "/build/a&b")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert f"token={site.place.token}" in file.read_text() and "/build/a&amp;b" in file.read_text()


def test_two_thousand_builds_are_kept_and_listed() -> None:
    with short_folder() as folder:
        user = User(folder)
        history = History(user.store)
        with Store.open(history.folder) as store:
            store.database.transact(lambda connection: None)
            bodies = [(0.0, Notice(text="x" * 200)), (1.0, Done(outcome=Outcome.BUILT, hits=3))]
            names = [history.add_to(store, bodies) for _ in range(2005)]
        with site_of(user) as site:
            lines = site.data("/api/builds")
            assert [line["id"] for line in lines] == names[:4:-1], "the last two thousand, the latest first"
            assert site.data(f"/api/builds?q={names[-1]}")[0]["id"] == names[-1]
            assert site.data(f"/api/build/{names[5]}")["line"]["id"] == names[5]
            assert site.data("/api/search?q=ops")
        assert user.end() == []


def test_an_ended_server_leaves_nothing() -> None:
    with short_folder() as folder:
        user = User(folder)
        with site_of(user):
            assert user.buildd("ui", "--stop")[0] == 0
            until(lambda: serve.find(user.environ) is None or None, "the server did not end")
            until(lambda: not [*user.run_folder.rglob("ui*")] or None, "it left a file")
        assert "no server" in user.buildd("ui", "--stop")[1]


def test_a_killed_servers_place_is_nobodys() -> None:
    with short_folder() as folder:
        user = User(folder)
        process = user.start("ui", "--no-open", "--port", "0")
        until(lambda: serve.find(user.environ), timeout_s=30)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert serve.find(user.environ) is None
        with site_of(user) as site:
            assert site.ask("/api/builds")[0] == 200
