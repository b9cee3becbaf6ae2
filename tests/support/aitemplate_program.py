"""A package that treats its profile database as AITemplate does, and programs that use it.

AITemplate is on no index, and its import needs torch: `scripts/gpu/aitemplate` has the real one. As in AITemplate, an
insert leaves the transaction open until the next query or the end, a flush removes the file and fails where there is
none, and a key that is there is not inserted again.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_CACHE = '''
import sqlite3

SCHEMA = """CREATE TABLE IF NOT EXISTS cuda_gemm_3 (
    id INTEGER PRIMARY KEY AUTOINCREMENT, exec_entry VARCHAR(8192) NOT NULL, exec_entry_sha1 VARCHAR(64) NOT NULL,
    device VARCHAR(16) NOT NULL, algo VARCHAR(512) NOT NULL, workspace INTEGER DEFAULT 0, duration FLOAT DEFAULT -1,
    split_k INTEGER DEFAULT 1, created_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL)"""

class ProfileCacheDB:
    def __init__(self, target, path=None, uri=None, port=None):
        self._target, self._db_commit_flag = target, False
        assert uri is None and path is not None
        self._con = sqlite3.connect(path)
        self._cur = self._con.cursor()
        self._init_db()

    def _init_db(self):
        self._cur.execute(SCHEMA)
        self._con.commit()

    def _query(self, sql):
        if self._db_commit_flag:
            self._con.commit()
            self._db_commit_flag = False
        self._cur.execute(sql)
        return next(iter(self._cur.fetchall()), None)

    def _insert(self, query, statement):
        self._cur.execute(query)
        if not self._cur.fetchall():
            self._cur.execute(statement)
            self._db_commit_flag = True

    def query_gemm(self, key):
        return self._query(f"SELECT algo, workspace, split_k FROM cuda_gemm_3 WHERE exec_entry_sha1='{key}'")

    def insert_gemm(self, key, algo):
        columns = "exec_entry, exec_entry_sha1, device, algo, split_k"
        self._insert(f"SELECT algo FROM cuda_gemm_3 WHERE exec_entry_sha1='{key}'",
            f"INSERT INTO cuda_gemm_3 ({columns}) VALUES ('M == 1', '{key}', '80', '{algo}', 1)")

    def __del__(self):
        self._con.commit()
        self._con.close()
'''
_TARGET = """
import os, pathlib
from aitemplate.backend.profiler_cache import ProfileCacheDB

class Target:
    def use_dummy_profiling_results(self):
        return os.environ.get("CI_FLAG") == "CIRCLECI"

    def _get_cache_file_name(self):
        return "cuda.db"

    def _prepare_profile_cache_path(self):
        if self.use_dummy_profiling_results():
            return None
        prefix = os.environ.get("CACHE_DIR") or os.path.join(pathlib.Path.home(), ".aitemplate")
        os.makedirs(prefix, exist_ok=True)
        path = os.path.join(prefix, self._get_cache_file_name())
        if os.environ.get("FLUSH_PROFILE_CACHE", "0") != "0":
            os.remove(path)
        return path

    def __enter__(self):
        self._cache_path = self._prepare_profile_cache_path()
        self._profile_cache = None
        if self._cache_path is not None:
            self._profile_cache = ProfileCacheDB("cuda", path=self._cache_path)
        return self

    def __exit__(self, *error):
        self._profile_cache = None
"""
_BUILDER = """
import os, subprocess

class Builder:
    def make_profilers(self, commands):
        self._run(commands)

    def make(self, commands):
        self._run(commands)

    def _run(self, commands):
        for command in commands:
            subprocess.run(command, check=True, env=os.environ.copy())
"""
MEASURE = """
import sys
from aitemplate.backend.target import Target

found = []
with Target() as target:
    for word in sys.argv[1:]:
        key, _, algo = word.partition("=")
        if algo:
            target._profile_cache.insert_gemm(key, algo)
        row = target._profile_cache.query_gemm(key)
        found.append(row[0] if row else "-")
    print(" ".join(found), flush=True)
    {then}
"""
"""Inserts each KEY=ALGO, and prints the algorithm of each KEY. `then` runs while the database is open."""


def write_package(folder: Path) -> Path:
    """The package; returns the folder for PYTHONPATH."""
    backend = folder / "aitemplate" / "backend"
    backend.mkdir(parents=True)
    for package in (backend.parent, backend):
        (package / "__init__.py").write_text("")
    for name, text in (("profiler_cache", _CACHE), ("target", _TARGET), ("builder", _BUILDER)):
        (backend / f"{name}.py").write_text(text)
    return folder


def program(*words: str, then: str = "pass") -> list[str]:
    return [sys.executable, "-c", MEASURE.replace("{then}", then), *words]


def measured(environ: Mapping[str, str], *words: str) -> tuple[str, str]:
    """Output and messages of `program`."""
    done = subprocess.run(program(*words), env=dict(environ), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.strip()


def rows(database: Path) -> list[tuple[str, str]]:
    """(key, algorithm) of every row, oldest first."""
    connection = sqlite3.connect(database)
    try:
        return connection.execute("SELECT exec_entry_sha1, algo FROM cuda_gemm_3 ORDER BY id").fetchall()
    finally:
        connection.close()
