"""The store as a Redis server: redis-py can use it, only the user can, and it never breaks a build."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from buildd.daemon import redis as server
from buildd.daemon import redis_keyspace
from buildd.daemon.redis_keyspace import Keyspace
from buildd.hooks import inductor_cache
from buildd.hooks.entries import Shelf
from buildd.store import shared_kernels
from codegen.errors import RequestError
from protocol.errors import EndpointError
from tests.support.inductor_program import PROGRAM
from tests.support.serving import short_folder
from tests.support.user import User


class Cache:
    """A user whose daemon speaks Redis' protocol."""

    def __init__(self, user: User) -> None:
        self.user = user
        status, said = user.buildd("redis")
        assert status == 0, said
        note, *lines = said.splitlines()
        assert note.startswith("this holds until the daemon ends; ") and "config.toml" in note
        self.variables = dict(shlex.split(line)[1].split("=", 1) for line in lines)
        self.url = self.variables["TORCHINDUCTOR_REDIS_URL"]
        self.port = urlsplit(self.url).port or 0
        self.token = urlsplit(self.url).password or ""

    def client(self, protocol: int = 3, **more: object) -> redis.Redis:
        return redis.Redis.from_url(self.url, protocol=protocol, socket_timeout=60, **more)

    def raw(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        return made

    def says(self, *sent: bytes) -> bytes:
        """Everything that is said to somebody until they are left."""
        with self.raw() as connection:
            connection.sendall(b"".join(sent))
            connection.shutdown(socket.SHUT_WR)
            found = b""
            while part := connection.recv(1 << 16):
                found += part
            return found


@pytest.fixture(scope="module")
def cache(user: User) -> Cache:
    return Cache(user)


def command(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_client_of_redis_finds_what_it_has_put(cache: Cache, protocol: int) -> None:
    with cache.client(protocol, client_name="a program") as client:
        assert client.ping() is True and client.echo("x") == b"x" and client.client_getname() is not None
        client.delete("k", "l")
        assert client.get("k") is None and client.exists("k") == 0
        for value in (b"", b"\r\n$5\r\n", bytes(range(256)) * 9000):
            assert client.set("k", value) is True
            assert client.get("k") == value and client.strlen("k") == len(value)
        assert client.mset({"k": b"1", "l\udcff".encode("utf-8", "surrogateescape"): b"2"}) is True
        assert client.mget("k", "nothing", b"l\xff") == [b"1", None, b"2"] and client.exists("k", b"l\xff", "no") == 2
        assert client.delete("k", "nothing") == 1 and client.get("k") is None
        with pytest.raises(redis.ResponseError, match="no options of SET"):
            client.set("k", "v", ex=5)
        with pytest.raises(redis.ResponseError, match="unknown command 'LPUSH'"):
            client.lpush("k", "v")
        with pytest.raises(redis.ResponseError, match="wrong number"):
            client.execute_command("GET")
        assert client.get("k") is None, "an error ends nothing"
        with client.pipeline(transaction=False) as pipe:
            assert pipe.set("k", "1").get("k").get("nothing").execute() == [True, b"1", None]


def test_many_at_once_each_find_their_own(cache: Cache) -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        with cache.client() as client:
            for turn in range(15):
                value = b"%d/%d" % (number, turn) * 1000
                client.set(f"at once {number}", value)
                if client.get(f"at once {number}") != value or client.get("shared") not in (None, b"same"):
                    wrong.append((number, turn))
                client.set("shared", b"same")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_who_has_no_token_learns_nothing(cache: Cache) -> None:
    with cache.client() as client:
        client.set("secret", "value")
    for url in (cache.url.replace(cache.token, "f" * 64), re.sub("//.*@", "//", cache.url)):
        with redis.Redis.from_url(url) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.get("secret")
    other = cache.url.replace("//:", "//somebody:")
    with redis.Redis.from_url(other) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.get("secret")
    assert cache.says(command(b"GET", b"secret"), command(b"HELLO", b"3")).count(b"-NOAUTH") == 2
    assert cache.says(command(b"AUTH", b"", cache.token.encode()), command(b"PING")) == b"+OK\r\n+PONG\r\n"
    # An attacker has one guess a connection, and can send nothing that the server must hold.
    guess = command(b"AUTH", b"0" * 64)
    assert (
        cache.says(guess, guess, command(b"PING"))
        == b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
    )
    assert b"Protocol error" in cache.says(b"*2\r\n$4\r\nAUTH\r\n$100000\r\n" + b"x" * 100)
    assert b"Protocol error" in cache.says(b"*100\r\n")
    assert b"Protocol error" in cache.says(b"*0\r\n" * 1000), "a flood of nothing would keep the daemon busy"


def test_strangers_cannot_take_all_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user of the machine can connect: those without the token give way, in the order in which they came."""
    monkeypatch.setattr(server, "MOST_CLIENTS", 3)

    async def talk() -> None:
        serves = server.RedisServer(Keyspace(tmp_path, 1 << 20), "f" * 64)
        await serves.start("127.0.0.1", 0)
        port = int(serves.address.rpartition(":")[2])
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        users = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(command(b"AUTH", b"f" * 64))
            assert await reader.readexactly(5) == b"+OK\r\n"
            users.append((reader, writer))
        assert serves.users() == 3
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert (await reader.read()).startswith(b"-ERR max number of clients")
        for _, each in (*strangers, *users, (reader, writer)):
            each.close()
        serves.close()

    asyncio.run(asyncio.wait_for(talk(), 30))


@pytest.mark.parametrize("content", ["", "\n", "f" * 63, "F" * 64])
def test_a_damaged_token_opens_nothing(tmp_path: Path, content: str) -> None:
    """A disk that was full when it was made leaves an empty one: everybody would know that."""
    environ = {"BUILDD_KEY_DIR": str(tmp_path)}
    server.token_file(environ).write_text(content)
    server.token_file(environ).chmod(0o600)
    with pytest.raises(EndpointError, match="holds no token"):
        server.token(environ)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET k\r\n",
        b"*1\r\n:5\r\n",
        b"*1\r\n$-1\r\n",
        b"*x\r\n",
        b"*1\r\n$3\r\nabcdef\r\n",
        b"*9999999999999\r\n",
        b"\0" * 99999,
    ],
)
def test_what_is_no_command_ends_the_connection(cache: Cache, sent: bytes) -> None:
    known = command(b"AUTH", cache.token.encode())
    found = cache.says(known, sent)
    assert found.startswith(b"+OK\r\n-ERR Protocol error") and found.count(b"\r\n") == 2, found
    # Half a command, and gone.
    assert cache.says(known, command(b"SET", b"k", b"v" * 100)[:-50]) == b"+OK\r\n"
    with cache.client() as client:
        assert client.ping() is True


def test_a_value_is_signed_bounded_and_checked_as_graphs_are(cache: Cache) -> None:
    store = cache.user.store
    with cache.client() as client:
        client.set("pt2:key", b"a pickle")
        keys = {**os.environ, "HOME": cache.user.environ["HOME"], "XDG_CONFIG_HOME": ""}
        found = Shelf(str(store), inductor_cache.FOLDER, keys).take("pt2:key", inductor_cache.GROUP)
        assert found is not None and found.files[inductor_cache.GROUP] == b"a pickle", (
            "under `buildd run` it is found too"
        )
        for path in (store / inductor_cache.FOLDER).iterdir():
            path.write_bytes(path.read_bytes()[:-1] + b"X")
        assert client.get("pt2:key") is None
        client.set("pt2:key", b"again")
        assert client.get("pt2:key") == b"again"
    status, said = cache.user.buildd("status", "-v")
    assert status == 0 and "redis_hits" in said and "redis_puts" in said, said
    status, said = cache.user.buildd("cache", "flush")
    assert status == 0, said
    with cache.client() as client:
        assert client.get("pt2:key") is None


def test_values_stay_within_their_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_keyspace, "_TRIM_BYTES", 10_000)
    values = Keyspace(tmp_path, 30_000)
    for number in range(50):
        values.put(f"k{number}", os.urandom(3_000))
    assert shared_kernels.held(tmp_path)[1] < 45_000 and values.get("k49") is not None and values.get("k0") is None


def test_a_value_that_cannot_be_kept_is_lost_and_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = Keyspace(tmp_path / "gone", 1 << 20)
    values.put("k", b"v")
    assert values.get("k") is None and not values.remove("k") and "'k' cannot be stored" in caplog.text
    (tmp_path / inductor_cache.FOLDER).write_text("no folder")
    values = Keyspace(tmp_path, 1 << 20)
    values.put("k", b"v")
    assert values.get("k") is None and not values.remove("k")


@pytest.mark.parametrize(
    "text", ["6390", "0.0.0.0:6390", "example.org:1", "127.0.0.1:", "127.0.0.1:70000", "192.168.1.1:5"]
)
def test_addresses_that_others_could_reach_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="BUILDD_REDIS") as found:
        server.address_of(text)
    assert "give it another value" in found.value.next_step


def test_addresses_of_this_machine() -> None:
    assert [server.address_of(text) for text in ("127.0.0.1:0", "localhost:6390", "[::1]:7", "127.9.9.9:1")] == [
        ("127.0.0.1", 0),
        ("localhost", 6390),
        ("::1", 7),
        ("127.9.9.9", 1),
    ]


@pytest.fixture
def fresh() -> Iterator[User]:
    """A user who has no daemon yet."""
    with short_folder() as folder:
        user = User(folder)
        try:
            yield user
        finally:
            user.end()


def test_a_daemon_that_was_not_asked_gives_way_to_one_that_speaks(fresh: User) -> None:
    assert fresh.buildd("up")[0] == 0
    before = fresh.daemon()
    assert not (fresh.folder / "home/.config/buildd/redis.token").exists()
    status, said = fresh.buildd("redis")
    after = fresh.daemon()
    assert status == 0 and "export TORCHINDUCTOR_REDIS_URL=redis://" in said, said
    assert "home/.config/buildd/config.toml" in said
    assert before is not None and after is not None and before.pid != after.pid


def test_the_users_settings_turn_it_on_for_good(fresh: User) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = fresh.folder / "home/.config/buildd/config.toml"
        file.parent.mkdir(parents=True)
        file.write_text(f'[environment]\nBUILDD_REDIS = "127.0.0.1:{port}"\n')
        # An address that somebody else has: builds go on, and it is said.
        assert fresh.buildd("up")[0] == 0
        status, said = fresh.buildd("redis")
        assert status == 3 and "the daemon's log, which says why" in said, said
        (log,) = fresh.run_folder.rglob("daemon.log")
        assert f"BUILDD_REDIS=127.0.0.1:{port}" in log.read_text() and "the Redis server is off" in log.read_text()
    urls = []
    for _ in range(2):
        assert fresh.buildd("down")[0] == 0
        status, said = fresh.buildd("redis", "--json")
        assert status == 0, said
        urls.append(json.loads(said)["TORCHINDUCTOR_REDIS_URL"])
    assert urls[0] == urls[1] and f"@127.0.0.1:{port}/0" in urls[0], "another daemon has the same address and token"
    with redis.Redis.from_url(urls[0]) as client:
        client.set("k", "v")
        assert client.get("k") == b"v"
        assert fresh.buildd("down")[0] == 0
        with pytest.raises(redis.ConnectionError):
            client.get("k")
    token = fresh.folder / "home/.config/buildd/redis.token"
    assert token.stat().st_mode & 0o777 == 0o600


def test_a_token_that_others_can_read_is_none(fresh: User) -> None:
    token = fresh.folder / "home/.config/buildd/redis.token"
    token.parent.mkdir(parents=True)
    token.write_text("0" * 64)
    token.chmod(0o644)
    status, said = fresh.buildd("redis")
    assert status == 3 and "does not speak Redis' protocol" in said, said
    (log,) = fresh.run_folder.rglob("daemon.log")
    assert f"{token} is open to others" in log.read_text()
    assert fresh.buildd("status")[0] == 0, "builds go on"


@pytest.mark.torch
@pytest.mark.timeout(900)
def test_stock_torch_is_warm_where_its_own_caches_are_empty(fresh: User) -> None:
    made = Cache(fresh)

    def first_call(name: str) -> dict[str, object]:
        folders = {kind: fresh.folder / f"{name}-{kind}" for kind in ("inductor", "tmp")}
        folders["tmp"].mkdir()
        local = {"TORCHINDUCTOR_CACHE_DIR": str(folders["inductor"]), "TMPDIR": str(folders["tmp"])}
        environ = {**fresh.environ, **local, **made.variables}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environ, cwd=fresh.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        return found

    cold, warm = first_call("cold"), first_call("warm")
    assert (cold["hits"], cold["missed"]) == (0, 3) and (warm["hits"], warm["missed"]) == (3, 0)
    assert cold["sums"] == warm["sums"]
    assert fresh.buildd("down", "--now")[0] == 0
    alone = first_call("alone")
    assert (alone["hits"], alone["missed"]) == (0, 3) and alone["sums"] == cold["sums"], "torch goes on without us"
