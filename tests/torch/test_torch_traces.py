"""Dynamo's traces in the store: a later process traces only what has changed.

Runs where torch is installed (`scripts/test-torch`).
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.serving import short_folder
from tests.support.traced_program import HELPERS, PROGRAM
from tests.support.user import User

pytestmark = [pytest.mark.torch, pytest.mark.timeout(3000)]

NEVER = {"assumed", "break_in_the_graph"}
"""What no trace is kept of."""
ALIKE = {"hook", "instance_patched"}
"""What has the same model as a case before it, where CHANGED does not change it."""
UNCHANGED = {"same", "edited_forward", "edited_helper"}
"""What CHANGED does not change."""


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    with short_folder() as folder:
        user = User(folder, {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "BUILDD_TORCH_TRACES": "1"})
        (folder / "helpers.py").write_text(HELPERS)
        (folder / "main.py").write_text(PROGRAM)
        yield user
        assert user.end() == []


def ran(user: User, *names: str, **variables: str) -> tuple[set[str], str]:
    """The cases that were not traced, and all that was said. Every case's numbers have to be right."""
    before = dict(user.environ)
    user.environ.update(variables)
    try:
        status, said = user.buildd("run", "--", sys.executable, "main.py", *names, timeout_s=1400)
    finally:
        user.environ.clear()
        user.environ.update(before)
    assert status == 0, said
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    found: dict[str, list[bool]] = json.loads(line)
    assert [name for name, (_, is_right) in found.items() if not is_right] == []
    assert "Error" not in said and "Traceback" not in said, said
    return {name for name, (is_found, _) in found.items() if is_found}, said


def all_cases() -> set[str]:
    return set(re.findall(r"@case\ndef (\w+)", PROGRAM))


@pytest.fixture(scope="module")
def filled(user: User) -> User:
    """With the traces of a first run in the store."""
    found, said = ran(user)
    assert found == ALIKE and "2 Dynamo traces " in said, said
    return user


def test_a_second_process_traces_nothing_again(filled: User) -> None:
    # Also where all that Inductor itself keeps is gone.
    shutil.rmtree(filled.folder / "inductor")
    found, said = ran(filled)
    assert found == all_cases() - NEVER
    assert re.search(r"\b\d+ Dynamo traces and \d+ graphs from the store", said), said


def test_a_trace_is_not_taken_where_the_user_does_not_ask(filled: User) -> None:
    found, said = ran(filled, "same", BUILDD_TORCH_TRACES="0")
    assert found == set() and "trace" not in said.replace("traced", "")


def test_what_a_trace_depends_on_is_traced_again(filled: User) -> None:
    """Types, sizes, constants, patches before and after, closures, hooks: in the program, its modules and in torch."""
    found, _ = ran(filled, CHANGED="1")
    assert found == UNCHANGED
    # And what was kept before holds for what was there before. So many cases have the frame of `same` that its own
    # trace may have given its place to theirs.
    found, _ = ran(filled)
    assert all_cases() - NEVER - found <= {"same"}


def test_other_settings_are_traced_again(filled: User) -> None:
    found, _ = ran(filled, "same", "constant", TORCHINDUCTOR_MAX_FUSION_SIZE="3", TORCH_COMPILE_CACHE_KEY_TAG="x")
    assert found == set()


@pytest.mark.parametrize(
    ("name", "file", "old", "new"),
    [
        ("edited_forward", "main.py", "* 1.0  # edited by a test", "* 3.0"),
        ("edited_helper", "helpers.py", "return x * 1.5", "return x * 4.5"),
    ],
)
def test_edited_sources_are_traced_again(filled: User, name: str, file: str, old: str, new: str) -> None:
    path = filled.folder / file
    before = path.read_text()
    assert ran(filled, name)[0] == {name}
    path.write_text(before.replace(old, new))
    try:
        assert ran(filled, name)[0] == set()
    finally:
        path.write_text(before)
    assert ran(filled, name)[0] == {name}


def test_a_damaged_trace_or_one_of_a_stranger_is_traced_again(filled: User, tmp_path: Path) -> None:
    kept = {
        path: path.read_bytes()
        for path in (filled.store / "inductor").iterdir()
        if b'"trace"' in path.read_bytes()[:600]
    }
    assert len(kept) >= 10
    for path, content in kept.items():
        path.write_bytes(content[:-9] + b"X" * 9)
    try:
        assert ran(filled, "same", "constant")[0] == set()
    finally:
        for path, content in kept.items():
            path.write_bytes(content)
    # Another user's key signs nothing that this one believes.
    assert ran(filled, "same", "constant", BUILDD_KEY_DIR=str(tmp_path))[0] == set()


MEMBERS = """
import enum
class Scale(enum.IntEnum):
    A = {value}
class Word(str, enum.Enum):
    A = "{value}"
class Noted:
    a: {kind}
"""
USE = """
import sys, torch
from members import Noted, Scale, Word
def number(x):
    return x * Scale.A
def word(x):
    return x * (2 if Word.A == "2" else 3)
def noted(x):
    return x * (2 if Noted.__annotations__["a"] is int else 3)
x = torch.arange(4.0)
for function in (number, word, noted):
    assert torch.equal(torch.compile(function)(x), function(x)), function
print("right")
"""
BUILTINS = """
import sys, torch
def f(x):
    return x * sum((1, 2))
def g(x):
    return x + len([1, 2])
x = torch.arange(4.0)
for name in sys.argv[1]:
    assert torch.equal(torch.compile(globals()[name])(x), globals()[name](x))
print("right")
"""


def test_a_member_of_an_enumeration_counts_by_its_value(user: User) -> None:
    (user.folder / "use.py").write_text(USE)
    for value, kind in ((2, "int"), (3, "float")):
        (user.folder / "members.py").write_text(MEMBERS.format(value=value, kind=kind))
        status, said = user.buildd("run", "--", sys.executable, "use.py", timeout_s=600)
        assert status == 0 and "right" in said, said


def test_a_name_that_dynamo_counts_is_not_given_twice(user: User) -> None:
    (user.folder / "builtins_of.py").write_text(BUILTINS)
    for names in ("f", "fg", "gf"):
        status, said = user.buildd("run", "--", sys.executable, "builtins_of.py", names, timeout_s=600)
        assert status == 0 and "right" in said, said
