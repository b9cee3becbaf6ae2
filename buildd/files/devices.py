"""The kinds of file systems behind device numbers (`st_dev`), as the kernel's table of mounts tells them.

Knows no file and no clock but the one by which it looks at the table again.
"""

from __future__ import annotations

import os
import threading
import time

_BY_TICK = frozenset(("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "tmpfs", "xfs", "zfs"))
"""Not overlay: its upper folder may lie on a file system of the host's."""
_BY_OPENING = frozenset(("nfs", "nfs4", "cifs", "smb3", "smbfs"))
_LOOK_AGAIN_S = 5.0
"""A device number may come to another file system once its own is unmounted."""
_MAJOR = 0xFFF00
"""Bits of a device number that are 0 where no disk is behind the file system. Source: makedev(3) of glibc."""


class _Kinds:
    """The table, read again every few seconds, and for a device that it has not had."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looked_s = -_LOOK_AGAIN_S
        self._kinds: dict[int, str] = {}

    def of(self, device: int) -> str:
        kind, now_s = self._kinds.get(device), time.monotonic()
        is_old = now_s - self._looked_s >= _LOOK_AGAIN_S
        if kind is None or is_old:
            with self._lock:
                # The parts of a btrfs have devices that the table lacks: looked for once, not at each call.
                lacking = {} if is_old else {other: "" for other, known in self._kinds.items() if not known}
                found = {**lacking, device: "", **_mounted()}
                self._kinds, self._looked_s, kind = found, now_s, found[device]
        return kind


_kinds = _Kinds()


def are_stamped_by_tick(device: int) -> bool:
    """Whether the kernel stamps a device's files by its own tick."""
    return _kinds.of(device) in _BY_TICK


def are_seen_by_opening(device: int) -> bool:
    """Whether `stat` may tell a device's files as they were some seconds ago, and `open` asks the server: a compiler
    then reads what another machine has just written. Source: nfs(5), "Close-to-open cache consistency"."""
    return not device & _MAJOR and _kinds.of(device) in _BY_OPENING


def _mounted() -> dict[int, str]:
    """Kinds by device (proc(5), /proc/PID/mountinfo)."""
    found: dict[int, str] = {}
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as stream:
            lines = stream.readlines()
    except OSError:
        return found
    for line in lines:
        head, _, tail = line.partition(" - ")
        major, _, minor = head.split()[2].partition(":")
        found[os.makedev(int(major), int(minor))] = tail.partition(" ")[0]
    return found
