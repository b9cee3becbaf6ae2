"""One client of the Redis server (`redis`): what it may do, and the replies to its commands.

Implements the commands that a cache needs. Knows no socket: it takes commands that `resp` has read, and returns
replies.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from buildd.daemon import resp
from buildd.daemon.redis_keyspace import Keyspace
from buildd.daemon.resp import ErrorReply, Reply

VERSION = "7.4.0"
"""The version of Redis that clients see."""
_LARGE_BYTES = 1 << 20


class Client:
    """One connection: its state, and the replies to its commands."""

    def __init__(self, keyspace: Keyspace, token: bytes, counters: Counter[str], large: asyncio.Semaphore) -> None:
        self.known = False
        """Whether it has sent the token."""
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
