"""A store that is another user's, or that others may write, is not used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from buildd.errors import StoreError
from buildd.store.ownership import check
from buildd.store.store import Store
from tests.support.developer import Developer
from tests.support.toolkit import host_compiler

STRANGER = 4245
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder to another user")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    Store.open(tmp_path / "store").close()
    return tmp_path / "store"


def test_a_store_of_ones_own_is_good_and_so_is_none(store: Path) -> None:
    check(store)
    check(store / "none")


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702, 0o1777])
def test_a_store_that_others_may_write_is_refused_and_left_as_it_is(store: Path, mode: int) -> None:
    store.chmod(mode)
    for read_only in (False, True):
        with pytest.raises(StoreError, match=f"{mode:04o}") as caught:
            Store.open(store, read_only=read_only)
        assert caught.value.code == "store-open" and caught.value.file == str(store)
        assert f"chmod go-w {store}" in caught.value.next_step
    assert store.stat().st_mode & 0o7777 == mode
    store.chmod(0o755)  # others may read it
    Store.open(store).close()


def test_an_empty_folder_that_others_may_write_is_closed(tmp_path: Path) -> None:
    """A new tmpfs has mode 1777, and the folders of a user with umask 002 have 775."""
    tmp_path.chmod(0o1777)
    Store.open(tmp_path).close()
    assert tmp_path.stat().st_mode & 0o777 == 0o755


@as_root
def test_a_store_of_another_user_is_refused(store: Path) -> None:
    os.chown(store, STRANGER, STRANGER)
    with pytest.raises(StoreError, match=f"belongs to uid {STRANGER}, and you are user root") as caught:
        Store.open(store)
    assert caught.value.code == "store-foreign" and "BUILDD_DIR" in caught.value.next_step


@as_root
@pytest.mark.skipif(not host_compiler(), reason="needs gcc or cc")
@pytest.mark.parametrize("way", [pytest.param("theirs", marks=pytest.mark.slow), "open"])
def test_every_command_refuses_it(developer: Developer, way: str) -> None:
    """Also a daemon that had opened it before; a foreign build goes on with the plain tools."""
    assert developer.build().compiled == 3
    if way == "theirs":
        os.chown(developer.store, STRANGER, STRANGER)
        words = f"{developer.store} belongs to uid {STRANGER}"
    else:
        developer.store.chmod(0o777)
        words = f"other users may write to the store in {developer.store} (mode 0777)"
    before = {*developer.store.rglob("*")}
    commands = (
        ("build", "-C", str(developer.project)),
        ("build", "-C", str(developer.project), "--no-daemon"),
        ("cache", "stats"),
        ("log",),
        ("doctor",),
    )
    for command in commands:
        status, text = developer.buildd(*command)
        assert status == 3 and words in text and "next: " in text, (command, text)
    status, text = developer.buildd("run", "--", "true")
    assert status == 0 and words in text and "; running without the daemon" in text
    assert {*developer.store.rglob("*")} <= before  # the jobs' own folders may go after the build's end
