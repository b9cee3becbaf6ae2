"""The tables and their versions: whatever way an index came to its version, it is the same."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.store import schema
from buildd.store.schema import Condition


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    opened = sqlite3.connect(tmp_path / "index.db", isolation_level=None)
    yield opened
    opened.close()


def shape(connection: sqlite3.Connection) -> tuple[dict[str, str], dict[str, int]]:
    """Tables and indexes with their SQL, and what a new index says of itself."""
    made = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())
    return made, dict(connection.execute("SELECT name, value FROM meta").fetchall())


def test_an_empty_file_becomes_current(connection: sqlite3.Connection) -> None:
    assert schema.condition(connection) == (Condition.EMPTY, 0)
    schema.upgrade(connection, 0)
    assert schema.condition(connection) == (Condition.CURRENT, schema.VERSION)
    assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)


def test_step_by_step_gives_the_same_tables(connection: sqlite3.Connection, tmp_path: Path) -> None:
    for version in range(schema.VERSION):
        schema.upgrade(connection, version, to=version + 1)
        expected = Condition.CURRENT if version + 1 == schema.VERSION else Condition.OLDER
        assert schema.condition(connection) == (expected, version + 1)
    at_once = sqlite3.connect(tmp_path / "other.db", isolation_level=None)
    schema.upgrade(at_once, 0)
    assert shape(connection) == shape(at_once)
    at_once.close()


def test_versions_that_disagree_are_damage_and_not_news(connection: sqlite3.Connection) -> None:
    schema.upgrade(connection, 0)
    connection.execute("PRAGMA user_version = 130")
    assert schema.condition(connection)[0] is Condition.FOREIGN
    connection.execute("UPDATE meta SET value = 130 WHERE name = 'version'")
    assert schema.condition(connection) == (Condition.NEWER, 130)
    connection.execute("PRAGMA application_id = 7")
    assert schema.condition(connection)[0] is Condition.FOREIGN


def test_somebody_elses_database_is_not_ours(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE theirs (x)")
    assert schema.condition(connection)[0] is Condition.FOREIGN


def test_the_hot_queries_use_an_index(connection: sqlite3.Connection) -> None:
    schema.upgrade(connection, 0)
    for query in (
        "SELECT data FROM blobs WHERE digest = 1",
        "SELECT body FROM results WHERE key = 1",
        "SELECT 1 FROM refs WHERE digest = 1",
        "SELECT 1 FROM refs WHERE key = 1",
        "SELECT files FROM input_sets WHERE first = 1 ORDER BY id DESC",
        "SELECT key FROM results ORDER BY used LIMIT 1",
        "SELECT 1 FROM input_sets WHERE folders = 1",
        "SELECT wall_s FROM history WHERE kind = 'a' ORDER BY wall_s",
    ):
        plan = " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}"))
        assert "INDEX" in plan and "TEMP B-TREE" not in plan, (query, plan)
