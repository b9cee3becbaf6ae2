"""AITemplate's profile database under `buildd run`: no process waits for another's lock, and no row is lost."""

from __future__ import annotations

import os
import shlex
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from buildd.hooks import aitemplate_rows
from buildd.shims.framework_environment import variables
from buildd.store.aitemplate_profiles import publish
from tests.support.aitemplate_program import measured, program, rows, write_package
from tests.support.developer import why_no_namespaces


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "store").mkdir(mode=0o700)
    packages = str(write_package(tmp_path / "packages"))
    plain = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "BUILDD_DIR": str(tmp_path / "store"),
        "BUILDD_BUILD_ID": "one",
        "PYTHONPATH": packages,
        "CACHE_DIR": str(tmp_path / "cache"),
    }
    return {**plain, **variables(plain)}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "cuda.db"


def published(environ: dict[str, str]) -> list[str]:
    return list(publish(Path(environ["BUILDD_DIR"])))


def stock(environ: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith("BUILDD")}


def test_new_rows_reach_the_shared_database_after_the_run(environ: dict[str, str], shared: Path) -> None:
    assert measured(stock(environ), "a=1") == ("1", "")
    assert measured(environ, "a", "b=2") == ("1 2", "")
    assert rows(shared) == [("a", "1")], "the shared database is left alone while the program runs"
    assert measured(environ, "b=3") == ("2", ""), "a later program of the run sees what waits"
    assert published(environ) == []
    assert rows(shared) == [("a", "1"), ("b", "2")]
    assert published(environ) == [] and rows(shared) == [("a", "1"), ("b", "2")]
    assert measured(stock(environ), "b") == ("2", ""), "plain AITemplate uses them"


def test_programs_side_by_side_lose_no_row_and_add_none_twice(environ: dict[str, str], shared: Path) -> None:
    asks = "print('ready', flush=True); sys.stdin.readline()"
    words = [[f"{number}={number}", f"same={number}"] for number in range(4)]
    started = [
        subprocess.Popen(
            program(*some, then=asks), env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for some in words
    ]
    for process in started:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() and process.stdout.readline() == "ready\n"
    started[0].kill()  # in the middle of its build
    for process in started:
        process.communicate("\n")
    assert published(environ) == []
    found = rows(shared)
    assert sorted(key for key, _ in found) == ["0", "1", "2", "3", "same"]


def test_two_runs_that_end_at_once_merge_each_row_once(environ: dict[str, str], shared: Path) -> None:
    assert measured(environ, *(f"{number}={number}" for number in range(50))) is not None
    code = "import sys; from pathlib import Path; from buildd.store.aitemplate_profiles import publish"
    code += "; print(list(publish(Path(sys.argv[1]))))"
    command = [program()[0], "-P", "-c", code, environ["BUILDD_DIR"]]
    path = os.pathsep.join([str(Path(__file__).parents[2]), environ["PYTHONPATH"]])
    ends = [
        subprocess.Popen(command, env={**environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [end.communicate()[0].strip() for end in ends] == ["[]"] * 4
    assert [key for key, _ in rows(shared)] == [str(number) for number in range(50)]


def test_a_flush_empties_once_for_a_build(environ: dict[str, str], shared: Path) -> None:
    flush = {**environ, "FLUSH_PROFILE_CACHE": "1"}
    assert measured(flush, "a=1") == ("1", ""), "a database that is not there is no error"
    assert published(environ) == []
    assert measured(stock(environ), "old=1") == ("1", "")
    flush["BUILDD_BUILD_ID"] = "two"
    assert measured(flush, "a", "old", "b=2") == ("- - 2", "")
    assert measured(flush, "b", "a") == ("2 -", ""), "not emptied again within the build"
    assert measured(stock(environ), "later=1") == ("1", "")
    assert published(environ) == []
    assert rows(shared) == [("later", "1"), ("b", "2")], "rows of other programs since the flush stay"
    assert measured({**environ, "FLUSH_PROFILE_CACHE": "0", "BUILDD_BUILD_ID": "three"}, "b") == ("2", "")


def test_a_row_measured_before_a_flush_is_not_brought_back(environ: dict[str, str], shared: Path) -> None:
    waits = "sys.stdin.readline(); target._profile_cache.insert_gemm('stale', '1')"
    process = subprocess.Popen(
        program("a=1", then=waits), env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "1\n"
    assert measured({**environ, "FLUSH_PROFILE_CACHE": "1", "BUILDD_BUILD_ID": "two"}, "b=2") == ("2", "")
    process.communicate("\n")
    assert published(environ) == [] and rows(shared) == [("b", "2")]


def test_force_profile_replaces_a_row(environ: dict[str, str], shared: Path) -> None:
    assert measured(environ, "a=1", "b=1") == ("1 1", "") and published(environ) == []
    assert measured({**environ, "FORCE_PROFILE": "1"}, "a=2") == ("2", "")
    assert published(environ) == []
    assert rows(shared) == [("b", "1"), ("a", "2")]


def test_a_database_that_another_program_holds_is_merged_later(
    environ: dict[str, str], shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aitemplate_rows, "_WAIT_S", 0.05)
    assert measured(stock(environ), "a=1") == ("1", "")
    # As AITemplate's own between an insert and the end of its build.
    held = sqlite3.connect(shared)
    held.execute("UPDATE cuda_gemm_3 SET workspace = 1")
    assert measured(environ, "a", "b=2") == ("1 2", ""), "reading needs no lock that it holds"
    (line,) = published(environ)
    assert line == (
        f"AITemplate's {shared} cannot be written now (database is locked);"
        " its new profiles wait in the store, and later runs use them"
    )
    assert published(environ) == [], "said once"
    assert measured(environ, "b") == ("2", "")
    held.rollback()
    held.close()
    assert published(environ) == []
    assert rows(shared) == [("a", "1"), ("b", "2")]


def test_a_damaged_database_is_named_and_left_until_it_is_flushed(environ: dict[str, str], shared: Path) -> None:
    shared.parent.mkdir()
    shared.write_bytes(b"no database " * 100)
    said, told = measured(environ, "a=1")
    assert said == "1" and told.startswith(f"buildd: {shared} cannot be read (file is not a database)")
    (line,) = published(environ)
    assert "is damaged" in line and "FLUSH_PROFILE_CACHE=1" in line
    assert shared.read_bytes().startswith(b"no database")
    assert measured({**environ, "FLUSH_PROFILE_CACHE": "1"}, "b=2") == ("2", "")
    assert published(environ) == [] and rows(shared) == [("b", "2")]
    assert shared.with_name("cuda.db.damaged").read_bytes().startswith(b"no database")


def test_a_folder_that_cannot_be_written_or_is_on_a_network_keeps_rows_in_the_store(
    environ: dict[str, str], shared: Path
) -> None:
    shared.parent.write_text("")  # no folder can be made here, also for root
    assert measured(environ, "a=1") == ("1", "")
    (line,) = published(environ)
    assert f"AITemplate's {shared} cannot be written" in line
    shared.parent.unlink()
    (line,) = publish(Path(environ["BUILDD_DIR"]), file_system=lambda path: "nfs4")
    assert "is on nfs4" in line and not shared.exists()
    assert measured(environ, "a") == ("1", "")


def test_dummy_profiles_and_a_run_without_buildd_use_no_snapshot(environ: dict[str, str], shared: Path) -> None:
    done = subprocess.run(program(then="assert target._profile_cache is None"), env={**environ, "CI_FLAG": "CIRCLECI"})
    assert done.returncode == 0
    assert measured({**environ, "BUILDD_DISABLE": "1"}, "a=1") == ("1", "") and rows(shared) == [("a", "1")]


KILLED = """
import os, sqlite3, sys
held = sqlite3.connect(sys.argv[1])
held.execute("PRAGMA cache_size = 1")
held.execute("UPDATE cuda_gemm_3 SET algo = 'half'")
held.executemany("INSERT INTO cuda_gemm_3 (exec_entry, exec_entry_sha1, device, algo) VALUES ('', ?, '80', 'half')",
    [(str(number) * 99,) for number in range(500)])
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("flush", ["0", "1"])
def test_what_a_killed_aitemplate_has_half_written_is_taken_back(
    environ: dict[str, str], shared: Path, flush: str
) -> None:
    assert measured(stock(environ), "a=1") == ("1", "")
    subprocess.run([program()[0], "-c", KILLED, shared], check=False)
    assert shared.with_name("cuda.db-journal").stat().st_size > 0, "it was killed too early"
    assert measured({**environ, "FLUSH_PROFILE_CACHE": flush}, "a", "b=2") == ("- 2" if flush == "1" else "1 2", "")
    assert published(environ) == []
    assert rows(shared) == [*([] if flush == "1" else [("a", "1")]), ("b", "2")]


def test_a_lock_that_stops_readers_is_waited_for(environ: dict[str, str], shared: Path) -> None:
    """As a commit of another AITemplate's on a slow disk."""
    assert measured(stock(environ), "a=1") == ("1", "")
    held = sqlite3.connect(shared, isolation_level=None, check_same_thread=False)
    held.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(1.0, held.rollback)
    release.start()
    assert measured(environ, "a", "b=2") == ("1 2", "")
    release.join()
    held.close()


def test_a_lock_that_stops_readers_for_long_costs_no_build(
    environ: dict[str, str], shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aitemplate_rows, "_WAIT_S", 0.05)
    assert measured(stock(environ), "a=1") == ("1", "")
    held = sqlite3.connect(shared, isolation_level=None)
    held.execute("BEGIN EXCLUSIVE")
    waiting = aitemplate_rows.WaitingRows(environ["BUILDD_DIR"], str(shared))
    snapshot = sqlite3.connect(":memory:")
    epoch, problem = waiting.load(snapshot)
    assert problem == "database is locked"
    definition = held.execute("SELECT sql FROM sqlite_master WHERE name = 'cuda_gemm_3'").fetchone()[0]
    row = {"exec_entry": "M == 1", "exec_entry_sha1": "b", "device": "80", "algo": "2", "split_k": 1}
    assert waiting.add("cuda_gemm_3", row, definition, epoch=epoch)
    (line,) = published(environ)
    assert "cannot be written now (database is locked)" in line
    held.close()
    assert published(environ) == [] and rows(shared) == [("a", "1"), ("b", "2")]


def test_a_read_only_folder_keeps_rows_in_the_store_and_its_own_are_used(
    environ: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    if problem := why_no_namespaces():
        pytest.skip(problem)
    assert measured(stock(environ), "a=1") == ("1", "")
    code = "import sys; from pathlib import Path; from buildd.store.aitemplate_profiles import publish"
    code += "; print(*publish(Path(sys.argv[1])))"
    script = f"mount --bind {shared.parent} {shared.parent}; mount -o remount,ro,bind {shared.parent}; "
    script += (
        shlex.join(program("a", "b=2")) + "; " + shlex.join([program()[0], "-P", "-c", code, environ["BUILDD_DIR"]])
    )
    path = os.pathsep.join([environ["PYTHONPATH"], str(Path(__file__).parents[2]), *filter(None, sys.path)])
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-euc", script],
        env={**environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    said, line = done.stdout.splitlines()
    assert said == "1 2" and "cannot be written now (attempt to write a readonly database)" in line
    assert rows(shared) == [("a", "1")]
    assert published(environ) == [] and rows(shared) == [("a", "1"), ("b", "2")]
