"""The store as a Redis server (protocol: `resp`), for programs with no other remote cache, such as stock torch.

The user turns it on (`BUILDD_REDIS`). It listens on this machine only, and serves only clients that send the user's
token. Runs on the daemon's event loop; threads read and write files. Values are entries beside the store, in the same
place and under the same keys as below `buildd run`, so each way finds what the other has stored. Implements the
commands that a cache needs. A value that cannot be read counts as missing, and one that cannot be stored is dropped: no
program fails because of this server.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path

from buildd.daemon import resp
from buildd.daemon.resp import ErrorReply, Reply
from buildd.hooks.entries import Entry, Shelf
from buildd.hooks.inductor_cache import FOLDER, GROUP
from buildd.store import shared_kernels
from codegen.errors import RequestError
from protocol.curve import key_folder, private_file
from protocol.errors import EndpointError

VERSION = "7.4.0"
"""The version of Redis that clients see."""
MOST_CLIENTS = 512
_STRANGERS_S = 10.0
_TOKEN_BYTES = 32
_LINGER_S = 1.0
_LARGE_BYTES = 1 << 20
_LARGE_AT_ONCE = 2
_TRIM_BYTES = 64 << 20
"""After so many new bytes the entries are trimmed to their bound."""
_log = logging.getLogger(__name__)


class Keyspace:
    """The keys and values of one store. Every method reads or writes files.

    Args:
        store: the store's folder.
        limit_bytes: bound of all kernels and graphs beside the store.
    """

    def __init__(self, store: Path, limit_bytes: int, environ: Mapping[str, str] = os.environ) -> None:
        self._store = store
        self._limit_bytes = limit_bytes
        # Only programs can name tools in place of Triton's own, and programs below `buildd run` do.
        kept = {name: value for name, value in environ.items() if not name.startswith("TRITON_")}
        self._shelf = Shelf(os.fspath(store), FOLDER, kept)
        self._untrimmed = 0

    def get(self, key: str) -> bytes | None:
        try:
            found = self._shelf.take(key, GROUP)
        except (OSError, ValueError) as error:
            _log.info("redis: %.200r cannot be read: %s", key, error)
            return None
        return None if found is None else found.files[GROUP]

    def put(self, key: str, value: bytes) -> None:
        try:
            if not self._shelf.open():
                raise PermissionError(f"{self._shelf.folder} cannot be written")
            self._shelf.put(Entry(key, GROUP, {GROUP: value}))
        except (OSError, ValueError) as error:
            _log.warning("redis: %.200r cannot be stored: %s", key, error)
            return
        self._untrimmed += len(value)
        if self._untrimmed > _TRIM_BYTES:
            self._untrimmed = 0
            shared_kernels.trim(self._store, self._limit_bytes)

    def remove(self, key: str) -> bool:
        try:
            os.unlink(os.path.join(self._shelf.folder, self._shelf.name_of(key, GROUP)))
        except OSError:
            return False
        return True


class RedisServer:
    """The listening socket and its clients.

    Args:
        keyspace: serves the values.
        token: the password that clients have to send.
        touched: called at each command.
    """

    def __init__(self, keyspace: Keyspace, token: str, touched: Callable[[], None] = lambda: None) -> None:
        self.address = ""
        self.counters: Counter[str] = Counter()
        self._clients: dict[asyncio.StreamWriter, Client] = {}
        self._keyspace = keyspace
        self._token = token.encode()
        self._touched = touched
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError if the address cannot be bound."""
        self._server = await asyncio.start_server(self._serve, host, port)
        name, bound = self._server.sockets[0].getsockname()[:2]
        self.address = f"[{name}]:{bound}" if ":" in name else f"{name}:{bound}"

    def close(self) -> None:
        """Close all connections and free the address."""
        self.address = ""
        if self._server is not None:
            self._server.close()
            for writer in list(self._clients):
                writer.close()

    def users(self) -> int:
        """Number of connected clients that have sent the token. From any thread."""
        return sum(client.known for client in list(self._clients.values()))

    def figures(self) -> dict[str, int]:
        """The counters, named like the daemon's others. From any thread."""
        return {f"redis_{name}": count for name, count in list(self.counters.items())}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= MOST_CLIENTS and not self._drop_stranger():
            writer.write(resp.error("ERR max number of clients reached"))
            writer.close()
            return
        client = self._clients[writer] = Client(self._keyspace, self._token, self.counters, self._large)
        try:
            while not client.ended:
                async with asyncio.timeout(None if client.known else _STRANGERS_S):
                    parts = await resp.read_command(reader, client.known)
                if client.known:  # other clients do not keep the daemon alive
                    self._touched()
                for reply in await client.answer(parts):
                    writer.write(reply)
                await writer.drain()
        except ErrorReply as error:
            await _send_last(reader, writer, resp.error(str(error)))
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError):
            pass  # the client has gone or was silent, or the daemon ends
        finally:
            self._clients.pop(writer, None)
            writer.close()

    def _drop_stranger(self) -> bool:
        """Make room: drop the connection that has been without the token for longest. False if there is none.

        Otherwise any user of the machine could take all places.
        """
        found = next((writer for writer, client in self._clients.items() if not client.known), None)
        if found is not None:
            del self._clients[found]
            found.transport.abort()
        return found is not None


class Client:
    """One connection: its state, and the replies to its commands."""

    def __init__(self, keyspace: Keyspace, token: bytes, counters: Counter[str], large: asyncio.Semaphore) -> None:
        self.known = False
        """It has sent the token."""
        self.ended = False
        self._version = 2
        self._name = b""
        self._keyspace = keyspace
        self._token = token
        self._counters = counters
        self._large = large
        self._answers: dict[str, Callable[[list[bytes]], Awaitable[Reply]]] = {
            "AUTH": self._auth,
            "HELLO": self._hello,
            "PING": self._ping,
            "ECHO": self._echo,
            "SELECT": self._select,
            "CLIENT": self._client,
            "COMMAND": self._command,
            "INFO": self._info,
            "GET": self._get,
            "MGET": self._mget,
            "SET": self._set,
            "MSET": self._mset,
            "EXISTS": self._exists,
            "STRLEN": self._strlen,
            "DEL": self._del,
            "UNLINK": self._del,
            "RESET": self._reset,
            "QUIT": self._quit,
        }

    async def answer(self, parts: list[bytes]) -> Sequence[Reply]:
        """Make the reply to a command, in parts. Raises ErrorReply for an error that ends the connection."""
        name, arguments = parts[0].upper().decode("ascii", "replace"), parts[1:]
        self._counters["commands"] += 1
        try:
            if not self.known and name not in ("AUTH", "HELLO", "QUIT", "RESET"):
                raise ErrorReply("NOAUTH Authentication required.")
            found = self._answers.get(name)
            if found is None:
                raise ErrorReply(f"ERR unknown command '{name[:64]}': buildd's cache speaks a part of RESP")
            return [await found(arguments)]
        except ErrorReply as error:
            if error.ends:
                raise
            return [resp.error(str(error))]

    # ---------------------------------------------------------------- the connection

    async def _auth(self, arguments: list[bytes]) -> Reply:
        self._check(arguments[0] if len(arguments) == 2 else b"default", arguments[-1] if arguments else b"")
        return resp.OK

    def _check(self, user: bytes, password: bytes) -> None:
        # For redis://:TOKEN@HOST redis-cli sends an empty name.
        if user not in (b"default", b"") or not hmac.compare_digest(password, self._token):
            self._counters["refused"] += 1
            # Ends the connection: a client that guesses has to connect for each guess.
            raise ErrorReply("WRONGPASS invalid username-password pair or user is disabled.", ends=True)
        self.known = True

    async def _hello(self, arguments: list[bytes]) -> Reply:
        version, rest = self._version, arguments
        if rest:
            if rest[0] not in (b"2", b"3"):
                raise ErrorReply("NOPROTO unsupported protocol version")
            version, rest = int(rest[0]), rest[1:]
        while rest:
            word = rest[0].upper()
            if word == b"AUTH" and len(rest) >= 3:
                self._check(rest[1], rest[2])
                rest = rest[3:]
            elif word == b"SETNAME" and len(rest) >= 2:
                self._name, rest = rest[1], rest[2:]
            else:
                raise ErrorReply("ERR Syntax error in HELLO")
        if not self.known:
            raise ErrorReply(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH "
                "<user> <pass> option can be used to authenticate the client and select the RESP protocol version at "
                "the same time"
            )
        self._version = version
        facts: dict[bytes, Reply] = {
            b"server": resp.bulk(b"redis"),
            b"version": resp.bulk(VERSION.encode()),
            b"proto": resp.integer(version),
            b"id": resp.integer(1),
            b"mode": resp.bulk(b"standalone"),
            b"role": resp.bulk(b"master"),
            b"modules": resp.array([]),
        }
        head = b"%%%d\r\n" % len(facts) if version == 3 else b"*%d\r\n" % (2 * len(facts))
        return head + b"".join(resp.bulk(name) + value for name, value in facts.items())

    async def _client(self, arguments: list[bytes]) -> Reply:
        what = arguments[0].upper() if arguments else b""
        if what == b"GETNAME":
            return resp.bulk(self._name)
        if what == b"ID":
            return resp.integer(1)
        if what == b"SETNAME":
            self._name = arguments[-1]
        elif what not in (b"SETINFO", b"NO-EVICT", b"NO-TOUCH"):
            raise ErrorReply("ERR unknown subcommand of CLIENT")
        return resp.OK

    async def _select(self, arguments: list[bytes]) -> Reply:
        if arguments != [b"0"]:
            raise ErrorReply("ERR DB index is out of range")
        return resp.OK

    async def _reset(self, arguments: list[bytes]) -> Reply:
        self.known, self._version = False, 2
        return b"+RESET\r\n"

    async def _quit(self, arguments: list[bytes]) -> Reply:
        self.ended = True
        return resp.OK

    # ---------------------------------------------------------------- keys and values

    async def _ping(self, arguments: list[bytes]) -> Reply:
        return resp.bulk(arguments[0]) if arguments else b"+PONG\r\n"

    async def _echo(self, arguments: list[bytes]) -> Reply:
        return resp.bulk(_only(arguments, 1, "echo")[0])

    async def _command(self, arguments: list[bytes]) -> Reply:
        return resp.array([])

    async def _info(self, arguments: list[bytes]) -> Reply:
        return resp.bulk(f"# Server\r\nredis_version:{VERSION}\r\nredis_mode:standalone\r\n".encode())

    async def _get(self, arguments: list[bytes]) -> Reply:
        return self._value(await self._found(_only(arguments, 1, "get")[0]))

    async def _mget(self, arguments: list[bytes]) -> Reply:
        return resp.array([self._value(await self._found(key)) for key in _some(arguments, "mget")])

    async def _exists(self, arguments: list[bytes]) -> Reply:
        found = [await self._found(key) for key in _some(arguments, "exists")]
        return resp.integer(sum(value is not None for value in found))

    async def _strlen(self, arguments: list[bytes]) -> Reply:
        return resp.integer(len(await self._found(_only(arguments, 1, "strlen")[0]) or b""))

    async def _set(self, arguments: list[bytes]) -> Reply:
        if len(arguments) > 2:
            # To ignore an option would be wrong, and nobody would notice.
            raise ErrorReply("ERR syntax error: buildd's cache has no options of SET; it keeps values while they fit")
        key, value = _only(arguments, 2, "set")
        await self._put(key, value)
        return resp.OK

    async def _mset(self, arguments: list[bytes]) -> Reply:
        if len(arguments) % 2 or not arguments:
            raise _wrong_number("mset")
        for index in range(0, len(arguments), 2):
            await self._put(arguments[index], arguments[index + 1])
        return resp.OK

    async def _del(self, arguments: list[bytes]) -> Reply:
        keys = _some(arguments, "del")
        return resp.integer(sum([await asyncio.to_thread(self._keyspace.remove, _text(key)) for key in keys]))

    async def _found(self, key: bytes) -> bytes | None:
        found = await asyncio.to_thread(self._keyspace.get, _text(key))
        self._counters["misses" if found is None else "hits"] += 1
        return found

    async def _put(self, key: bytes, value: bytes) -> None:
        self._counters["puts"] += 1
        if len(value) < _LARGE_BYTES:
            await asyncio.to_thread(self._keyspace.put, _text(key), value)
        else:
            async with self._large:
                await asyncio.to_thread(self._keyspace.put, _text(key), value)

    def _value(self, value: bytes | None) -> Reply:
        if value is None:
            return b"_\r\n" if self._version == 3 else b"$-1\r\n"
        return resp.bulk(value)


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def _wrong_number(command: str) -> ErrorReply:
    return ErrorReply(f"ERR wrong number of arguments for '{command}' command")


def _only(arguments: list[bytes], count: int, command: str) -> list[bytes]:
    if len(arguments) != count:
        raise _wrong_number(command)
    return arguments


def _some(arguments: list[bytes], command: str) -> list[bytes]:
    if not arguments:
        raise _wrong_number(command)
    return arguments


async def _send_last(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: Reply) -> None:
    """Send the last reply, then read for a moment what the client still sends: unread bytes would reset the connection,
    and the client would not get the reply."""
    try:
        async with asyncio.timeout(_LINGER_S):
            writer.write(reply)
            writer.write_eof()
            while await reader.read(_LARGE_BYTES):
                pass
    except (OSError, TimeoutError):
        pass


# ---------------------------------------------------------------- settings


def token_file(environ: Mapping[str, str]) -> Path:
    """The file with the user's token: 64 hexadecimal digits, readable by this user only."""
    return key_folder(environ) / "redis.token"


def token(environ: Mapping[str, str]) -> str:
    """The user's token; made at the first call. Raises EndpointError, OSError."""
    file = token_file(environ)
    found = private_file(file, lambda: os.urandom(_TOKEN_BYTES).hex().encode()).decode("ascii", "replace").strip()
    if re.fullmatch(rf"[0-9a-f]{{{2 * _TOKEN_BYTES}}}", found) is None:
        # An empty one, left by a full disk, would let everybody in.
        raise EndpointError(f"{file} holds no token", code="bad-key", next_step=f"remove {file}")
    return found


def address_of(text: str) -> tuple[str, int]:
    """The host and port of `BUILDD_REDIS`. Raises RequestError for an address that other machines reach: nothing is
    encrypted."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        is_here = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        is_here = False
    if not is_here or not port.isdecimal() or int(port) > 65535:
        raise RequestError(
            "bad-variable",
            f"BUILDD_REDIS={text!r} cannot be read; accepted: a loopback address of this machine and a port, such as "
            "127.0.0.1:6390 (port 0 takes any)",
            next_step="unset BUILDD_REDIS or give it another value",
        )
    return host, int(port)
