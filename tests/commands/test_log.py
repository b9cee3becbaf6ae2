"""`buildd log` right after a build: the daemon tells a client the end first, and then writes the log."""

from __future__ import annotations

import json
import sqlite3
import threading

import pytest

from tests.support.developer import Developer
from tests.support.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")

HELD_S = 0.7


def test_a_build_that_has_ended_is_listed(another_developer: Developer) -> None:
    developer = another_developer
    developer.write("src/a.cu", "one\n")
    developer.write("buildd.toml", '[target.t]\nkind = "cuda"\nsources = ["src/a.cu"]\narch = ["sm_80"]\n')
    assert developer.build().status == 0 and developer.build().status == 0

    def listed() -> list[str]:
        status, said = developer.buildd("log", "--json")
        assert status == 0, said
        return [json.loads(line)["request_id"] for line in said.splitlines()]

    before = listed()
    # Another process writes to the index, so the daemon's log has to wait.
    with sqlite3.connect(developer.store / "index.db", isolation_level=None, check_same_thread=False) as holder:
        holder.execute("BEGIN IMMEDIATE")
        release = threading.Timer(HELD_S, holder.rollback)
        assert developer.build().status == 0
        release.start()
        after = listed()
        release.join()
    holder.close()
    assert len(after) == len(before) + 1 and after[1:] == before
