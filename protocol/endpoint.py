"""Where a user's daemon lives: runtime folder, socket paths, lock, endpoint file.

Knows no message and opens no zmq socket. Everything here must be right for two processes that do it at once, for a
pid that was given to somebody else, and for a folder that somebody else prepared.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from protocol.described import described
from protocol.errors import EndpointError
from protocol.messages import PROTOCOL_VERSION, Namespaces

if TYPE_CHECKING:
    import signal as signals
    from pathlib import Path

# Every command imports this module: what costs milliseconds (pathlib, hashlib) is imported where it is used.

SOCKET_PATH_BYTES = 107
"""sockaddr_un.sun_path holds 108 bytes with the final zero."""

_PLACE_CHARACTERS = 12
_INSTANCE_CHARACTERS = 8
_LONGEST_SOCKET = "control-" + "0" * _INSTANCE_CHARACTERS
_ENDPOINT = "endpoint.json"
_ENDPOINT_BYTES = 64 << 10
_SOCKET_KINDS = ("work", "control", "events")


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
            f"ipc://{self.place}/{kind}-{instance[:_INSTANCE_CHARACTERS]}" for kind in _SOCKET_KINDS
        )
        return Addresses(work=work, control=control, events=events)


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the endpoint file says about the daemon that lives here."""

    protocol: int = PROTOCOL_VERSION
    daemon: str = ""
    """Name and version, "buildd/0.1"."""
    package_digest: str = ""
    """Digest of the daemon's own code: a client of another one asks for a restart."""
    package_stamp: str = ""
    """Of the files that it was read from: a client that finds the same need not read them."""
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
    store: str = ""
    """Folder of the store of requests that name none."""


# ---------------------------------------------------------------- facts of this machine


def boot_id() -> str:
    """The kernel's id of this boot; empty where it has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().decode().strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat: together with boot id and pid it names a process for good.

    0 where the process is gone, also while it is a zombie that nobody has reaped.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return 0
    # The second field is the program's name in brackets and may itself hold blanks and brackets.
    fields = text[text.rfind(b")") + 1 :].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X", b"x"):
        return 0
    return int(fields[19])


def own_namespaces() -> Namespaces:
    """Inode numbers of this process's namespaces."""

    def inode(name: str) -> int:
        try:
            return os.stat(f"/proc/self/ns/{name}").st_ino
        except OSError:
            return 0

    return Namespaces(mount=inode("mnt"), pid=inode("pid"), user=inode("user"))


def place_name() -> str:
    """Name of the sub-folder for this boot, mount and pid namespace: containers that share a home or /tmp get their
    own daemon, because another one's pids and paths mean nothing to them."""
    spaces = own_namespaces()
    text = f"{boot_id()}|{spaces.mount}|{spaces.pid}"
    return sha256(text.encode())[:_PLACE_CHARACTERS]


def sha256(data: bytes) -> str:
    """SHA-256, in hexadecimal characters."""
    # `hashlib` loads OpenSSL, which costs 3 ms; the interpreter's own SHA-256 is under its name since 3.12, and under
    # an older one before (as `random` of the standard library takes its SHA-512).
    try:
        from _sha2 import sha256  # type: ignore[import-not-found]
    except ImportError:
        try:
            from _sha256 import sha256  # type: ignore[import-not-found]
        except ImportError:
            from hashlib import sha256
    digest: str = sha256(data).hexdigest()
    return digest


# ---------------------------------------------------------------- the folder


def choose_base(
    environ: Mapping[str, str],
    *,
    login_root: str = "/run/user",
    linger_root: str = "/var/lib/systemd/linger",
    temporary: str = "/tmp",
) -> Path:
    """The folder that holds runtime folders, by the first rule that fits; see SPEC.md. Touches nothing.

    Raises EndpointError where $BUILDD_RUNTIME_DIR is relative or too long.
    """
    from pathlib import Path

    return Path(_choose_base(environ, login_root, linger_root, temporary))


def _choose_base(
    environ: Mapping[str, str],
    login_root: str = "/run/user",
    linger_root: str = "/var/lib/systemd/linger",
    temporary: str = "/tmp",
) -> str:
    explicit = environ.get("BUILDD_RUNTIME_DIR", "")
    if explicit:
        if not os.path.isabs(explicit):
            raise EndpointError(
                f"BUILDD_RUNTIME_DIR={explicit} is not an absolute path", next_step="set it to an absolute path"
            )
        if not _fits(explicit):
            raise EndpointError(
                f"BUILDD_RUNTIME_DIR={explicit} is too long: a socket's path may have {SOCKET_PATH_BYTES} bytes, "
                f"which leaves {SOCKET_PATH_BYTES - _overhead()} for this folder",
                code="runtime-path-too-long",
                next_step="set BUILDD_RUNTIME_DIR to a shorter path, or unset it",
            )
        return explicit
    session = environ.get("XDG_RUNTIME_DIR", "")
    if session and _usable_session(session, login_root, linger_root):
        return f"{session}/buildd"
    # Not $TMPDIR first: it differs between the processes of one user (Slurm, pip), and they must find one daemon.
    if not os.access(temporary, os.W_OK | os.X_OK):
        import tempfile

        temporary = tempfile.gettempdir()
    return f"{temporary}/buildd-{os.geteuid()}"


def _overhead() -> int:
    return len(f"/{'0' * _PLACE_CHARACTERS}/{_LONGEST_SOCKET}")


def _fits(base: str) -> bool:
    return len(os.fsencode(base)) + _overhead() <= SOCKET_PATH_BYTES


def _usable_session(session: str, login_root: str, linger_root: str) -> bool:
    if not os.path.isabs(session) or not _fits(os.path.join(session, "buildd")):
        return False
    try:
        status = os.lstat(session)
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        return False
    if os.path.dirname(os.path.normpath(session)) != login_root:
        return True
    # systemd removes /run/user/UID at the last logout unless the user lingers, and the daemon outlives a login.
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return os.path.exists(os.path.join(linger_root, user))


def runtime_folder(environ: Mapping[str, str]) -> Folder:
    """The runtime folder of this user here, made with mode 0700 where it is missing.

    Raises EndpointError where it is a link, another user's, open to others or cannot be made.
    """
    # As Path writes it: without doubled, final and meaningless parts.
    base = "/" + "/".join(part for part in _choose_base(environ).split("/") if part not in ("", "."))
    path = f"{base.rstrip('/')}/{place_name()}"
    above = os.path.dirname(base)
    try:
        os.makedirs(above, exist_ok=True)
    except OSError as error:
        raise EndpointError(f"cannot make {above}: {error.strerror}", next_step=_MOVE) from error
    for folder in (base, path):
        _private_folder(folder)
    return Folder(path)


_MOVE = "set BUILDD_RUNTIME_DIR to a folder of your own with mode 0700"


def _private_folder(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise EndpointError(f"cannot make {path}: {error.strerror}", next_step=_MOVE) from error
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise EndpointError(
            f"{path} cannot be the runtime folder: {'it is a link or no folder' if _is_odd(path) else error.strerror}",
            next_step=f"remove {path}, or {_MOVE}",
        ) from error
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if status.st_uid != os.geteuid():
        raise EndpointError(f"{path} belongs to user {status.st_uid}", code="runtime-folder-foreign", next_step=_MOVE)
    if status.st_mode & 0o077:
        raise EndpointError(
            f"{path} is open to others (mode {stat.S_IMODE(status.st_mode):04o})",
            code="runtime-folder-open",
            next_step=f"chmod 700 {path}, after a look at who put what there",
        )


def _is_odd(path: str) -> bool:
    try:
        return not stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


# ---------------------------------------------------------------- the endpoint file


def write_endpoint(folder: Folder, endpoint: Endpoint) -> None:
    """Publish by rename, so that a reader sees the old file or the new one. The caller holds the lock."""
    scratch = folder.path / f"endpoint.{endpoint.instance}.new"
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(endpoint)) + b"\n")
    os.replace(scratch, folder.endpoint_file)


def read_endpoint(folder: Folder) -> Endpoint | None:
    """What the file says, whether or not that daemon still lives; None where there is no readable file."""
    try:
        descriptor = os.open(f"{folder.place}/{_ENDPOINT}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            return msgspec.json.decode(file.read(_ENDPOINT_BYTES), type=described(Endpoint))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def remove_endpoint(folder: Folder, instance: str) -> None:
    """Take the file away if it is still `instance`'s. The caller holds the lock."""
    current = read_endpoint(folder)
    if current is not None and current.instance == instance:
        folder.endpoint_file.unlink(missing_ok=True)


def is_alive(endpoint: Endpoint) -> bool:
    """Whether the very process that wrote the endpoint lives: a pid alone may be somebody else's by now."""
    return (
        endpoint.pid > 0
        and endpoint.start_ticks > 0
        and endpoint.boot_id == boot_id()
        and start_ticks(endpoint.pid) == endpoint.start_ticks
    )


def open_pidfd(pid: int, ticks: int) -> int | None:
    """A descriptor that gets readable when that very process ends; None where it is gone or the kernel has none."""
    if pid <= 0 or ticks <= 0:
        return None
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None
    # Looked at after opening: the descriptor holds on to the process that it was opened for.
    if start_ticks(pid) != ticks:
        os.close(descriptor)
        return None
    return descriptor


def send_signal(endpoint: Endpoint, number: signals.Signals) -> bool:
    """Signal the daemon, never another process that got its pid. False where it is gone."""
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
    """The kernel-released lock of the one daemon: gone with its process, however that ends."""

    def __init__(self, folder: Folder, lock: int, guard: int) -> None:
        self._folder = folder
        self._lock = lock
        self._guard = guard

    @classmethod
    def acquire(cls, folder: Folder) -> DaemonLock | None:
        """The lock, or None where another process has it. Never waits."""
        import fcntl

        while True:
            lock = os.open(folder.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same_file(lock, folder.lock_file):
                    break
            except BlockingIOError:
                os.close(lock)
                return None
            # A cleaner of temporary files took the file away between open and flock: that lock guards nothing.
            os.close(lock)
        # systemd-tmpfiles leaves a locked folder alone; without this it removes sockets in /tmp after ten days.
        guard = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(guard, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            pass
        return cls(folder, lock, guard)

    def wipe(self) -> None:
        """Remove what dead daemons left: sockets that nobody listens on, half-written endpoint files."""
        for entry in os.scandir(self._folder.path):
            half_written = entry.name.startswith("endpoint.") and entry.name.endswith(".new")
            if half_written or (entry.name.startswith(_SOCKET_KINDS) and not _listens(entry.path)):
                os.unlink(entry.path)

    def release(self) -> None:
        for descriptor in (self._lock, self._guard):
            os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        there = os.lstat(path)
    except OSError:
        return False
    here = os.fstat(descriptor)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _listens(path: str) -> bool:
    import socket  # here: only daemons ask, and clients pay for every import

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except BlockingIOError:
            return True  # its backlog is full: somebody listens
        except OSError:
            return False
    return True


def new_instance() -> str:
    """A random id for a daemon process."""
    return os.urandom(8).hex()
