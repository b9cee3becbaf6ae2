"""`buildd uninstall`: stops the daemon and removes everything that buildd keeps outside of projects.

Knows the names that buildd makes, and removes nothing else: BUILDD_DIR may be a folder that holds other things too.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from buildd.exits import DAEMON, OK, USAGE
from buildd.ui.problems import parser, print_problem
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
    "jax",
    "ccache",
    "bytecode",
    "lock",
    "said-where-the-store-is",
)
KEY_NAMES = ("signing.key", "trusted", "redis.token", "server.key", "clients")
"""buildd's files in a folder of keys that the user named, which may hold others."""
STORE_PATTERNS = ("index.db*",)
STORE_MARK = "index.db"


def run(arguments: list[str]) -> int:
    command = parser(
        "uninstall",
        "Stop the daemon; remove the store, the runtime folder, settings and signing keys. Projects stay as they are.",
        details="Build trees that CMake configured under `buildd run` call a launcher. It stays while there are such "
        "trees, and runs their compilers; they are listed.",
    )
    command.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    options = command.parse_args(arguments)
    found = list(remains(os.environ))
    if not found:
        print("nothing to remove")
        return OK
    if not options.yes:
        for path in found:
            holds = " (with your signing key)" if path.is_dir() and (path / "signing.key").exists() else ""
            print(f"would remove {clean(str(path))}{holds}")
        _tell_of_trees(os.environ, "would keep", "would then compile without buildd")
        if not sys.stdin.isatty():
            print_problem(
                "cannot ask for confirmation: standard input is not a terminal",
                next_step="run buildd uninstall --yes to remove all of that",
            )
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
    _tell_of_trees(os.environ, "kept", "compile without buildd now")
    print("to remove the program itself: pip uninstall buildd")
    return DAEMON if failed else OK


def remains(environ: Mapping[str, str]) -> Iterator[Path]:
    """Everything that buildd keeps: files and folders that can be removed whole."""
    from buildd.client.request import store_of
    from buildd.host import claims
    from protocol.curve import key_folder
    from protocol.errors import ProtocolError
    from protocol.places import choose_base

    store = Path(store_of(environ))
    yield from _launcher_parts(store, environ)
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


def _launcher_parts(store: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Shims outside the store; while trees call them, only the file without which they start no daemon."""
    from buildd.shims.shim_folders import PLACES, START, TREES, permanent_folder
    from buildd.trees.configured import left_trees

    permanent = permanent_folder(environ, store)
    if permanent == store:
        return
    names = (START,) if left_trees(permanent) else (START, TREES, PLACES)
    yield from (path for name in names if (path := permanent / name).exists())


def _tell_of_trees(environ: Mapping[str, str], kept: str, effect: str) -> None:
    """Name the trees that call the launchers, and how to change that.

    Args:
        kept: what happens to the launchers, in words.
        effect: what happens to the trees.
    """
    from buildd.client.request import store_of
    from buildd.shims.environment import LAUNCHERS
    from buildd.shims.shim_folders import PLACES, permanent_folder
    from buildd.trees.configured import left_trees

    permanent = permanent_folder(environ, Path(store_of(environ)))
    if not (trees := left_trees(permanent)):
        return
    print(f"{kept} {clean(str(permanent / PLACES))}: these trees call it, and {effect}")
    for tree in trees:
        print(f"  {clean(tree)}")
    print(f"to configure one without it: cmake TREE {' '.join(f'-D{name}=' for name in LAUNCHERS)}")
    print("then run buildd uninstall again, or remove that folder")


def _is_abandoned(claim: Path) -> bool:
    """Whether a memory claim's daemon is dead: a living daemon, perhaps in another container, holds a lock on it."""
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
    """The whole folder if nothing else is in it, otherwise buildd's entries."""
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
    for folder in sorted(base.iterdir()):  # A folder that the user named may hold other things.
        if folder.is_dir() and not folder.is_symlink() and (folder / "daemon.lock").exists():
            yield folder


def _stop() -> int:
    from buildd.commands.daemon_control import stop_daemon
    from protocol.errors import ProtocolError

    try:
        return stop_daemon(now=True)
    except ProtocolError as error:
        print_problem(
            f"the daemon cannot be stopped: {error.message}", next_step="end its process by hand, then try again"
        )
        return DAEMON


def _remove_empty(environ: Mapping[str, str]) -> None:
    """Remove the folders that buildd made, if they are empty now."""
    from buildd.client.request import store_of
    from buildd.host import claims
    from buildd.shims.shim_folders import permanent_folder
    from protocol.errors import ProtocolError
    from protocol.places import choose_base

    folders = [Path(claims.FOLDER), permanent_folder(environ, Path(store_of(environ)))]
    try:
        folders.append(choose_base(environ))
    except ProtocolError:
        pass
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:  # missing, not empty, or another user's
            pass


def _remove(path: Path) -> bool:
    from buildd.client.machine_checks import folder_bytes

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
