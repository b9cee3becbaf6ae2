"""The contents of a daemon's runtime folder (`places`): socket paths, lock, endpoint file.

Knows no message and opens no zmq socket. Everything here must be right if two processes do it at once, if a pid was
reused, and if another user prepared the folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from protocol.described import described
from protocol.messages import PROTOCOL_VERSION, Namespaces
from protocol.places import INSTANCE_CHARACTERS, boot_id, namespace, runtime_place

if TYPE_CHECKING:
    import signal as signals
    from pathlib import Path

# Every command imports this module: imports that cost milliseconds (pathlib, hashlib) come late.

_ENDPOINT = "endpoint.json"
_ENDPOINT_BYTES = 64 << 10
_SOCKET_KINDS = ("work", "control", "events")
_SOCKETS = (*_SOCKET_KINDS, "cli")
"""Beginnings of the names of all sockets in the folder; the last one is `buildd.cli_client`'s."""


class Addresses(msgspec.Struct, frozen=True):
    """zmq addresses of one daemon's local sockets."""

    work: str
    control: str
    events: str


class Folder(msgspec.Struct, frozen=True):
    """The runtime folder of one user on one boot of one container."""

    place: str

    @property
    def path(self) -> Path:
        from pathlib import Path

        return Path(self.place)

    @property
    def endpoint_file(self) -> Path:
        return self.path / _ENDPOINT

    @property
    def lock_file(self) -> Path:
        return self.path / "daemon.lock"

    @property
    def log_file(self) -> Path:
        return self.path / "daemon.log"

    def addresses(self, instance: str) -> Addresses:
        """Socket addresses for the daemon `instance`.

        They differ from daemon to daemon: libzmq unlinks a socket's path when it closes, and a daemon that ends must
        not unlink the sockets of the one that came after it.
        """
        work, control, events = (
            f"ipc://{self.place}/{kind}-{instance[:INSTANCE_CHARACTERS]}" for kind in _SOCKET_KINDS
        )
        return Addresses(work=work, control=control, events=events)


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The endpoint file's description of the daemon."""

    protocol: int = PROTOCOL_VERSION
    daemon: str = ""
    """Name and version, as in "buildd/0.1"."""
    package_digest: str = ""
    """Digest of the daemon's code: a client with another one asks for a restart."""
    package_stamp: str = ""
    """Digest of the stamps of the code's files: a client that finds the same need not read them."""
    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat."""
    boot_id: str
    instance: str
    work: str
    control: str
    events: str = ""
    tcp_work: str = ""
    tcp_control: str = ""
    tcp_server_key: str = ""
    """Public CURVE key, Z85."""
    code: str = ""
    """Folder of the daemon's code. People need it where two installations have one version."""
    redis: str = ""
    """Address for Redis' protocol, as in "127.0.0.1:6390"; empty if it is off."""
    store: str = ""
    """Folder of the store for requests that name none."""
    settings: dict[str, str] = {}
    """By the name of each setting that acts on the daemon when it starts, a digest of its value and the instance."""


# ---------------------------------------------------------------- facts of this machine


def start_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat: together with boot id and pid it names a process for good.

    0 if the process is gone, or is a zombie that is not reaped yet.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return 0
    # The second field is the program's name in brackets, which may hold blanks and brackets.
    fields = text[text.rfind(b")") + 1 :].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X", b"x"):
        return 0
    return int(fields[19])


def own_code() -> str:
    """The folder of the code that this process runs: of a checkout, or site-packages."""
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def own_namespaces() -> Namespaces:
    """Inode numbers of this process's namespaces."""

    return Namespaces(mount=namespace("mnt"), pid=namespace("pid"), user=namespace("user"))


def runtime_folder(environ: Mapping[str, str]) -> Folder:
    """The runtime folder of this user here. Raises as `runtime_place`."""
    return Folder(runtime_place(environ))


# ---------------------------------------------------------------- the endpoint file


def write_endpoint(folder: Folder, endpoint: Endpoint) -> None:
    """Publish by rename, so that a reader sees the old file or the new one. The caller holds the lock."""
    scratch = folder.path / f"endpoint.{endpoint.instance}.new"
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(endpoint)) + b"\n")
    os.replace(scratch, folder.endpoint_file)


def read_endpoint(folder: Folder) -> Endpoint | None:
    """Content of the file, whether or not that daemon still lives; None if there is no readable file."""
    try:
        descriptor = os.open(f"{folder.place}/{_ENDPOINT}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            return msgspec.json.decode(file.read(_ENDPOINT_BYTES), type=described(Endpoint))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def remove_endpoint(folder: Folder, instance: str) -> None:
    """Remove the file if it is still `instance`'s. The caller holds the lock."""
    current = read_endpoint(folder)
    if current is not None and current.instance == instance:
        folder.endpoint_file.unlink(missing_ok=True)


def is_alive(endpoint: Endpoint) -> bool:
    """Whether the very process that wrote the endpoint lives: its pid may be another process's by now."""
    return (
        endpoint.pid > 0
        and endpoint.start_ticks > 0
        and endpoint.boot_id == boot_id()
        and start_ticks(endpoint.pid) == endpoint.start_ticks
    )


def open_pidfd(pid: int, ticks: int) -> int | None:
    """A descriptor that becomes readable when that very process ends; None if it is gone or the kernel has none."""
    if pid <= 0 or ticks <= 0:
        return None
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, OverflowError, AttributeError):  # a number that no process has
        return None
    # Checked after opening: the descriptor stays with the process for which it was opened.
    if start_ticks(pid) != ticks:
        os.close(descriptor)
        return None
    return descriptor


def send_signal(endpoint: Endpoint, number: signals.Signals) -> bool:
    """Signal the daemon, never another process that got its pid. False if it is gone."""
    import signal as signals

    if endpoint.boot_id != boot_id():
        return False
    descriptor = open_pidfd(endpoint.pid, endpoint.start_ticks)
    if descriptor is None:
        return False
    try:
        signals.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


# ---------------------------------------------------------------- the lock


class DaemonLock:
    """The lock of the one daemon; the kernel releases it with the process, in whatever way that ends."""

    def __init__(self, folder: Folder, lock: int, guard: int) -> None:
        self._folder = folder
        self._lock = lock
        self._guard = guard

    @classmethod
    def acquire(cls, folder: Folder) -> DaemonLock | None:
        """The lock, or None if another process has it. Never waits."""
        import fcntl

        while True:
            lock = os.open(folder.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same_file(lock, folder.lock_file):
                    break
            except BlockingIOError:
                try:
                    # A process that only asks (`is_held`) shares it, and releases it at once.
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(lock)
                    return None
                os.close(lock)
                continue
            # A cleaner of temporary files removed the file between open and flock: this lock guards nothing.
            os.close(lock)
        return cls(folder, lock, _guard(folder))

    @classmethod
    def handed_on(cls, folder: Folder, descriptor: int) -> DaemonLock | None:
        """The lock that this process had before it executed this program (`hand_on`); None if it had none."""
        import fcntl

        try:
            if not _same_file(descriptor, folder.lock_file):
                return None
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.set_inheritable(descriptor, False)
        except OSError:
            return None
        return cls(folder, descriptor, _guard(folder))

    @staticmethod
    def is_held(folder: Folder) -> bool:
        """Whether a daemon runs or is starting: it has the lock before it answers."""
        import fcntl

        try:
            probe = os.open(folder.lock_file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(probe)
        return False

    def hand_on(self) -> int:
        """Keep the lock across the following exec; returns its descriptor, for `handed_on`."""
        os.set_inheritable(self._lock, True)
        return self._lock

    def wipe(self) -> None:
        """Remove the remains of dead daemons: sockets without a listener, half-written endpoint files."""
        for entry in os.scandir(self._folder.path):
            half_written = entry.name.startswith("endpoint.") and entry.name.endswith(".new")
            if half_written or (entry.name.startswith(_SOCKETS) and not _listens(entry.path)):
                os.unlink(entry.path)

    def release(self) -> None:
        for descriptor in (self._lock, self._guard):
            os.close(descriptor)


def _guard(folder: Folder) -> int:
    """Lock the folder: otherwise systemd-tmpfiles removes sockets in /tmp after ten days."""
    import fcntl

    guard = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(guard, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        pass
    return guard


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        there = os.lstat(path)
    except OSError:
        return False
    here = os.fstat(descriptor)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _listens(path: str) -> bool:
    import socket  # late: only daemons need it, and clients pay for every import

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except BlockingIOError:
            return True  # its backlog is full, so there is a listener
        except OSError:
            return False
    return True


def new_instance() -> str:
    """A random id for a daemon process."""
    return os.urandom(8).hex()
