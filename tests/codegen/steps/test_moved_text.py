"""Steps of nvcc for another checkout whose sources are named by absolute paths, as CMake names them."""

from __future__ import annotations

import re

import pytest

from buildd.artifacts.moved_text import is_named, named
from tests.support.foreign_project import ForeignProject
from tests.support.objects import Names, described, inspector
from tests.support.user import User

ROOTS = (("checkout-1", "/home/u/p/build"), ("checkout", "/home/u/p"))
TEXT = b'# 1 "/home/u/p/build/a.h" 1\nint a;\n# 2 "/home/u/p/a.cu" 2\n# 3 "/usr/x.h"\n'


def test_line_markers_get_the_names_of_roots() -> None:
    moved = b'# 1 "{checkout-1}/a.h" 1\nint a;\n# 2 "{checkout}/a.cu" 2\n# 3 "/usr/x.h"\n'
    assert named(TEXT, ROOTS) == moved
    assert named(TEXT, ()) == TEXT
    assert named(TEXT + b'#pragma once\n# 1 "/home/u/p/b"\n', ROOTS).startswith(moved)
    for shown in (
        b'#ident "/home/u/p/"',
        b"char const *s = __builtin_FILE();",
        b"std::source_location s;",
    ):
        assert named(TEXT + shown, ROOTS) == TEXT + shown


def test_messages_that_name_a_root() -> None:
    assert is_named(b"/home/u/p/a.cu: note", ROOTS)
    assert not is_named(b"a.cu: note", ROOTS) and not is_named(b"", ROOTS)


# ---------------------------------------------------------------- real compiles

COMPUTED = """constexpr int length(char const *file = __builtin_FILE()) { int n = 0; while (file[n]) ++n; return n; }
template <int N> __global__ void sized(int *p) { *p = N; }
void size(int *p) { sized<length()><<<1, 1>>>(p); }"""
"""The path is in no output, but what the front ends make of it is."""


class Checkouts:
    """A header names the checkout in a macro, as those that CMake writes do."""

    def __init__(self, user: User, name: str, use: str, *, mapped: bool = False) -> None:
        self.mapped = mapped
        self.foreign = ForeignProject.with_nvcc(user, f"moved-{name}")
        self.folders = [self.foreign.folder / each for each in ("one", "of/another/name/two")]
        for folder in self.folders:
            folder.mkdir(parents=True)
            (folder / "config.h").write_text(f'#define SOURCES "{folder}/data"\n#define IN_{name} 3\n')
            (folder / "k.cu").write_text(
                f'#include "config.h"\n{use}\nstatic __device__ int hidden_{name};\n'
                f"namespace {{ __global__ void alone_{name}(int *p) {{ hidden_{name} = *p; }} }}\n"
                f"__global__ void k_{name}(int *p) {{ *p = IN_{name} + hidden_{name}; }}\n"
                f"void set_{name}(int *p) {{ alone_{name}<<<1, 1>>>(p); }}\n"
                f"void run_{name}(int *p) {{ k_{name}<<<1, 1>>>(p); }}\n"
            )

    def compile(self, number: int) -> tuple[int, int]:
        """Hits and misses of steps. The object is plain nvcc's, and so is what is said."""
        folder = self.folders[number]
        made, counted = [], []
        ours = {**self.foreign.environ, **({"BUILDD_MAP_PATHS": str(folder)} if self.mapped else {})}
        for environ in (self.foreign.plain, ours):
            counted.append(self.foreign.status().counters)
            words = ("nvcc", "-arch=sm_80", f"-I{folder}", "-o", "k.o", "-c", f"{folder}/k.cu")
            done = self.foreign.call(*words, environ=environ, cwd=folder)
            assert done.returncode == 0, done.stderr
            made.append((described(folder / "k.o", inspector(), Names()), done.stderr))
            content = (folder / "k.o").read_bytes()
            named = {each for each in self.folders if re.search(re.escape(bytes(each)) + rb"(?!\w)", content)}
            assert named <= {folder}
        assert made[0] == made[1]
        before, after = counted[-1], self.foreign.status().counters
        hits, misses = (after[each] - before[each] for each in ("step_hits", "step_misses"))
        return hits, misses


@pytest.mark.cuda
@pytest.mark.parametrize("mapped", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_macro_that_nothing_uses_costs_another_checkout_the_preprocessor_alone(kept_user: User, mapped: bool) -> None:
    both = Checkouts(kept_user, f"unused_{mapped}", "", mapped=mapped)
    first = both.compile(0)
    assert first[1] > 5
    hits, misses = both.compile(1)
    assert misses <= 3 and hits >= first[1] - 3, (first, hits, misses)


@pytest.mark.cuda
@pytest.mark.slow
def test_kernels_with_a_mapped_path_get_their_own_number(kept_user: User) -> None:
    both = Checkouts(kept_user, "mapped_computed", COMPUTED, mapped=True)
    both.compile(0)
    both.compile(1)


@pytest.mark.cuda
@pytest.mark.parametrize(
    "use",
    [
        "char const *where() { return SOURCES; }",
        pytest.param("char const *where(char const *file = __builtin_FILE()) { return file; }", marks=pytest.mark.slow),
        COMPUTED,
        pytest.param("__device__ int where() { return sizeof(SOURCES); }", marks=pytest.mark.slow),
        pytest.param("#warning beware", marks=pytest.mark.slow),
    ],
    ids=["text", "builtin", "computed", "size", "warning"],
)
def test_a_checkout_that_shows_its_folder_gets_its_own(
    kept_user: User, use: str, request: pytest.FixtureRequest
) -> None:
    both = Checkouts(kept_user, f"shown_{request.node.callspec.id}", use)
    both.compile(0)
    both.compile(1)
