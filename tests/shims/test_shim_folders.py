"""Where shims lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildd.errors import BuilddError
from buildd.shims.shim_folders import permanent_folder, program


def test_permanent_things_lie_in_the_users_data_folder(tmp_path: Path) -> None:
    home, data, store = tmp_path / "home", tmp_path / "data", tmp_path / "store"
    assert permanent_folder({"HOME": str(home)}, store) == home / ".local" / "share" / "buildd"
    assert permanent_folder({"HOME": str(home), "XDG_DATA_HOME": str(data)}, store) == data / "buildd"


@pytest.mark.parametrize("environ", [{}, {"XDG_DATA_HOME": "relative"}])
def test_without_such_a_folder_they_lie_in_the_store(environ: dict[str, str], tmp_path: Path) -> None:
    assert permanent_folder(environ, tmp_path) == tmp_path


def test_a_store_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuilddError, match=f"cannot make the store: {tmp_path}/file") as caught:
        program(tmp_path / "file" / "store", "/usr/bin")
    assert "name another folder in BUILDD_DIR" in caught.value.next_step
