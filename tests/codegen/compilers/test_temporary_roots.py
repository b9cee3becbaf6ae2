"""Builds in folders that have another name each time: what hits, and that no object or depfile names another's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from codegen.compilers import temporary_roots
from codegen.compilers.command_parser import Compile
from codegen.foreign.command_line import parse
from codegen.plan import Place, Ref
from tests.support.foreign_project import ForeignProject
from tests.support.objects import described, inspector
from tests.support.serving import short_folder
from tests.support.toolkit import host_compiler
from tests.support.user import User

INDUCTOR_NAME = f"ckf{'a2' * 24}b"
HEADERS = "/tmp/pip-build-env-ab_12cd3/overlay/include"
SOURCE = '#include <x.h>\n#include "y.h"\nint value(int unused) { return X + Y; }\n'


def compile_of(
    *arguments: str, folder: str = "/tmp/pip-wheel-12345678/p"
) -> tuple[temporary_roots.Roots, temporary_roots.Roots]:
    """The roots without and with mapping."""
    compile = parse(("/usr/bin/gcc", "-c", *arguments), folder)
    return temporary_roots.roots_of(compile, folder, "no"), temporary_roots.roots_of(compile, folder, "/home/u/p")


def test_folders_of_front_ends_are_mapped_without_being_asked() -> None:
    """And those in which such a build works, but no others."""
    for arguments, folder, names in (
        (("a.c",), "/tmp/pip-wheel-12345678/p", ["+pip-wheel"]),
        (("a.c", "-flto", "-g"), "/tmp/pip-req-build-12345678", ["+pip-req-build"]),
        (("a.c", f"-I{HEADERS}"), "/tmp/tmpab_12cd3/build", ["+pip-build-env", "+tmp1"]),
        (("/home/u/.cache/uv/builds-v0/.tmpAb12cD/a.c",), "/home/u/p", ["+builds-v0"]),
        (("/home/u/p/a.c", "-g"), "/tmp/tmpab_12cd3.build-temp", ["+build-temp"]),
        (("a.c", "-g", "-gno-record-gcc-switches"), "/tmp/go-build1234567890/b001", ["+go-build"]),
        (("a.c", "-grecord-gcc-switches"), "/tmp/go-build1234567890/b001", []),
        (("a.c",), "/tmp/go-build/b001", []),
        (("../a.c", "-g"), "/home/u/p/.mesonpy-ab_12cd3", ["+.mesonpy"]),
        (("../a.c", "-g"), f"/tmp/pip-install-abcdefgh/name_{'0' * 32}/.mesonpy-ab_12cd3", ["+pip-install"]),
        (("../a.c", "-g"), "/home/u/p/.mesonpy-ab_12cd34", []),
        (("a.c",), "/tmp/tmpab_12cd3/build", ["tmp"]),
        (("a.c", "-flto"), "/tmp/tmpab_12cd3/build", []),
        (("a.c", "-Wmissing-include-dirs", "-I/tmp/pip-wheel-12345678/none"), "/tmp/pip-wheel-12345678/p", []),
    ):
        compile = parse(("/usr/bin/gcc", "-c", *arguments), folder)
        assert sorted(name for name, _ in temporary_roots.roots_of(compile, folder, "")) == names
    device = parse(("/cuda/bin/nvcc", "-dc", "a.cu"), "/p")
    for folder, names in (("/tmp/pip-wheel-12345678/p", ["+pip-wheel"]), ("/tmp/tmpab_12cd3/build", [])):
        assert [name for name, _ in temporary_roots.roots_of(device, folder, "")] == names


def test_scikit_builds_folder_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    place = tmp_path / "tmpab_12cd3"
    compile = parse(("/usr/bin/gcc", "-c", "-g", f"{place}/wheel/platlib/a.c"), f"{place}/build")
    for name in ("tmp", "+scikit-build"):
        for mapped, names in (("", [name]), ("no", ["tmp"])):
            assert [root for root, _ in temporary_roots.roots_of(compile, f"{place}/build", mapped)] == names
        (place / "wheel/metadata").mkdir(parents=True, exist_ok=True)


@pytest.mark.parametrize(
    "flag",
    ["-fgpu-rdc", "-fuse-cuid=hash", "--offload-new-driver", "-g", "-ggdb", "-fsanitize=address", "-flto=thin"],
)
def test_hipcc_has_no_roots_where_its_object_hides_a_path(flag: str) -> None:
    folder = "/tmp/pip-wheel-12345678/p"
    for flags, names in (((), ["+pip-wheel"]), ((flag,), [])):
        compile = parse(("/usr/bin/hipcc", "--offload-arch=gfx90a", *flags, "-c", f"{folder}/k.hip"), folder)
        assert [name for name, _ in temporary_roots.roots_of(compile, folder, "")] == names


def test_temporary_folders_are_roots_by_their_kind() -> None:
    env, wheel = ("pip-build-env", "/tmp/pip-build-env-ab_12cd3"), "/tmp/pip-wheel-12345678"
    mapped = (("+pip-build-env", env[1]), ("+pip-wheel1", wheel), ("+build", "/home/u/p"))
    assert compile_of("a.c", f"-I{HEADERS}") == ((env, ("pip-wheel1", wheel)), mapped)
    assert compile_of("a.c", "-isystem", HEADERS, folder="/p")[0] == (env,)
    assert compile_of("a.c", "-I/usr/include", "-DX=/tmp/pip-build-env-ab_12cd3/x", folder="/p")[0] == ()
    assert compile_of("a.c", f"-I{HEADERS}", "-flto") == ((), mapped)
    # A message breaks where the path's length decides.
    assert compile_of("a.c", f"-I{HEADERS}", "-fmessage-length=110") == ((), ())
    assert compile_of("a.c", f"-I{HEADERS}", "-fmessage-length=0") == compile_of("a.c", f"-I{HEADERS}")
    assert compile_of(f"{HEADERS}/a.c", folder="/p")[0] == (env,)
    inner = "/tmp/pip-install-abcdefgh/name_0123456789abcdef0123456789abcdef"
    assert compile_of("a.c", f"-I{inner}/include", folder="/p")[0] == (("pip-install", inner),)
    # As scikit-build-core and CMake's try_compile have them.
    tried = "/tmp/tmpab_12cd3/build/CMakeFiles/CMakeScratch/TryCompile-aB34eF"
    assert compile_of(f"{tried}/src.c", folder=tried)[0] == (("tmp", tried),)
    assert compile_of("-I/tmp/tmpab_12cd3/build/x", "a.c", folder=tried)[0] == (
        ("tmp1", tried),
        ("tmp", "/tmp/tmpab_12cd3"),
    )
    assert compile_of("a.c", folder="/p/CMakeFiles/CMakeScratch/TryCompile-aB34eF/x")[0][0][0] == "TryCompile"
    assert compile_of("a.c", folder="/home/u/tmp/p")[0] == ()
    encrypted = ("-dlto", "--lto", "-code=lto_80", "--gpu-code=sm_80,lto_80", "-optix-ir")
    for flag, roots in (("-O2", (("tmp", "/tmp/tmpab_12cd3"),)), *((f, ()) for f in ("-rdc=true", "-dc", *encrypted))):
        nvcc = parse(("/cuda/bin/nvcc", "-c", "a.cu", flag), "/tmp/tmpab_12cd3")
        assert temporary_roots.roots_of(nvcc, "/tmp/tmpab_12cd3", "") == roots


def inductor_compile(cache: str, source: str = "") -> Compile:
    source = source or f"{cache}/kf/{INDUCTOR_NAME}.main.cpp"
    header = f"/tmp/torchinductor_u/precompiled_headers/c{'a2' * 25}b.h"
    words = ("-g1", "-shared", "-fPIC", "-include", header, "-o", source.replace(".cpp", ".so"))
    return parse(("/usr/bin/g++", source, *words), "/p")


def test_the_cache_folder_of_inductor_is_a_root_wherever_it_is() -> None:
    headers = ("+inductor-headers", "/tmp/torchinductor_u/precompiled_headers")
    for cache in ("/home/u/c1", "/tmp/torchinductor_u", "/tmp/tmpab_12cd3"):
        roots = temporary_roots.roots_of(inductor_compile(cache), "/p", "")
        assert sorted(roots) == [("+inductor", cache), headers]
        found = [a for a in temporary_roots.referring(inductor_compile(cache).arguments, roots) if isinstance(a, Ref)]
        assert {(a.name, a.suffix) for a in found} == {
            ("+inductor", f"/kf/{INDUCTOR_NAME}.main.cpp"),
            ("+inductor-headers", f"/c{'a2' * 25}b.h"),
        }
    assert temporary_roots.roots_of(inductor_compile("/home/u/c1"), "/p", "no") == ()
    for other in (f"/home/u/c1/kg/{INDUCTOR_NAME}.cpp", "/home/u/c1/kf/main.cpp"):
        assert temporary_roots.roots_of(inductor_compile("", other), "/p", "") == ()


def test_only_whole_folders_are_referred_to() -> None:
    compile = parse(("/usr/bin/gcc", "-c", "a.c", f"-I{HEADERS}", f"-I{HEADERS[:-18]}x/y"), "/p")
    roots = (("pip-build-env", "/tmp/pip-build-env-ab_12cd3"),)
    found = temporary_roots.referring(compile.arguments, roots)
    assert Ref(place=Place.ROOT, name="pip-build-env", prefix="-I", suffix="/overlay/include") in found
    assert sum(isinstance(argument, Ref) for argument in found) == 1


def test_what_was_read_is_told_in_todays_names() -> None:
    before, now = (("r", "/tmp/one"),), (("r", "/tmp/two"),)
    content = temporary_roots.listed(before, ["a.h", "/tmp/one/b.h", "/tmp/one2/c.h"])
    assert temporary_roots.read(content, now) == (
        ["a.h", "/tmp/two/b.h", "/tmp/one2/c.h"],
        [(b"/tmp/one", b"/tmp/two")],
    )
    assert temporary_roots.read(content, before) == (["a.h", "/tmp/one/b.h", "/tmp/one2/c.h"], [])
    assert temporary_roots.read(b"a.h\0b.h\0", now) == (["a.h", "b.h"], [])
    assert temporary_roots.read(temporary_roots.listed((), []), now) == ([], [])


def test_a_folder_is_found_in_whatever_form_it_stands() -> None:
    roots = (("tmp1", "/tmp/tmpab_12cd3/q"), ("pip-wheel", "/tmp/pip-wheel-12345678"), ("+build", "/home/u/p"))
    assert temporary_roots.names_in(b"_GLOBAL__sub_I__tmp_pip_wheel_12345678_a_cpp", roots) == {"pip-wheel"}
    assert temporary_roots.names_in(b"/tmp/tmpab_12cd4 /home/u/p", roots) == set()
    text = b'# 1 "/tmp/tmpab_12cd3/q/a.c"\nint a;\n#line 2 "/tmp/tmpab_12cd3/q/a.c"\n'
    assert temporary_roots.names_in(text, roots, lines=True) == set()
    assert temporary_roots.names_in(text + b'char *f = "/tmp/tmpab_12cd3/q/a.c";\n', roots, lines=True) == {"tmp1"}


# ---------------------------------------------------------------- real compiles


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    with short_folder() as folder:
        user = User(folder)
        user.buildd("up")
        yield user
        assert user.end() == []


class Isolated:
    """A project and headers in temporary folders, as pip makes them for each build."""

    def __init__(self, foreign: ForeignProject, tag: str, source: str = SOURCE) -> None:
        self.foreign = foreign
        self.project = foreign.folder / f"pip-wheel-{tag}" / "p"
        self.headers = foreign.folder / f"pip-build-env-{tag}" / "include"
        for folder in (self.project, self.headers):
            folder.mkdir(parents=True)
        (self.project / "a.c").write_text(source)
        (self.project / "y.h").write_text("#define Y 2\n")
        (self.headers / "x.h").write_text("#define X 1\nstatic int never;\n")

    def compile(self, *options: str, source: str = "a.c", mapped: str = "") -> tuple[bytes, bytes, str]:
        """Object, what was said, depfile; beside a plain compile."""
        command = ("gcc", *options, "-Wall", "-Wextra", f"-I{self.headers}", "-c", source, "-o", "a.o", "-MD")
        plain = self.foreign.call(*command, environ=self.foreign.plain, cwd=self.project)
        content, rules = (self.project / "a.o").read_bytes(), (self.project / "a.d").read_text()
        for name in ("a.o", "a.d"):
            (self.project / name).unlink()
        environ = {**self.foreign.environ, **({"BUILDD_MAP_PATHS": mapped} if mapped else {})}
        done = self.foreign.call(*command, environ=environ, cwd=self.project)
        assert done.returncode == plain.returncode == 0, done.stderr
        assert done.stderr == plain.stderr and str(self.headers).encode() in done.stderr
        found = (self.project / "a.d").read_text()
        assert found.replace("\\\n", "").split() == rules.replace("\\\n", "").split()
        made = (self.project / "a.o").read_bytes()
        # Two plain compiles with -flto differ too.
        assert mapped not in ("", "no") or "-flto" in options or made == content
        return made, done.stderr, found


needs_gcc = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


@needs_gcc
def test_headers_in_another_temporary_folder_hit(user: User) -> None:
    foreign = ForeignProject(user, user.folder / "plain")
    for number in range(3):
        Isolated(foreign, f"{number:08}").compile("-O1")
    assert foreign.counts() == (2, 1) and foreign.figures().holding_paths == 0


@needs_gcc
def test_an_editable_installation_hits_once_more(user: User) -> None:
    """setuptools compiles the project's own sources in a folder that it makes each time, with Python's -g."""
    foreign = ForeignProject(user, user.folder / "editable")
    foreign.write("p/a.c", "char const *file = __FILE__;\n")
    made = set()
    for number in range(2):
        folder = foreign.folder / f"tmp{number:08}.build-temp"
        folder.mkdir()
        command = ("gcc", "-g", "-c", str(foreign.folder / "p/a.c"), "-o", "a.o")
        assert foreign.call(*command, environ=foreign.environ, cwd=folder).returncode == 0
        made.add((folder / "a.o").read_bytes())
    assert foreign.counts() == (1, 1) and len(made) == 1
    assert b"/build-temp" in made.pop(), "what a debugger is told in place of a folder that is gone by then"


@needs_gcc
@pytest.mark.parametrize("is_written", [True, False], ids=["what cgo writes", "a source beside the package"])
def test_cgo_hits_in_the_next_folder_of_go(user: User, is_written: bool) -> None:
    """`go build` makes a folder each time, and maps it itself. Objects lie in it, and what cgo writes."""
    foreign = ForeignProject(user, user.folder / f"cgo-{is_written}")
    foreign.write("own.h", "#define X 1\n")
    text = foreign.write("own.c", '#include "own.h"\nint f(int x) { return x + X; }\n').read_text()
    made = set()
    for number in range(2):
        folder = foreign.folder / f"go-build{number:010}/b001"
        folder.mkdir(parents=True)
        (folder / "_cgo_export.c").write_text(text)
        place, there, source = (
            (folder, "./", "_cgo_export.c") if is_written else (foreign.folder, f"{folder}/", "own.c")
        )
        maps = (f"-fdebug-prefix-map={folder}=/tmp/go-build", "-gno-record-gcc-switches")
        includes = ("-I", str(foreign.folder) if is_written else ".", *maps, "-I", there)
        command = ("gcc", *includes, "-g", "-O2", "-o", f"{there}_x001.o", "-c", source)
        for environ in (foreign.plain, foreign.environ):
            assert foreign.call(*command, environ=environ, cwd=place).returncode == 0
            made.add((folder / "_x001.o").read_bytes())
    assert foreign.counts() == (1, 1) and len(made) == 1


@needs_gcc
@pytest.mark.parametrize(("source", "counts"), [("int f() { return 1; }\n", (1, 1)), ("{path}", (0, 2))])
def test_a_library_of_inductor_is_found_from_another_cache_folder(
    user: User, source: str, counts: tuple[int, int]
) -> None:
    """Not if its text holds the folder's path."""
    foreign = ForeignProject(user, user.folder / f"inductor-{counts[0]}")
    made = []
    for name in ("c1", "longer/c2"):
        cache = foreign.folder / name
        (cache / "kf/build").mkdir(parents=True)
        text = source.replace("{path}", f'char const *file = "{cache}/a";\n')
        (cache / f"kf/{INDUCTOR_NAME}.cpp").write_text(text)
        output = cache / f"kf/{INDUCTOR_NAME}.so"
        command = ("g++", str(output.with_suffix(".cpp")), "-g1", "-shared", "-fPIC", "-o", str(output))
        done = foreign.call(*command, environ=foreign.environ, cwd=cache / "kf/build")
        assert done.returncode == 0, done.stderr
        made.append(output.read_bytes())
    assert foreign.counts() == counts
    assert (made[0] == made[1]) is (counts == (1, 1))
    assert b"/inductor/kf" in made[1] and (str(foreign.folder).encode() in made[1]) is (counts != (1, 1))


@needs_gcc
@pytest.mark.parametrize(
    ("options", "source"),
    [
        (("-g",), SOURCE),
        (("-O1",), f"{SOURCE}#include <z.h>\n"),
        (("-flto", "-O2"), SOURCE),
    ],
    ids=["debug", "file", "lto"],
)
def test_where_the_path_can_reach_the_object_it_counts(user: User, options: tuple[str, ...], source: str) -> None:
    foreign = ForeignProject(user, user.folder / f"counts-{options[0]}")
    for number in range(2):
        isolated = Isolated(foreign, f"{number:08}", source)
        (isolated.headers / "z.h").write_text("char const *file = __FILE__;\n")
        isolated.compile(*options, mapped="no")
    assert foreign.counts() == (0, 2)
    assert foreign.figures().holding_paths == (0 if "-flto" in options else 2)


@needs_gcc
def test_mapping_is_not_offered_where_a_source_names_its_folder(user: User) -> None:
    """As what CMake writes to try a compiler out: no flag maps what the text says."""
    foreign = ForeignProject(user, user.folder / "names")
    for number in range(2):
        isolated = Isolated(foreign, f"{number:08}", SOURCE)
        (isolated.project / "a.c").write_text(f'{SOURCE}char const *folder = "{isolated.project}";\n')
        isolated.compile("-O1", mapped="no")
    figures = foreign.figures()
    assert (figures.holding_paths, figures.unmappable) == (0, 2)


@needs_gcc
def test_the_summary_says_what_mapping_is_worth(user: User) -> None:
    folder = user.folder / "told" / "pip-wheel-00000000"
    folder.mkdir(parents=True)
    (folder / "a.c").write_text("char const *file(void) { return __FILE__; }\n")
    command = ("sh", "-c", f"cd {folder} && gcc -c {folder}/a.c -o a.o")
    status, said = user.buildd("run", "--no-map-paths", "--", *command)
    assert (status, said.count("1 miss made an object"), said.count("--no-map-paths")) == (0, 1, 1), said
    status, said = user.buildd("run", "--", *command)
    assert (status, "map-paths" in said) == (0, False), said


@needs_gcc
def test_a_source_in_another_temporary_folder_hits(user: User) -> None:
    """As CMake calls compilers; but where its path stands in the object, though no text asks for it."""
    foreign = ForeignProject(user, user.folder / "sources")
    made = {}
    for number in range(2):
        folder = foreign.folder / f"tmp{number:08}"
        (folder / "build").mkdir(parents=True)
        (folder / "a.cpp").write_text("int a(int x) { return x + 1; }\n")
        (folder / "b.cpp").write_text("char const *b() { return WHERE; }\n")
        for name in ("a", "b"):
            command = ("g++", "-DWHERE=__FILE__", "-c", str(folder / f"{name}.cpp"), "-o", f"{name}.o", "-MD")
            assert foreign.call(*command, cwd=folder / "build").returncode == 0
            made[name, number] = (folder / f"build/{name}.o").read_bytes()
            assert f"{folder}/{name}.cpp" in (folder / f"build/{name}.d").read_text()
            assert foreign.call(*command, environ=foreign.plain, cwd=folder / "build").returncode == 0
            assert (folder / f"build/{name}.o").read_bytes() == made[name, number]
    assert made["a", 0] == made["a", 1] and made["b", 0] != made["b", 1]
    assert foreign.counts() == (1, 3)


@pytest.mark.parametrize("place", ["{}", "pip-req-build-{}", "pip-install-{}/p_0123456789abcdef0123456789abcdef"])
def test_meson_python_builds_in_a_folder_below_the_sources(kept_user: User, place: str) -> None:
    """Its name is new each time, and the sources lie outside of it."""
    foreign = ForeignProject(kept_user, kept_user.folder / place.format("sources").replace("/", "-"))

    def made(number: int, value: int, *, mapped: bool = True) -> bytes:
        folder = foreign.folder / place.format(f"qx{number:06}")
        build = folder / f".mesonpy-wz{number:06}"
        build.mkdir(parents=True, exist_ok=True)
        (folder / "v.h").write_text(f"#define V {value}\n")
        (folder / "a.c").write_text('#include "v.h"\nint a = V;\nchar const *file(void) { return __FILE__; }\n')
        environ = {**foreign.environ, "BUILDD_MAP_PATHS": "" if mapped else "no"}
        command = "gcc -g -I. -I.. -MMD -MF a.d -c ../a.c -o a.o"
        done = foreign.call(*command.split(), environ=environ, cwd=build)
        assert done.returncode == 0, done.stderr
        assert (build / "a.d").read_text().split() == ["a.o:", "../a.c", "../v.h"]
        return (build / "a.o").read_bytes()

    first = made(1, 3)
    assert b"mesonpy-wz" not in first and b"qx0" not in first
    assert made(2, 3) == first and foreign.counts() == (1, 1)
    assert made(3, 4) != first and foreign.counts() == (1, 2)
    assert b"/.mesonpy-wz000004" in made(4, 3, mapped=False) and b"/.mesonpy-wz000005" in made(5, 3, mapped=False)


KERNELS = {
    "plain": "__global__ void k(int *p) { *p = X; }\nvoid run(int *p) { k<<<1, 1>>>(p); }\n",
    "host": "__global__ void k(int *p) { *p = X; }\nchar const *file() { return __FILE__; }\n",
    "device": "__global__ void k(char const **p) { *p = __FILE__; }\n",
    "other": "namespace { __global__ void k(int *p) { *p = X + NUMBER; } }\nvoid run(int *p) { k<<<1, 1>>>(p); }\n",
}


def nvcc_makes(foreign: ForeignProject, number: int, name: str, *, mapped: bool = False) -> bytes:
    """The object of a kernel in a front end's folder of this number."""
    random = f"qx{number:06}"  # digits alone, as 00000001, are in the headers of CUDA
    folder = foreign.folder / f"pip-req-build-{random}"
    build = foreign.folder / f"tmp{random}" / "build"
    for place in (folder / "include", build):
        place.mkdir(parents=True, exist_ok=True)
    (folder / "include/x.h").write_text("#define X 1\n")
    (folder / f"{name}.cu").write_text(f"#include <x.h>\n{KERNELS[name]}".replace("NUMBER", f"{number}"))
    where = (f"-isystem={folder}/include", "-c", f"{folder}/{name}.cu", "-o", f"{name}.o", "-MD", "-MF", f"{name}.d")
    environ = {**foreign.environ, "BUILDD_MAP_PATHS": str(foreign.folder) if mapped else "no"}
    done = foreign.call("nvcc", "-arch=sm_80", *where, environ=environ, cwd=build)
    assert done.returncode == 0, done.stderr
    assert f"{folder}/include/x.h" in (build / f"{name}.d").read_text()
    made = (build / f"{name}.o").read_bytes()
    assert (random.encode() in made) == (name in ("host", "device") and not mapped)
    return made


@pytest.mark.cuda
def test_nvcc_in_another_temporary_folder_hits(user: User) -> None:
    """Where no path reaches the object; mapped also where it would."""
    foreign = ForeignProject.with_nvcc(user, "nvcc")
    assert nvcc_makes(foreign, 1, "plain") == nvcc_makes(foreign, 2, "plain")
    assert foreign.counts() == (1, 1)
    nvcc_makes(foreign, 1, "device"), nvcc_makes(foreign, 2, "device")
    assert foreign.counts() == (1, 3)
    assert nvcc_makes(foreign, 1, "device", mapped=True) == nvcc_makes(foreign, 2, "device", mapped=True)
    assert foreign.counts() == (2, 4)


@pytest.mark.cuda
def test_nvcc_computes_with_a_path_that_no_option_maps(user: User) -> None:
    """The host compiler maps `__builtin_FILE`, nvcc's front ends do not: the kernel holds the length of the path."""
    foreign = ForeignProject.with_nvcc(user, "computes")
    for name in ("one", "another-folder-with-a-longer-name"):
        folder = foreign.folder / name
        foreign.write(
            f"{name}/k.cu",
            "constexpr int len(char const *s) { int n = 0; while (s[n]) n++; return n; }\n"
            "constexpr int N = len(__builtin_FILE());\n__global__ void computes(int *p) { *p = N; }\n",
        )
        made = []
        for environ in (foreign.plain, {**foreign.environ, "BUILDD_MAP_PATHS": str(folder)}):
            words = ("nvcc", "-arch=sm_80", "-o", "k.o", "-c", f"{folder}/k.cu")
            done = foreign.call(*words, environ=environ, cwd=folder)
            assert done.returncode == 0, done.stderr
            made.append(described(folder / "k.o", inspector())["machine code"])
        assert made[0] == made[1]
    assert foreign.counts() == (0, 2)


@pytest.mark.cuda
@pytest.mark.slow
def test_a_path_in_nvccs_host_code_counts_unless_it_is_mapped(user: User) -> None:
    foreign = ForeignProject.with_nvcc(user, "host")
    nvcc_makes(foreign, 1, "host"), nvcc_makes(foreign, 2, "host")
    assert foreign.counts() == (0, 2)
    assert nvcc_makes(foreign, 1, "host", mapped=True) == nvcc_makes(foreign, 2, "host", mapped=True)
    assert foreign.counts() == (1, 3)
    # They may be linked together: what is theirs alone has names of its own.
    objects = [nvcc_makes(foreign, number, "other") for number in (1, 2)]
    modules = [set(re.findall(rb"_[0-9a-f]{8}_8_other_cu_[0-9a-f]{8}", made)) for made in objects]
    assert len(modules[0]) == len(modules[1]) == 1 and modules[0] != modules[1]


@needs_gcc
def test_mapped_paths_are_in_no_object(user: User) -> None:
    foreign = ForeignProject(user, user.folder / "mapped")
    source = f"{SOURCE}#include <z.h>\n#include <assert.h>\nvoid f(int x) {{ assert(x); }}\n"
    made = []
    for number in range(3):
        isolated = Isolated(foreign, f"{number:08}", source)
        (isolated.headers / "z.h").write_text("char const *file = __FILE__;\n")
        made.append(isolated.compile("-g", mapped=str(foreign.folder / "elsewhere"))[0])
    assert foreign.counts() == (2, 1)
    assert made[0] == made[1] == made[2]
    assert os.fsencode(foreign.folder) not in made[0] and b"/pip-build-env" in made[0]


@needs_gcc
def test_a_mapped_checkout_hits_for_another(user: User) -> None:
    """As CMake calls compilers: from a folder below, with absolute paths."""
    foreign = ForeignProject(user, user.folder / "checkouts")
    made = []
    for name in ("one", "two"):
        project = foreign.folder / name
        for folder in ("build", "src", "include"):
            (project / folder).mkdir(parents=True)
        (project / "src/a.cpp").write_text(
            '#include <a.h>\n#include "b.h"\nint a = A + B;\nchar const *f = __FILE__;\n'
        )
        (project / "src/b.h").write_text("#define B 1\n")
        (project / "include/a.h").write_text("#define A 1\n")
        command = ("g++", "-g", f"-I{project}/include", "-c", f"{project}/src/a.cpp", "-o", "a.o", "-MD")
        environ = {**foreign.environ, "BUILDD_MAP_PATHS": str(project)}
        for _ in range(2):
            assert foreign.call(*command, environ=environ, cwd=project / "build").returncode == 0
        assert f"{project}/include/a.h" in (project / "build/a.d").read_text()
        made.append((project / "build/a.o").read_bytes())
    assert foreign.counts() == (3, 1)
    assert made[0] == made[1] and os.fsencode(foreign.folder) not in made[0]
    (foreign.folder / "two/include/a.h").write_text("#define A 2\n")
    assert foreign.call(*command, environ=environ, cwd=project / "build").returncode == 0
    assert foreign.counts() == (3, 2)


@needs_gcc
def test_behind_a_link_nothing_is_mapped(user: User) -> None:
    """The compiler may write either name of the folder."""
    foreign = ForeignProject(user, user.folder / "links")
    for name in ("one", "two"):
        project = foreign.folder / name
        project.mkdir()
        (project / "a.c").write_text("int a;\n")
        link = foreign.folder / f"{name}-link"
        link.symlink_to(project)
        environ = {**foreign.environ, "BUILDD_MAP_PATHS": str(link), "PWD": str(link)}
        assert foreign.call("gcc", "-g", "-c", "a.c", environ=environ, cwd=link).returncode == 0
        plain = {**foreign.plain, "PWD": str(link)}
        content = (project / "a.o").read_bytes()
        assert foreign.call("gcc", "-g", "-c", "a.c", environ=plain, cwd=link).returncode == 0
        assert (project / "a.o").read_bytes() == content
    assert foreign.counts() == (0, 2)
    shutil.rmtree(foreign.folder)


LINES = """\
#include "h.cuh"
#include <far.cuh>
__global__ void kernel_of_lines(float *x) { x[threadIdx.x] = far(near(x[0])); }
"""


def lines_of(foreign: ForeignProject, tag: str, source: str, *flags: str, **environ: str) -> tuple[bytes, bytes]:
    """The object of a kernel with -lineinfo in a front end's folder, and what cuobjdump finds in it."""
    folder = foreign.folder / f"pip-req-build-{tag}"
    (folder / "csrc").mkdir(parents=True, exist_ok=True)
    (folder / "inc").mkdir(exist_ok=True)
    (folder / "csrc/k.cu").write_text(LINES)
    (folder / "csrc/h.cuh").write_text("__device__ __noinline__ inline float near(float x) { return x * 3; }\n")
    (folder / "inc/far.cuh").write_text("__device__ __forceinline__ float far(float x) { return x + 1; }\n")
    command = ("nvcc", "-lineinfo", "-Xptxas=-v", "-gencode", "arch=compute_80,code=[sm_80,compute_80]")
    command += ("-no-compress", f"-I{folder}/inc", *flags, "-c", source.format(folder))
    done = foreign.call(*command, "-o", "k.o", cwd=folder, environ={**foreign.environ, **environ})
    assert done.returncode == 0, done.stderr
    cubin = subprocess.run([inspector(), "-ptx", "-elf", folder / "k.o"], capture_output=True, check=True)
    return (folder / "k.o").read_bytes(), cubin.stdout


@pytest.mark.cuda
@pytest.mark.parametrize(
    "source",
    [pytest.param("csrc/k.cu", id="relative"), pytest.param("{}/csrc/k.cu", id="absolute", marks=pytest.mark.slow)],
)
def test_line_information_of_a_folder_that_a_front_end_made_is_mapped(user: User, source: str) -> None:
    """-lineinfo, which apex, causal-conv1d and LightGBM have in their wheels."""
    foreign = ForeignProject.with_nvcc(user, f"lines-{len(source)}")
    first, second = lines_of(foreign, "12345678", source), lines_of(foreign, "abcdefgh", source)
    assert foreign.counts() == (1, 1)
    assert first[0] == second[0]
    assert b"12345678" not in first[0] + first[1]
    for name in (b"/pip-req-build/csrc/k.cu", b"/pip-req-build/csrc/h.cuh", b"/pip-req-build/inc/far.cuh"):
        assert name in first[1]


@pytest.mark.cuda
def test_a_folder_in_other_words_is_not_mapped(user: User) -> None:
    """The path stays in the object, and binds it to its folder."""
    foreign = ForeignProject.with_nvcc(user, "words")
    for tag in ("12345678", "abcdefgh"):
        words = f"-I{foreign.folder}/pip-req-build-{tag}/../pip-req-build-{tag}/inc"
        odd = lines_of(foreign, tag, "csrc/k.cu", words)
    assert b"12345678" not in odd[1] and foreign.counts() == (0, 2)


@pytest.mark.cuda
@pytest.mark.slow
def test_steps_of_a_mapped_compile_are_not_those_of_one_that_is_not(user: User) -> None:
    foreign = ForeignProject.with_nvcc(user, "steps")
    plain, mapped = (
        lines_of(foreign, "12345678", "csrc/k.cu", **environ) for environ in ({"BUILDD_MAP_PATHS": "no"}, {})
    )
    assert b"pip-req-build-12345678/csrc/h.cuh" in plain[1] and b"/pip-req-build/csrc/h.cuh" in mapped[1]
    assert lines_of(foreign, "12345678", "csrc/k.cu", "-G") != lines_of(foreign, "abcdefgh", "csrc/k.cu", "-G")
