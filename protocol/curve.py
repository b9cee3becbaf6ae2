"""Keys for TCP: the daemon's CURVE pair and the list of allowed client keys, each with its scopes.

Knows no socket. Local sockets need no keys: their folder is closed to others.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path

import msgspec

from protocol.described import described
from protocol.errors import EndpointError

KEY_CHARACTERS = 40
"""A CURVE key in Z85 text."""


class Scope(Enum):
    """What a client may do. Local clients may do everything."""

    SUBMIT = "submit"
    FOLLOW = "follow"
    FETCH = "fetch"
    CONTROL = "control"


ALL_SCOPES = frozenset(Scope)


class KeyPair(msgspec.Struct, frozen=True, kw_only=True):
    """A CURVE pair, as Z85 text of 40 characters each."""

    public: str
    secret: str


class AllowedClient(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the allow-list."""

    public: str
    scopes: frozenset[Scope]
    name: str = ""


def key_folder(environ: Mapping[str, str]) -> Path:
    """The folder of keys; not the runtime folder, because keys outlast a reboot."""
    own = environ.get("BUILDD_KEY_DIR", "")
    if os.path.isabs(own):
        return Path(own)
    base = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".config")
    return Path(base) / "buildd"


def server_key_file(environ: Mapping[str, str]) -> Path:
    return key_folder(environ) / "server.key"


def allow_list_file(environ: Mapping[str, str]) -> Path:
    return key_folder(environ) / "clients"


def new_key_pair() -> KeyPair:
    import zmq  # late: users of scopes alone need no sockets

    public, secret = zmq.curve_keypair()
    return KeyPair(public=public.decode("ascii"), secret=secret.decode("ascii"))


def load_or_create(path: Path) -> KeyPair:
    """The pair in `path`, made there with mode 0600 on first use. Raises EndpointError if others can read it."""
    try:
        pair = msgspec.json.decode(
            private_file(path, lambda: msgspec.json.encode(new_key_pair())), type=described(KeyPair)
        )
    except msgspec.DecodeError as error:
        raise EndpointError(f"{path} is not a key file: {error}", code="bad-key", next_step=f"remove {path}") from error
    if len(pair.public) != KEY_CHARACTERS or len(pair.secret) != KEY_CHARACTERS:
        raise EndpointError(f"{path} holds no CURVE pair", code="bad-key", next_step=f"remove {path}")
    return pair


def private_file(path: Path, make: Callable[[], bytes]) -> bytes:
    """The content of a file of the user's own, made with mode 0600 on first use.

    Raises: EndpointError if others can read it, OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        return read_private(path, stat.S_IRWXG | stat.S_IRWXO)
    except FileNotFoundError:
        content = make()
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)  # an empty key, after a power cut, is worse than none
    try:
        # link, not rename: two processes that make it at once must end with the same content.
        os.link(scratch, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(scratch)
    return read_private(path, stat.S_IRWXG | stat.S_IRWXO)


def read_private(path: Path, forbidden_bits: int) -> bytes:
    """Read a file of the user's own. Raises EndpointError if its mode has one of these bits, OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & forbidden_bits:
            raise EndpointError(f"{path} is open to others", code="bad-key", next_step=f"chmod 600 {path}")
        return file.read(1 << 20)


def parse_allow_list(text: str) -> dict[str, AllowedClient]:
    """Clients by public key. A line is `KEY scope[,scope...] [name]`; one that starts with "# " is a comment.

    Raises EndpointError naming the line. (A key may itself start with "#", never with "# ".)
    """
    clients: dict[str, AllowedClient] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line == "#" or line.startswith("# "):
            continue
        key, _, rest = line.strip().partition(" ")
        words, _, name = rest.strip().partition(" ")
        try:
            scopes = frozenset(Scope(word) for word in words.split(",") if word)
        except ValueError as error:
            raise EndpointError(f"line {number} of the list of clients: {error}", code="bad-allow-list") from error
        if len(key) != KEY_CHARACTERS or not scopes:
            raise EndpointError(
                f"line {number} of the list of clients is not `KEY scope,scope name`", code="bad-allow-list"
            )
        clients[key] = AllowedClient(public=key, scopes=scopes, name=name.strip())
    return clients


class AllowList:
    """The file of allowed clients, read again when it changed: a removed key is refused at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int, int] | None = None
        self._clients: dict[str, AllowedClient] = {}

    def find(self, public: str) -> AllowedClient | None:
        """The client with this key; None if it is not allowed or the list cannot be trusted."""
        try:
            status = os.stat(self.path)
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            if stamp != self._stamp:
                self._clients = parse_allow_list(
                    read_private(self.path, stat.S_IWGRP | stat.S_IWOTH).decode("utf-8", "replace")
                )
                self._stamp = stamp
        except (OSError, EndpointError):
            self._clients, self._stamp = {}, None
        return self._clients.get(public)
