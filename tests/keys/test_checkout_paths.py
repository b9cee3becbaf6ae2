"""Which includes tie an object to its folder: one that names the folder, one that leads out of it, and one whose name a
macro makes, if a macro could hold the folder's path."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from buildd.files.digests import Files
from buildd.files.snapshot import Snapshot
from buildd.keys.checkout_paths import escaping, held
from buildd.native.bare_text import BareText
from codegen.compilers.environment_roots import TOOLKIT
from codegen.plan import Action, Tool
from tests.support.foreign_project import ForeignProject
from tests.support.user import User

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
NOTHING = Tool(name="gcc")
COMPUTED = '#include "first.h"\n#define NAME "x.h"\n#include NAME\n'


def bare(folder: Path) -> BareText:
    return BareText(folder / "store")


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


@pytest.mark.parametrize(
    "folders", [("one", "below/two"), ("tmpabcd_123", "below/tmpzyxw_987")], ids=["mapped", "random"]
)
@pytest.mark.parametrize("include", ["{first}/x.h", "../x.h", "own.h"])
def test_a_header_of_a_folder_that_another_build_has_not(
    user: User, folders: tuple[str, str], include: str, request: pytest.FixtureRequest
) -> None:
    """The second folder's object has what its own compiler reads, and an edit of that is seen."""
    base = user.folder / request.node.callspec.id.replace("/", "-")
    places = [base / name for name in folders]
    asked = include.format(first=places[0])
    for place in places:
        made = ForeignProject(user, place)
        made.write("own.h", "#define X 1\n")
        made.write("../x.h", "#define X 1\n")
        made.write("x.h", "#define X 1\n")
        # A comment ties nothing: the first folder's name is in both.
        made.write("a.cpp", f'#include "{asked}" // of {places[0]}\nint f() {{ return X; }}\n')
        mapped = {"BUILDD_MAP_PATHS": str(place)} if folders[0] == "one" else {}
        command = ("g++", "-c", f"{place}/a.cpp", "-o", "a.o")
        before = made.counts()[0]
        assert made.call(*command, environ={**made.environ, **mapped}).returncode == 0
    assert made.counts()[0] - before == (include == "own.h")
    read = os.path.normpath(places[1] / asked)
    Path(read).write_text("#define X 2\n")
    assert made.call(*command, environ={**made.environ, **mapped}).returncode == 0
    edited = (places[1] / "a.o").read_bytes()
    assert made.call(*command, environ=made.plain).returncode == 0
    assert (places[1] / "a.o").read_bytes() == edited


def test_a_checkout_in_a_folder_with_a_random_name_can_be_reached_by_a_macro(tmp_path: Path) -> None:
    """Only a root that is known by its random part cannot."""
    top = "/tmp/tmpabcd_123/p"
    (tmp_path / "a.h").write_text(f"{COMPUTED}#define TOP /tmp/tmpabcd\n")
    snapshot = Snapshot(Files(), str(tmp_path))
    files: Any = SimpleNamespace(snapshot=snapshot, searched=str)
    action = Action(name="a.o", kind="gcc", tool="gcc", argv=())
    roots = (("checkout-1", str(tmp_path)), ("checkout", top), ("tmp", "/tmp/tmpabcd_123"))
    assert held(snapshot, bare(tmp_path), roots, ["a.h"], by_content=False) == set()
    assert "checkout" in (found := escaping(files, action, NOTHING, roots, ["a.h"])) and "tmp" not in found


def test_a_toolkits_computed_names_lead_to_its_own_headers_and_its_folders_are_searched(tmp_path: Path) -> None:
    place, project = tmp_path / "cuda", tmp_path / "project"
    for folder in (place / "include", project):
        folder.mkdir(parents=True)
    (place / "include/thrust.h").write_text(f"{COMPUTED}#define TOP {tmp_path}\n")
    (project / "a.h").write_text('#if __has_include("../../x.h")\n#endif\n')
    snapshot = Snapshot(Files(), str(project))
    files: Any = SimpleNamespace(snapshot=snapshot, searched=str)
    action = Action(name="a.o", kind="nvcc", tool="nvcc", argv=())
    roots = (("checkout", str(project)), (TOOLKIT, str(place)))
    tool = Tool(name="nvcc", files=(), roots=roots, search=(f"{place}/include",))
    for named, found in ((f"{place}/include/thrust.h", set()), ("a.h", {"checkout", TOOLKIT})):
        assert held(snapshot, bare(tmp_path), roots, [named], by_content=False) == set()
        assert escaping(files, action, tool, roots, [named]) == found


def test_libraries_are_not_searched_and_a_thin_archive_is(tmp_path: Path) -> None:
    """A library may have a gigabyte. A thin archive has the names of files, and leads to others in another checkout."""
    roots, mention = (("checkout", "/home/me/one"),), b" /home/me/one/x.o "
    texts = {"lib.so": b"\x7fELF", "lib.a": b"!<arch>\n", "thin.a": b"!<thin>\n", "script.so": b"INPUT("}
    for name, beginning in texts.items():
        (tmp_path / name).write_bytes(beginning + mention)
    snapshot = Snapshot(Files(), str(tmp_path))
    found = {name for name in texts if held(snapshot, bare(tmp_path), roots, [name], by_content=False)}
    assert found == {"thin.a", "script.so"}


def test_a_comment_counts_if_the_result_shows_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("// of /home/me/one\n")
    snapshot, roots = Snapshot(Files(), str(tmp_path)), (("checkout", "/home/me/one"),)
    assert held(snapshot, bare(tmp_path), roots, ["a.h"], by_content=True) == {"checkout"}
    assert held(snapshot, bare(tmp_path), roots, ["a.h"], by_content=False) == set()


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
    assert held(snapshot, bare(tmp_path), roots, ["a.cu"], by_content=False) == set()
    assert escaping(files, action, NOTHING, roots, ["a.cu"]) == ({"checkout"} if is_tied else set())
