"""gcc -M and -MM: the rules for make are gcc's own, to the byte, and follow what the source includes."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.support.foreign_project import ForeignProject
from tests.support.user import User

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


@pytest.fixture
def project(user: User, request: pytest.FixtureRequest) -> ForeignProject:
    name = re.sub(r"\W+", "_", request.node.name)
    return written(ForeignProject(user, user.folder / name), name)


def written(made: ForeignProject, name: str) -> ForeignProject:
    """Args: name: one text of the project has it, so that no other test's result is found."""
    made.write("include/one.h", '#include "two words.h"\n#include <vector>\n')
    made.write("include/two words.h", f"// {name}")
    made.write("src/a.cpp", '#include "one.h"\nconst char *name = __FILE__;\n')
    return made


@pytest.mark.parametrize(
    "options", ["-M", "-MM", "-MM -MP", "-MM -MT x.o -MQ d$/y.o", "-MM -g -Wall -O3 -fPIC", "-M -c -std=c++17 -DA=1"]
)
def test_rules_on_standard_output_are_gccs(project: ForeignProject, options: str) -> None:
    """As nccl's Makefiles ask for them."""
    command = ("g++", "-Iinclude", *options.split(), "src/a.cpp")
    plain = project.plainly(*command)
    assert plain.returncode == 0 and b"include/one.h" in plain.stdout
    for counts in ((0, 1), (1, 1)):
        done = project.good(*command)
        assert (done.stdout, done.stderr) == (plain.stdout, plain.stderr)
        assert project.counts() == counts
    project.write("include/two words.h", '#include "deeper.h"\n')
    project.write("include/deeper.h", "")
    done = project.good(*command)
    assert done.stdout == project.plainly(*command).stdout and b"deeper.h" in done.stdout
    # A header that -MM leaves out counts all the same: another one may come before it.
    project.write("include/vector", '#include_next <vector>\n#include "more.h"\n')
    project.write("include/more.h", "")
    done = project.good(*command)
    assert done.stdout == project.plainly(*command).stdout and b"more.h" in done.stdout


@pytest.mark.parametrize("place", [("-o", "out.d"), ("-MF", "out.d")])
def test_rules_in_a_file_are_gccs(project: ForeignProject, place: tuple[str, str]) -> None:
    command = ("g++", "-Iinclude", "-M", *place, "src/a.cpp")
    assert project.plainly(*command).returncode == 0
    rules = (project.folder / "out.d").read_bytes()
    for counts in ((0, 1), (1, 1)):
        (project.folder / "out.d").unlink()
        assert project.good(*command).stdout == b""
        assert (project.folder / "out.d").read_bytes() == rules and project.counts() == counts


def test_another_checkout_finds_the_rules_under_its_own_names(user: User) -> None:
    places = [user.folder / name for name in ("one_checkout", "another")]
    for at, made in enumerate([written(ForeignProject(user, place), "of two checkouts") for place in places]):
        command = ("g++", f"-I{made.folder}/include", "-g", "-MM", f"{made.folder}/src/a.cpp")
        done = made.good(*command)
        assert done.stdout == made.plainly(*command).stdout and str(made.folder).encode() in done.stdout
        assert made.counts() == ((0, 1), (1, 0))[at]


def test_a_missing_header_is_gccs_error(project: ForeignProject) -> None:
    project.write("src/a.cpp", '#include "missing.h"\n')
    command = ("g++", "-MM", "src/a.cpp", "-o", "out.d")
    done, plain = project.call(*command), project.plainly(*command)
    assert plain.returncode != 0
    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert not (project.folder / "out.d").exists()


@pytest.mark.parametrize("options", ["-M -MM", "-MM -MD", "-MM -MG", "-MM -MF a.d -o b.d", "-MM -S", "-MM -MF -"])
def test_other_forms_are_gccs_own_business(project: ForeignProject, options: str) -> None:
    command = ("g++", "-Iinclude", *options.split(), "src/a.cpp")
    plain = project.plainly(*command)
    done = project.call(*command)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert project.counts() == (0, 0)
