"""What a small project in several checkouts may have in it: what its source and its command mention, and its folders.

For `scripts/campaign/checkouts`. Knows neither a compiler nor a shim.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

LAYOUTS = {
    "beside": ("one", "two"),
    "deeper": ("one", "some/where/else/two"),
    "inside": ("one", "one/vendor/two"),
    "around": ("one/vendor/two", "one"),
    "long": ("o", "a-checkout-with-a-rather-long-name-of-its-own/" * 4 + "two"),
    "short": ("a-checkout-with-a-rather-long-name-of-its-own/" * 4 + "two", "o"),
    "alike": ("one", "one-two"),
    "blank": ("one", "the other"),
    "blanks": ("the one", "the other"),
    "linked": ("one", "link"),
    "deep": ("a", "some-folder-with-a-long-name/" * 8 + "two"),
    "temporary": ("pip-req-build-abcd1234/p", "pip-req-build-zyxw9876/p"),
    "python": ("tmpabcd_123/p", "tmpzyxw_987/p"),
}
"""Folders of the two checkouts; `link` is a link to `real/two`."""


@dataclass(slots=True)
class Project:
    """What one round has drawn. In texts and flags @ is the checkout, ! the first checkout, % the folder of all."""

    cuda: bool
    top: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    only: dict[int, dict[str, str]] = field(default_factory=lambda: {0: {}, 1: {}})
    """Files of one of the checkouts alone; they may lie beside it."""
    links: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


Feature = Callable[[random.Random, Project], None]


def body(*texts: str) -> Feature:
    return lambda rng, project: project.body.append(rng.choice(texts))


def flag(*several: str) -> Feature:
    """One of several sets of flags, words apart by blanks; for nvcc each is the host compiler's."""

    def add(rng: random.Random, project: Project) -> None:
        words = rng.choice(several).split()
        project.flags += [f"-Xcompiler={word}" for word in words] if project.cuda else words

    return add


def include(text: str, *, first: str = "", second: str = "", name: str = "") -> Feature:
    """An include, and a file of another content in each checkout."""

    def add(rng: random.Random, project: Project) -> None:
        project.top.append(text)
        for number, content in enumerate((first, second)):
            if content:
                project.only[number][name] = content

    return add


def files(feature: Feature, **texts: str) -> Feature:
    def add(rng: random.Random, project: Project) -> None:
        feature(rng, project)
        project.files |= {name.replace("__", "/").replace("_h", ".h"): text for name, text in texts.items()}

    return add


def links(feature: Feature, links: dict[str, str]) -> Feature:
    def add(rng: random.Random, project: Project) -> None:
        feature(rng, project)
        project.links |= links

    return add


def both(*features: Feature) -> Feature:
    def add(rng: random.Random, project: Project) -> None:
        for feature in features:
            feature(rng, project)

    return add


def environment(**variables: str) -> Feature:
    return lambda rng, project: project.environment.update(variables)


def _binaries(rng: random.Random, project: Project) -> None:
    for number, mine in project.only.items():
        mine["x.bin"] = f"{number}" * 8


def _library(rng: random.Random, project: Project) -> None:
    """A header beside each checkout that uses its own path, or lets the source use it."""
    shown = rng.choice(("__FILE__", "__BASE_FILE__", "__builtin_FILE()"))
    length = f"__builtin_strlen({shown})" if "builtin" in shown else f"sizeof({shown})"
    text = f"#define LENGTH {length}\ninline int in_library(int x) {{ return x + (int)LENGTH; }}\n"
    for mine in project.only.values():
        mine["../library/w.h"] = text
    project.links["away"] = "../library"


FEATURES: dict[str, Feature] = {
    "file": body("char const *w() { return __FILE__; }", "int w() { return sizeof(__FILE__); }"),
    "base-file": body("char const *b() { return __BASE_FILE__; }", "static_assert(sizeof(__BASE_FILE__) > 1);"),
    "file-macro": both(
        body(
            "#define WHERE(x) use(x, __FILE__)",
            "#define WHERE __FILE__\n#define SIZE sizeof(WHERE)",
            "#define CAT(a, b) a##b\n#define IN_FILE __FILE__",
        ),
        body(
            "",
            "int wm() { return 0; }",
            "#ifdef SIZE\nint wm() { return SIZE; }\n#endif",
            "#ifdef CAT\nint wm() { return sizeof(CAT(IN_, FILE)); }\n#endif",
            "#ifdef CAT\nint wm() { return sizeof(CAT(__FI, LE__)); }\n#endif",
        ),
    ),
    "file-raw": body(
        'int wr() { return sizeof(R"(\n#define NONE )" __FILE__); }',
        'char const *wr() { return R"(\n#define NONE __FILE__\n)"; }',
    ),
    "file-include": body("#define ONCE\n#define SELF __FILE__", "#define SELF __FILE__\nint ws = sizeof SELF;"),
    "level": body("int l() { return __INCLUDE_LEVEL__; }"),
    "builtin": body("char const *q() { return __builtin_FILE(); }"),
    "builtin-length": body("unsigned long q() { return __builtin_strlen(__builtin_FILE()); }"),
    "location": both(
        include("#include <source_location>"),
        flag("-std=c++20"),
        body("auto where() { return std::source_location::current().file_name(); }"),
    ),
    "assert": both(include("#include <cassert>"), body("void asserts(int x) { assert(x); }")),
    "assert-header": both(include('#include "asserts.h"'), body("void asserts(int x) { check(x); }")),
    "assert-mapped": both(
        include("#include <cassert>"),
        body("void mapped(int x) { assert(x); }"),
        flag("-ffile-prefix-map=%=.", "-fmacro-prefix-map=%=/x", "-ffile-prefix-map=@=."),
    ),
    "file-mapped": both(
        body("char const *m() { return __FILE__; }"),
        flag("-ffile-prefix-map=%=.", "-fmacro-prefix-map=%=/x", "-ffile-prefix-map=@=.", "-ffile-prefix-map=../=x"),
    ),
    "debug-mapped": flag("-g -fdebug-prefix-map=@=.", "-g -ffile-prefix-map=%=x", "-g -fdebug-prefix-map=%=x"),
    "line": body(
        '#line 7 "other.cpp"\nchar const *li() { return __FILE__; }', '#line 9 "!/src/x.h"\nint li(int u) { return 0; }'
    ),
    "message": body('#pragma message("hello")', '_Pragma("message(\\"!/src\\")")', "#warning it is here"),
    "warning": body("int wa(int unused) { int also; return 0; }"),
    "wrapped": both(
        body("int wr(int unused_parameter) { int also; return 0; }"),
        flag("-fmessage-length=72", "-fmessage-length=110"),
    ),
    "warning-format": both(
        body("int wf(int unused) { return 0; }"),
        flag(
            "-fdiagnostics-format=json", "-fdiagnostics-color=always", "-fdiagnostics-urls=always -fdiagnostics-color"
        ),
    ),
    "error": body('#ifdef NEVER\n#endif\n#include "absent.h"', "int e() { return absent; }"),
    "g": flag("-g", "-g1", "-gdwarf-4", "-ggdb", "-g0"),
    "coverage": flag("-fprofile-arcs", "--coverage", "-fprofile-generate", "-ftest-coverage"),
    "temps": flag("-save-temps", "-save-temps=obj", "-fdump-tree-original"),
    "seed": both(
        flag("-frandom-seed=1", "-frandom-seed=a.cpp", ""),
        body("namespace { struct S { S(); } s; } int se() { return 0; }"),
    ),
    "anonymous": body("namespace { int hidden = 3; int *leak() { return &hidden; } } int *an() { return leak(); }"),
    "static": body("static int count; int st() { static int n; return ++n + ++count; }"),
    "constructor": body("struct C { C(); ~C(); }; static C c1; static C c2;", "struct C { C(); }; namespace { C c; }"),
    "init": body(
        "__attribute__((constructor(200))) static void first() {} __attribute__((destructor)) static void last() {}"
    ),
    "date": body("char const *da() { return __DATE__; }"),
    "timestamp": body("char const *ti() { return __TIMESTAMP__; }"),
    "epoch": both(body("char const *ep() { return __DATE__; }"), environment(SOURCE_DATE_EPOCH="1700000000")),
    "beside": include('#include "../../x.h"', first="#define X 1\n", second="#define X 2\n", name="../x.h"),
    "inside": include('#include "../x.h"', first="#define X 1\n", second="#define X 2\n", name="x.h"),
    "absolute": include('#include "!/src/x.h"', first="#define X 1\n", second="#define X 2\n", name="src/x.h"),
    "absolute-other": include('#include "%/./one/x.h"', first="#define X 1\n", second="#define X 2\n", name="x.h"),
    "absolute-around": include(
        '#include "%/two/../one/x.h"', first="#define X 1\n", second="#define X 2\n", name="x.h"
    ),
    "absolute-split": include(
        "#define STR_(x) #x\n#define STR(x) STR_(x)\n"
        "#define HERE %\n#define IN(x) STR(HERE/x)\n#include IN(one/src/x.h)",
        first="#define X 1\n",
        second="#define X 2\n",
        name="src/x.h",
    ),
    "absolute-macro": both(
        lambda rng, project: project.flags.append(
            rng.choice(['-DHDR="!/src/x.h"', '-DHDR="@/src/x.h"', "-DHDR=<x.h>"])
        ),
        flag("-I@/src"),
        include("#include HDR", first="#define X 1\n", second="#define X 2\n", name="src/x.h"),
    ),
    "has": both(
        body(
            '#if __has_include("../include/y.h")\nint ha() { return 1; }\n#endif',
            '#if __has_include("y.h")\nint ha;\n#endif',
        ),
        lambda rng, project: project.only[rng.randrange(2)].update({rng.choice(["include/y.h", "src/y.h"]): ""}),
    ),
    "has-beside": both(
        body('#if __has_include("../../y.h")\nint hb() { return 1; }\n#endif'),
        lambda rng, project: project.only[1].update({"../y.h": ""}),
    ),
    "has-absolute": both(
        body('#if __has_include("%/one/y.h")\nint hab() { return 1; }\n#endif'),
        lambda rng, project: project.only[0].update({"y.h": ""}),
    ),
    "has-computed": both(
        body('#define Y "y.h"\n#if __has_include(Y)\nint hc() { return 1; }\n#endif'),
        lambda rng, project: project.only[1].update({"src/y.h": ""}),
    ),
    "earlier": both(  # found beside the includer in one of them only
        include('#include "dir/e.h"', second="#define E 2\n", name="src/dir/e.h"),
        files(body("int ea() { return E; }"), include__dir__e_h="#define E 1\n"),
    ),
    "earlier-beside": both(
        include('#include "../../e/e.h"', second="#define E 2\n", name="../e/e.h"),
        files(flag("-I@/include/x/y"), include__x__y__z_h="", include__e__e_h="#define E 1\n"),
        body("int eb() { return E; }"),
    ),
    "forced": files(
        flag("-include @/include/f.h", "-include f.h", "-imacros @/include/f.h"), include__f_h="#define F 1\n"
    ),
    "system": files(
        flag("-isystem @/sys", "-isystem ../sys", "-iquote @/sys", "-idirafter @/sys"),
        sys__s_h="inline int s(int u) { int v; return 0; }\n",
    ),
    "system-read": both(
        files(
            flag("-isystem ../../../sys", "-isystem @/build/../sys", "-isystem @/sys", "-isystem ../sys"),
            sys__s_h="#include <assert.h>\ninline int s(int x) { assert(x); return x; }\n",
        ),
        include("#if __has_include(<s.h>)\n#include <s.h>\nint sr() { return s(1); }\n#endif"),
    ),
    "system-short": both(
        files(
            flag("-isystem ../a-folder-with/a-long-name/that-is-far-longer/than-its-link/and-more-and-more"),
            s__s_h="#include <assert.h>\ninline int s(int x) { assert(x); return x; }\n",
        ),
        links(
            include("#if __has_include(<s.h>)\n#include <s.h>\nint ss() { return s(1); }\n#endif"),
            {"a-folder-with/a-long-name/that-is-far-longer/than-its-link/and-more-and-more": "../../../s"},
        ),
    ),
    "outside": both(
        flag("-I%/common", "-I@/../common", "-I../../common", "-isystem ../../common"),
        include(
            "#if __has_include(<o.h>)\n#include <o.h>\nint ou() { return O; }\n#endif",
            first="#define O 1\n",
            second="#define O 2\n",
            name="../common/o.h",
        ),
    ),
    "outside-file": both(
        _library,
        flag(
            "-I@/../library", "-I../../library", "-isystem @/../library", "-I@/away", "-isystem ../away", "-I%/library"
        ),
        include("#if __has_include(<w.h>)\n#include <w.h>\nint ol() { return in_library(1); }\n#endif"),
        body("", "#ifdef LENGTH\nint ow() { return LENGTH; }\n#endif"),
    ),
    "one-only": include(
        '#if __has_include("x1.h")\n#include "x1.h"\n#endif', second="#define X1 2\nint x1;\n", name="include/x1.h"
    ),
    "linked-header": links(include('#include "../l/h.h"'), {"l": "include"}),
    "linked-away": links(
        include('#include "../l/x.h"', first="#define X 1\n", second="#define X 2\n", name="x.h"), {"l": "!"}
    ),
    "linked-file": links(include('#include "l.h"'), {"src/l.h": "../include/h.h"}),
    "incbin": both(
        body('asm(".section .rodata\\n.incbin \\"../x.bin\\"\\n.text");', 'asm(".incbin \\"!/x.bin\\"");'),
        _binaries,
    ),
    "generated": include("#include <gen.h>", first='#define GEN "@"\n', second='#define GEN "@"\n', name="build/gen.h"),
    "generated-short": include(
        "#include <gen.h>\nint gens = sizeof(GEN);",
        first='#define GEN "/" "@"\n',
        second='#define GEN "/" "@"\n',
        name="build/gen.h",
    ),
    "generated-unused": include(
        "#include <unused.h>",
        first='#define AT "@"\n#define AT_LENGTH sizeof(AT)\n',
        second='#define AT "@"\n#define AT_LENGTH sizeof(AT)\n',
        name="build/unused.h",
    ),
    "response": both(
        lambda rng, project: project.files.update({"build/flags.rsp": rng.choice(["-I@/include -O1", "-DR=2"])}),
        lambda rng, project: project.flags.append(rng.choice(["@@/build/flags.rsp", "@flags.rsp"])),
    ),
    "cpath": environment(CPATH="@/include"),
    "cpath-system": both(
        environment(CPLUS_INCLUDE_PATH="../s"),
        files(include("#if __has_include(<s.h>)\n#include <s.h>\n#endif"), s__s_h="#define S 1\n"),
    ),
    "assembler": lambda rng, project: (
        None if project.cuda else project.flags.extend(("-S", "-fverbose-asm")[: rng.randrange(1, 3)])
    ),
    "assembler-assert": both(
        include("#include <cassert>"),
        body("void aa(int x) { assert(x); }"),
        lambda rng, project: None if project.cuda else project.flags.append("-S"),
    ),
    "missing-folder": both(
        flag("-Wmissing-include-dirs -I@/nowhere"),
        lambda rng, project: project.only[rng.randrange(2)].update({"nowhere/z": ""}),
    ),
    "sections": flag("-ffunction-sections -fdata-sections", "-gz -g", "-Wa,--compress-debug-sections", "-fcommon"),
    "switches": flag("-frecord-gcc-switches", "-fdebug-types-section -g"),
    # With nvcc the object holds the paths of temporary files, of no constant length.
    "sanitize": lambda rng, project: (
        None if project.cuda else project.flags.append(rng.choice(("-fsanitize=undefined", "-fsanitize=address")))
    ),
    "lto": flag("-flto", "-flto -ffat-lto-objects"),
    "library": lambda rng, project: (
        None if project.cuda else project.flags.extend(("-shared", "-fPIC", rng.choice(("-L@/build", "-s", "-lm"))))
    ),
    "openmp": both(
        flag("-fopenmp"), body("void om(int *p) {\n#pragma omp parallel for\nfor (int i = 0; i < 9; i++) p[i] = i; }")
    ),
    "macro-here": lambda rng, project: project.flags.append(
        rng.choice(['-DROOT="@"', "-DROOT=@", '-DROOT="../"', "-DW=__FILE__"])
    ),
    "template-name": body(
        "template <class T> char const *pretty() { return __PRETTY_FUNCTION__; "
        "} struct L { char const *f() { return pretty<decltype([]{})>(); } };"
    ),
}
"""What a round may draw, by name."""
CUDA: dict[str, Feature] = {
    "d-file": body(
        "__global__ void df(char const **p) { *p = __FILE__; }", "__global__ void df(int *p) { *p = sizeof(__FILE__); }"
    ),
    "d-builtin": body("__global__ void db(char const **p) { *p = __builtin_FILE(); }"),
    "d-builtin-length": body(
        "constexpr unsigned long len(char const *s) { unsigned long n = 0; while (s[n]) n++; return n; }\n"
        "constexpr unsigned long N = len(__builtin_FILE());\n__global__ void dl(int *p) { *p = N; }"
    ),
    "d-assert": both(include("#include <cassert>"), body("__global__ void da(int x) { assert(x); }")),
    "d-hidden": body("namespace { __global__ void dh(int *p) { *p = 1; } } void rh() { dh<<<1, 1>>>(nullptr); }"),
    "d-static": body(
        "static __device__ int dv; __global__ void ds(int *p) { *p = dv++; }",
        "static __global__ void sg() {} void rs() { sg<<<1, 1>>>(); }",
    ),
    "d-lambda": body(
        "template <class F> __global__ void app(F f) { f(); } "
        "void la(int *p) { app<<<1, 1>>>([=] __device__ { *p = 1; }); }"
    ),
    "d-managed": body(
        "__managed__ int ma; static __managed__ int mb; __global__ void dm() { ma = mb; }",
        "__constant__ int ca[4]; namespace { __constant__ int "
        "cb[4]; } __global__ void dc(int *p) { *p = ca[1] + cb[2]; }",
    ),
    "d-shared": body("__global__ void sh(int *p) { __shared__ int a[9]; a[threadIdx.x] = 1; *p = a[0]; }"),
    "d-mapped": both(
        body("__global__ void df2(char const **p) { *p = __FILE__; }"),
        flag("-ffile-prefix-map=%=.", "-fmacro-prefix-map=%=/x"),
    ),
    "rdc": lambda rng, project: project.flags.append(
        rng.choice(["-rdc=true", "-dc", "--relocatable-device-code=true"])
    ),
    "lineinfo": lambda rng, project: project.flags.append(
        rng.choice(["-lineinfo", "-G", "-g", "--generate-line-info"])
    ),
    "archs": lambda rng, project: project.flags.extend(
        ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=[sm_90,compute_90]"]
    ),
    "lambda-flag": lambda rng, project: project.flags.append("--extended-lambda"),
    "ptx": lambda rng, project: project.flags.append(rng.choice(["-ptx", "-cubin", "-fatbin"])),
    "cuid": lambda rng, project: project.flags.append("-Xcompiler=-fno-working-directory"),
    "whole": lambda rng, project: project.flags.append(
        rng.choice(["-Xptxas=-v", "--threads=2", "-keep", "-Xcudafe=--display_error_number"])
    ),
}

HIP = {name: feature for name, feature in CUDA.items() if name.startswith("d-")}
"""What a source of hipcc may have besides: the device code, without nvcc's options."""
