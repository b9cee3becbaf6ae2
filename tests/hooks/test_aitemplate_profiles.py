"""AITemplate's profile database below `buildd run`: no process waits for another's lock, and no row is lost."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

from buildd.shims.framework_environment import variables
from buildd.store.aitemplate_profiles import publish
from tests.support.aitemplate_program import measured, program, rows, write_package


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


def test_a_database_that_another_program_holds_is_merged_later(environ: dict[str, str], shared: Path) -> None:
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
