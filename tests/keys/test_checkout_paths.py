"""An include whose name a macro makes ties an object to its folder only if a macro could hold the folder's path."""

from __future__ import annotations

import shutil

import pytest

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
