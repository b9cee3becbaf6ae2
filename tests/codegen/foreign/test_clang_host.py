"""nvcc with clang as its host compiler: whole, and found again."""

from __future__ import annotations

import shutil

import pytest

from tests.support.foreign_project import ForeignProject
from tests.support.user import User

CLANG = shutil.which("clang++") or ""
pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not CLANG, reason="no clang++ (Debian: apt install clang)")]


@pytest.fixture(scope="module")
def user(kept_user: User) -> User:
    return kept_user


def test_clang_as_the_host_compiler(user: User) -> None:
    cuda = ForeignProject.with_nvcc(user, "clang_host")
    cuda.write(
        "k.cu", '#include "k.h"\n__global__ void k(int *p) { *p = K; }\nint host() { return __clang_major__; }\n'
    )
    cuda.write("k.h", "#define K 1\n")
    command = ("nvcc", "-ccbin", CLANG, "-arch=sm_80", "-MD", "-c", "k.cu", "-o", "k.o")
    made = []
    for _ in range(2):
        cuda.good(*command)
        made.append((cuda.folder / "k.o").read_bytes())
        assert b"k.h" in (cuda.folder / "k.d").read_bytes()
    assert made[0] == made[1] and cuda.counts() == (1, 1)
    cuda.write("k.h", "#define K 2\n")
    cuda.good(*command)
    assert (cuda.folder / "k.o").read_bytes() != made[0] and cuda.counts() == (1, 2)
    # gcc does not take it for clang.
    assert b"__clang_major__" in cuda.call(*command[:1], *command[3:]).stderr
