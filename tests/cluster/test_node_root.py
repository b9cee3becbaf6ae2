"""Folders that appear to one process at paths which the machine does not have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from buildd.cluster import node_root
from tests.support.travelling_builds import needs_namespaces

NOWHERE = "/buildd-test-nowhere"


@pytest.fixture(autouse=True)
def namespaces() -> None:
    needs_namespaces()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The folder that is shown."""
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub/file").write_text("content\n")
    return folder


def run(
    folder: Path, shown: dict[str, Path], *argv: str, cwd: str = "/"
) -> tuple[subprocess.CompletedProcess[str], str]:
    """A command that sees folders elsewhere, and what was told of a fault before it began."""
    (folder / "spare").mkdir()
    plan = {
        "spare": str(folder / "spare"),
        "shown": [(str(place), path) for path, place in shown.items()],
        "cwd": cwd,
        "argv": argv,
        "environment": [("PATH", "/usr/bin:/bin"), ("WORD", "a")],
    }
    (folder / "plan").write_text(json.dumps(plan))
    hear, tell = os.pipe()
    done = subprocess.run(
        [sys.executable, "-I", "-S", node_root.__file__, str(folder / "plan"), str(tell)],
        pass_fds=(tell,),
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(tell)
    with open(hear) as told:
        return done, told.read()


@pytest.mark.parametrize("path", [f"{NOWHERE}/deep/project", "{tmp}/new/project", "{tmp}/there"])
def test_a_folder_appears_where_there_is_none(source: Path, tmp_path: Path, path: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/hidden").write_text("the machine's own\n")
    (tmp_path / "link").symlink_to("source")
    path = path.replace("{tmp}", str(tmp_path))
    script = f"pwd; cat sub/file; ls; cat {tmp_path}/link/sub/file; ls -d /usr/bin /proc/self/status; env | grep WORD"
    done, told = run(tmp_path, {path: source}, "sh", "-c", script, cwd=path)
    assert not told and not done.stderr
    assert done.stdout.split() == [path, "content", "sub", "content", "/proc/self/status", "/usr/bin", "WORD=a"]
    assert not os.path.exists(NOWHERE) and not (tmp_path / "new").exists(), "nothing of it is left"
    assert (tmp_path / "there/hidden").exists()


def test_several_folders_appear_beside_each_other(source: Path, tmp_path: Path) -> None:
    far = Path("/usr/share/buildd-test-nowhere/deep")
    shown = {
        f"{NOWHERE}/one": source,
        f"{NOWHERE}/two": source / "sub",
        str(tmp_path / "three"): source,
        str(far): source,
    }
    script = f"cat {NOWHERE}/one/sub/file {NOWHERE}/two/file {tmp_path}/three/sub/file {far}/sub/file; id -u"
    done, told = run(tmp_path, shown, "sh", "-c", script)
    assert (done.stdout.split(), told) == (["content"] * 4 + [str(os.getuid())], "")
    assert not (tmp_path / "three").exists() and not far.parent.exists(), "the machine's own folders stay as they are"


def test_a_fault_is_told_before_the_tool_begins(source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/usr")
    (tmp_path / "file").write_text("")
    for number, (path, words) in enumerate(
        {f"{tmp_path}/link/share": "through a link", f"{tmp_path}/file/x": "is no folder"}.items()
    ):
        (tmp_path / str(number)).mkdir()
        done, told = run(tmp_path / str(number), {path: source}, "echo", "begun")
        assert words in told and not done.stdout and done.returncode == 126
    (tmp_path / "last").mkdir()
    done, told = run(tmp_path / "last", {}, "no-such-tool")
    assert "no-such-tool" in told or "No such file" in told
