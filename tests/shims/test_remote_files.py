"""Files on NFS: another machine has changed one, and this one's `stat` does not know it yet, but its `open` does.

Few test machines have a network file system: the shim gets a `stat` of its own, on a file system without a disk.
`scripts/campaign/nfs` has a real one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.files.stamp import COARSE_STEP_NS
from tests.support.foreign_project import kept_up
from tests.support.paths import ROOT
from tests.support.serving import short_folder
from tests.support.user import User
from tests.support.waiting import until_settled

GCC = shutil.which("gcc") or ""
OLD_STAT = ROOT / "tests" / "data" / "old_stat.c"
SHARED_MEMORY = Path("/dev/shm")
pytestmark = [
    pytest.mark.skipif(not GCC, reason="no gcc (Debian: apt install gcc)"),
    pytest.mark.skipif(
        not SHARED_MEMORY.is_dir() or os.major(SHARED_MEMORY.stat().st_dev) != 0, reason="no file system without a disk"
    ),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as place:
        yield Path(place)


def test_a_direct_hit_asks_the_server_what_a_compiler_would_read(folder: Path, tmp_path: Path) -> None:
    header = folder / "h.h"
    header.write_text("#define A 1\n")
    (folder / "a.c").write_text('#include "h.h"\nint a = A;\n')
    scripts = tmp_path / "bin"
    scripts.mkdir()
    # A shim with these functions of its own; they find the usual ones where it is not linked statically.
    added = f'*" -static "*) exit 1;; *" -c "*) ;; *.launcher*) set -- "$@" {OLD_STAT};;'
    (scripts / "gcc").write_text(f'#!/bin/sh\ncase " $* " in {added} esac\nexec {GCC} "$@"\n')
    (scripts / "gcc").chmod(0o755)
    with short_folder() as place:
        user = User(place, {"PATH": f"{scripts}:{os.environ['PATH']}"})
        try:
            with kept_up(user):
                command = f"sh -c 'cd {folder} && {GCC} -c a.c -o a.o; exit $?'"

                def compiled(**variables: str) -> tuple[bytes, str]:
                    words = " ".join(f'{name}="{value}"' for name, value in variables.items())
                    status, said = user.buildd("run", "--", "sh", "-c", f"{words} {command}")
                    assert status == 0, said
                    return (folder / "a.o").read_bytes(), said

                until_settled(folder, COARSE_STEP_NS)
                compiled()
                first, said = compiled()
                assert "1 hit" in said
                old = header.stat()
                stamp = f"{old.st_ino} {old.st_size} {old.st_mtime_ns} {old.st_ctime_ns}"
                seen = {"OLD_NAME": "h.h", "OLD_STAMP": stamp}
                assert compiled(**seen) == (first, said), "nothing has changed: a direct hit as before"
                header.write_text("#define A 2\n")
                second, said = compiled(**seen)
                assert second != first and "1 miss" in said
        finally:
            assert user.end() == []
