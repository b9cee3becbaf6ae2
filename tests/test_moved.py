"""Builds in folders that have another name each time: what hits, and that no object or depfile names another's."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator

import pytest
from serving import short_folder

from codegen import moved
from codegen.commandline import parse
from codegen.plan import Place, Ref
from tests.foreign import Foreign
from tests.household import Household
from tests.toolkit import host_compiler

HEADERS = "/tmp/pip-build-env-ab_12cd3/overlay/include"
SOURCE = '#include <x.h>\n#include "y.h"\nint value(int unused) { return X + Y; }\n'


def compile_of(*arguments: str, folder: str = "/tmp/pip-wheel-12345678/p") -> tuple[moved.Roots, moved.Roots]:
    """The roots without and with mapping."""
    compile = parse(("/usr/bin/gcc", "-c", *arguments), folder)
    return moved.roots_of(compile, folder, ""), moved.roots_of(compile, folder, "/home/u/p")


def test_temporary_folders_are_roots_by_their_kind() -> None:
    env, wheel = ("pip-build-env", "/tmp/pip-build-env-ab_12cd3"), "/tmp/pip-wheel-12345678"
    mapped = (("+pip-build-env", env[1]), ("+pip-wheel1", wheel), ("+build", "/home/u/p"))
    assert compile_of("a.c", f"-I{HEADERS}") == ((env, ("pip-wheel1", wheel)), mapped)
    assert compile_of("a.c", "-isystem", HEADERS, folder="/p")[0] == (env,)
    assert compile_of("a.c", "-I/usr/include", "-DX=/tmp/pip-build-env-ab_12cd3/x", folder="/p")[0] == ()
    assert compile_of("a.c", f"-I{HEADERS}", "-flto") == ((), mapped)
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
    for flag, roots in (("-O2", (("tmp", "/tmp/tmpab_12cd3"),)), ("-rdc=true", ()), ("-dc", ()), ("-dlto", ())):
        nvcc = parse(("/cuda/bin/nvcc", "-c", "a.cu", flag), "/tmp/tmpab_12cd3")
        assert moved.roots_of(nvcc, "/tmp/tmpab_12cd3", "") == roots


def test_only_whole_folders_are_referred_to() -> None:
    compile = parse(("/usr/bin/gcc", "-c", "a.c", f"-I{HEADERS}", f"-I{HEADERS[:-18]}x/y"), "/p")
    roots = (("pip-build-env", "/tmp/pip-build-env-ab_12cd3"),)
    found = moved.referring(compile.arguments, roots)
    assert Ref(place=Place.ROOT, name="pip-build-env", prefix="-I", suffix="/overlay/include") in found
    assert sum(isinstance(argument, Ref) for argument in found) == 1


def test_what_was_read_is_told_in_todays_names() -> None:
    before, now = (("r", "/tmp/one"),), (("r", "/tmp/two"),)
    content = moved.listed(before, ["a.h", "/tmp/one/b.h", "/tmp/one2/c.h"])
    assert moved.read(content, now) == (["a.h", "/tmp/two/b.h", "/tmp/one2/c.h"], [(b"/tmp/one", b"/tmp/two")])
    assert moved.read(content, before) == (["a.h", "/tmp/one/b.h", "/tmp/one2/c.h"], [])
    assert moved.read(b"a.h\0b.h\0", now) == (["a.h", "b.h"], [])
    assert moved.read(moved.listed((), []), now) == ([], [])


def test_a_folder_is_found_in_whatever_form_it_stands() -> None:
    roots = (("tmp1", "/tmp/tmpab_12cd3/q"), ("pip-wheel", "/tmp/pip-wheel-12345678"), ("+build", "/home/u/p"))
    assert moved.names_in(b"_GLOBAL__sub_I__tmp_pip_wheel_12345678_a_cpp", roots) == {"pip-wheel"}
    assert moved.names_in(b"/tmp/tmpab_12cd4 /home/u/p", roots) == set()
    text = b'# 1 "/tmp/tmpab_12cd3/q/a.c"\nint a;\n#line 2 "/tmp/tmpab_12cd3/q/a.c"\n'
    assert moved.names_in(text, roots, lines=True) == set()
    assert moved.names_in(text + b'char *f = "/tmp/tmpab_12cd3/q/a.c";\n', roots, lines=True) == {"tmp1"}


# ---------------------------------------------------------------- real compiles


@pytest.fixture(scope="module")
def user() -> Iterator[Household]:
    with short_folder() as folder:
        household = Household(folder)
        household.buildd("up")
        yield household
        assert household.end() == []


class Isolated:
    """A project and headers in temporary folders, as pip makes them for each build."""

    def __init__(self, foreign: Foreign, tag: str, source: str = SOURCE) -> None:
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
        assert mapped or "-flto" in options or made == content
        return made, done.stderr, found


needs_gcc = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


@needs_gcc
def test_headers_in_another_temporary_folder_hit(user: Household) -> None:
    foreign = Foreign(user, user.folder / "plain")
    for number in range(3):
        Isolated(foreign, f"{number:08}").compile("-O1")
    assert foreign.counts() == (2, 1) and foreign.figures().holding_paths == 0


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
def test_where_the_path_can_reach_the_object_it_counts(user: Household, options: tuple[str, ...], source: str) -> None:
    foreign = Foreign(user, user.folder / f"counts-{options[0]}")
    for number in range(2):
        isolated = Isolated(foreign, f"{number:08}", source)
        (isolated.headers / "z.h").write_text("char const *file = __FILE__;\n")
        isolated.compile(*options)
    assert foreign.counts() == (0, 2)
    assert foreign.figures().holding_paths == (0 if "-flto" in options else 2)


@needs_gcc
def test_the_summary_says_what_mapping_is_worth(user: Household) -> None:
    folder = user.folder / "told" / "pip-wheel-00000000"
    folder.mkdir(parents=True)
    (folder / "a.c").write_text("char const *file(void) { return __FILE__; }\n")
    command = ("sh", "-c", f"cd {folder} && gcc -c {folder}/a.c -o a.o")
    status, said = user.buildd("run", "--", *command)
    assert (status, said.count("1 of the misses"), said.count("--map-paths")) == (0, 1, 1), said
    status, said = user.buildd("run", "--map-paths", "--", *command)
    assert (status, "--map-paths" in said) == (0, False), said


@needs_gcc
def test_a_source_in_another_temporary_folder_hits(user: Household) -> None:
    """As CMake calls compilers; but where its path stands in the object, though no text asks for it."""
    foreign = Foreign(user, user.folder / "sources")
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


@pytest.mark.cuda
def test_nvcc_in_another_temporary_folder_hits(user: Household) -> None:
    """Where no path reaches the object, on either side; mapped also where it would."""
    wheels = importlib.util.find_spec("nvidia.cu13")
    folders = list(wheels.submodule_search_locations or ()) if wheels else []
    foreign = Foreign(user, user.folder / "nvcc", f"{folders[0]}/bin" if folders else "")
    texts = {
        "plain": "__global__ void k(int *p) { *p = X; }\nvoid run(int *p) { k<<<1, 1>>>(p); }\n",
        "host": "__global__ void k(int *p) { *p = X; }\nchar const *file() { return __FILE__; }\n",
        "device": "__global__ void k(char const **p) { *p = __FILE__; }\n",
        "other": "namespace { __global__ void k(int *p) { *p = X + NUMBER; } }\nvoid run(int *p) { k<<<1, 1>>>(p); }\n",
    }

    def compile(number: int, name: str, *, mapped: bool = False) -> bytes:
        folder = foreign.folder / f"pip-req-build-{number:08}"
        build = foreign.folder / f"tmp{number:08}" / "build"
        for place in (folder / "include", build):
            place.mkdir(parents=True, exist_ok=True)
        (folder / "include/x.h").write_text("#define X 1\n")
        (folder / f"{name}.cu").write_text(f"#include <x.h>\n{texts[name]}".replace("NUMBER", f"{number}"))
        where = (
            f"-isystem={folder}/include",
            "-c",
            f"{folder}/{name}.cu",
            "-o",
            f"{name}.o",
            "-MD",
            "-MF",
            f"{name}.d",
        )
        environ = {**foreign.environ, **({"BUILDD_MAP_PATHS": str(foreign.folder)} if mapped else {})}
        done = foreign.call("nvcc", "-arch=sm_80", *where, environ=environ, cwd=build)
        assert done.returncode == 0, done.stderr
        assert f"{folder}/include/x.h" in (build / f"{name}.d").read_text()
        made = (build / f"{name}.o").read_bytes()
        assert (f"{number:08}".encode() in made) == (name in ("host", "device") and not mapped)
        return made

    assert compile(1, "plain") == compile(2, "plain")
    assert foreign.counts() == (1, 1)
    compile(1, "host"), compile(2, "host"), compile(1, "device"), compile(2, "device")
    assert foreign.counts() == (1, 5)
    assert compile(1, "host", mapped=True) == compile(2, "host", mapped=True)
    assert compile(1, "device", mapped=True) == compile(2, "device", mapped=True)
    assert foreign.counts() == (3, 7)
    # They may be linked together: what is theirs alone has names of its own.
    modules = [set(re.findall(rb"_[0-9a-f]{8}_8_other_cu_[0-9a-f]{8}", compile(number, "other"))) for number in (1, 2)]
    assert len(modules[0]) == len(modules[1]) == 1 and modules[0] != modules[1]


@needs_gcc
def test_mapped_paths_are_in_no_object(user: Household) -> None:
    foreign = Foreign(user, user.folder / "mapped")
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
def test_a_mapped_checkout_hits_for_another(user: Household) -> None:
    """As CMake calls compilers: from a folder below, with absolute paths."""
    foreign = Foreign(user, user.folder / "checkouts")
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
def test_behind_a_link_nothing_is_mapped(user: Household) -> None:
    """The compiler may write either name of the folder."""
    foreign = Foreign(user, user.folder / "links")
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
