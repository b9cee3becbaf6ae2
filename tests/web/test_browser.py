"""The pages in Chromium: every view, live builds, narrow and dark pages, hostile names and origins."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from buildd.shims import run_log
from buildd.shims.run_log import RunNotes
from buildd.store.library_times import LibraryTime, add_library_times
from buildd.store.store import Store
from buildd.web import serve
from protocol.messages import BuildId, Done, Finished, JobId, Measured, Outcome, ProgramStart, Queued, Started, Timing
from protocol.messages import Event as BuildEvent
from tests.support.pages import CHROMIUM, History, Site, a_build, a_large_build, site_of
from tests.support.profile_rows import H200, PROBLEM, profiles_of, row
from tests.support.serving import short_folder
from tests.support.user import User
from tests.support.waiting import until

pytestmark = pytest.mark.browser
MARKUP = "<img src=x onerror=alert(1)>"
WAIT_MS = 20_000
SHOTS = os.environ.get("SCREENSHOTS_OF_TESTS", "")
"""A folder for screenshots of every view, for people to look at."""


@pytest.fixture(scope="module")
def server() -> Iterator[User]:
    with short_folder() as folder:
        user = User(folder)
        yield user
        assert user.end() == []


@pytest.fixture(scope="module")
def ids(server: User) -> dict[str, str]:
    history = History(server.store)
    start = ProgramStart(
        program="python train.py",
        wall_s=4.0,
        phases={"interpreter": 0.1, "imports": 2.0, "kernels compiled": 1.4, "first call": 0.3, "program": 0.2},
        counts={"kernels compiled": 2},
    )
    found = {
        "plain": history.add(a_build()),
        "changed": history.add(a_build(registers=64)),
        "failed": history.add(a_build(fails=True, name="bad.cu")),
        "markup": history.add(a_build(target=MARKUP, text=MARKUP), targets=(MARKUP,)),
        "run": history.add([(0.0, start), (4.0, Done(outcome=Outcome.BUILT))], command="python train.py", targets=()),
        "gpu": history.add(
            [
                (2.0, Measured(target="gemm", problem=PROBLEM, gpu="0", outcome="measured", time_us=8.0, wall_s=0.5)),
                (3.0, Done(outcome=Outcome.BUILT)),
            ]
        ),
        "large": history.add(a_large_build(10_000)),
    }
    with Store.open(server.store) as store:
        profiles_of(store).save([row("fast", time_us=8.0), row("slow", time_us=12.0)])
    add_library_times(server.store, [LibraryTime(gpu=H200.gpu, problem=PROBLEM, library="cuBLAS", time_us=9.0)])
    return found


@pytest.fixture(scope="module")
def site(server: User, ids: dict[str, str]) -> Iterator[Site]:
    with site_of(server) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tool:
        started = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Reader:
    """A page of one browser, let in by the link. Every error of a script, and every dialog, is a fault."""

    def __init__(self, browser: Any, site: Site, **options: Any) -> None:
        self.site = site
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.faults.append("a dialog"), dialog.dismiss()))
        self.page.goto(site.place.link("/"))
        self.shown()

    def shown(self) -> Any:
        self.page.wait_for_selector("main[aria-busy=false]")
        return self.page

    def go(self, path: str) -> Any:
        self.page.goto(self.site.origin + path)
        return self.shown()

    def shot(self, name: str) -> None:
        if SHOTS:
            self.page.screenshot(path=str(Path(SHOTS) / f"{name}.png"), full_page=True)


@pytest.fixture
def reader(browser: Any, site: Site) -> Iterator[Reader]:
    made = Reader(browser, site, viewport={"width": 1280, "height": 900})
    yield made
    made.context.close()
    assert made.faults == []


def cells(page: Any, table: str) -> list[str]:
    """The lines of a table that are in the document, read at one moment."""
    lines = page.locator(f'[role=table][aria-label="{table}"] .line')
    # Cell by cell: `innerText` of a line that a live page has just replaced holds no breaks.
    return lines.evaluate_all(
        "lines => lines.map((line) => [...line.children].map((cell) => cell.textContent).join(' '))"
    )


def test_the_token_leaves_the_address(reader: Reader) -> None:
    assert "token" not in reader.page.url
    (cookie,) = reader.context.cookies()
    assert cookie["httpOnly"] and cookie["value"] != reader.site.place.token, "another server may see it"


def test_builds_are_listed_filtered_and_opened_by_keys(reader: Reader, ids: dict[str, str]) -> None:
    page = reader.page
    assert len(cells(page, "builds")) == len(ids)
    page.fill('input[aria-label="filter builds"]', "failed")
    until(lambda: len(cells(page, "builds")) == 1 or None)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector("h2:has-text('critical path')")
    assert page.url.endswith(ids["failed"])
    page.go_back()
    reader.shown()
    assert page.locator('[aria-label="builds"]').count() == 1


def test_a_build_shows_its_figures_path_actions_and_details(reader: Reader, ids: dict[str, str]) -> None:
    page = reader.go(f"/build/{ids['plain']}")
    assert page.locator(".figures").inner_text().split("\n")[:2] == ["built", "outcome"]
    assert "600 MiB" in cells(page, "actions")[0] and "ops/a.cu.o" in cells(page, "actions")[0]
    path = page.locator("main").inner_text()
    assert re.search(r"2 jobs, 2\.3 s of 2\.7 s \(85 %\)", path)
    page.locator('[aria-label="actions"] .line').first.click()
    detail = page.locator('[aria-label="the chosen action"]').inner_text()
    assert "cicc a" in detail and "500 MiB" in detail and "input src/a.cu" in detail and "nvcc -c a.cu" in detail
    assert page.url.endswith("#action=ops%2Fa.cu.o")
    page.keyboard.press("Escape")
    assert page.locator('[aria-label="the chosen action"]').count() == 0
    page.fill('input[aria-label="filter actions"]', "lib.so")
    assert len(cells(page, "actions")) == 1
    reader.shot("build-light")


def test_a_link_leads_to_an_action(reader: Reader, ids: dict[str, str]) -> None:
    page = reader.go(f"/build/{ids['plain']}#action=ops%2Flib.so")
    assert "waited last for\nops/a.cu.o" in page.locator('[aria-label="the chosen action"]').inner_text()


def test_a_bar_of_the_timeline_can_be_clicked(reader: Reader, ids: dict[str, str]) -> None:
    page = reader.go(f"/build/{ids['plain']}")
    box = page.locator(".lanes").bounding_box()
    page.mouse.click(box["x"] + 58 + (box["width"] - 58) * 0.4, box["y"] + 32)
    assert "ops/a.cu.o" in page.locator('[aria-label="the chosen action"]').inner_text()


def test_measurements_have_a_lane_for_their_gpu(reader: Reader, ids: dict[str, str]) -> None:
    page = reader.go(f"/build/{ids['gpu']}")
    reader.shot("gpu")
    assert page.locator(".lanes").bounding_box()["height"] > 40
    assert reader.site.data(f"/api/build/{ids['gpu']}")["change"]["lanes"] == ["gpu 0"]


def test_the_cache_the_kernels_the_profiles_the_programs_and_the_target(reader: Reader, ids: dict[str, str]) -> None:
    page = reader.go("/cache")
    assert len(cells(page, "most expensive misses")) >= 10
    assert "misses by reason" in page.locator("main").inner_text()
    assert any("…/user/project" in line for line in cells(page, "who uses the cache"))
    reader.shot("cache")
    page = reader.go("/kernels?q=add")
    assert "64 was 40" in cells(page, "kernels")[0] or "was" in cells(page, "kernels")[0]
    page.locator('[aria-label="kernels"] .line').first.click()
    page.wait_for_selector('[aria-label="versions"] .line')
    reader.shot("kernels")
    page = reader.go("/profiles")
    assert "8.0 us" in cells(page, "problems")[0] and "9.0 us" in cells(page, "problems")[0]
    page.locator('[aria-label="problems"] .line').first.click()
    page.wait_for_selector('[aria-label="candidates"] .line')
    assert page.locator(".bars .library").count() == 1
    reader.shot("profiles")
    page = reader.go("/programs")
    assert "kernels compiled\n1.4 s, 35 % (2)" in page.locator(".card").inner_text()
    assert "100 % of it below" in page.locator(".card").inner_text()
    reader.shot("programs")
    page = reader.go("/target?project=/home/user/project&name=ops")
    assert len(cells(page, "builds of ops")) == len(ids) - 2
    page = reader.go("/")
    page.keyboard.press("g")
    page.keyboard.press("k")
    page.wait_for_selector("h1:has-text('kernels')")
    page.keyboard.press("?")
    assert page.locator("dialog[open]").count() == 1


def test_search_from_each_page(reader: Reader, ids: dict[str, str]) -> None:
    page = reader.go("/cache")
    page.keyboard.press("/")
    page.keyboard.type("bad.cu")
    page.keyboard.press("Enter")
    page.wait_for_selector('[aria-label="results"] .line')
    assert cells(page, "results")[0].startswith("action ops/bad.cu.o")
    page.locator('[aria-label="results"] .line a').first.click()
    page.wait_for_selector('[aria-label="the chosen action"]')


def test_markup_in_names_is_text_everywhere(reader: Reader, ids: dict[str, str]) -> None:
    name = ids["markup"]
    for path in ("/", f"/build/{name}", "/cache", "/search?q=img", f"/target?project=/home/user/project&name={MARKUP}"):
        page = reader.go(path)
        page.wait_for_timeout(50)
        assert page.locator("main img").count() == 0, path
    assert MARKUP in reader.go(f"/build/{name}").locator("h1").inner_text()


def test_the_exported_file_stands_alone(browser: Any, site: Site, ids: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "build.html"
    file.write_bytes(site.ask(f"/build/{ids['markup']}/export.html")[2])
    context = browser.new_context(offline=True)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(file.as_uri())
    page.wait_for_selector('[aria-label="actions"] .line')
    assert f"{MARKUP}/a.cu.o" in cells(page, "actions")[0]
    page.locator('[aria-label="actions"] .line').first.click()
    assert "cicc a" in page.locator('[aria-label="the chosen action"]').inner_text()
    assert (page.locator("img").count(), faults) == (0, [])
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_page_fits_into_400_pixels(browser: Any, site: Site, ids: dict[str, str], scheme: str) -> None:
    made = Reader(browser, site, viewport={"width": 400, "height": 800}, color_scheme=scheme)
    paths = ("/", f"/build/{ids['plain']}", "/cache", "/kernels", "/profiles", "/programs", "/search?q=ops")
    for number, path in enumerate(paths):
        page = made.go(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, path
        made.shot(f"{scheme}-400-{number}")
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 28)"}[scheme]
    assert made.faults == []
    made.context.close()


def test_ten_thousand_actions_are_windowed(reader: Reader, ids: dict[str, str]) -> None:
    page = reader.go(f"/build/{ids['large']}")
    assert page.locator('[aria-label="actions"]').get_attribute("aria-rowcount") == "10000"
    assert page.locator('[aria-label="actions"] .line').count() < 60
    page.locator('[aria-label="actions"] .body').evaluate("body => { body.scrollTop = 28 * 9000; }")
    page.wait_for_selector('[aria-label="actions"] .line[aria-rowindex="9005"]')
    assert page.locator("*").count() < 1500


def test_a_run_that_goes_on_is_live_and_survives_a_new_server_and_sleep(browser: Any, server: User) -> None:
    """The page is frozen while a job ends, and hears of it afterwards."""
    name = BuildId("live00000001")

    def told(number: int, body: object) -> BuildEvent:
        return BuildEvent(request_id=BuildId("c"), sequence=1, time_ns=(1_790_000_000 + number) * 10**9, body=body)  # type: ignore[arg-type]

    with site_of(server) as own, RunNotes(server.store, name, ["make", MARKUP]):
        reader = Reader(browser, own)
        page = reader.page
        page.wait_for_selector(f'a[href="/build/{name}"]')
        page = reader.go(f"/build/{name}")
        until(lambda: page.locator("h1").inner_text().startswith("make") or None)
        run_log.note_job(
            server.store,
            name,
            [
                told(1, Queued(job_id=JobId(1), action="a.c")),
                told(2, Started(job_id=JobId(1), action="a.c", command="gcc", kind="gcc")),
            ],
        )
        until(lambda: any("running" in line for line in cells(page, "actions")) or None)
        freezer = reader.context.new_cdp_session(page)
        freezer.send("Page.setWebLifecycleState", {"state": "frozen"})
        run_log.note_job(
            server.store, name, [told(3, Finished(job_id=JobId(1), action="a.c", timing=Timing(wall_s=1.0)))]
        )
        freezer.send("Page.setWebLifecycleState", {"state": "active"})
        until(lambda: any("built" in line for line in cells(page, "actions")) or None)
        assert reader.faults == []
        reader.context.close()


def test_an_old_token_says_what_to_do(browser: Any, server: User) -> None:
    with short_folder() as folder:
        user = User(folder)
        with site_of(user) as first:
            port = first.place.port
            reader = Reader(browser, first)
        process = user.start("ui", "--no-open", "--port", str(port))
        try:
            until(lambda: serve.find(user.environ), timeout_s=30)
            until(lambda: "does not answer" in reader.page.locator("#now").inner_text() or None)
            reader.page.locator('nav a[href="/cache"]').click()
            reader.page.wait_for_selector("#trouble:not([hidden])")
            assert "`buildd ui` prints a new one" in reader.page.locator("#trouble").inner_text()
        finally:
            process.terminate()
            process.communicate(timeout=20)
        reader.context.close()


def said_of_the_daemon(page: Any) -> str:
    return str(page.locator("#now").inner_text())


def test_a_page_goes_on_with_a_new_daemon_and_a_new_server(browser: Any) -> None:
    """A `buildd run` compiles, its daemon is killed, and the next compile starts another one; then `buildd ui` is
    ended and started again. One page sees all of it without a reload."""
    with short_folder() as folder, contextlib.ExitStack() as undo:
        user = User(folder)
        for name in ("a", "b", "c"):
            (folder / f"{name}.c").write_text(f"int {name};\n")
        fifo = folder / "go"
        os.mkfifo(fifo)
        with site_of(user) as first:
            port = first.place.port
            reader = Reader(browser, first)
            undo.callback(reader.context.close)
            page = reader.page
            run = user.start("run", "--", "sh", "-c", "for f in a b c; do gcc -c $f.c -o $f.o; read x < go; done")
            undo.callback(run.communicate)
            undo.callback(run.kill)
            page.locator("main a", has_text="run sh").or_(page.locator("main a", has_text="for f in")).first.click()
            until(lambda: any("a.o" in line and "built" in line for line in cells(page, "actions")) or None)
            until(lambda: said_of_the_daemon(page).startswith("serving") or None)
            killed = user.daemon()
            assert killed is not None
            killed.kill()
            until(lambda: "no daemon runs" in said_of_the_daemon(page) or None)
            fifo.write_text("\n")
            until(lambda: any("b.o" in line and "built" in line for line in cells(page, "actions")) or None)
            until(lambda: said_of_the_daemon(page).startswith("serving") or None)
            assert user.daemon() != killed
        until(lambda: "does not answer" in said_of_the_daemon(page) or None)
        second = user.start("ui", "--no-open", "--port", str(port))
        undo.callback(second.communicate)
        undo.callback(second.terminate)
        place = until(lambda: serve.find(user.environ), "the server does not start", timeout_s=30)
        page.wait_for_selector("#trouble:not([hidden])")
        assert "`buildd ui` prints a new one" in page.locator("#trouble").inner_text()
        fifo.write_text("\n")
        reader.context.new_page().goto(place.link("/"))
        until(lambda: any("c.o" in line and "built" in line for line in cells(page, "actions")) or None)
        assert page.locator("#trouble").is_hidden()
        fifo.write_text("\n")
        assert run.wait(30) == 0
        until(lambda: page.locator(".figures").inner_text().startswith("built") or None)
        assert {line.split()[0] for line in cells(page, "actions")} >= {"a.o", "b.o", "c.o"}
        assert reader.faults == []
        undo.close()
        assert user.end() == []


class _Hostile(BaseHTTPRequestHandler):
    """A page of another origin that asks for the builds in every way that a page can."""

    script = ""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(f"<body><script>{self.script}</script>".encode())

    def log_message(self, *arguments: object) -> None:
        pass


def test_a_hostile_page_learns_nothing(browser: Any, site: Site, reader: Reader, ids: dict[str, str]) -> None:
    """Its origin is another port of this machine, which a browser takes for the same site: cookies are sent along."""
    target = json.dumps(site.origin)
    _Hostile.script = f"""
        const report = [];
        const say = (what) => {{ report.push(what); document.title = report.join(" "); }};
        const builds = {target} + "/api/builds";
        fetch(builds, {{credentials: "include"}}).then(() => say("fetch-read"), () => say("fetch-refused"));
        fetch(builds, {{credentials: "include", mode: "no-cors"}})
          .then((answer) => say("opaque-" + answer.type), () => say("no-cors-refused"));
        const script = document.createElement("script");
        script.src = builds;
        script.onload = () => say("script-loaded");
        script.onerror = () => say("script-refused");
        document.body.append(script);
        const source = new EventSource({target} + "/api/stream", {{withCredentials: true}});
        source.onopen = () => say("stream-open");
        source.onerror = () => {{ source.close(); say("stream-refused"); }};
        const frame = document.createElement("iframe"); frame.src = {target} + "/"; document.body.append(frame);
    """
    hostile = HTTPServer(("127.0.0.1", 0), _Hostile)
    thread = threading.Thread(target=hostile.serve_forever, daemon=True)
    thread.start()
    try:
        page = reader.context.new_page()
        page.goto(f"http://127.0.0.1:{hostile.server_port}/")
        until(lambda: len(page.title().split()) >= 4 or None)
        said = set(page.title().split())
        assert {"fetch-refused", "script-refused", "stream-refused"} <= said, said
        assert "no-cors-refused" in said or "opaque-opaque" in said
        framed = [frame for frame in page.frames if frame != page.main_frame]
        assert all("builds" not in (frame.content() if frame.url.startswith("http") else "") for frame in framed)
        page.close()
    finally:
        hostile.shutdown()
        thread.join()
        hostile.server_close()
