"""Rows of measured kernels: unique, never lost, emptied once, and the file that plans read of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from buildd.store.profile_cache import flush_asked, open_profiles
from buildd.store.profiles import Outcome, Profiles
from buildd.store.store import Store
from codegen.gemm import best_kernels
from codegen.gemm.best_kernels import Setting
from codegen.variables.settings import Settings
from tests.support.developer import why_no_namespaces
from tests.support.profile_rows import H200, PROBLEM, profiles_of, row


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as opened:
        yield opened


def chosen(folder: Path) -> str:
    found = best_kernels.choose(
        best_kernels.published([str(folder)]),
        PROBLEM,
        toolkit="13.0.88",
        library="4.2.0",
        flags="-O3",
        capability="9.0",
    )
    return found.candidate if found is not None else ""


def test_a_row_is_replaced_and_comes_back_as_it_was(store: Store) -> None:
    profiles = profiles_of(store)
    first = row(spread=0.5, error=0.25, workspace_bytes=7, samples=9, note="n")
    assert profiles.save([first]) and profiles.of(H200, PROBLEM) == {"a": first}
    again = row(time_us=8.0, measured_ns=2)
    assert profiles.save([again, row("b", time_us=9.0)])
    assert profiles.of(H200, PROBLEM)["a"] == again and len(profiles.everything()) == 2
    other = Setting(gpu="NVIDIA H200", driver="590", toolkit="13.0.88", library="4.2.0", flags="-O3")
    assert profiles.of(other, PROBLEM) == {}, "another driver is another row"


def test_a_short_look_never_replaces_a_whole_measurement(store: Store) -> None:
    profiles = profiles_of(store)
    profiles.save([row()])
    profiles.save([row(outcome=Outcome.HOPELESS, time_us=99.0), row("b", outcome=Outcome.HUNG)])
    known = profiles.of(H200, PROBLEM)
    assert (known["a"].outcome, known["b"].outcome) == (Outcome.MEASURED, Outcome.HUNG)
    profiles.save([row("b")])
    assert profiles.of(H200, PROBLEM)["b"].outcome is Outcome.MEASURED


def test_rows_that_come_one_by_one_are_published_once_in_a_while_and_none_is_lost(store: Store) -> None:
    place, now_s = store.folder / "profiles", 100.0
    profiles = Profiles(store.database, place, clock_s=lambda: now_s)
    assert profiles.save([row("first")], more=True) and chosen(place) == "first"
    published = (place / best_kernels.FILE).stat().st_mtime_ns
    for number in range(50):
        assert profiles.save([row(f"n{number}", time_us=9.0 - number / 10)], more=True)
    assert (place / best_kernels.FILE).stat().st_mtime_ns == published and chosen(place) == "first"
    # Killed now: who comes next has every row, and who looks at one of them has it published.
    assert len(profiles_of(store).of(H200, PROBLEM)) == 51
    now_s += 60.0
    assert profiles.save([row("n50", time_us=9.5)], more=True) and chosen(place) == "n49"
    profiles.save([row("last", time_us=1.0)], more=True)
    assert chosen(place) == "n49"
    profiles.publish()
    assert chosen(place) == "last"
    assert profiles.save([row("alone", time_us=0.5)]) and chosen(place) == "alone"


def test_plans_read_the_fastest_that_was_found_right(store: Store) -> None:
    profiles = profiles_of(store)
    place = store.folder / "profiles"
    profiles.save([row("imported", outcome=Outcome.IMPORTED, time_us=0.0)])
    assert chosen(place) == "imported"
    profiles.save(
        [row("slow", time_us=20.0), row("fast"), row("unchecked", time_us=1.0, checked=False)]
        + [row(outcome.value, time_us=2.0, outcome=outcome) for outcome in (Outcome.WRONG, Outcome.HOPELESS)]
    )
    assert chosen(place) == "fast"
    known = best_kernels.published([str(place)])
    assert best_kernels.choose(known, PROBLEM, toolkit="12", library="4.2.0", flags="-O3", capability="8.0") is not None
    for other in ({"library": "4.1.0"}, {"flags": "-O2"}):
        wanted = {"library": "4.2.0", "flags": "-O3", **other}
        assert best_kernels.choose(known, PROBLEM, toolkit="13.0.88", capability="9.0", **wanted) is None
    before = (place / best_kernels.FILE).stat()
    profiles.save([row("fast")])
    assert (place / best_kernels.FILE).stat().st_mtime_ns == before.st_mtime_ns, "what is the same is not written again"


def test_of_several_settings_the_nearest_counts() -> None:
    def one(candidate: str, **keys: Any) -> best_kernels.Best:
        time_us, measured_ns = keys.pop("time_us", 5.0), keys.pop("measured_ns", 1)
        setting = Setting(**{"gpu": "g", "driver": "d", "toolkit": "13", "library": "4", "flags": "", **keys})
        return best_kernels.Best(
            setting=setting, problem="p", candidate=candidate, time_us=time_us, measured_ns=measured_ns
        )

    def choose(*known: best_kernels.Best) -> str:
        found = best_kernels.choose(known, "p", toolkit="13", library="4", flags="", capability="8.0")
        return found.candidate if found else ""

    assert choose(one("old", toolkit="12", measured_ns=9), one("new")) == "new"
    assert choose(one("later", capability="9.0", measured_ns=9), one("own", capability="8.0")) == "own"
    assert choose(one("imported", time_us=0.0, capability="8.0"), one("measured")) == "measured"
    assert choose(one("first"), one("second", measured_ns=2)) == "second"
    assert choose() == ""


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 99, "best": []}', b"\xff\xfe", b'{"best": [1]}'])
def test_a_damaged_file_holds_no_kernel(tmp_path: Path, content: bytes) -> None:
    (tmp_path / best_kernels.FILE).write_bytes(content)
    assert best_kernels.published([str(tmp_path), str(tmp_path / "missing")]) == ()


def test_what_was_begun_before_a_flush_is_not_written_after_it(store: Store) -> None:
    profiles = profiles_of(store)
    begun = profiles.epoch()
    profiles.save([row()], epoch=begun)
    assert profiles.flush("build-1") and profiles.everything() == [] and chosen(store.folder / "profiles") == ""
    assert not profiles.save([row()], epoch=begun) and profiles.everything() == []
    assert profiles.save([row()], epoch=profiles.epoch())
    assert not profiles.flush("build-1") and len(profiles.everything()) == 1, "once for a build"
    assert profiles.flush("build-2") and profiles.everything() == []


WRITER = """
import sys
from pathlib import Path
from buildd.store.store import Store
from tests.support.profile_rows import profiles_of, row
with Store.open(Path(sys.argv[1])) as store:
    for number in range(8):
        profiles_of(store).save([row(f"{sys.argv[2]}-{number}"), row("same", time_us=float(number + 1))])
        if sys.argv[3:] and number == 4:
            profiles_of(store).flush("one-build")
"""


def test_several_processes_write_and_flush_at_once(tmp_path: Path) -> None:
    Store.open(tmp_path / "s").close()
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "s"), name, *flush], stderr=subprocess.PIPE)
        for name, flush in (("x", ()), ("y", ()))
    ]
    assert [(writer.communicate(timeout=60)[1], writer.returncode) for writer in writers] == [(b"", 0)] * 2
    with Store.open(tmp_path / "s") as store:
        assert len(profiles_of(store).everything()) == 17
        assert chosen(store.folder / "profiles"), "the last to publish knew of all"
        flushers = [
            subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "s"), name, "flush"]) for name in ("x", "y")
        ]
        assert [flusher.wait(timeout=60) for flusher in flushers] == [0, 0]
        assert profiles_of(store).epoch() == 1, "two that flush for one build flush once"


# ---------------------------------------------------------------- CACHE_DIR


def test_cache_dir_holds_the_profiles_of_its_requests(store: Store, tmp_path: Path) -> None:
    shared = {"CACHE_DIR": "profiles here", "HOME": str(tmp_path)}
    with open_profiles(shared, store, str(tmp_path)) as cache:
        assert cache.save([row()]) and cache.of(H200, PROBLEM).keys() == {"a"} and not cache.notices
    assert profiles_of(store).everything() == []
    folders = best_kernels.folders(shared, str(store.folder), str(tmp_path))
    assert folders[0] == f"{tmp_path}/profiles here/buildd" and chosen(Path(folders[0])) == "a"
    with open_profiles({}, store) as own:
        assert own.of(H200, PROBLEM) == {}
    assert best_kernels.cache_dir({"CACHE_DIR": "~/x", "HOME": "/home/u"}, "/p") == "/home/u/x"
    assert flush_asked(Settings({**shared, "FLUSH_PROFILE_CACHE": "0"}), store, str(tmp_path), "b") == ()
    assert len(flush_asked(Settings({**shared, "FLUSH_PROFILE_CACHE": "1"}), store, str(tmp_path), "b")) == 1
    assert chosen(Path(folders[0])) == ""
    assert flush_asked(Settings({"CACHE_DIR": "absent", "FLUSH_PROFILE_CACHE": "1"}), store, str(tmp_path), "b") != ()


def index_of(shared: Path) -> Path:
    return shared / "buildd" / "index.db"


def test_a_corrupt_cache_dir_is_set_aside(store: Store, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    index_of(shared).parent.mkdir(parents=True)
    index_of(shared).write_bytes(b"damaged" * 1000)
    with open_profiles({"CACHE_DIR": str(shared)}, store) as cache:
        assert "damaged" in cache.notices[0] and cache.save([row()])
        assert cache.of(H200, PROBLEM).keys() == {"a"}


READER = """
import sys
from pathlib import Path
from buildd.store.profile_cache import open_profiles
from buildd.store.store import Store
from tests.support.profile_rows import H200, PROBLEM, row
with Store.open(Path(sys.argv[1])) as store, open_profiles({"CACHE_DIR": sys.argv[2]}, store) as cache:
    saved = cache.save([row("after")])
    print(saved, sorted(cache.of(H200, PROBLEM)), cache.notices, cache.flush("b"))
"""


def test_a_read_only_cache_dir_is_read(store: Store, tmp_path: Path) -> None:
    if why := why_no_namespaces():
        pytest.skip(f"no namespaces: {why}")
    shared = tmp_path / "shared"
    with open_profiles({"CACHE_DIR": str(shared)}, store) as cache:
        cache.save([row("before")])
    script = 'mount --bind "$2" "$2" && mount -o remount,bind,ro "$2" && exec "$0" -c "$3" "$1" "$2"'
    command = ["unshare", "--mount", "sh", "-euc", script, sys.executable, str(store.folder), str(shared), READER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True ['after', 'before']") and "may not be written" in done.stdout
    places = best_kernels.folders({"CACHE_DIR": str(shared)}, str(store.folder), "/")
    assert {found.candidate for found in best_kernels.published(places)} == {"before"}, "what stood in is emptied"


@pytest.mark.parametrize("how", ["network", "newer", "file"])
def test_what_cache_dir_cannot_hold_stands_in_below_the_store(store: Store, tmp_path: Path, how: str) -> None:
    shared = tmp_path / "shared"
    environment = {"CACHE_DIR": str(shared)}
    kind = ""
    if how == "file":
        shared.write_text("a file")
    else:
        with open_profiles(environment, store) as cache:
            cache.save([row("before")])
            if how == "newer":
                own = cache._own
                assert own is not None
                own.database.transact(lambda c: c.execute("UPDATE meta SET value = 99 WHERE name = 'version'"))
                own.database.transact(lambda c: c.execute("PRAGMA user_version = 99"))
    if how == "network":
        kind = "nfs4"
    with open_profiles(environment, store, file_system=lambda path: kind) as cache:
        assert (
            len(cache.notices) == 1
            and str(shared) in cache.notices[0]
            and "new profiles are kept in" in str(cache.notices)
        )
        assert cache.save([row("after")])
        known = cache.of(H200, PROBLEM).keys()
    assert known == {"after"}
    places = best_kernels.folders(environment, str(store.folder), "/")
    assert "after" in {found.candidate for found in best_kernels.published(places)}, "plans look there too"
    with open_profiles(environment, store, file_system=lambda path: kind) as cache:
        assert "after" in cache.of(H200, PROBLEM)


def test_the_file_is_json_that_people_can_read(store: Store) -> None:
    profiles_of(store).save([row()])
    read = json.loads((store.folder / "profiles" / best_kernels.FILE).read_text())
    assert read["best"][0]["setting"]["gpu"] == "NVIDIA H200"
