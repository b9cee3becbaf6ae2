"""What texts are apart from their line numbers: by hand, with the real preprocessor, and compiled by nvcc."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from buildd.kernels import without_report
from buildd.unlined import fingerprint
from codegen.expansion import expand
from protocol import messages as m
from tests.floor import Floor
from tests.objects import anonymous, contents
from tests.test_nvcc_steps import Build, compile_action, plain, project, read, recorded

ONE = b"""\
# 0 "k.cu"
# 1 "/usr/include/s.h" 1 3 4

# 30 "/usr/include/s.h" 3 4
int s;
# 2 "k.cu" 2
int a;
#pragma unroll

int b =
# 7 "k.cu" 3 4
    0
# 7 "k.cu"
    ;
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (b"# 30", b"# 31", True),
        (b'# 2 "k.cu" 2\n', b'# 2 "k.cu" 2\n\n  \n\n', True),
        (b"int a;", b'int a;\n# 40 "k.cu"', True),
        (b"# 7", b"# 9", True),
        (b"int a;\n", b"int a;", False),
        (b"int a;", b"int a; ", False),
        (b'# 7 "k.cu"\n    ;', b'# 8 "k.cu"\n    ;', False),
        (b"s.h", b"t.h", False),
        (b" 3 4\nint s", b"\nint s", False),
        (b" 3 4\nint s", b" 3\nint s", False),
        (b'# 2 "k.cu" 2\n', b"", False),
        (b"#pragma unroll\n\n", b"", False),
        (b"int s", b"int t", False),
    ],
)
def test_only_line_numbers_and_empty_lines_are_left_out(old: bytes, new: bytes, same: bool) -> None:
    assert old in ONE
    assert (fingerprint(ONE) == fingerprint(ONE.replace(old, new))) is same


@pytest.mark.parametrize(
    "word",
    [b"int l = __builtin_LINE();", b"std::source_location here;", b'char const *x = R"(\n\n)";', b"# is no marker"],
)
def test_a_text_that_may_see_its_lines_is_left_as_it_is(word: bytes) -> None:
    text = ONE + word + b"\n"
    assert fingerprint(text) == fingerprint(text)
    assert fingerprint(text) != fingerprint(text.replace(b"# 30", b"# 31"))
    assert fingerprint(text) != fingerprint(text.replace(b"int a;", b"\nint a;"))


def included(body: bytes) -> bytes:
    """A text whose one include is long, as a toolkit's headers are."""
    header = b"".join(b'# %d "/usr/include/s.h" 3 4\nint s%d;\n' % (2 * n, n) for n in range(4000))
    return b'# 0 "k.cu"\n# 1 "/usr/include/s.h" 1 3 4\n' + header + body + b'# 2 "k.cu" 2\nint a;\n'


def test_a_long_include_counts_as_what_it_is_without_its_lines() -> None:
    text = included(b"")
    assert len(text) > 1 << 16
    for _ in range(2):  # the second time it is known
        assert fingerprint(text) == fingerprint(text.replace(b"# 30 ", b"# 31 "))
        assert fingerprint(text) != fingerprint(text.replace(b"int s7;", b"int t7;"))
        assert fingerprint(text) != fingerprint(text.replace(b"int a;", b"int b;"))
        sees = included(b"int l = __builtin_LINE();\n")
        assert fingerprint(sees) != fingerprint(sees.replace(b"# 30 ", b"# 31 "))
        assert fingerprint(sees) != fingerprint(sees.replace(b"# 2 ", b"# 3 "))


PREPROCESSED = """\
#include <stddef.h>
#include "h.h"
#define BOTH(x, y) x + y
void *p = NULL; int after;
int sum = BOTH(1,
    2);
#include "h.h"
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ (Debian: apt install g++)")
@pytest.mark.parametrize(
    ("edit", "same"),
    [
        (lambda text: "// a comment\n" + text, True),
        (lambda text: text.replace("void", "\n" * 20 + "/* a\n\n\n comment */\nvoid"), True),
        (lambda text: text.replace("#define", "/**/#define"), True),
        (lambda text: text.replace("NULL; int", "NULL;\nint"), False),
        (lambda text: text.replace("p = NULL", "p =\nNULL"), False),
        (lambda text: text.replace("sum", "__LINE__ ? sum"), False),
    ],
)
def test_an_edited_source(tmp_path: Path, edit: Callable[[str], str], same: bool) -> None:
    found = []
    (tmp_path / "h.h").write_text("\n\nextern int h;\n")
    for text in (PREPROCESSED, edit(PREPROCESSED)):
        (tmp_path / "k.cpp").write_text(text)
        done = subprocess.run(["g++", "-E", "k.cpp"], cwd=tmp_path, capture_output=True, check=True)
        assert b"extern int h" in done.stdout
        found.append(fingerprint(done.stdout))
    assert (found[0] == found[1]) is same


def test_no_step_is_known_without_lines_where_a_flag_lets_its_result_see_them() -> None:
    text = recorded("13.0-two-archs")
    kinds = {action.kind for action in expand(read(text), compile_action()).actions if action.twins}
    assert kinds == {"cudafe++", "cicc", "host compile"}
    for flag, step in (
        ("-g", "-c -x c++"),
        ("-fsanitize=address", "-c -x c++"),
        ("-C", "-E -x c++"),
        ("-lineinfo", "ptxas"),
        ("--device-debug", "cudafe++"),
        ("-generate-line-info", '"$CICC_PATH/cicc"'),
    ):
        plan = expand(read(text.replace(step, f"{step} {flag}", 1)), compile_action())
        assert not [action for action in plan.actions if action.twins], flag


# ---------------------------------------------------------------- with the real compiler

SOURCE = """\
#include <cstdio>
#include "always.h"
static __device__ float offset;
namespace { struct Hidden { int x; }; __global__ void hidden(Hidden h, float *x) { *x = offset + h.x; } }
template <class F> __global__ void apply(F f, int *x) { x[0] = f(x[0]) + FACTOR; }
#include "host.h"
extern "C" int first() { static int calls; auto add = [](int x) { return x + ++calls; }; return add(FACTOR + HOST); }
extern "C" void run_first(int *x) {
    hidden<<<1, 1>>>(Hidden{1}, nullptr);
    apply<<<1, 1>>>([] __device__ (int y) { return y + 1; }, x);
}
"""
KEYS = 'arch = ["sm_80"]\noutput = "object"\nflags = ["--extended-lambda"'


def counted(build: Build) -> tuple[int, int]:
    return build.counters["step_hits"], build.counters["step_misses"]


def assert_as_nvcc_makes_it(floor: Floor, build: Build, folder: Path) -> None:
    done = plain(floor, folder / "plain.o")
    assert done.returncode == 0, done.stderr
    theirs = contents(folder / "plain.o")
    for name, text in contents(build.object).items():
        assert text == theirs[name], name


@pytest.mark.cuda
def test_a_comment_line_costs_the_preprocessors_and_nothing_else(tmp_path: Path) -> None:
    floor = project(tmp_path, KEYS + "]\n", SOURCE)
    first = Build(floor)
    assert counted(first) == (0, 9)
    before = first.object.read_bytes()
    floor.write("include/always.h", "// one\n\n// more\n#define FACTOR 3\n")
    floor.write("include/host.h", "#define HOST 4\n// a comment\n")
    again = Build(floor)
    assert counted(again) == (6, 3)
    assert again.object.read_bytes() == before
    assert_as_nvcc_makes_it(floor, again, tmp_path / "plain")
    floor.write("include/host.h", "inline int line() { return __LINE__; }\n#define HOST line()\n")
    assert counted(Build(floor)) == (3, 6), "cicc reads host code, too; ptxas sees none of it"
    floor.write("include/host.h", "//\ninline int line() { return __LINE__; }\n#define HOST line()\n")
    last = Build(floor)
    assert counted(last) == (3, 6)
    assert_as_nvcc_makes_it(floor, last, tmp_path / "plain")


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("", 'extern "C" int first() { int unused; return 1; }\n'),
        pytest.param(
            ', "-Xcompiler=-Wall"',
            'static int unused() { return 1; }\nextern "C" int first() { return 1; }\n',
            marks=pytest.mark.slow,
        ),
    ],
    ids=["cudafe++ and cicc", "only gcc"],
)
def test_a_warning_has_todays_line_number(tmp_path: Path, flags: str, text: str) -> None:
    floor = project(tmp_path, f"{KEYS}{flags}]\n", text)
    texts = []
    for comments in ("", "// one\n"):
        floor.write("src/k.cu", comments + text)
        build = Build(floor)
        done = plain(floor, tmp_path / "plain" / "plain.o")
        ours = "\n".join(line.text for line in build.story.of(m.LogLine))
        plainly = without_report(done.stderr.encode()).decode()
        assert anonymous(ours).rstrip("\n") == anonymous(plainly).rstrip("\n")
        texts.append(ours)
    assert len(set(texts)) == 2, "a line number is in it"
