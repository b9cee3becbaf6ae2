"""A cache that speaks Redis' protocol (RESP 2 and 3), for programs that know no other one: stock torch's remote caches.

The user turns it on (`BUILDD_REDIS`). It listens on this machine alone, and answers nobody who does not send the user's
token. Runs on the daemon's event loop; files are read and written in threads. Values are entries beside the store, as
below `buildd run`, and under the same keys: what one way has put there the other one finds. Of Redis it knows what a
cache needs. A value that cannot be read is not there, and one that cannot be kept is lost: no program fails by us.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path

from buildd import kept_kernels
from buildd.hooks.entries import MOST_BYTES, Entry, Shelf
from buildd.hooks.inductor_cache import FOLDER, GROUP
from codegen.plan import RequestError
from protocol.curve import key_folder, private_file

VERSION = "7.4.0"
"""Of Redis: what clients are told who ask for it."""
MOST_CLIENTS = 512
_STRANGERS_BYTES, _STRANGERS_PARTS = 1 << 10, 8
"""What somebody may send who has not said the token."""
_STRANGERS_S = 10.0
_LINGER_S = 1.0
_MOST_PARTS = 1 << 12
_LARGE_BYTES = 1 << 20
_LARGE_AT_ONCE = 2
_TRIM_BYTES = 64 << 20
"""After so much was put, it is seen to that all fits into its bound."""
_log = logging.getLogger(__name__)

Reply = bytes


class Refused(Exception):
    """An error reply; with `ends` nothing more is read from this client."""

    def __init__(self, message: str, *, ends: bool = False) -> None:
        super().__init__(message)
        self.ends = ends


class Values:
    """Keys and their values in one store. Every method reads or writes files.

    Args:
        store: its folder.
        limit_bytes: what all kernels and graphs beside it may take.
    """

    def __init__(self, store: Path, limit_bytes: int, environ: Mapping[str, str] = os.environ) -> None:
        self._store = store
        self._limit_bytes = limit_bytes
        # What is in the place of Triton's own tools is for a program to say, and those below `buildd run` do.
        kept = {name: value for name, value in environ.items() if not name.startswith("TRITON_")}
        self._shelf = Shelf(os.fspath(store), FOLDER, kept)
        self._untrimmed = 0

    def get(self, key: str) -> bytes | None:
        try:
            found = self._shelf.take(key, GROUP)
        except (OSError, ValueError) as error:
            _log.info("redis: %s is not there: %s", key, error)
            return None
        return None if found is None else found.files[GROUP]

    def put(self, key: str, value: bytes) -> None:
        try:
            if not self._shelf.open():
                raise PermissionError(f"{self._shelf.folder} cannot be written")
            self._shelf.put(Entry(key, GROUP, {GROUP: value}))
        except (OSError, ValueError) as error:
            _log.warning("redis: %s is not kept: %s", key, error)
            return
        self._untrimmed += len(value)
        if self._untrimmed > _TRIM_BYTES:
            self._untrimmed = 0
            kept_kernels.trim(self._store, self._limit_bytes)

    def remove(self, key: str) -> bool:
        try:
            os.unlink(os.path.join(self._shelf.folder, self._shelf.name_of(key, GROUP)))
        except OSError:
            return False
        return True


class RedisServer:
    """The listening socket and its clients.

    Args:
        values: what is served.
        token: what clients have to send as the password.
        touched: called at each command.
    """

    def __init__(self, values: Values, token: str, touched: Callable[[], None] = lambda: None) -> None:
        self.address = ""
        self.counters: Counter[str] = Counter()
        self.clients: set[asyncio.StreamWriter] = set()
        self._values = values
        self._token = token.encode()
        self._touched = touched
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Raises OSError where the address cannot be had."""
        self._server = await asyncio.start_server(self._serve, host, port)
        name, bound = self._server.sockets[0].getsockname()[:2]
        self.address = f"[{name}]:{bound}" if ":" in name else f"{name}:{bound}"

    def close(self) -> None:
        """From now on nobody is answered; the address is free."""
        self.address = ""
        if self._server is not None:
            self._server.close()
            for writer in list(self.clients):
                writer.close()

    def figures(self) -> dict[str, int]:
        """Counts, named as the daemon's others. From any thread."""
        return {f"redis_{name}": count for name, count in list(self.counters.items())}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self.clients) >= MOST_CLIENTS:
            writer.write(_error("ERR max number of clients reached"))
            writer.close()
            return
        self.clients.add(writer)
        client = Client(self._values, self._token, self.counters, self._large)
        try:
            while not client.ended:
                async with asyncio.timeout(None if client.known else _STRANGERS_S):
                    parts = await read_command(reader, client.known)
                if client.known:  # nobody else keeps a daemon alive
                    self._touched()
                for reply in await client.answer(parts):
                    writer.write(reply)
                await writer.drain()
        except Refused as error:
            await _left(reader, writer, _error(str(error)))
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError):
            pass  # They have gone, or said nothing, or we end.
        finally:
            self.clients.discard(writer)
            writer.close()


class Client:
    """One connection: what it has said of itself, and the answers to its commands."""

    def __init__(self, values: Values, token: bytes, counters: Counter[str], large: asyncio.Semaphore) -> None:
        self.known = False
        """It has sent the token."""
        self.ended = False
        self._version = 2
        self._name = b""
        self._values = values
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
        """The reply to a command, in parts. Raises Refused where it is the last one."""
        name, arguments = parts[0].upper().decode("ascii", "replace"), parts[1:]
        self._counters["commands"] += 1
        try:
            if not self.known and name not in ("AUTH", "HELLO", "QUIT", "RESET"):
                raise Refused("NOAUTH Authentication required.")
            found = self._answers.get(name)
            if found is None:
                raise Refused(f"ERR unknown command '{name[:64]}': this is buildd's cache, which speaks a part of RESP")
            return [await found(arguments)]
        except Refused as error:
            if error.ends:
                raise
            return [_error(str(error))]

    # ---------------------------------------------------------------- who they are

    async def _auth(self, arguments: list[bytes]) -> Reply:
        self._check(arguments[0] if len(arguments) == 2 else b"default", arguments[-1] if arguments else b"")
        return _OK

    def _check(self, user: bytes, password: bytes) -> None:
        # redis-cli sends the empty name of redis://:TOKEN@HOST.
        if user not in (b"default", b"") or not hmac.compare_digest(password, self._token):
            self._counters["refused"] += 1
            # Ends the connection: who guesses connects anew each time.
            raise Refused("WRONGPASS invalid username-password pair or user is disabled.", ends=True)
        self.known = True

    async def _hello(self, arguments: list[bytes]) -> Reply:
        version, rest = self._version, arguments
        if rest:
            if rest[0] not in (b"2", b"3"):
                raise Refused("NOPROTO unsupported protocol version")
            version, rest = int(rest[0]), rest[1:]
        while rest:
            word = rest[0].upper()
            if word == b"AUTH" and len(rest) >= 3:
                self._check(rest[1], rest[2])
                rest = rest[3:]
            elif word == b"SETNAME" and len(rest) >= 2:
                self._name, rest = rest[1], rest[2:]
            else:
                raise Refused("ERR Syntax error in HELLO")
        if not self.known:
            raise Refused(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH "
                "<user> <pass> option can be used to authenticate the client and select the RESP protocol version at "
                "the same time"
            )
        self._version = version
        facts: dict[bytes, Reply] = {
            b"server": _bulk(b"redis"),
            b"version": _bulk(VERSION.encode()),
            b"proto": _integer(version),
            b"id": _integer(1),
            b"mode": _bulk(b"standalone"),
            b"role": _bulk(b"master"),
            b"modules": _array([]),
        }
        head = b"%%%d\r\n" % len(facts) if version == 3 else b"*%d\r\n" % (2 * len(facts))
        return head + b"".join(_bulk(name) + value for name, value in facts.items())

    async def _client(self, arguments: list[bytes]) -> Reply:
        what = arguments[0].upper() if arguments else b""
        if what == b"GETNAME":
            return _bulk(self._name)
        if what == b"ID":
            return _integer(1)
        if what == b"SETNAME":
            self._name = arguments[-1]
        elif what not in (b"SETINFO", b"NO-EVICT", b"NO-TOUCH"):
            raise Refused("ERR unknown subcommand of CLIENT")
        return _OK

    async def _select(self, arguments: list[bytes]) -> Reply:
        if arguments != [b"0"]:
            raise Refused("ERR DB index is out of range")
        return _OK

    async def _reset(self, arguments: list[bytes]) -> Reply:
        self.known, self._version = False, 2
        return b"+RESET\r\n"

    async def _quit(self, arguments: list[bytes]) -> Reply:
        self.ended = True
        return _OK

    # ---------------------------------------------------------------- what they ask

    async def _ping(self, arguments: list[bytes]) -> Reply:
        return _bulk(arguments[0]) if arguments else b"+PONG\r\n"

    async def _echo(self, arguments: list[bytes]) -> Reply:
        return _bulk(_only(arguments, 1, "echo")[0])

    async def _command(self, arguments: list[bytes]) -> Reply:
        return _array([])

    async def _info(self, arguments: list[bytes]) -> Reply:
        return _bulk(f"# Server\r\nredis_version:{VERSION}\r\nredis_mode:standalone\r\n".encode())

    async def _get(self, arguments: list[bytes]) -> Reply:
        return self._value(await self._found(_only(arguments, 1, "get")[0]))

    async def _mget(self, arguments: list[bytes]) -> Reply:
        return _array([self._value(await self._found(key)) for key in _some(arguments, "mget")])

    async def _exists(self, arguments: list[bytes]) -> Reply:
        found = [await self._found(key) for key in _some(arguments, "exists")]
        return _integer(sum(value is not None for value in found))

    async def _strlen(self, arguments: list[bytes]) -> Reply:
        return _integer(len(await self._found(_only(arguments, 1, "strlen")[0]) or b""))

    async def _set(self, arguments: list[bytes]) -> Reply:
        if len(arguments) > 2:
            # To forget one of them would be wrong silently.
            raise Refused("ERR syntax error: buildd's cache knows no options of SET; it keeps values while they fit")
        key, value = _only(arguments, 2, "set")
        await self._put(key, value)
        return _OK

    async def _mset(self, arguments: list[bytes]) -> Reply:
        if len(arguments) % 2 or not arguments:
            raise _wrong_number("mset")
        for index in range(0, len(arguments), 2):
            await self._put(arguments[index], arguments[index + 1])
        return _OK

    async def _del(self, arguments: list[bytes]) -> Reply:
        keys = _some(arguments, "del")
        return _integer(sum([await asyncio.to_thread(self._values.remove, _text(key)) for key in keys]))

    async def _found(self, key: bytes) -> bytes | None:
        found = await asyncio.to_thread(self._values.get, _text(key))
        self._counters["misses" if found is None else "hits"] += 1
        return found

    async def _put(self, key: bytes, value: bytes) -> None:
        self._counters["puts"] += 1
        if len(value) < _LARGE_BYTES:
            await asyncio.to_thread(self._values.put, _text(key), value)
        else:
            async with self._large:
                await asyncio.to_thread(self._values.put, _text(key), value)

    def _value(self, value: bytes | None) -> Reply:
        if value is None:
            return b"_\r\n" if self._version == 3 else b"$-1\r\n"
        return _bulk(value)


# ---------------------------------------------------------------- the protocol

_OK = b"+OK\r\n"


def _bulk(value: bytes) -> Reply:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def _integer(value: int) -> Reply:
    return b":%d\r\n" % value


def _array(replies: Sequence[Reply]) -> Reply:
    return b"*%d\r\n" % len(replies) + b"".join(replies)


def _error(message: str) -> Reply:
    return b"-%b\r\n" % " ".join(message.split()).encode("utf-8", "replace")


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def _wrong_number(command: str) -> Refused:
    return Refused(f"ERR wrong number of arguments for '{command}' command")


def _only(arguments: list[bytes], count: int, command: str) -> list[bytes]:
    if len(arguments) != count:
        raise _wrong_number(command)
    return arguments


def _some(arguments: list[bytes], command: str) -> list[bytes]:
    if not arguments:
        raise _wrong_number(command)
    return arguments


async def _left(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: Reply) -> None:
    """Say the last word and read what they still send, for a moment: were it unread, they would not hear the word."""
    try:
        async with asyncio.timeout(_LINGER_S):
            writer.write(reply)
            writer.write_eof()
            while await reader.read(_LARGE_BYTES):
                pass
    except (OSError, TimeoutError):
        pass


async def read_command(reader: asyncio.StreamReader, known: bool) -> list[bytes]:
    """A command and its arguments: an array of bulk strings.

    Args:
        known: whether the client may send much.

    Raises: Refused where it is none or too large, EOFError at the end, OSError.
    """
    most_parts, most_bytes = (_MOST_PARTS, MOST_BYTES) if known else (_STRANGERS_PARTS, _STRANGERS_BYTES)
    count = 0
    while count <= 0:  # Redis passes over what is empty
        count = await _length(reader, b"*", most_parts)
    parts, left = [], most_bytes
    for _ in range(count):
        length = await _length(reader, b"$", left)
        if length < 0:
            raise Refused("ERR Protocol error: invalid bulk length", ends=True)
        part = await reader.readexactly(length + 2)
        if not part.endswith(b"\r\n"):
            raise Refused("ERR Protocol error: a bulk string is longer than it says", ends=True)
        parts.append(part[:-2])
        left -= length
    return parts


async def _length(reader: asyncio.StreamReader, kind: bytes, most: int) -> int:
    try:
        line = await reader.readuntil(b"\r\n")
    except asyncio.LimitOverrunError as error:
        raise Refused("ERR Protocol error: too big a line", ends=True) from error
    digits = line[1:-2]
    if line[:1] != kind or not digits.removeprefix(b"-").isdigit() or len(digits) > 10:
        raise Refused(f"ERR Protocol error: expected '{kind.decode()}'", ends=True)
    if int(digits) > most:
        raise Refused(f"ERR Protocol error: {int(digits)} is more than {most}", ends=True)
    return int(digits)


# ---------------------------------------------------------------- how it is turned on


def token_file(environ: Mapping[str, str]) -> Path:
    """Where the user's token is: 64 hexadecimal digits, readable by them alone."""
    return key_folder(environ) / "redis.token"


def token(environ: Mapping[str, str]) -> str:
    """The user's token, made when it is first wanted. Raises EndpointError, OSError."""
    return private_file(token_file(environ), lambda: os.urandom(32).hex().encode()).decode("ascii", "replace").strip()


def address_of(text: str) -> tuple[str, int]:
    """Host and port of `BUILDD_REDIS`. Raises RequestError where others could hear: nothing is encrypted."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        is_here = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        is_here = False
    if not is_here or not port.isdecimal() or int(port) > 65535:
        raise RequestError(
            "bad-variable",
            f"BUILDD_REDIS={text!r} cannot be read; accepted: an address of this machine alone and a port, such as "
            "127.0.0.1:6390 (port 0 takes any)",
            next_step="unset BUILDD_REDIS or give it another value",
        )
    return host, int(port)
