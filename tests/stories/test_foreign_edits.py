"""Edits of a foreign build beside the plain compilers; `scripts/campaign/soundness` has thousands of them."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.objects import Names, described, differences
from tests.support.serving import short_folder
from tests.support.side_by_side import SideBySide
from tests.support.toolkit import host_compiler, small_toolkit
from tests.support.user import User

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
# Several at a time, so that few compiles see many edits; each shows in a number of its own.
STORY = (
    ("value of device", "value of newer", "odd.h has for the host", "optional.h", "comment line", "flag -Xptxas=-v"),
    (
        "second.h in the first folder",
        "flags of the environment",
        "toolkit's header upgraded",
        "assembler upgraded",
        "odd.h has a hidden variable",
        "blank line",
        "architectures sm_80 sm_86",
    ),
)


@pytest.fixture
def user() -> Iterator[User]:
    with short_folder() as folder:
        user = User(folder)
        user.buildd("up")
        yield user
        assert user.end() == []


def test_random_edits_of_plain_sources(user: User) -> None:
    rng = random.Random(3)
    beside = SideBySide(user, user.folder, "", rng, ())
    names = list(beside.work.edits())
    done = []
    for _ in range(15):
        done.append(rng.choice(names))
        assert beside.edit(done[-1]) == [], done
    assert beside.again(clean=True) == [] and beside.linked() == []
    figures = beside.foreign.figures()
    assert figures.passed_through == {} and figures.hits > 1 and figures.misses > 5
    assert beside.tally.false_misses == 0
    beside.close()


def test_a_project_in_folders_of_changing_names(user: User) -> None:
    beside = SideBySide(user, user.folder, "", random.Random(4), (), moves=True)
    place = beside.work.folder
    try:
        assert beside.check() == [] and beside.moved() == []
        assert beside.foreign.counts() == (1, 1), "nothing of the folder is in the object"
        # What is: such an object is another one in each of them.
        assert beside.edit("flag -g") == beside.edit("odd.h has its file") == beside.edit("absolute paths") == []
        assert beside.moved() == [] and not place.parent.exists()
        assert beside.foreign.counts() == (1, 5) and beside.tally.moves == 2
    finally:
        beside.close()
        shutil.rmtree(beside.work.folder.parent)


@pytest.mark.cuda
def test_edits_that_only_one_pass_or_one_architecture_sees(user: User) -> None:
    beside = SideBySide(user, user.folder, str(small_toolkit() / "bin/nvcc"), random.Random(1), ("a",))
    edits = beside.work.edits()
    for *several, last in STORY:
        for name in several:
            edits[name].do()
        assert beside.edit(last) == [], (*several, last)
    assert beside.again(clean=True) == [] and beside.linked() == []
    assert beside.tally.failing == 0 and beside.foreign.figures().misses >= len(STORY)
    # It can fail: what was right before the last edit is not right after it.
    edits["value of device"].do()
    made = beside.work.folder / "out" / "a.cu.o"
    kept = Path(shutil.copy(made, user.folder / "kept.o"))
    assert beside.check() == []
    assert "machine code" in beside.work.object_faults("a.cu", kept, made)
    beside.close()


@pytest.mark.cuda
def test_what_nvcc_names_anew_is_no_difference_and_everything_else_is(tmp_path: Path) -> None:
    folder = small_toolkit() / "bin"
    text = 'static __device__ int hidden = 7;\nextern "C" __global__ void first(int *x) { *x = hidden; }\n'
    text += 'extern "C" char const *said() { return "a text"; }\n'

    def made(name: str, text: str) -> dict[str, str]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "k.cu").write_text(text)
        place = tmp_path / name / "k.o"
        command = [folder / "nvcc", "-arch=sm_80", "-dc", f"{name}/k.cu", "-o", place]
        subprocess.run(command, cwd=tmp_path, check=True)
        return described(place, str(folder / "cuobjdump"), Names(("first", "said")))

    one = made("one", text)
    assert differences(one, made("two", text)) == []
    assert "MODULE" in one["symbols"] and "0x" in one["machine code"]
    assert differences(one, made("three", text.replace("a text", "b text"))) == ["section .rodata"]
    assert "device data" in differences(one, made("four", text.replace("= 7", "= 8")))
