"""nvcc's -arch=native: the compile is that of the GPUs that nvcc finds, and its key names them."""

from __future__ import annotations

import itertools
import re
import subprocess

import pytest

from tests.support.foreign_project import ForeignProject
from tests.support.native_toolkit import toolkit_with
from tests.support.nvcc_project import KERNEL
from tests.support.objects import contents, inspector
from tests.support.user import User

pytestmark = pytest.mark.cuda

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


def project(user: User, gpus: str) -> ForeignProject:
    """A project whose nvcc finds these GPUs."""
    folder = user.folder / f"native-{next(_NUMBERS)}"
    toolkit = toolkit_with(user.folder / "native-toolkit", gpus)
    made = ForeignProject(user, folder, f"{toolkit}/bin")
    made.write("include/always.h", "#define FACTOR 3\n")
    made.write("include/host.h", "#define HOST 4\n")
    made.write("k.cu", KERNEL.replace("NAME", "first").replace("SECOND", "run_first"))
    return made


def compiled(foreign: ForeignProject, *options: str, shown: str | None = None) -> tuple[dict[str, str], bytes]:
    """What the object holds and what was said; the object and the words of plain nvcc must be the same."""
    command = ("nvcc", *options, "-Iinclude", "-c", "k.cu", "-o", "k.o")
    more = {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    done = foreign.call(*command, environ={**foreign.environ, **more})
    assert done.returncode == 0, done.stderr
    ours = contents(foreign.folder / "k.o")
    plain = foreign.call(*command, environ={**foreign.plain, **more})
    assert (plain.returncode, plain.stdout, plain.stderr) == (0, done.stdout, done.stderr)
    for name, text in contents(foreign.folder / "k.o").items():
        assert ours[name] == text, name
    return ours, done.stderr


def architectures(foreign: ForeignProject) -> set[str]:
    """The GPUs that the object of `foreign` has machine code for."""
    listed = subprocess.run(
        (inspector(), "--list-elf", str(foreign.folder / "k.o")), capture_output=True, text=True, check=True
    )
    return set(re.findall(r"\bsm_\w+", listed.stdout))


@pytest.mark.parametrize(
    "spelled",
    [
        ("-arch", "native"),  # other tests have "-arch=native"
        pytest.param(("-arch=native",), marks=pytest.mark.slow),
        pytest.param(("--gpu-architecture=native",), marks=pytest.mark.slow),
    ],
)
def test_the_gpus_that_nvcc_finds_are_compiled_for(user: User, spelled: tuple[str, ...]) -> None:
    foreign = project(user, "80, 90")
    compiled(foreign, *spelled)
    assert architectures(foreign) == {"sm_80", "sm_90"}
    assert foreign.status().counters["whole"] == 0
    # The key names the GPUs, as a command with their names does.
    hits, misses = foreign.counts()
    compiled(foreign, "-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90")
    assert foreign.counts() == (hits + 1, misses)


def test_another_gpu_is_another_compile(user: User) -> None:
    first = project(user, "80")
    compiled(first, "-arch=native", "-DFIRST")
    second = project(user, "86")
    compiled(second, "-arch=native", "-DFIRST")
    assert architectures(second) == {"sm_86"}
    assert second.counts() == (0, 1)


def test_without_a_gpu_nvcc_takes_its_default_and_says_so(user: User) -> None:
    foreign = project(user, "90")
    compiled(foreign, "-arch=native", "-DHIDDEN")
    ours, said = compiled(foreign, "-arch=native", "-DHIDDEN", shown="")
    assert b"Cannot find valid GPU" in said and "sm_90" not in architectures(foreign)
    assert foreign.counts() == (0, 2)
    again, said = compiled(foreign, "-arch=native", "-DHIDDEN", shown="")
    assert (again, b"Cannot find valid GPU" in said) == (ours, True)
    assert foreign.counts() == (1, 2)
