"""The runtime folder of a user's daemon, and its name.

Knows no message, no socket and nothing of the folder's contents, and imports nothing slow: `buildd.cli_client` needs it
before anything else. Everything here must be right if two processes do it at once, and if another user prepared the
folder.
"""

from __future__ import annotations

import os
import pwd
import stat

TYPE_CHECKING = False  # `typing` costs milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from protocol.errors import EndpointError

SOCKET_PATH_BYTES = 107
"""sockaddr_un.sun_path holds 108 bytes with the final zero."""

_PLACE_CHARACTERS = 12
INSTANCE_CHARACTERS = 8
"""Characters of a daemon's id in the names of its sockets."""
_LONGEST_SOCKET = "control-" + "0" * INSTANCE_CHARACTERS


def boot_id() -> str:
    """The kernel's id of this boot; empty if it has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().decode().strip()
    except OSError:
        return ""


def namespace(name: str) -> int:
    """Inode number of one of this process's namespaces ("mnt", "pid"); 0 if the kernel has none."""
    try:
        return os.stat(f"/proc/self/ns/{name}").st_ino
    except OSError:
        return 0


def place_name() -> str:
    """Name of the sub-folder for this boot, mount and pid namespace: containers that share a home or /tmp get their
    own daemon, because another one's pids and paths mean nothing to them."""
    text = f"{boot_id()}|{namespace('mnt')}|{namespace('pid')}"
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


def choose_base(
    environ: Mapping[str, str],
    *,
    login_root: str = "/run/user",
    linger_root: str = "/var/lib/systemd/linger",
    temporary: str = "/tmp",
) -> Path:
    """The folder that holds runtime folders, by the first rule that fits; see SPEC.md. Touches nothing.

    Raises EndpointError if $BUILDD_RUNTIME_DIR is relative or too long.
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
            raise _error(
                f"BUILDD_RUNTIME_DIR={explicit} is not an absolute path", next_step="set it to an absolute path"
            )
        if not _fits(explicit):
            raise _error(
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


def runtime_place(environ: Mapping[str, str]) -> str:
    """The runtime folder of this user here, made with mode 0700 if it is missing.

    Raises EndpointError if it is a link, another user's, open to others or cannot be made.
    """
    # As Path writes it: without doubled, trailing and "." parts.
    base = "/" + "/".join(part for part in _choose_base(environ).split("/") if part not in ("", "."))
    path = f"{base.rstrip('/')}/{place_name()}"
    above = os.path.dirname(base)
    try:
        os.makedirs(above, exist_ok=True)
    except OSError as error:
        raise _error(f"cannot make {above}: {error.strerror}", next_step=_MOVE) from error
    for folder in (base, path):
        _private_folder(folder)
    return path


_MOVE = "set BUILDD_RUNTIME_DIR to a folder of your own with mode 0700"


def _private_folder(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise _error(f"cannot make {path}: {error.strerror}", next_step=_MOVE) from error
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _error(
            f"{path} cannot be the runtime folder: {'a link or not a folder' if _is_odd(path) else error.strerror}",
            next_step=f"remove {path}, or {_MOVE}",
        ) from error
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if status.st_uid != os.geteuid():
        raise _error(f"{path} belongs to user {status.st_uid}", code="runtime-folder-foreign", next_step=_MOVE)
    if status.st_mode & 0o077:
        raise _error(
            f"{path} is open to others (mode {stat.S_IMODE(status.st_mode):04o})",
            code="runtime-folder-open",
            next_step=f"chmod 700 {path}, after checking who put what there",
        )


def _is_odd(path: str) -> bool:
    try:
        return not stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _error(message: str, *, code: str = "", next_step: str = "") -> EndpointError:
    from protocol.errors import EndpointError

    return EndpointError(message, code=code, next_step=next_step)
