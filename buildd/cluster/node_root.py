"""A program on a node: makes folders appear at the paths that they have on the daemon's machine, and becomes the tool.

    PYTHON -I -S node_root.py PLAN DESCRIPTOR

PLAN is a file of JSON. The folders appear to this process and what it starts alone: it has a mount namespace of its
own, which ends with it. What goes wrong is written to the descriptor, which the tool does not inherit. The nodes have
no buildd: this file's text travels there, and imports nothing outside the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
import sys
from typing import Any

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MOST_ENTRIES = 2000
"""A folder is shown again entry by entry, if another one is to appear in it."""


class MountView:
    """The file system as the tool will see it."""

    def __init__(self, spare: str) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._spare = spare
        self._ours: set[str] = set()
        """Folders of this process's own, in which it may make others."""
        user, group = os.getuid(), os.getgid()
        if self._libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0:
            # The tool keeps its user: who owns a file looks the same.
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{user} {user} 1")
            _write("/proc/self/gid_map", f"{group} {group} 1")
        elif self._libc.unshare(CLONE_NEWNS) != 0:
            raise OSError(ctypes.get_errno(), "the node allows no namespaces for mounts")
        self._mount(None, "/", None, MS_REC | MS_PRIVATE)

    def show(self, source: str, path: str) -> None:
        """Let a folder appear at a path."""
        if not os.path.isdir(path):
            self._make_room(path)
        elif os.path.realpath(path) != path:
            raise OSError(0, f"{path} leads through a link there")
        self._mount(source, path, None, MS_BIND | MS_REC)
        self._ours.discard(path)

    def _make_room(self, path: str) -> None:
        made = path
        above = os.path.dirname(path)
        while not os.path.lexists(above):
            above = os.path.dirname(above)
        if not os.path.isdir(above) or os.path.realpath(above) != above:
            raise OSError(0, f"{above} is no folder, or leads through a link there")
        if above not in self._ours:  # not even a folder below one of them: that may be the machine's own, shown again
            self._cover(above)
        while path != above:
            self._ours.add(path)
            path = os.path.dirname(path)
        os.makedirs(made, exist_ok=True)

    def _cover(self, folder: str) -> None:
        """Put an empty folder in the place of one, and let all that the old one holds appear in it."""
        names = os.listdir(folder)
        if len(names) > MOST_ENTRIES:
            raise OSError(0, f"{folder} has too many entries there")
        old = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        place = self._spare if folder == "/" else folder
        self._mount("none", place, b"tmpfs", 0, b"mode=0755")
        for name in names:
            entry, shown = f"/proc/self/fd/{old}/{name}", f"{place}/{name}"
            try:
                mode = os.lstat(entry).st_mode
            except OSError:  # it is gone
                continue
            if stat.S_ISLNK(mode):
                os.symlink(os.readlink(entry), shown)
                continue
            if stat.S_ISDIR(mode):
                os.mkdir(shown)
            else:
                os.close(os.open(shown, os.O_CREAT | os.O_WRONLY))
            self._mount(entry, shown, None, MS_BIND | MS_REC)
        if folder == "/":
            os.chroot(place)
        self._ours.add(folder)
        os.close(old)

    def _mount(
        self, source: str | None, path: str, kind: bytes | None, flags: int, options: bytes | None = None
    ) -> None:
        origin = None if source is None else os.fsencode(source)
        if self._libc.mount(origin, os.fsencode(path), kind, ctypes.c_ulong(flags), options) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"nothing can be mounted at {path}: {os.strerror(number)}")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def main(plan: dict[str, Any]) -> None:
    os.chdir("/")
    view = MountView(plan["spare"])
    # Opened before anything is covered: what is to appear lies in a folder that may be covered itself.
    opened = [os.open(folder, os.O_PATH | os.O_DIRECTORY) for folder, _ in plan["shown"]]
    for descriptor, (_, path) in zip(opened, plan["shown"], strict=True):
        view.show(f"/proc/self/fd/{descriptor}", path)
    for descriptor in opened:
        os.close(descriptor)
    os.chdir(plan["cwd"])
    os.execvpe(plan["argv"][0], plan["argv"], dict(plan["environment"]))


if __name__ == "__main__":
    told = int(sys.argv[2])
    os.set_inheritable(told, False)
    try:
        with open(sys.argv[1], encoding="ascii") as text:
            main(json.load(text))
    except OSError as error:
        os.write(told, (f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)).encode())
        os._exit(126)
