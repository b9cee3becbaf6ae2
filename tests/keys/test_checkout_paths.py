"""An include whose name a macro makes ties an object to its folder only if a macro could hold the folder's path."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from buildd.files.digests import Files
from buildd.files.snapshot import Snapshot
from buildd.keys.checkout_paths import escaping, held
from codegen.plan import Action
from tests.support.foreign_project import ForeignProject
from tests.support.user import User

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
COMPUTED = '#include "first.h"\n#define NAME "x.h"\n#include NAME\n'


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


def found(user: User, name: str, code: str, *flags: str) -> bool:
    """Whether another checkout finds the object."""
    for place in (user.folder / name, user.folder / f"{name}-again"):
        made = ForeignProject(user, place)
        made.write("first.h", "")
        made.write("x.h", "#define X 1\n")
        made.write("a.cpp", f"{code}int f() {{ return X; }}\n")
        # The source and the search folder are absolute: the command names the checkout, as it does in real builds.
        made.good("g++", *flags, f"-I{place}", "-c", f"{place}/a.cpp", "-o", "a.o")
    return made.counts() == (1, 0)


def test_paths_of_the_command_and_closed_strings_are_no_beginning_of_a_name(user: User) -> None:
    top = f"/{user.folder.parts[1]}"
    assert found(user, "closed", f'{COMPUTED}#define TEMPORARY "{top}"\n', f"-I{top}/nowhere")


@pytest.mark.parametrize("what", ["text", "open-string", "definition"])
def test_a_macro_that_could_become_the_folders_path_ties_the_object_to_it(user: User, what: str) -> None:
    top = f"/{user.folder.parts[1]}"
    texts = {"text": f"#define TOP {top}\n", "open-string": f'#define TOP "{top}/"\n', "definition": ""}
    flags = [f"-DTOP={top}/"] if what == "definition" else []
    assert not found(user, what, COMPUTED + texts[what], *flags)


def test_libraries_are_not_searched_and_a_thin_archive_is(tmp_path: Path) -> None:
    """A library may have a gigabyte. A thin archive has the names of files, and leads to others in another checkout."""
    roots, mention = (("checkout", "/home/me/one"),), b" /home/me/one/x.o "
    texts = {"lib.so": b"\x7fELF", "lib.a": b"!<arch>\n", "thin.a": b"!<thin>\n", "script.so": b"INPUT("}
    for name, beginning in texts.items():
        (tmp_path / name).write_bytes(beginning + mention)
    snapshot = Snapshot(Files(), str(tmp_path))
    found = {name for name in texts if held(snapshot, roots, [name])}
    assert found == {"thin.a", "script.so"}


@pytest.mark.parametrize(
    ("variable", "is_tied"), [("NVCC_APPEND_FLAGS=-DTOP=/home/", True), ("NVCC_APPEND_FLAGS=-O1", False)]
)
def test_a_definition_in_a_variable_counts_as_one_of_the_command(tmp_path: Path, variable: str, is_tied: bool) -> None:
    top = str(tmp_path / "one")
    (tmp_path / "one").mkdir()
    (tmp_path / "one/a.cu").write_text(COMPUTED)
    roots = (("checkout", top),)
    name, _, value = variable.partition("=")
    action = Action(
        name="a.o", kind="nvcc", tool="nvcc", argv=(), environment=((name, value.replace("/home/", f"{top}/")),)
    )
    snapshot = Snapshot(Files(), top)
    files: Any = SimpleNamespace(snapshot=snapshot, searched=str)
    assert held(snapshot, roots, ["a.cu"]) == set()
    assert escaping(files, action, roots, ["a.cu"]) == ({"checkout"} if is_tied else set())
