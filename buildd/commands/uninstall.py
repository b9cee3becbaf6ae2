"""`buildd uninstall`: stops the daemon and removes everything that buildd keeps outside of projects.

Knows the names of what we make, and removes nothing else: BUILDD_DIR may be a folder that holds other things too.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from buildd.cli import DAEMON, OK, USAGE
from buildd.commands.common import parser, print_problem
from buildd.ui.text import clean, size

STORE_NAMES = (
    "answers",
    "blobs",
    "tmp",
    "sessions",
    "profiles",
    "native",
    "toolkits",
    "triton",
    "triton-why",
    "inductor",
    "bytecode",
    "lock",
    "said-where-the-store-is",
)
KEY_NAMES = ("signing.key", "trusted", "redis.token", "server.key", "clients")
"""In a folder of keys that the user named; it may hold others."""
STORE_PATTERNS = ("index.db*",)
STORE_MARK = "index.db"


def run(arguments: list[str]) -> int:
    command = parser(
        "uninstall", "Stop the daemon; remove store, runtime folder and settings. Projects stay as they are."
    )
    command.add_argument("-y", "--yes", action="store_true", help="do not ask")
    options = command.parse_args(arguments)
    found = list(remains(os.environ))
    if not found:
        print("nothing to remove")
        return OK
    if not options.yes:
        for path in found:
            print(f"would remove {clean(str(path))}")
        if not sys.stdin.isatty():
            print_problem("nobody can be asked here", next_step="buildd uninstall --yes removes all of that")
            return USAGE
        if input("Remove all of that? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing was removed")
            return OK
    status = _stop()
    if status != OK:
        return status
    failed = 0
    for path in found:
        failed += not _remove(path)
    _remove_empty(os.environ)
    print("pip uninstall buildd removes the program itself")
    return DAEMON if failed else OK


def remains(environ: Mapping[str, str]) -> Iterator[Path]:
    """Everything of ours that exists: files and folders that can be removed whole."""
    from buildd import claims
    from buildd.commands.request import store_of
    from protocol.curve import key_folder
    from protocol.errors import ProtocolError
    from protocol.places import choose_base

    store = Path(store_of(environ))
    if (store / STORE_MARK).exists():
        yield from _store_parts(store)
    try:
        base = choose_base(environ)
    except ProtocolError:
        base = None
    if base is not None and base.is_dir() and not base.is_symlink() and base.stat().st_uid == os.geteuid():
        yield from _runtime_parts(base, whole=not environ.get("BUILDD_RUNTIME_DIR"))
    default = {name: value for name, value in environ.items() if name != "BUILDD_KEY_DIR"}
    if (config := key_folder(default)).is_dir():
        yield config
    if (keys := key_folder(environ)) != config:
        yield from (path for name in KEY_NAMES if (path := keys / name).is_file())
    yield from (path for path in sorted(Path(claims.FOLDER).glob(f"{os.geteuid()}.*")) if _is_abandoned(path))


def _is_abandoned(claim: Path) -> bool:
    """Whether a memory claim's daemon is dead: the living hold a lock on theirs, and may be in another container."""
    try:
        descriptor = os.open(claim, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _store_parts(store: Path) -> Iterator[Path]:
    """The whole folder where nothing else is in it, else our entries."""
    ours = {path for name in STORE_NAMES if (path := store / name).exists() or path.is_symlink()}
    for pattern in STORE_PATTERNS:
        ours.update(store.glob(pattern))
    if ours == set(store.iterdir()) and not store.is_symlink():
        yield store
    else:
        yield from sorted(ours)


def _runtime_parts(base: Path, *, whole: bool) -> Iterator[Path]:
    if whole:
        yield base
        return
    for folder in sorted(base.iterdir()):  # A folder that the user named may hold more than ours.
        if folder.is_dir() and not folder.is_symlink() and (folder / "daemon.lock").exists():
            yield folder


def _stop() -> int:
    from buildd.commands.daemon_control import stop_daemon
    from protocol.errors import ProtocolError

    try:
        return stop_daemon(now=True)
    except ProtocolError as error:
        print_problem(f"the daemon cannot be stopped: {error.message}", next_step="end it by its pid, then try again")
        return DAEMON


def _remove_empty(environ: Mapping[str, str]) -> None:
    """Folders that were made for what is gone now, where nothing else came into them."""
    from buildd import claims
    from protocol.errors import ProtocolError
    from protocol.places import choose_base

    folders = [Path(claims.FOLDER)]
    try:
        folders.append(choose_base(environ))
    except ProtocolError:
        pass
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:  # not there, not empty, not ours
            pass


def _remove(path: Path) -> bool:
    from buildd.commands.checks import folder_bytes

    try:
        if path.is_dir() and not path.is_symlink():
            count_bytes = folder_bytes(path)
            shutil.rmtree(path)
        else:
            count_bytes = path.lstat().st_size
            path.unlink()
    except FileNotFoundError:
        return True
    except OSError as error:
        print_problem(f"cannot remove {path}: {error.strerror}", next_step="remove it by hand")
        return False
    print(f"removed {clean(str(path))} ({size(count_bytes)})")
    return True
