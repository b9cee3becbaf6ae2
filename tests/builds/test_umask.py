"""Modes of what a daemon puts into a project: those of the client's umask, not of the daemon's."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from buildd.files.atomic_write import make_folders
from tests.support.developer import Developer
from tests.support.waiting import DEADLINE_S


def modes(developer: Developer) -> dict[str, str]:
    """Modes of everything in the folder of outputs."""
    build = developer.project / "build"
    found = {path.relative_to(build): stat.S_IMODE(path.stat().st_mode) for path in (build, *build.rglob("*"))}
    return {str(path): f"{mode:o}" for path, mode in found.items()}


def built(developer: Developer, umask: int, *arguments: str) -> dict[str, str]:
    shutil.rmtree(developer.project / "build", ignore_errors=True)
    command = [sys.executable, "-P", "-m", "buildd", "build", "-C", str(developer.project), *arguments]
    subprocess.run(command, env=developer.environ, umask=umask, check=True, capture_output=True, timeout=DEADLINE_S)
    return modes(developer)


def wanted(found: dict[str, str], umask: int) -> dict[str, str]:
    def mode(name: str) -> int:
        if (name.endswith(".so") or "." not in name or name == ".") and name != ".gitignore":
            return 0o777
        return 0o644 if name == ".gitignore" else 0o666

    return {name: f"{mode(name) & ~umask:o}" for name in found}


def test_outputs_have_the_clients_umask(developer: Developer) -> None:
    """Made, restored from the store, and taken from there one by one; the daemon has the first one's umask."""
    for umask in (0o022, 0o077, 0o002):
        developer.write("src/b.cu", f"b of {umask}\n")
        for _ in range(2):
            found = built(developer, umask)
            assert "demo/libdemo.so" in found and found == wanted(found, umask)
        found = built(developer, umask, "--recache")
        assert found == wanted(found, umask)


def test_a_build_of_its_own_does_the_same(developer: Developer) -> None:
    found = built(developer, 0o027, "--no-daemon")
    assert found == wanted(found, 0o027)


def test_another_umask_is_no_reason_to_build(developer: Developer) -> None:
    assert developer.build().compiled == 3
    (developer.project / "build" / "demo" / "libdemo.so").chmod(0o700)
    again = f"umask 077; exec {sys.executable} -P -m buildd build -C {developer.project}"
    done = subprocess.run(
        ["sh", "-c", again], env=developer.environ, check=True, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert "0 compiled" in done.stdout + done.stderr
    assert modes(developer)["demo/libdemo.so"] == "700", "what stands there is left alone"


@pytest.mark.parametrize("umask", [0o027, 0o777])
def test_folders_can_be_written_to(tmp_path: Path, umask: int) -> None:
    (tmp_path / "there").mkdir(mode=0o711)
    make_folders(str(tmp_path / "there" / "one" / "two"), umask)
    made = [stat.S_IMODE(os.stat(tmp_path / "there" / name).st_mode) for name in (".", "one", "one/two")]
    assert made == [0o711, *([0o777 & ~umask | 0o700] * 2)]
    with pytest.raises(OSError):
        make_folders("/dev/null/one", umask)


def test_a_folder_that_is_made_belongs_to_the_group_of_the_one_above(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)
    make_folders(str(tmp_path / "one"), 0o002)
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o2775
