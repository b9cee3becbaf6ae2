"""What texts are apart from their line numbers: by hand, with the real preprocessor, and compiled by nvcc."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from buildd.artifacts.kernel_reports import without_report
from buildd.artifacts.line_free_text import fingerprint, names_lines
from codegen.steps.expansion import expand
from protocol import messages as m
from tests.support.dry_runs import compile_action, read, recorded
from tests.support.nvcc_project import Build, plain, project
from tests.support.objects import anonymous, contents
from tests.support.scheduler_harness import Workspace

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
    [b"int l = __builtin_LINE();", b"std::source_location here;", b"# is no marker"],
)
def test_a_text_that_may_see_its_lines_is_left_as_it_is(word: bytes) -> None:
    text = ONE + word + b"\n"
    assert fingerprint(text) == fingerprint(text)
    assert fingerprint(text) != fingerprint(text.replace(b"# 30", b"# 31"))
    assert fingerprint(text) != fingerprint(text.replace(b"int a;", b"\nint a;"))


@pytest.mark.parametrize("word", [b'char const *x = "ERROR";', b'char const *x = "a" "%dR";', b"int xR;"])
def test_a_string_that_ends_like_a_raw_one_begins_does_not_see_its_lines(word: bytes) -> None:
    text = ONE + word + b"\n"
    assert fingerprint(text) == fingerprint(text.replace(b"# 30", b"# 31"))


@pytest.mark.parametrize("prefix", [b"R", b"u8R", b"uR", b"UR", b"LR"])
def test_an_empty_line_of_a_raw_string_counts(prefix: bytes) -> None:
    text = ONE + b"auto x = " + prefix + b'"(\n\n)";\n'
    assert fingerprint(text) == fingerprint(text.replace(b"# 30", b"# 31"))
    for other in (b"(\n)", b"(\n\n\n)", b"(\n \n)", b"(\n\1\n)", b"(\n\1\n\1)", b"(\n)\n"):
        assert fingerprint(text) != fingerprint(text.replace(b"(\n\n)", other)), other


@pytest.mark.parametrize(
    "raw", [b'R"(a)"', b'u8R"x(\n ld.acquire;\n)" )x"', b'R"(\n)" R"(#\n#2)"', b'R"R(\n\n)R"', b'R"R(")R" R"()"']
)
def test_a_raw_string_sees_no_line(raw: bytes) -> None:
    text = ONE + b"auto x = " + raw + b";\n"
    assert fingerprint(text) == fingerprint(text.replace(b"# 30", b"# 31"))
    assert fingerprint(text) != fingerprint(text.replace(raw[-4:], b" " + raw[-4:]))


@pytest.mark.parametrize(
    "raw",
    [
        *(b'R"(a R"x()x")"', b'R"(\n# 9 "k.cu"\n)"', b'R"(a', b'R"x(a)"', b'"a R"', b'"a R"_s("R"(b)_s")"'),
        b'R"seventeen-letters(a)seventeen-letters"',
    ],
)
def test_what_may_be_another_raw_string_is_left_as_it_is(raw: bytes) -> None:
    text = ONE + b"auto x = " + raw + b";\n"
    assert fingerprint(text) != fingerprint(text.replace(b"# 30", b"# 31"))


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (b"", False),
        (b"cc1plus: warning: command-line option '-Wnested-externs' is valid for C/ObjC but not for C++\n", False),
        (b"Potential Performance Loss in function '_Z3mmaRA4_fmm' for sm_90a\n", False),
        (b"k.cu(3): warning #177-D: variable is never used\n", True),
        (b"k.cu:3:7: warning: unused\n", True),
        (b"injected in around line 45 by compiler\n", True),
        (b"at Line45", True),
        (b"_3\n 7 | int x;", True),
    ],
)
def test_a_message_without_a_number_names_no_line(said: bytes, named: bool) -> None:
    assert names_lines(said) is named


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
char const *doc = R"(one

    two)"; int more;
#include "h.h"
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ (Debian: apt install g++)")
@pytest.mark.parametrize(
    ("edit", "same"),
    [
        (lambda text: "// a comment\n" + text, True),
        (lambda text: text.replace("void", "\n" * 20 + "/* a\n\n\n comment */\nvoid"), True),
        (lambda text: text.replace("#define", "/**/#define"), True),
        (lambda text: text.replace("one\n\n", "one\n"), False),
        (lambda text: text.replace("one\n\n", "one\n\n\n"), False),
        (lambda text: text.replace("; int more", ";\nint more"), False),
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
    kinds = {action.kind for action in expand(read(text), compile_action()).actions if action.equivalents}
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
        assert not [action for action in plan.actions if action.equivalents], flag


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


def assert_as_nvcc_makes_it(workspace: Workspace, build: Build, folder: Path) -> None:
    done = plain(workspace, folder / "plain.o")
    assert done.returncode == 0, done.stderr
    theirs = contents(folder / "plain.o")
    for name, text in contents(build.object).items():
        assert text == theirs[name], name


@pytest.mark.cuda
def test_lines_that_no_pass_sees_cost_the_preprocessors_and_nothing_else(tmp_path: Path) -> None:
    # CUDA's own headers have assembler in raw strings, too.
    fence = '__device__ void fence() { asm volatile(R"X(\n    membar.gl;\n)X" ::: "memory"); }\n'
    workspace = project(tmp_path, KEYS + "]\n", SOURCE + fence)
    first = Build(workspace)
    assert counted(first) == (0, 9)
    before = first.object.read_bytes()
    workspace.write("include/always.h", "#define UNUSED 1\n\n// more\n#define FACTOR 3\n")
    workspace.write("include/host.h", "#define HOST 4\n#define UNUSED_TOO\n")
    again = Build(workspace)
    assert counted(again) == (6, 3)
    assert again.object.read_bytes() == before
    assert_as_nvcc_makes_it(workspace, again, tmp_path / "plain")


@pytest.mark.cuda
@pytest.mark.slow
def test_lines_of_the_host_cost_what_reads_host_code(tmp_path: Path) -> None:
    workspace = project(tmp_path, KEYS + "]\n", SOURCE)
    assert counted(Build(workspace)) == (0, 9)
    workspace.write("include/host.h", "inline int line() { return __LINE__; }\n#define HOST line()\n")
    assert counted(Build(workspace)) == (3, 6), "cicc reads host code, too; ptxas sees none of it"
    workspace.write("include/host.h", "//\ninline int line() { return __LINE__; }\n#define HOST line()\n")
    last = Build(workspace)
    assert counted(last) == (3, 6)
    assert_as_nvcc_makes_it(workspace, last, tmp_path / "plain")


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
    workspace = project(tmp_path, f"{KEYS}{flags}]\n", text)
    texts = []
    for comments in ("", "// one\n"):
        workspace.write("src/k.cu", comments + text)
        build = Build(workspace)
        done = plain(workspace, tmp_path / "plain" / "plain.o")
        ours = "\n".join(line.text for line in build.story.of(m.LogLine))
        plainly = without_report(done.stderr.encode()).decode()
        assert anonymous(ours).rstrip("\n") == anonymous(plainly).rstrip("\n")
        texts.append(ours)
    assert len(set(texts)) == 2, "a line number is in it"


WGMMA = r"""
#include "always.h"
__device__ void multiply(float (&d)[4], unsigned long a, unsigned long b) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, p, 1, 1, 0, 0;}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
}
extern "C" __global__ void k(float *x, unsigned long a, unsigned long b) {
    float d[4] = {x[0], x[1], x[2], x[3]};
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
    multiply(d, a, b);
    if (x[5] > 3) d[0] += FACTOR;
    multiply(d, a, b);
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
    d[1] *= 2;
    asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
    for (int i = 0; i < 4; ++i) x[i] = d[i];
}
"""
"""ptxas says that its matrix products run one after another."""


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("keys", "text", "part"),
    [
        ('arch = ["sm_90a"]\noutput = "object"\n', WGMMA, "Potential Performance Loss"),
        pytest.param(
            *(f'{KEYS}, "-Xcompiler=-Wnested-externs"]\n', SOURCE, "is valid for C/ObjC but not for C++"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["ptxas", "gcc"],
)
def test_a_remark_without_a_line_of_a_source_is_replayed(tmp_path: Path, keys: str, text: str, part: str) -> None:
    workspace = project(tmp_path, keys, text)
    said = []
    for header in ("#define FACTOR 3\n", "#define UNUSED\n#define FACTOR 3\n"):
        workspace.write("include/always.h", header)
        build = Build(workspace)
        said.append("\n".join(line.text for line in build.story.of(m.LogLine)))
    assert counted(build) == (6, 3), "only the preprocessors ran"
    assert part in said[0] and said[0] == said[1]
    plainly = without_report(plain(workspace, tmp_path / "plain" / "plain.o").stderr.encode()).decode()
    assert anonymous(said[1]).rstrip("\n") == anonymous(plainly).rstrip("\n")
