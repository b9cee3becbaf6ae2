"""AIT_RECOMPILE, as AITemplate's users know it, on targets of our own."""

from __future__ import annotations

import pytest
from estate import Estate

from tests.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


def test_unset_content_decides(guest: Estate) -> None:
    assert guest.build().compiled == 3
    assert guest.build().compiled == 0


def test_1_compiles_everything_again_every_time(guest: Estate) -> None:
    guest.build()
    guest.environ["AIT_RECOMPILE"] = "1"
    assert guest.build().compiled == 3
    assert guest.build().compiled == 3


def test_0_serves_what_is_there_whatever_changed(guest: Estate) -> None:
    guest.build()
    before = guest.library.read_bytes()
    guest.write("src/a.cu", "other\n")
    guest.environ["AIT_RECOMPILE"] = "0"
    said = guest.build()
    assert said.status == 0 and "AIT_RECOMPILE=0" in said.text
    assert said.compiled == 0 and guest.library.read_bytes() == before


def test_0_brings_back_what_was_removed(guest: Estate) -> None:
    guest.build()
    before = guest.library.read_bytes()
    guest.library.unlink()
    guest.write("src/a.cu", "other\n")
    guest.environ["AIT_RECOMPILE"] = "0"
    assert guest.build().status == 0
    assert guest.library.read_bytes() == before


def test_0_without_any_build_says_what_to_do(guest: Estate) -> None:
    guest.environ["AIT_RECOMPILE"] = "0"
    said = guest.build()
    assert said.status == 2
    assert "never built here" in said.text and "next: unset AIT_RECOMPILE" in said.text


def test_the_project_file_may_say_it_and_the_shell_wins(guest: Estate) -> None:
    text = (guest.project / "buildd.toml").read_text()
    guest.write("buildd.toml", f'{text}\n[environment]\nAIT_RECOMPILE = "1"\n')
    guest.build()
    assert guest.build().compiled == 3
    guest.environ["AIT_RECOMPILE"] = "0"
    assert guest.build().compiled == 0


def test_no_number_is_an_error(guest: Estate) -> None:
    guest.environ["AIT_RECOMPILE"] = "yes"
    said = guest.build()
    assert said.status == 2 and "AIT_RECOMPILE" in said.text
