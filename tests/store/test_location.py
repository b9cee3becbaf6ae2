"""Where the store goes: what the user says first, never onto a network file system by itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from buildd.errors import StoreError
from buildd.store.location import file_system_of, locate, store_folder


def local(path: Path) -> str:
    return "ext4"


def test_an_option_goes_before_the_variable_and_that_before_the_cache_folder(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "XDG_CACHE_HOME": f"{tmp_path}/cache", "BUILDD_DIR": f"{tmp_path}/mine"}
    assert locate(environment, option=f"{tmp_path}/here", file_system=local).folder == tmp_path / "here"
    assert locate(environment, file_system=local).folder == tmp_path / "mine"
    del environment["BUILDD_DIR"]
    assert locate(environment, file_system=local).folder == tmp_path / "cache" / "buildd"
    environment["XDG_CACHE_HOME"] = "relative"
    assert locate(environment, file_system=local).folder == tmp_path / ".cache" / "buildd"
    assert locate({**environment, "BUILDD_DIR": "~/store"}, file_system=local).folder == tmp_path / "store"
    assert locate(environment, file_system=local).notice == ""
    assert list(tmp_path.iterdir()) == [], "looking makes nothing"


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "gpfs", "cifs", "fuse.sshfs"])
def test_a_home_on_the_network_means_a_private_local_folder_and_is_said_once(tmp_path: Path, kind: str) -> None:
    def network(path: Path) -> str:
        return kind

    environment = {"HOME": "/home/somebody"}
    first = locate(environment, file_system=network, local_base=tmp_path)
    assert first.folder == tmp_path / f"buildd-{os.getuid()}"
    assert first.folder.stat().st_mode & 0o777 == 0o700
    assert kind in first.notice and "/home/somebody/.cache/buildd" in first.notice and "BUILDD_DIR" in first.notice
    second = locate(environment, file_system=network, local_base=tmp_path)
    assert second.folder == first.folder
    assert second.notice == ""


def test_what_the_user_chose_is_taken_also_on_the_network_with_a_word(tmp_path: Path) -> None:
    found = locate({"BUILDD_DIR": str(tmp_path)}, file_system=lambda path: "nfs")
    assert found.folder == tmp_path
    assert "nfs" in found.notice


def test_a_home_that_may_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder can be made below this")
    found = locate({"HOME": str(tmp_path / "file")}, file_system=local, local_base=tmp_path)
    assert found.folder == tmp_path / f"buildd-{os.getuid()}"
    assert "may not be written" in found.notice


def test_a_local_folder_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    place = tmp_path / f"buildd-{os.getuid()}"
    place.symlink_to(tmp_path)
    with pytest.raises(StoreError) as caught:
        locate({"HOME": "/h"}, file_system=lambda path: "nfs", local_base=tmp_path)
    assert caught.value.file == str(place)
    assert "BUILDD_DIR" in caught.value.next_step


def test_a_local_folder_that_others_may_read_is_closed(tmp_path: Path) -> None:
    place = tmp_path / f"buildd-{os.getuid()}"
    place.mkdir(mode=0o755)
    place.chmod(0o755)
    locate({"HOME": "/h"}, file_system=lambda path: "nfs", local_base=tmp_path)
    assert place.stat().st_mode & 0o777 == 0o700


def test_the_mount_table_is_read_as_the_kernel_writes_it(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 254:0 / / rw - ext4 /dev/vda rw\n"
        "30 22 0:40 / /home rw,relatime shared:1 master:2 - nfs4 server:/home rw\n"
        "31 30 0:41 / /home/with\\040space rw - tmpfs tmpfs rw\n"
        "32 22 0:42 / /homework rw - fuse.sshfs host: rw\n"
        "33 22 0:43 / /over rw - nfs old rw\n"
        "34 33 0:44 / /over rw - xfs new rw\n"
        "a line that is none\n"
    )
    found = {
        path: file_system_of(Path(path), mounts=table) for path in ("/", "/home/u/.cache", "/homework/x", "/over/a")
    }
    assert found == {"/": "ext4", "/home/u/.cache": "nfs4", "/homework/x": "fuse.sshfs", "/over/a": "xfs"}
    assert file_system_of(Path("/home/with space/x"), mounts=table) == "tmpfs"
    assert file_system_of(Path("/x"), mounts=tmp_path / "none") == ""
    assert file_system_of(tmp_path) != ""


def test_the_folder_alone(tmp_path: Path) -> None:
    assert store_folder({"BUILDD_DIR": str(tmp_path)}) == tmp_path
