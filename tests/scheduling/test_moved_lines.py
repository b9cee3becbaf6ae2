"""A comment line more in a header, through nvcc's steps: a hit if the header shows no line, else a miss."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.foreign_project import ForeignProject, kept_up
from tests.support.serving import short_folder
from tests.support.user import User

HEADER = (
    "#pragma once\n#include <cassert>\n" + "\n" * 40 + "#define HD __host__ __device__\n"
    'template <class T>\nHD T twice(T x) {\n  static_assert(sizeof(T) < 64, "small");\n  return x * T(2);\n}\n'
)
SEEING = "#pragma once\n" + "\n" * 40 + "__device__ inline int where() { return __LINE__; }\n"
SOURCE = (
    '#include "silent.h"\n#include "seeing.h"\n__global__ void k(float *p, int *q) { *p = twice(*p); *q = where(); }\n'
)


@pytest.fixture
def user() -> Iterator[User]:
    with short_folder() as folder:
        user = User(folder)
        with kept_up(user):
            yield user
        assert user.end() == []


@pytest.mark.cuda
def test_a_line_more_is_a_hit_where_the_header_shows_none(user: User) -> None:
    project = ForeignProject.with_nvcc(user, "project")
    files = {"silent.h": HEADER, "seeing.h": SEEING}
    for name, text in files.items():
        project.write(name, text)
    project.write("a.cu", SOURCE)
    command = ("nvcc", "-arch=sm_80", "-c", "a.cu", "-o", "a.o")
    project.good(*command)
    assert project.counts() == (0, 1)
    for name, counts in (("silent.h", (1, 1)), ("seeing.h", (1, 2))):
        project.write(name, "// a line more\n" + files[name])
        project.good(*command)
        assert project.counts() == counts, name
