"""AIT_RECOMPILE, as AITemplate's users know it, on targets of our own."""

from __future__ import annotations

import pytest
from estate import Estate

from tests.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


def test_unset_content_decides(estate: Estate) -> None:
    assert estate.build().compiled == 3
    assert estate.build().compiled == 0


def test_1_compiles_everything_again_every_time(estate: Estate) -> None:
    estate.build()
    estate.environ["AIT_RECOMPILE"] = "1"
    assert estate.build().compiled == 3
    assert estate.build().compiled == 3


def test_0_serves_what_is_there_whatever_changed(estate: Estate) -> None:
    estate.build()
    before = estate.library.read_bytes()
    estate.write("src/a.cu", "other\n")
    estate.environ["AIT_RECOMPILE"] = "0"
    said = estate.build()
    assert said.status == 0 and "AIT_RECOMPILE=0" in said.text
    assert said.compiled == 0 and estate.library.read_bytes() == before


def test_0_brings_back_what_was_removed(estate: Estate) -> None:
    estate.build()
    before = estate.library.read_bytes()
    estate.library.unlink()
    estate.write("src/a.cu", "other\n")
    estate.environ["AIT_RECOMPILE"] = "0"
    assert estate.build().status == 0
    assert estate.library.read_bytes() == before


def test_0_without_any_build_says_what_to_do(estate: Estate) -> None:
    estate.environ["AIT_RECOMPILE"] = "0"
    said = estate.build()
    assert said.status == 2
    assert "never built here" in said.text and "next: unset AIT_RECOMPILE" in said.text


def test_the_project_file_may_say_it_and_the_shell_wins(estate: Estate) -> None:
    text = (estate.project / "buildd.toml").read_text()
    estate.write("buildd.toml", f'{text}\n[environment]\nAIT_RECOMPILE = "1"\n')
    estate.build()
    assert estate.build().compiled == 3
    estate.environ["AIT_RECOMPILE"] = "0"
    assert estate.build().compiled == 0


def test_no_number_is_an_error(estate: Estate) -> None:
    estate.environ["AIT_RECOMPILE"] = "yes"
    said = estate.build()
    assert said.status == 2 and "AIT_RECOMPILE" in said.text
