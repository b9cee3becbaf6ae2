"""Where a REAPI server is, from a tier's URL, and the connections to it.

`grpc://host:port/instance`, or `grpcs:` with TLS. The query may name PEM files: `ca` (whom to believe instead of the
public authorities), `cert` and `key` (the client's own, for servers that ask for one). Knows no message.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote

import grpc

_MOST_ANSWER_BYTES = 64 << 20
_FILES = ("ca", "cert", "key")
_PORTS = {"grpc": 80, "grpcs": 443}
_OPTIONS = (
    ("grpc.max_receive_message_length", _MOST_ANSWER_BYTES),
    # A server that comes back is found again within a second; gRPC alone waits up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # The tier's breaker decides about a second attempt.
    ("grpc.enable_retries", 0),
    # Each carrier has a connection of its own, and a new one when it asks for one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.primary_user_agent", "buildd"),
)


class GrpcPlace:
    """A server.

    Args:
        url: with the scheme grpc or grpcs.
        headers: sent with each call, such as a bearer token.

    Raises ValueError for a URL that says something else, and for files that cannot be read.
    """

    def __init__(self, url: SplitResult, headers: Sequence[tuple[str, str]] = ()) -> None:
        self.instance = unquote(url.path.strip("/"))
        self.prefix = f"{self.instance}/" if self.instance else ""
        """What begins the names of ByteStream."""
        self.headers = tuple((name.lower(), value) for name, value in headers)
        host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
        self._at = f"{host}:{url.port or _PORTS[url.scheme]}"
        asked = {name: values[-1] for name, values in parse_qs(url.query).items()}
        if unknown := [name for name in asked if name not in _FILES]:
            raise ValueError(f"{unknown[0]!r} is no option of it; there are {', '.join(_FILES)}")
        if url.scheme != "grpcs" and asked:
            raise ValueError(f"{next(iter(asked))!r} is for grpcs: only")
        if ("cert" in asked) != ("key" in asked):
            raise ValueError("cert and key belong together")
        self._credentials: Any = None
        if url.scheme == "grpcs":
            ca, key, cert = (_content(asked[name]) if name in asked else None for name in ("ca", "key", "cert"))
            self._credentials = grpc.ssl_channel_credentials(ca, key, cert)

    def channel(self) -> Any:
        """A new connection, which is opened by the first call on it."""
        if self._credentials is not None:
            return grpc.secure_channel(self._at, self._credentials, options=_OPTIONS)
        return grpc.insecure_channel(self._at, options=_OPTIONS)


def _content(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from error
