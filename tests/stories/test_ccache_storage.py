"""ccache keeps its values in buildd's store, and other machines find them by the shared tier."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from buildd.ccache_storage import StorageHelper, Values, store_of
from buildd.store import shared_kernels
from tests.support.serving import short_folder
from tests.support.tier_users import machines_at, until_written
from tests.support.tiers import http_cache
from tests.support.user import User
from tests.support.waiting import until

CCACHE = shutil.which("ccache", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


def compiled(user: User, source: Path) -> tuple[bytes, dict[str, int]]:
    """The object that ccache delivers to a user without any cache of ccache's own, and ccache's counts."""
    programs = user.folder / "programs"
    programs.mkdir(exist_ok=True)
    (user.folder / "t").mkdir(mode=0o700, exist_ok=True)
    helper = programs / "ccache-storage-buildd"
    helper.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m buildd.ccache_storage\n')
    helper.chmod(0o755)
    environ = {
        **user.environ,
        "PATH": f"{programs}:/usr/bin:/bin",
        "CCACHE_DIR": str(user.folder / "ccache"),
        "XDG_RUNTIME_DIR": str(user.folder / "t"),
        "CCACHE_REMOTE_STORAGE": "buildd:",
    }
    assert CCACHE is not None
    made = user.folder / "made.o"
    subprocess.run([CCACHE, "gcc", "-c", str(source), "-o", str(made)], env=environ, check=True)
    said = subprocess.run([CCACHE, "--print-stats"], env=environ, check=True, capture_output=True, text=True).stdout
    counts = {name: int(value) for name, value in (line.split("\t")[:2] for line in said.splitlines())}
    return made.read_bytes(), counts


def stop(user: User) -> None:
    """What `ccache --stop-storage-helpers` does."""
    for place in (user.folder / "t").rglob("storage-buildd-*"):
        if not place.is_socket():
            continue
        with closing(socket.socket(socket.AF_UNIX)) as client:
            client.connect(str(place))
            client.sendall(b"\3")
            client.recv(64)


@pytest.mark.slow
@pytest.mark.skipif(CCACHE is None, reason="there is no ccache")
def test_ccache_on_another_machine_hits(tmp_path: Path) -> None:
    source = tmp_path / "a.c"
    source.write_text("int a(void) { return 1; }\n")
    with http_cache() as cache, machines_at(cache) as machines:
        first = machines(BUILDD_TIER_WRITE="1")
        made, counts = compiled(first, source)
        assert counts["remote_storage_write"] >= 1, counts
        # The helper starts the daemon beside its first answers, which do not wait for it.
        until(lambda: (first.store / "tier/programs").exists(), timeout_s=60)
        assert "values of ccache" in first.buildd("cache", "stats")[1]
        stop(first)
        assert first.buildd("cache", "push")[0] == 0
        until_written(cache, 3)  # and the trail
        second = machines()
        with_daemon(second)
        found, counts = compiled(second, source)
        assert found == made and counts["remote_storage_hit"] == 1, counts
        stop(second)


def with_daemon(user: User) -> None:
    """Start the user's daemon, and wait until its store has a door."""
    assert user.buildd("run", "--", "true")[0] == 0
    until(lambda: (user.store / "tier/programs").exists(), timeout_s=60)


# ---------------------------------------------------------------- the protocol


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.setenv("BUILDD_KEY_DIR", str(tmp_path / "keys"))
    (tmp_path / "store").mkdir(mode=0o700)
    with helper(tmp_path / "store") as made:
        yield made


@contextmanager
def helper(store: Path) -> Iterator[socket.socket]:
    with short_folder() as folder:
        served = StorageHelper(f"{folder}/s", Values(store, 1 << 30, os.environ), 0)
        thread = threading.Thread(target=served.serve)
        thread.start()
        try:
            with closing(socket.socket(socket.AF_UNIX)) as client:
                client.settimeout(20)
                client.connect(f"{folder}/s")
                assert client.recv(64) == b"\1\2\0\1"
                yield client
        finally:
            served.end()
            thread.join()
        assert not (Path(folder) / "s").exists()


def put(client: socket.socket, key: bytes, value: bytes, flags: int = 0) -> bytes:
    client.sendall(b"\1" + bytes([len(key)]) + key + bytes([flags]) + struct.pack("=Q", len(value)) + value)
    return client.recv(300)


def get(client: socket.socket, key: bytes) -> bytes:
    client.sendall(b"\0" + bytes([len(key)]) + key)
    return client.recv(4096)


def test_values_come_back_are_kept_and_removed(client: socket.socket, tmp_path: Path) -> None:
    key = bytes(range(20))
    assert get(client, key) == b"\1"
    assert put(client, key, b"one") == b"\0"
    assert put(client, key, b"two") == b"\1", "without the flag nothing is overwritten"
    assert get(client, key) == b"\0" + struct.pack("=Q", 3) + b"one"
    assert put(client, key, b"two", 1) == b"\0" and get(client, key).endswith(b"two")
    assert put(client, b"", b"") == b"\0" and get(client, b"") == b"\0" + bytes(8)
    assert shared_kernels.held(tmp_path / "store")[0] == 2
    client.sendall(b"\2" + bytes([len(key)]) + key)
    assert client.recv(64) == b"\0" and get(client, key) == b"\1"
    client.sendall(b"\4")
    assert client.recv(64) == b"\6buildd\0"


def test_a_damaged_value_is_none(client: socket.socket, tmp_path: Path) -> None:
    assert put(client, b"k", b"value") == b"\0"
    (place,) = shared_kernels.places(tmp_path / "store")
    file = tmp_path / "store" / place
    file.write_bytes(file.read_bytes()[:-1] + b"X")
    assert get(client, b"k") == b"\1"
    assert put(client, b"k", b"value") == b"\0", "it is replaced"
    assert get(client, b"k").endswith(b"value")


@pytest.mark.parametrize("words", [b"\7", b"\1\1k\0" + struct.pack("=Q", 1 << 60)])
def test_odd_words_end_the_connection(client: socket.socket, words: bytes) -> None:
    client.sendall(words)
    assert client.recv(64) == b""


def test_a_helper_that_is_stopped_leaves_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDD_KEY_DIR", str(tmp_path / "keys"))
    with helper(tmp_path) as client:
        client.sendall(b"\3")
        assert client.recv(64) == b"\0"


def test_a_killed_helper_is_followed_by_another_one(tmp_path: Path) -> None:
    values = Values(tmp_path, 1 << 30, os.environ)
    with short_folder() as folder:
        with closing(socket.socket(socket.AF_UNIX)) as left:
            left.bind(f"{folder}/s")
        helper = StorageHelper(f"{folder}/s", values, 0)
        with pytest.raises(OSError, match="in use"):
            StorageHelper(f"{folder}/s", values, 0)
        helper.end()
        helper.serve()


def test_a_url_names_a_store(tmp_path: Path) -> None:
    environ = {"BUILDD_DIR": str(tmp_path / "mine"), "HOME": str(tmp_path)}
    assert store_of("buildd:", environ) == tmp_path / "mine"
    assert store_of("buildd:///a%20b/c", environ) == Path("/a b/c")
