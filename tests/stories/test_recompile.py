"""AIT_RECOMPILE, as AITemplate's users know it, on targets of our own."""

from __future__ import annotations

import pytest

from tests.support.developer import Developer
from tests.support.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


def test_unset_content_decides(another_developer: Developer) -> None:
    assert another_developer.build().compiled == 3
    assert another_developer.build().compiled == 0


def test_1_compiles_everything_again_every_time(another_developer: Developer) -> None:
    another_developer.build()
    another_developer.environ["AIT_RECOMPILE"] = "1"
    assert another_developer.build().compiled == 3
    assert another_developer.build().compiled == 3


def test_0_serves_what_is_there_whatever_changed(another_developer: Developer) -> None:
    another_developer.build()
    before = another_developer.library.read_bytes()
    another_developer.write("src/a.cu", "other\n")
    another_developer.environ["AIT_RECOMPILE"] = "0"
    said = another_developer.build()
    assert said.status == 0 and "AIT_RECOMPILE=0" in said.text
    assert said.compiled == 0 and another_developer.library.read_bytes() == before


def test_0_brings_back_what_was_removed(another_developer: Developer) -> None:
    another_developer.build()
    before = another_developer.library.read_bytes()
    another_developer.library.unlink()
    another_developer.write("src/a.cu", "other\n")
    another_developer.environ["AIT_RECOMPILE"] = "0"
    assert another_developer.build().status == 0
    assert another_developer.library.read_bytes() == before


def test_0_without_any_build_says_what_to_do(another_developer: Developer) -> None:
    another_developer.environ["AIT_RECOMPILE"] = "0"
    said = another_developer.build()
    assert said.status == 2
    assert "never built here" in said.text and "next: unset AIT_RECOMPILE" in said.text


def test_the_project_file_may_say_it_and_the_shell_wins(another_developer: Developer) -> None:
    text = (another_developer.project / "buildd.toml").read_text()
    another_developer.write("buildd.toml", f'{text}\n[environment]\nAIT_RECOMPILE = "1"\n')
    another_developer.build()
    assert another_developer.build().compiled == 3
    another_developer.environ["AIT_RECOMPILE"] = "0"
    assert another_developer.build().compiled == 0


def test_no_number_is_an_error(another_developer: Developer) -> None:
    another_developer.environ["AIT_RECOMPILE"] = "yes"
    said = another_developer.build()
    assert said.status == 2 and "AIT_RECOMPILE" in said.text
