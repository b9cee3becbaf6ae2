"""The store as a Redis server (protocol: `resp`), for programs with no other remote cache, such as stock torch.

The user turns it on (`BUILDD_REDIS`). It listens on this machine only, and serves only clients that send the user's
token. It runs on the daemon's event loop; threads read and write the values (`redis_keyspace`). No program fails
because of this server.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path

from buildd.daemon import resp
from buildd.daemon.redis_client import Client
from buildd.daemon.redis_keyspace import Keyspace
from buildd.daemon.resp import ErrorReply, Reply
from codegen.errors import RequestError
from protocol.curve import key_folder, private_file
from protocol.errors import EndpointError

MOST_CLIENTS = 512
_STRANGERS_S = 10.0
_TOKEN_BYTES = 32
_LINGER_S = 1.0
_READ_BYTES = 1 << 20
_LARGE_AT_ONCE = 2
"""So many large values are written at once."""


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


async def _send_last(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: Reply) -> None:
    """Send the last reply, then read for a moment what the client still sends: unread bytes would reset the connection,
    and the client would not get the reply."""
    try:
        async with asyncio.timeout(_LINGER_S):
            writer.write(reply)
            writer.write_eof()
            while await reader.read(_READ_BYTES):
                pass
    except (OSError, TimeoutError):
        pass


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
