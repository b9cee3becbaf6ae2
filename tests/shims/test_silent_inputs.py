"""What compilers read, or are told, without a word: each state of it must give what the plain compiler makes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from codegen.compilers.command_parser import PassThrough
from codegen.foreign.command_line import parse
from tests.support.foreign_project import ForeignProject, prerequisites
from tests.support.states import check, until_answered
from tests.support.user import User

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc (Debian: apt install g++)")
CLANG = shutil.which("clang") or ""


@pytest.fixture
def project(kept_user: User, request: pytest.FixtureRequest) -> ForeignProject:
    return ForeignProject(kept_user, kept_user.folder / re.sub(r"\W+", "-", request.node.name))


def test_a_specs_file_that_appears_in_a_folder_of_libraries(project: ForeignProject) -> None:
    project.write("a.c", "#ifdef E\nint x = 2;\n#else\nint x = 1;\n#endif\n")
    specs = project.write("lib/specs", "")
    states = (lambda: specs.unlink(missing_ok=True), lambda: specs.write_text("*cc1_options:\n+ -DE\n\n"))
    check(project, "gcc -c a.c", *states, LIBRARY_PATH=str(specs.parent))
    check(project, f"gcc -B{specs.parent}/ -O1 -c a.c", *states)


@pytest.mark.parametrize("folder", [".", "glibc-hwcaps/x86-64-v2"])
def test_a_library_of_the_compiler_that_appears_where_the_loader_looks_first(
    project: ForeignProject, folder: str
) -> None:
    (cc1,) = subprocess.check_output(["gcc", "-print-prog-name=cc1"], text=True).split()
    loaded = dict(re.findall(r"(\S+) => (/\S+)", subprocess.check_output(["ldd", cc1], text=True)))
    name = next(filter(re.compile(r"lib(isl|mpc|mpfr|gmp)\.").match, loaded))
    project.write("a.c", f"int a = {len(folder)};\n")
    place = project.folder / "lib" / folder
    (project.folder / "lib").mkdir()
    environ = {**project.environ, "LD_LIBRARY_PATH": f":{project.folder}/lib"}
    began = project.counts()
    for hits, misses in ((0, 1), (1, 1), (1, 2), (2, 2)):
        if (hits, misses) == (1, 2):
            place.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(Path(loaded[name]).read_bytes() + b"other")
        assert project.call("gcc", "-c", "a.c", environ=environ).returncode == 0
        assert project.counts() == (began[0] + hits, began[1] + misses)


def test_a_run_path_counts_for_links_alone(project: ForeignProject) -> None:
    project.write("a.c", "int main(void) { return 0; }\n")
    for place in ("/one", "/two"):
        environ = {**project.environ, "LD_RUN_PATH": place}
        assert project.call("gcc", "-c", "a.c", environ=environ).returncode == 0
        assert project.call("gcc", "a.c", "-o", "a", environ=environ).returncode == 0
        assert place.encode() in (project.folder / "a").read_bytes()
    assert project.counts() == (1, 3)


@pytest.mark.parametrize("option", ["-M", "-MM"])
def test_what_a_configure_script_lists_names_its_own_folder(project: ForeignProject, option: str) -> None:
    for name in ("one", "two", "one"):
        source = project.write(f"{name}/conftest.c", '#include "c.h"\n')
        project.write(f"{name}/c.h", "int c;\n")
        command = ("gcc", option, str(source), "-o", "conftest.d")
        assert project.call(*command, cwd=source.parent).returncode == 0
        made = (source.parent / "conftest.d").read_bytes()
        assert project.plainly(*command, cwd=source.parent).returncode == 0
        assert made == (source.parent / "conftest.d").read_bytes()


@pytest.mark.parametrize("option", ["-I", "-isystem ", "-iquote ", "-idirafter "])
def test_a_link_that_leads_elsewhere_below_two_dots(project: ForeignProject, option: str) -> None:
    project.write("a.c", '#include "h.h"\n')
    link = project.folder / "cur"

    def leads(name: str) -> None:
        link.unlink(missing_ok=True)
        link.symlink_to(f"{name}/in")

    for number in (1, 2):
        project.write(f"p{number}/h.h", f"int x = {number};\n")
        project.write(f"p{number}/in/.keep", "")
    check(project, f"gcc {option}{link}/.. -c a.c", lambda: leads("p1"), lambda: leads("p2"))
    project.write("a.c", f'#include "{link}/../h.h"\n')
    check(project, "gcc -O1 -c a.c", lambda: leads("p1"), lambda: leads("p2"))


@pytest.mark.parametrize("folder", ["d,1", "d\n1"])
def test_a_header_that_appears_in_a_folder_with_an_odd_name(project: ForeignProject, folder: str) -> None:
    project.write("a.c", '#include "h.h"\nint x = V;\n')
    project.write("d2/h.h", "#define V 2\n")
    first = project.write(f"{folder}/h.h", "")
    for number, state in enumerate((first.unlink, lambda: first.write_text("#define V 1\n"), first.unlink)):
        state()
        for name, environ in (("a.o", project.environ), ("plain.o", project.plain)):
            done = project.call("gcc", f"-I{folder}", "-Id2", "-c", "a.c", "-o", name, environ=environ)
            assert done.returncode == 0
        assert (project.folder / "a.o").read_bytes() == (project.folder / "plain.o").read_bytes(), number


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_header_that_appears_in_a_folder_for_c_alone(project: ForeignProject, compiler: str) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    project.write("a.c", f'#include "h.h"\nint {compiler} = V;\n')
    project.write("d2/h.h", "#define V 2\n")
    first = project.write("d1/h.h", "")
    folders = os.pathsep.join((f"{project.folder}/d1/", f"{project.folder}/d2"))
    states = (lambda: first.unlink(missing_ok=True), lambda: first.write_text("#define V 1\n"))
    check(project, f"{compiler} -c a.c", *states, C_INCLUDE_PATH=folders)
    for words in (("-c", "a.c"), ("-x", "c++", "-I", f"{project.folder}/d2", "-c", "a.c")):
        listed = []
        for environ in (project.plain, project.environ, project.environ):
            environ = {**environ, "C_INCLUDE_PATH": folders}
            assert project.call(compiler, "-MMD", *words, environ=environ).returncode == 0
            listed.append(prerequisites((project.folder / "a.d").read_bytes()))
        assert listed == [listed[0]] * 3
        assert any(path.endswith("d2/h.h") for path in listed[0][1]) == ("-x" in words)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("option", ["-Isrc/../d2", "-I ./src/../d2/", "-isystem src/.././d2"])
def test_a_header_that_appears_before_a_folder_with_two_dots(
    project: ForeignProject, compiler: str, option: str
) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    project.write("a.c", f'#include "h.h"\nint {compiler}_{len(option)} = V;\n')
    project.write("d2/h.h", "#define V 2\n")
    project.write("src/.keep", "")
    first = project.write("d1/h.h", "")
    states = (lambda: first.unlink(missing_ok=True), lambda: first.write_text("#define V 1\n"))
    check(project, f"{compiler} -Id1 {option} -c a.c", *states)


@pytest.mark.parametrize("compiler", ["gcc", "clang++"])
@pytest.mark.parametrize(
    "value", ["include", ".", ":elsewhere", "@/include"], ids=["a folder", "here", "empty", "whole"]
)
def test_a_header_that_appears_beside_one_of_a_folder_that_a_variable_names(
    project: ForeignProject, compiler: str, value: str
) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    project.write("include/sub/a.cc", f'#include "h.h"\nint {compiler[:3]} = V;\n')
    project.write("last/h.h", "#define V 2\n")
    first = project.write("include/sub/h.h", "")
    states = (lambda: first.unlink(missing_ok=True), lambda: first.write_text("#define V 1\n"))
    for variable in ("CPATH", "CPLUS_INCLUDE_PATH"):
        folders = value.replace("@", str(project.folder))
        check(project, f"{compiler} -Ilast -c include/sub/a.cc", *states, **{variable: folders})


@pytest.mark.hip
@pytest.mark.parametrize("flag", ["-I include", "-I@/include", "-isystem ./include/"], ids=["named", "whole", "system"])
def test_a_header_that_appears_beside_one_of_a_folder_that_hipccs_flags_name(
    project: ForeignProject, flag: str
) -> None:
    project.write("a.cpp", f"#include <sub/h.h>\n__attribute__((global)) void k(int *p) {{ *p = V + {len(flag)}; }}\n")
    project.write("include/sub/h.h", '#include "v.h"\n')
    project.write("include/v.h", "#define V 2\n")
    first = project.write("include/sub/v.h", "")
    states = (lambda: first.unlink(missing_ok=True), lambda: first.write_text("#define V 1\n"))
    flags = flag.replace("@", str(project.folder))
    command = "hipcc --genco --offload-arch=gfx90a -nogpuinc -x hip a.cpp"
    check(project, command, *states, HIP_PLATFORM="amd", HIPCC_COMPILE_FLAGS_APPEND=flags)


@pytest.mark.hip
def test_the_depfile_lists_headers_of_a_folder_that_hipccs_flags_name(project: ForeignProject) -> None:
    project.write("a.cpp", "#include <h.h>\n__attribute__((global)) void listed(int *);\n")
    project.write("include/h.h", "")
    for flag, is_listed in (("-Iinclude", True), ("-isystem include", False)):
        variables = {"HIP_PLATFORM": "amd", "HIPCC_COMPILE_FLAGS_APPEND": flag}
        for environ in (project.plain, project.environ):
            command = "hipcc --genco --offload-arch=gfx90a -nogpuinc -x hip -MMD -MF a.d a.cpp -o a.o"
            assert project.call(*command.split(), environ={**environ, **variables}).returncode == 0
            assert ("include/h.h" in (project.folder / "a.d").read_text()) == is_listed


@pytest.mark.parametrize("target", ["made/y.h", "made/new/y.h", "made/link"])
def test_a_file_that_appears_at_the_end_of_a_link(project: ForeignProject, target: str) -> None:
    number = len(target)
    project.write("a.c", f'#if __has_include("x.h")\nint v{number};\n#endif\nint w{number};\n')
    (project.folder / "made").mkdir()
    (project.folder / "made/link").symlink_to("../elsewhere")
    link = project.folder / "x.h"
    link.symlink_to(target)
    end = Path(os.path.realpath(link))

    def appear() -> None:
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        end.parent.mkdir(exist_ok=True)
        end.touch()

    def replace() -> None:
        link.unlink()
        link.touch()

    def dangle() -> None:
        appear()
        end.unlink()

    states: tuple[Callable[[], object], ...] = (lambda: None, appear, end.unlink, replace, dangle, appear)
    made = []
    for state in states:
        state()
        for environ, name in ((project.environ, "a.o"), (project.plain, "plain.o")):
            assert project.call("gcc", "-c", "a.c", "-o", name, environ=environ).returncode == 0
        made.append((project.folder / "a.o").read_bytes())
        assert made[-1] == (project.folder / "plain.o").read_bytes(), len(made)
        until_answered(project, "gcc -c a.c -o a.o")
    assert len(set(made)) == 2


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("target", ["new", "../new"], ids=["below", "beside"])
def test_a_header_that_appears_behind_a_link_to_a_missing_folder(
    project: ForeignProject, compiler: str, target: str
) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    project.write("a.c", f'#include "sub/h.h"\nint {compiler}{len(target)} = V;\n')
    project.write("last/sub/h.h", "#define V 2\n")
    first = project.folder / "deep/inc"
    first.mkdir(parents=True)
    (project.folder / "first").symlink_to("deep/inc")
    (first / "sub").symlink_to(target)
    made = Path(os.path.realpath(first / target))

    states: tuple[Callable[[], object], ...] = (
        lambda: None,
        made.mkdir,
        lambda: (made / "h.h").write_text("#define V 1\n"),
        lambda: shutil.rmtree(made),
    )
    objects = []
    for state in states:
        state()
        for environ, name in ((project.environ, "last/a.o"), (project.plain, "last/plain.o")):
            command = (compiler, "-Ifirst", "-Ilast", "-c", "a.c", "-o", name)
            assert project.call(*command, environ=environ).returncode == 0
        objects.append((project.folder / "last/a.o").read_bytes())
        assert objects[-1] == (project.folder / "last/plain.o").read_bytes(), len(objects)
        until_answered(project, f"{compiler} -Ifirst -Ilast -c a.c -o last/a.o")
    assert len(set(objects)) == 2


def test_a_library_that_appears_where_a_linkers_script_searches(project: ForeignProject) -> None:
    project.write("a.c", "int g(void);\nint main(void) { return g(); }\n")
    for number in (1, 2):
        project.write(f"g{number}.c", f"int g(void) {{ return {number}; }}\n")
        folder = project.folder / f"lib{number}"
        folder.mkdir()
        assert project.plainly("gcc", "-c", f"g{number}.c", "-o", f"g{number}.o").returncode == 0
        assert project.plainly("ar", "rcDs", f"lib{number}/libhere.a", f"g{number}.o").returncode == 0
    folders = "".join(f"SEARCH_DIR({project.folder}/lib{number})\n" for number in (1, 2))
    project.write("libs/libthere.so", f"{folders}INPUT(-lhere)\n")
    first = project.folder / "lib1" / "libhere.a"
    kept = first.read_bytes()
    states = (lambda: first.unlink(missing_ok=True), lambda: first.write_bytes(kept))
    check(project, "gcc a.c -Llibs -lthere", *states)


def test_link_time_optimization_shows_the_working_folder(project: ForeignProject) -> None:
    for name in ("one", "two", "one", "two"):
        project.write(f"{name}/m.c", "int f(void) { return 8; }\n")
        folder = project.folder / name
        command = ("gcc", "-flto", "-frandom-seed=1", "-c", "m.c", "-o")
        assert project.call(*command, "m.o", cwd=folder).returncode == 0
        assert project.plainly(*command, "plain.o", cwd=folder).returncode == 0
        assert (folder / "m.o").read_bytes() == (folder / "plain.o").read_bytes()
    assert project.counts() == (2, 2)


@pytest.mark.skipif(not CLANG, reason="no clang (Debian: apt install clang)")
@pytest.mark.parametrize("option", ["-fdiagnostics-absolute-paths", "-fpseudo-probe-for-profiling"])
def test_options_of_clang_that_show_the_folder(project: ForeignProject, option: str) -> None:
    for name in ("one", "two"):
        project.write(f"{name}/.git/HEAD", "")
        source = project.write(
            f"{name}/m.c", "#warning w\nstatic int g(int x) { return x / 3; }\nint f(int x) { return g(x); }\n"
        )
        named = "m.c" if "diagnostics" in option else str(source)
        made = []
        for environ in (project.environ, project.plain):
            done = project.call("clang", option, "-c", named, cwd=source.parent, environ=environ)
            made.append((done.returncode, done.stderr, (source.parent / "m.o").read_bytes()))
        assert made[0] == made[1]


@pytest.mark.skipif(not CLANG, reason="no clang (Debian: apt install clang)")
def test_a_precompiled_header_of_clang_is_passed_through_after_other_compiles_too(project: ForeignProject) -> None:
    project.write("y.c", "int y;\n")
    header = project.write("p.h", "#define V 2\n")
    project.good("clang", "-c", "y.c")
    for _ in range(2):
        project.good("clang", "-x", "c-header", "p.h", "-o", "p.h.pch")
        project.write("a.c", "int x = V;\n")
        assert project.plainly("clang", "-include", "p.h", "-c", "a.c").returncode == 0
        os.utime(header, (1, 1))
    assert project.figures().passed_through == {"language": 2}


@pytest.mark.skipif(not CLANG, reason="no clang (Debian: apt install clang)")
def test_an_object_that_only_a_thin_archive_names(project: ForeignProject) -> None:
    project.write("a.c", "int lib(void);\nint main(void) { return lib(); }\n")
    (project.folder / "lib").mkdir()

    def made(number: int) -> None:
        project.write("l.c", f"int lib(void) {{ return {number}; }}\n")
        assert project.plainly("gcc", "-c", "l.c").returncode == 0
        (project.folder / "lib" / "libq.a").unlink(missing_ok=True)
        assert project.plainly("ar", "rcsTD", "lib/libq.a", "l.o").returncode == 0

    check(project, "gcc a.c -Llib -lq", lambda: made(21), lambda: made(22))
    check(project, "gcc -Wl,-Bsymbolic-functions a.c -Llib -l:libq.a", lambda: made(21), lambda: made(22))


@pytest.mark.skipif(not shutil.which("hipcc"), reason="no hipcc (Debian: apt install hipcc)")
@pytest.mark.parametrize(
    ("text", "flags"),
    [
        pytest.param(
            "#pragma pack(push, AL)\nstruct S { char a; double b; };\n#pragma pack(pop)\n"
            "int f() { return sizeof(S); }\n",
            ("-DAL=1", "-DAL=2"),
            marks=pytest.mark.slow,
        ),
        (
            "#define F(a, b) (a * 1000 + b)\nint g() { return F(\n\n__builtin_LINE(),\n__builtin_LINE()\n); }\n",
            ("-DA",),
        ),
        pytest.param(
            "void use(int*);\nenum { N = 2 };\n#define N COUNT\nvoid h(int* p) {\n"
            "#pragma clang loop unroll_count(N)\nfor (int i = 0; i < 64; i++) use(p + i);\n}\n",
            ("-O2 -DCOUNT=4", "-O2 -DCOUNT=8"),
            marks=pytest.mark.slow,
        ),
        (
            '#define foo baz\n#pragma redefine_extname foo other\nextern "C" int foo();\nint f() { return foo(); }\n',
            ("-DA",),
        ),
    ],
)
def test_what_clang_makes_of_the_source_alone(project: ForeignProject, text: str, flags: tuple[str, ...]) -> None:
    project.write("a.hip", text)
    for flag in (*flags, *flags):
        check(project, f"hipcc --offload-arch=gfx90a {flag} -c a.hip", lambda: None)


@pytest.mark.skipif(not CLANG, reason="no clang")
def test_a_tab_in_a_comment_moves_what_is_behind_it(project: ForeignProject) -> None:
    text = "void h();void g(int a) {\n  if (a)\n           h();\n/*@*/ h(); }\n"
    for blank in ("x", "\t"):
        project.write("t.cpp", text.replace("@", blank))
        done, plain = (
            project.call("clang++", "-Wall", "-Werror", "-c", "t.cpp", environ=environ)
            for environ in (project.environ, project.plain)
        )
        assert done.returncode == plain.returncode == (blank == "\t")


def test_two_sources_of_one_name(project: ForeignProject) -> None:
    """The compiler writes the same object twice."""
    project.write("x/a.cpp", '#include <regex>\nint f() { std::regex r("a"); return 1; }\n')
    project.write("y/a.cpp", "int g() { return 2; }\n")
    assert project.call("g++", "-c", "x/a.cpp", "y/a.cpp").returncode == 0
    ours = (project.folder / "a.o").read_bytes()
    assert project.plainly("g++", "-c", "x/a.cpp", "y/a.cpp").returncode == 0
    assert (project.folder / "a.o").read_bytes() == ours


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("option", ["-Wp,-MD,d/.a.o.d", "-Wp,-MMD,d/.a.o.d"])
def test_a_depfile_as_kbuild_asks_for_it(project: ForeignProject, compiler: str, option: str) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    project.write("d/a.b.c", f'#include <stddef.h>\n#include "h.h"\nint {compiler}{len(option)};\n')
    project.write("d/h.h", "int h;\n")
    listed = project.folder / "d" / ".a.o.d"
    began = project.counts()
    for number in range(2):
        assert project.call(compiler, option, "-c", "d/a.b.c", "-o", "d/o.o").returncode == 0
        ours = listed.read_bytes()
        assert project.plainly(compiler, option, "-c", "d/a.b.c", "-o", "d/o.o").returncode == 0
        assert prerequisites(ours) == prerequisites(listed.read_bytes())
        assert project.counts() == (began[0] + number, began[1] + 1)


@pytest.mark.parametrize("options", ["-Wp,-MD,x.d", "-Wp,-MMD,x.d -MP", "-MD -MF x.d", "-MMD -MF x.d -MT t"])
def test_a_depfile_of_a_command_that_compiles_and_links(project: ForeignProject, options: str) -> None:
    """As Kbuild makes its own programs."""
    project.write("d/a.b.c", f'#include <stddef.h>\n#include "h.h"\nint main(void) {{ return *"{options}"; }}\n')
    project.write("d/h.h", "int h;\n")
    command = ("gcc", *options.split(), "-o", "d/p", "d/a.b.c")
    listed = project.folder / "x.d"
    began = project.counts()
    assert project.call("gcc", "-o", "d/p", "d/a.b.c").returncode == 0
    for number in range(3):
        assert project.call(*command).returncode == 0
        ours = listed.read_bytes()
        listed.unlink()
        assert project.plainly(*command).returncode == 0
        assert ours == listed.read_bytes()
        assert project.counts() == (began[0] + number, began[1] + 2)
    project.write("d/a.b.c", '#include "h.h"\nint f(void);\nint main(void) { return f(); }\n')
    left = []
    for call in (project.call, project.plainly):
        listed.write_text("older")
        assert call(*command).returncode == 1
        left.append((listed.read_bytes(), (project.folder / "d/p").exists()))
    assert left[0] == left[1] != (b"older", True)


@pytest.mark.hip
def test_indentation_of_a_hip_source_by_tabs_and_blanks(project: ForeignProject) -> None:
    """The preprocessor writes one blank for a tab: clang sees a guarded statement in another column than the next."""
    project.write("m.hip", "int f(int);\nint g(int x) {\n    if (x)\n\tx = f(x);\n        f(x);\n    return x;\n}\n")
    command = ("hipcc", "--offload-arch=gfx90a", "-Wall", "-c", "m.hip")
    plain = project.plainly(*command).stderr
    assert b"misleading" in plain
    assert [project.call(*command).stderr for _ in range(2)] == [plain, plain]


def test_a_word_of_the_clock_in_parts(project: ForeignProject) -> None:
    """The macro that makes the word of them is in another file."""
    project.write("paste.h", "#define PASTE(x, y) PASTED(x, y)\n#define PASTED(x, y) x##y\n")
    project.write("a.c", '#include "paste.h"\nconst char *when = PASTE(__TI, ME__);\n')
    began = project.counts()
    for number in range(1, 3):
        assert project.call("gcc", "-c", "a.c").returncode == 0
        assert project.counts() == (began[0], began[1] + number)


@pytest.mark.parametrize(
    "option", ["-gsplit-dwarf=split", "-grecord-command-line", "-foptimization-record-passes=inline", "-fembed-bitcode"]
)
def test_options_of_clang_that_write_or_show_more(option: str) -> None:
    with pytest.raises(PassThrough):
        parse(("/usr/bin/clang++", "-g", option, "-c", "a.cpp"), "/")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("hipcc"), reason="no hipcc (Debian: apt install hipcc)")
def test_a_column_of_a_hip_source_that_the_preprocessor_would_move(project: ForeignProject) -> None:
    """`__global__` becomes a longer word before the lambda, which clang names by its line and column."""
    kernel = """#include <hip/hip_runtime.h>
template <class T> __device__ __host__ constexpr unsigned hash() {
  unsigned sum = 5;
  for (const char* p = __PRETTY_FUNCTION__; *p; ++p) sum = sum * 31 + *p;
  return sum;
}
template <class T> __device__ unsigned hashed(T) { constexpr unsigned sum = hash<T>(); return sum; }
"""
    line = "__global__ void k(unsigned* p) { auto l = [] {}; *p = hashed(l); }\n"
    states = [lambda above=above: project.write("a.hip", f"{kernel}{above}{line}") for above in ("", "\n", "\n\n")]
    check(project, "hipcc -std=c++17 --offload-arch=gfx90a -c a.hip", *states)


def test_the_clock_counts_where_clang_does_not_read_the_variable_for_it(project: ForeignProject) -> None:
    project.write("a.c", "char const *when = __TIME__;\n")
    for _ in range(2):
        done = project.call("clang", "-c", "a.c", environ={**project.environ, "SOURCE_DATE_EPOCH": "1"})
        assert done.returncode == 0
    assert project.counts() == (0, 2)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_time_zone_counts(project: ForeignProject, compiler: str) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    project.write("z.c", "char const *written = __TIMESTAMP__, *day = __DATE__;\n")
    os.utime(project.folder / "z.c", (1_700_000_000, 1_700_000_000))
    made = []
    for zone in ("Asia/Tokyo", "America/Lima", "Asia/Tokyo"):
        for environ, name in ((project.environ, "ours.o"), (project.plain, "plain.o")):
            done = project.call(compiler, "-c", "z.c", "-o", name, environ={**environ, "TZ": zone})
            assert done.returncode == 0, done.stderr
        assert (project.folder / "ours.o").read_bytes() == (project.folder / "plain.o").read_bytes()
        made.append((project.folder / "ours.o").read_bytes())
    assert made[0] == made[2] != made[1]


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["INCLUDES", "PTXAS_FLAGS"])
def test_variables_from_which_nvcc_takes_words(kept_user: User, name: str) -> None:
    project = ForeignProject.with_nvcc(kept_user, f"adds {name}")
    project.write("inc/zq.h", "#define V 5\n")
    body = "__global__ void k(int *p) { for (int i = 0; i < 9; i++) p[i] += i * 3; }\n"
    project.write("a.cu", ('#include "zq.h"\n' if name == "INCLUDES" else "") + body)
    value = {"INCLUDES": f"-I{project.folder}/inc", "PTXAS_FLAGS": "-O0"}[name]
    for file, environ in (("a.cubin", project.environ), ("plain.cubin", project.plain)):
        command = ("nvcc", "-arch=sm_80", "-cubin", "a.cu", "-o", file)
        assert project.call(*command, environ={**environ, name: value}).returncode == 0
    assert (project.folder / "a.cubin").read_bytes() == (project.folder / "plain.cubin").read_bytes()
    assert project.figures().passed_through == {"environment": 1}


def test_a_file_whose_name_begins_with_an_equals_sign(project: ForeignProject) -> None:
    project.write("a.c", "int x = V;\n")
    project.write("=p.h", "#define V 3\n")
    subprocess.run(["gcc", "-x", "c-header", "./=p.h", "-o", "=p.h.gch"], cwd=project.folder, check=True)
    made = Path(project.folder, "=p.h.gch").read_bytes()
    project.write("=p.h", "#define V 4\n")
    check(
        project,
        "gcc -include=p.h -c a.c",
        lambda: Path(project.folder, "=p.h.gch").write_bytes(made),
        lambda: Path(project.folder, "=p.h.gch").unlink(),
    )


def test_a_shim_that_another_store_replaced_while_it_began(project: ForeignProject) -> None:
    project.write("a.c", "int shim;\n")
    shim = project.shims / "gcc"
    with open(shim, "rb") as running:
        os.link(shim, f"{shim}.other")
        os.unlink(shim)
        os.rename(f"{shim}.other", shim)
        done = subprocess.run(
            ["gcc", "-c", "a.c"],
            executable=f"/proc/self/fd/{running.fileno()}",
            pass_fds=[running.fileno()],
            cwd=project.folder,
            env=project.environ,
            capture_output=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()
