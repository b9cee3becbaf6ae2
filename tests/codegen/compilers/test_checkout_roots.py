"""Builds in several checkouts: what another checkout finds, and that no object, depfile or message is another's."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.keys.checkout_paths import installed
from codegen.compilers.checkout_roots import (
    always_bound,
    holds_id,
    is_mapped,
    names_held,
    names_in,
    names_in_text,
    replaced,
    roots_of,
    shown_parts,
    sorted_roots,
)
from codegen.compilers.temporary_roots import Roots
from codegen.foreign.command_line import parse
from codegen.plan import Tool
from tests.support.foreign_project import ForeignProject
from tests.support.serving import short_folder
from tests.support.toolkit import host_compiler, small_toolkit
from tests.support.user import User

ROOTS = (("checkout-1", "/home/u/p"),)


def found(*command: str, folder: str, run_folder: str = "", temporary: Roots = ()) -> Roots:
    compile = parse(command, folder)
    return sorted_roots(roots_of(compile, folder, run_folder, compile.flags, temporary))


def gcc(*arguments: str, folder: str = "/home/u/p/build", run_folder: str = "") -> Roots:
    return found("/usr/bin/gcc", "-c", *arguments, folder=folder, run_folder=run_folder)


def nvcc(*arguments: str, folder: str = "/home/u/p/build") -> Roots:
    return found("/cuda/bin/nvcc", "-c", *arguments, folder=folder)


def test_roots_are_named_by_their_height_above_the_working_folder() -> None:
    assert gcc("/home/u/p/src/a.c", "-I/home/u/p/include") == ROOTS
    assert gcc("/home/u/p/src/a.c", folder="/home/u/p/build/deep/er") == (("checkout-3", "/home/u/p"),)
    assert gcc("a.c", "-I/home/u/p/build/x") == (("checkout", "/home/u/p/build"),)
    # The source was generated; where the run began (BUILDD_RUN_FOLDER) tells what belongs to the checkout.
    assert gcc("x/a.c", "-I/home/u/p/include") == ()
    assert gcc("x/a.c", "-I/home/u/p/include", run_folder="/home/u/p") == ROOTS
    # make works below the build folder.
    both = gcc("/home/u/p/src/a.c", "-I/home/u/p/out/gen", "-I/home/u/p/src", folder="/home/u/p/out/sub/er")
    assert both == (("checkout-2", "/home/u/p/out"), ("checkout-3", "/home/u/p"))
    # A build folder elsewhere.
    elsewhere = gcc("/home/u/p/a.c", folder="/scratch/b", run_folder="/home/u/p")
    assert elsewhere == (("checkout-run", "/home/u/p"),)


def test_a_build_that_lies_elsewhere_is_a_root() -> None:
    apart = ("checkout-apart-2", "/home/u/.cache/x")
    places = ("-I/home/u/.cache/x/include", "-I/usr/include/x", "-o", "/home/u/.cache/x/obj/a/a.o")
    assert gcc("a.c", *places) == (apart,)
    assert set(nvcc("a.cu", *places)) == {apart, ("checkout", "/home/u/p/build")}
    # nvcc's object is known by its path; gcc's is not.
    assert ("checkout-apart-0", "/var/x") in nvcc("a.cu", "-o", "/var/x/a.o") and gcc("a.c", "-o", "/var/x/a.o") == ()
    both = gcc("a.c", *places, "-I/home/u/.cache/x/obj/b", "-I/home/u/lib")
    assert both == (("checkout-apart-1", f"{apart[1]}/obj"), apart, ("checkout-apart-4", "/home/u"))
    # Only lists, which have no place of their own.
    assert found("/usr/bin/gcc", "-MM", "a.c", places[0], folder="/s") == (("checkout-apart", f"{apart[1]}/include"),)
    assert gcc("a.c", "-I/v/include", "-o", "/w/a.o") == gcc("a.c", places[0]) == ()


def test_only_what_a_command_names_by_absolute_path_is_a_root() -> None:
    assert gcc("../src/a.c", "-I../include", run_folder="/home/u/p") == ()
    # nvcc names its modules after absolute paths.
    assert nvcc("../src/a.cu") == (("checkout", "/home/u/p/build"),)
    assert nvcc("/home/u/p/a.cu") == (("checkout", "/home/u/p/build"), ("checkout-1", "/home/u/p"))


def test_hipccs_folders_are_roots_as_nvccs_are() -> None:
    def hipcc(*arguments: str) -> Roots:
        return found("/usr/bin/hipcc", "--offload-arch=gfx90a", "-c", *arguments, folder="/home/u/p/build")

    assert hipcc("../src/a.hip") == (("checkout", "/home/u/p/build"),)
    assert hipcc("/home/u/p/a.hip") == (("checkout", "/home/u/p/build"), ("checkout-1", "/home/u/p"))
    assert hipcc("/home/u/p/a.hip", "-fgpu-rdc") == hipcc("/home/u/p/a.hip", "-g") == ()


@pytest.mark.parametrize("symbol", ["__hip_cuid_4af1e14e5150a0d7", "_ZL1c.static.4af1e14e5150a0d7", "CCOB"])
def test_an_object_of_hip_with_its_modules_id_is_told_from_others(symbol: str) -> None:
    """clang 18 gives each object of HIP a symbol with its id; a compressed bundle begins with CCOB."""
    assert holds_id(f"\0_Z1kPf\0{symbol}\0".encode()) and not holds_id(b"\0_Z1kPf\0__hip_fatbin\0")


@pytest.mark.parametrize(
    "flag",
    [
        *("-frandom-seed=__FILE__", "-DHERE=__FILE__", "-grecord-gcc-switches"),
        *("-ffile-prefix-map=/home=.", "-fmacro-prefix-map=/home/u/p/bu=x", "-fmessage-length=72"),
        *("-Wmissing-include-dirs", "-S"),
    ],
)
def test_where_a_flag_can_hide_a_path_there_are_no_roots(flag: str) -> None:
    assert gcc("/home/u/p/src/a.c", flag) == ()
    for harmless in ("-ffile-prefix-map=/build/python=.", "-gno-record-gcc-switches"):
        assert gcc("/home/u/p/src/a.c", harmless) == ROOTS


def test_the_result_of_link_time_optimization_is_bound_to_the_folders_that_its_command_names() -> None:
    """What gcc's object contains is packed, and known without a look at it."""
    for flags in (("-flto=auto",), ("-O2", "-flto"), ("-flto", "-ffile-prefix-map=/home/u/p=.")):
        roots = gcc("/home/u/p/src/a.c", *flags)
        assert roots and always_bound(flags, roots)
        assert not always_bound(flags, ())
    assert gcc("../src/a.c", "-flto") == (("checkout", "/home/u/p/build"),), "it contains the working folder"


def test_what_the_users_own_mapping_leaves_of_a_folder_is_told() -> None:
    """The rest of the path may be in the result: it is part of the key."""
    here, top = ("checkout", "/home/u/p/build"), ("checkout-1", "/home/u/p")
    for flag, roots, left in (
        ("-ffile-prefix-map=/home/u/p=.", (here, top), "/build"),
        ("-ffile-prefix-map=/home/u/p/=./", (here, top), "/build"),
        ("-fmacro-prefix-map=/home/u=x", (here, ("checkout-2", "/home/u")), "/p/build"),
        ("-fdebug-prefix-map=/home/u/p/build=x", (here,), ""),
        ("-fdebug-prefix-map=/home/u/p/build/gen=x", (here,), ""),
        ("-ffile-prefix-map=/other=x", (here,), ""),
        ("-ffile-prefix-map=../=x", (here,), ""),
    ):
        roots_now = gcc("/home/u/p/build/gen.c", "-I/home/u/p/inc", flag)
        assert (roots_now, shown_parts((flag,), roots_now)) == (roots, left), flag
    both = (("checkout", "/home/u/p/build"), ("checkout-1", "/home/u/p"))
    for flag, is_kept_out in (
        ("-ffile-prefix-map=/home/u/p=.", True),
        ("-fdebug-prefix-map=/home/u/p/build=.", False),  # an assembler may compress what has /home/u/p
        ("-fmacro-prefix-map=/home/u/p=.", False),
        ("-fdebug-prefix-map=/home/u/p/src=.", False),
        ("-fdebug-prefix-map=../=.", False),
    ):
        assert is_mapped(("-g", flag), both) == is_kept_out, flag
        assert always_bound(("-g", flag), both) != is_kept_out, flag
    assert not is_mapped(("-g", "-gz", "-ffile-prefix-map=/home/u/p=."), both), "compressed: a path is not found there"


def test_a_flag_that_shows_the_folder_makes_it_a_root() -> None:
    both = (("checkout", "/home/u/p/build"), ("checkout-1", "/home/u/p"))
    for flag in ("-g", "-fsanitize=address"):
        assert gcc("/home/u/p/src/a.c", flag) == both and gcc("a.c", flag) == both[:1]


def test_paths_in_other_forms_are_no_roots() -> None:
    assert gcc("/home/u/p q/a.c", folder="/home/u/p q/build") == ()
    assert gcc("/a.c", folder="/b") == ()
    assert nvcc("/home/u/p/a.cu", "-lineinfo") == ()
    # What LTO holds cannot be searched.
    assert nvcc("/home/u/p/a.cu", "-gencode", "arch=compute_80,code=lto_80") == ()


def test_a_path_that_leaves_the_root_is_not_named_by_it() -> None:
    assert gcc("/home/u/p/src/a.c", "-I/home/u/p/../../v") == ROOTS
    assert gcc("a.c", "-I/home/u/p/build/../../../v") == ()


def test_a_folder_is_found_in_every_form() -> None:
    for content in (b"\0/home/u/p/src\0", b"_GLOBAL__sub_I__home_u_p_src_a.c_1234", b"_GLOBAL__I_65535_0__home_u_p"):
        assert names_in(content, ROOTS) == {"checkout-1"}
    assert names_in(b"/home/u/q _home_u_p", ROOTS) == set()
    assert names_in_text(b'#include "/home/u/p/x.h"', ROOTS) == {"checkout-1"}
    for text in (b"x/home/u/p/x.h", b"../home/u/p", b"/home/u/pq"):
        assert names_in_text(text, ROOTS) == set()
    text = b'# 1 "/home/u/p/a.c"\nint a;\n'
    assert names_in_text(text, ROOTS, preprocessed=True) == set()
    assert names_in_text(text + b'char *f = "/home/u/p/a.c";', ROOTS, preprocessed=True) == {"checkout-1"}


def test_messages_are_told_in_todays_names() -> None:
    moves = [(b"/u/a", b"/u/a/b"), (b"/u/a/x", b"/u/a/b/x")]
    assert replaced(b"/u/a/x/y.c:1 '/u/a' /u/ab", moves) == b"/u/a/b/x/y.c:1 '/u/a/b' /u/ab"
    for text in (b"/home/u/p/a.c(3): x", b"In file included from /home/u/p/a.h:3,\n", b"`/home/u/p'"):
        assert names_held(text, ROOTS) == set()
    for text in (b"x/home/u/p/a", b"/home/u/p.old/a", b"file:///home/u/p/a"):
        assert names_held(text, ROOTS) == {"checkout-1"}


def test_only_the_tools_and_the_systems_files_may_ask_for_computed_names() -> None:
    tool = Tool(name="gcc", search=("/gcc/include",), roots=(("python", "/tmp/tmpabcd_123"), ("checkout", "/home/u/p")))
    assert installed("/gcc/include/x.h", tool) and installed("/usr/share/x.h", tool)
    for path in ("a.h", "/home/u/p/a.h", "/tmp/tmpabcd_123/a.h", "/opt/a.h"):
        assert not installed(path, tool)


# ---------------------------------------------------------------- real compiles


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    with short_folder() as folder:
        user = User(folder)
        user.buildd("up")
        yield user
        assert user.end() == []


class Checkouts:
    """The same sources in folders of other names and depths."""

    def __init__(self, foreign: ForeignProject, texts: dict[str, str]) -> None:
        self.foreign = foreign
        self._plain: dict[tuple[str, ...], tuple[bytes, frozenset[str]]] = {}
        """What plain nvcc printed in the first folder, and its rules: in the other one both differ in the folder's name
        alone, and nvcc takes seconds."""
        self.folders = [foreign.folder / "one", foreign.folder / "somewhere/else/two"]
        for folder in self.folders:
            for name, text in {"include/h.h": "#pragma once\n#define H 3\n", **texts}.items():
                place = folder / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text)
            (folder / "build").mkdir(exist_ok=True)

    def compile(self, number: int, *command: str) -> bytes:
        """The object: the plain tool's own, apart from what nvcc names at random. Messages and depfile are too."""
        folder = self.folders[number]
        build, nvcc = folder / "build", command[0] == "nvcc"
        words = [word.replace("@", str(folder)) for word in command]
        known = self._plain.get(command) if nvcc else None
        made = []
        for environ in (self.foreign.plain, self.foreign.environ)[known is not None :]:
            done = self.foreign.call(*words, "-MD", "-MF", "o.d", "-o", "o.o", environ=environ, cwd=build)
            assert done.returncode == 0, done.stderr
            rules = (build / "o.d").read_text().replace("\\\n", "").split()
            content = (build / "o.o").read_bytes()
            said = done.stderr.replace(os.fsencode(folder), b"@")
            ours = frozenset(rule.replace(str(folder), "@") for rule in rules if str(self.foreign.folder) in rule)
            made.append((said, ours, b"" if nvcc else content))
            for name in ("o.o", "o.d"):
                (build / name).unlink()
        if nvcc:
            self._plain[command] = known = known or made[0][:2]
            assert made[-1][:2] == known
        else:
            assert made[0] == made[1]
        assert str(self.folders[1 - number]).encode() not in content
        return content

    def twice(self, *command: str) -> tuple[int, int]:
        """Compile in both; hits and misses that this made."""
        before = self.foreign.counts()
        objects = [self.compile(number, *command) for number in (0, 1)]
        now = self.foreign.counts()
        hits, misses = now[0] - before[0], now[1] - before[1]
        assert misses == 2 or objects[0] == objects[1]
        return hits, misses


needs_gcc = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
COMPILE = ("g++", "-Wall", "-Wextra", "-I@/include", "-c")


@needs_gcc
def test_another_checkout_hits_where_no_path_reaches_the_object(user: User) -> None:
    foreign = ForeignProject(user, user.folder / "plain")
    text = '#include "h.h"\n#include <stddef.h>\nsize_t f(int unused) { return H; }\n'
    checkouts = Checkouts(foreign, {"src/a.cpp": text})
    assert checkouts.twice(*COMPILE, "@/src/a.cpp") == (1, 1)
    assert checkouts.twice(*COMPILE, "-O2", "@/src/a.cpp") == (1, 1)
    assert checkouts.twice(*COMPILE, "-g", "@/src/a.cpp") == (0, 2)
    assert foreign.figures().elsewhere == {str(checkouts.folders[0]): 1}
    assert foreign.figures().missed["folder"] == 1
    hits = foreign.counts()[0]
    for number in (0, 1):
        checkouts.compile(number, *COMPILE, "-g", "@/src/a.cpp")
    assert foreign.counts()[0] == hits + 2
    (checkouts.folders[1] / "include/h.h").write_text("#define H 4\n")
    assert checkouts.twice(*COMPILE, "-O1", "@/src/a.cpp") == (0, 2)


ARCH = {"nvcc": ("-arch=sm_80",), "hipcc": ("--offload-arch=gfx90a",)}
SUFFIX = {"nvcc": "cu", "hipcc": "hip"}


def called(user: User, name: str, tool: str) -> ForeignProject:
    """A project of this name, if the machine has the tool that compiles it."""
    if not (small_toolkit() if tool == "nvcc" else shutil.which(tool)):
        pytest.skip(f"no {tool}")
    return ForeignProject.with_nvcc(user, name) if tool == "nvcc" else ForeignProject(user, user.folder / name)


@pytest.mark.parametrize("tool", ["g++", "clang++", "nvcc", "hipcc"])
def test_another_checkout_hits_with_files_of_another_age(user: User, tool: str) -> None:
    name = f"age-{tool}"
    foreign = called(user, name, tool)
    checkouts = Checkouts(foreign, {f"src/{name}.cpp": f'#include "h.h"\nint {name[:3]}_{tool[0]}() {{ return H; }}\n'})
    # gcc takes equal headers with `#pragma once` for one if both were written in the same second.
    for number, folder in enumerate(checkouts.folders):
        for place in (folder, *folder.rglob("*")):
            os.utime(place, (1_700_000_000 + number, 1_700_000_000 + number))
    assert checkouts.twice(tool, *ARCH.get(tool, ()), "-I../include", "-c", f"../src/{name}.cpp") == (1, 1)
    assert checkouts.twice(tool, *ARCH.get(tool, ()), "-O2", "-I@/include", "-c", f"@/src/{name}.cpp") == (1, 1)


@pytest.mark.parametrize("tool", ["clang++", "nvcc"])
def test_another_checkout_hits_where_a_relative_folder_leads_up(user: User, tool: str) -> None:
    """An include with `..` that is found through such a folder leads out of no root."""
    name = f"up-{tool}"
    foreign = called(user, name, tool)
    source = f"src/{name}.{SUFFIX.get(tool, 'cpp')}"
    text = f'#include "../common/c.h"\nint up_{tool[0]}() {{ return C; }}\n'
    files = {source: text, "include/common/c.h": "#define C 1\n", "include/sub/none.h": ""}
    checkouts = Checkouts(foreign, files)
    assert checkouts.twice(tool, "-I../include/sub", "-c", f"../{source}") == (1, 1)


@pytest.mark.parametrize("tool", ["g++", "nvcc", pytest.param("hipcc", marks=pytest.mark.slow)])
def test_a_source_in_the_working_folder_includes_what_lies_beside_that(user: User, tool: str) -> None:
    """No absolute path is in the command: `..` leads to each checkout's own file, whether it is there or not."""
    foreign = called(user, f"out-{tool}", tool)
    source = f"a.{SUFFIX.get(tool, 'cpp')}"
    text = (
        '#include "../common/c.h"\n#if __has_include("../common/d.h")\n#include "../common/d.h"\n#else\n#define D 0\n'
        f"#endif\nint out_{tool[0]}() {{ return C * 1000 + D; }}\n"
    )
    checkouts = Checkouts(foreign, {f"build/{source}": text, "common/c.h": "#define C 77\n"})
    command = (tool, *ARCH.get(tool, ()), "-c", source)
    assert checkouts.twice(*command) == (1, 1)
    first = checkouts.compile(0, *command)
    for changed, content in (("c.h", "#define C 78\n"), ("d.h", "#define D 5\n")):
        (checkouts.folders[1] / "common" / changed).write_text(content)
        if tool == "nvcc":
            checkouts._plain.clear()  # its rules name another file
        misses = foreign.counts()[1]
        assert checkouts.compile(1, *command) != first
        assert foreign.counts()[1] == misses + 1, changed
        if tool == "nvcc":
            checkouts._plain.clear()
        assert checkouts.compile(0, *command) == first


@needs_gcc
def test_a_text_that_asks_for_a_file_of_another_checkout_means_that_one(user: User) -> None:
    foreign = ForeignProject(user, user.folder / "asks-abs")
    places = [foreign.folder / each for each in ("one", "two")]
    for place in places:
        (place / "build").mkdir(parents=True)
        text = f'#if __has_include("{places[0]}/build/opt.h")\nchar c[11];\n#else\nchar c[22];\n#endif\n'
        (place / "asks_abs.c").write_text(text)

    def symbol(place: Path) -> bytes:
        assert foreign.call("gcc", "-c", "../asks_abs.c", "-o", "o.o", cwd=place / "build").returncode == 0
        return (place / "build/o.o").read_bytes()

    without = [symbol(place) for place in (*places, *places)]
    (places[0] / "build/opt.h").write_text("")
    assert symbol(places[1]) != without[0] and len({*without}) == 1


@pytest.mark.parametrize("tool", ["g++", "clang++", "nvcc", pytest.param("hipcc", marks=pytest.mark.slow)])
@pytest.mark.parametrize("by", ["text", "variable", "word"])
def test_an_absolute_path_means_one_checkout_alone(user: User, tool: str, by: str) -> None:
    """As a generated source has it, CPATH, or a Makefile, in a copied checkout. Each has an equal header of its own."""
    foreign = called(user, f"abs-{by}-{tool}", tool)
    places = [foreign.folder / each for each in ("one", "two")]
    named, source = places[0] / "build", f"a.{SUFFIX.get(tool, 'cpp')}"
    included = f'"{named}/gen.h"' if by == "text" else "<gen.h>"
    environ = {**foreign.environ, "CPATH": str(named)} if by == "variable" else foreign.environ
    # With the second flag gcc's messages depend on a folder's path: the key has the command's words as they are.
    words = (f"-I{named}", *(("-fmessage-length=90",) if tool in ("g++", "clang++") else ())) if by == "word" else ()
    for place in places:
        (place / "build").mkdir(parents=True)
        (place / source).write_text(f"#include {included}\nchar const *abs_{by}_{tool[0]}() {{ return G; }}\n")
        (place / "build/gen.h").write_text('#define G "as it was"\n')

    def compiled(place: Path) -> bytes:
        command = (tool, *ARCH.get(tool, ()), *words, "-c", f"../{source}", "-o", "o.o")
        assert foreign.call(*command, environ=environ, cwd=place / "build").returncode == 0
        return (place / "build/o.o").read_bytes()

    for place in (*places, *places):
        assert b"as it was" in compiled(place)
    (places[0] / "build/gen.h").write_text('#define G "another one"\n')
    for place in reversed(places):
        assert b"another one" in compiled(place)
    (places[1] / "build/gen.h").write_text('#define G "nobody reads it"\n')
    hits = foreign.counts()[0]
    assert b"another one" in compiled(places[1]) and foreign.counts()[0] == hits + 1


@needs_gcc
@pytest.mark.parametrize(
    "text",
    [
        "char const *f() { return __FILE__; }",
        # The object does not show these.
        "int f() { return sizeof(__FILE__); }",
        "#define WIDE_(x) L##x\n#define WIDE(x) WIDE_(x)\nwchar_t const *f() { return WIDE(__FILE__); }",
        "#include <assert.h>\nvoid f(int x) { assert(x); }",
    ],
    ids=["file", "size", "wide", "assert"],
)
def test_a_path_in_the_object_counts(user: User, text: str, request: pytest.FixtureRequest) -> None:
    foreign = ForeignProject(user, user.folder / request.node.callspec.id)
    checkouts = Checkouts(foreign, {"src/a.cpp": f'#include "h.h"\n{text}\n'})
    assert checkouts.twice(*COMPILE, "@/src/a.cpp") == (0, 2)
    assert checkouts.twice("g++", "-I../include", "-c", "../src/a.cpp") == (1, 1)
    # The folder that it was found in still hits.
    hits = foreign.counts()[0]
    checkouts.compile(0, *COMPILE, "@/src/a.cpp")
    assert foreign.counts()[0] == hits + 1


@needs_gcc
def test_a_checkout_whose_path_the_user_maps_away(user: User) -> None:
    """As dpkg-buildpackage, Yocto and Bazel do, each with its own folder."""
    foreign = ForeignProject(user, user.folder / "users-maps")
    text = '#include "h.h"\nchar const *where() { return __FILE__; }\nint size() { return sizeof __FILE__ + H; }\n'
    checkouts = Checkouts(
        foreign, {"src/a.cpp": text, "build/b.cpp": text, "src/c.cpp": '#include "h.h"\nint c = H;\n'}
    )
    for source, flags, figures in (
        ("src/a.cpp", ("-ffile-prefix-map=@=.",), (1, 1)),
        ("src/a.cpp", ("-g", "-ffile-prefix-map=@/=/usr/src/"), (1, 1)),
        ("build/b.cpp", ("-g", "-O2", "-ffile-prefix-map=@=."), (1, 1)),
        ("src/a.cpp", ("-fmacro-prefix-map=@=x",), (1, 1)),
        ("src/c.cpp", ("-g", "-fdebug-prefix-map=@=."), (1, 1)),
        ("src/a.cpp", ("-g", "-fdebug-prefix-map=@=."), (0, 2)),  # __FILE__ is not mapped
        ("src/a.cpp", ("-g", "-fmacro-prefix-map=@=."), (0, 2)),
        ("build/b.cpp", ("-ffile-prefix-map=@/src=.",), (0, 2)),
        ("src/a.cpp", (f"-ffile-prefix-map={foreign.folder}=.",), (0, 2)),
    ):
        assert checkouts.twice(*COMPILE, *flags, f"@/{source}") == figures, (source, flags)


@needs_gcc
def test_a_second_build_folder_whose_name_a_users_mapping_leaves(user: User) -> None:
    foreign = ForeignProject(user, user.folder / "users-builds")
    checkouts = Checkouts(foreign, {"src/a.cpp": "int a;\n"})
    (top, other), command = checkouts.folders, (*COMPILE, "-g", "-ffile-prefix-map=@=.", "../src/a.cpp")
    checkouts.compile(0, *command)
    (other / "build").rename(other / "bin")
    (other / "bin/build").mkdir()
    checkouts.folders = [top, other / "bin"]
    checkouts.compile(1, *command[:-2], f"-ffile-prefix-map={other}=.", "../../src/a.cpp")
    assert foreign.counts() == (0, 2), "its debug information has ./bin/build"


@needs_gcc
def test_a_file_beside_a_folder_that_the_user_maps_away(user: User) -> None:
    """Of @-more/x.h, -ffile-prefix-map=@=. leaves .-more/x.h."""
    foreign = ForeignProject(user, user.folder / "users-beside")
    folders, more = [foreign.folder / name for name in ("one", "two")], foreign.folder / "one-more"
    for folder in folders:
        foreign.write(f"{folder.name}/a.cpp", '#include "x.h"\nchar const *where() { return x(); }\n')
    foreign.write("one-more/x.h", "inline char const *x() { return __FILE__; }\n")
    for number, folder in enumerate((*folders, folders[0])):
        # Another output, so that the last result is looked up, and not answered as that of the same command.
        made_in, mapped = f"{folder}/{number}.o", f"-ffile-prefix-map={folder}=."
        command = ("g++", f"-I{more}", mapped, "-c", f"{folder}/a.cpp", "-o", made_in)
        made = []
        for environ in (foreign.plain, foreign.environ):
            assert foreign.call(*command, environ=environ, cwd=folder).returncode == 0
            made.append(Path(made_in).read_bytes())
        assert made[0] == made[1]
    assert foreign.counts() == (1, 2)


@needs_gcc
@pytest.mark.parametrize("flags", [(), ("-ffile-prefix-map=@=.",)], ids=["mapped", "by the user"])
def test_debug_information_has_the_build_folder_below_a_mapped_one(user: User, flags: tuple[str, ...]) -> None:
    foreign = ForeignProject(user, user.folder / f"two-builds-{len(flags)}")
    source = foreign.write("a.cpp", "int a;\n")
    environ = {**foreign.environ, "BUILDD_MAP_PATHS": str(foreign.folder)}
    words = [word.replace("@", str(foreign.folder)) for word in flags]
    for name in ("first", "second"):
        (foreign.folder / name).mkdir()
        command = ("g++", "-g", *words, "-c", str(source), "-o", "a.o")
        assert foreign.call(*command, environ=environ, cwd=foreign.folder / name).returncode == 0
        assert f"/{name}\0".encode() in (foreign.folder / name / "a.o").read_bytes()


@needs_gcc
def test_a_source_that_names_another_checkouts_file_reads_that_file(user: User) -> None:
    """As a build folder that was copied: its text is the same, and means the file of the first checkout."""
    foreign = ForeignProject(user, user.folder / "named")
    named = foreign.folder / "one/src/x.h"
    checkouts = Checkouts(foreign, {"src/a.cpp": f'#include "{named}"\nint f() {{ return X; }}\n'})
    for folder in checkouts.folders:
        (folder / "src/x.h").write_text("#define X 1\n")
    checkouts.compile(0, "g++", "-c", "@/src/a.cpp")
    named.write_text("#define X 2\n")
    checkouts.compile(1, "g++", "-c", "@/src/a.cpp")


@needs_gcc
def test_a_header_beside_the_checkout_is_another_one_for_each(user: User) -> None:
    foreign = ForeignProject(user, user.folder / "beside")
    checkouts = Checkouts(foreign, {"src/a.cpp": '#include "../../x.h"\nint f() { return X; }\n'})
    for number, folder in enumerate(checkouts.folders):
        (folder.parent / "x.h").write_text(f"#define X {number}\n")
    assert checkouts.compile(0, "g++", "-c", "@/src/a.cpp") != checkouts.compile(1, "g++", "-c", "@/src/a.cpp")


SPLIT = """#include <stddef.h>
#define STR_(x) #x
#define STR(x) STR_(x)
#define HERE {0}
#define IN(x) STR(HERE/x)
#include IN(one/src/x.h)"""


@needs_gcc
@pytest.mark.parametrize("text", [SPLIT, '#include "{0}//one/src/x.h"', '#include "{0}/other/../one/src/x.h"'])
def test_a_path_of_another_checkout_in_other_words_means_the_same_file(user: User, text: str) -> None:
    folder = user.folder / f"words{len(text)}"
    foreign = ForeignProject(user, folder)
    (folder / "other").mkdir()
    checkouts = Checkouts(foreign, {"src/a.cpp": f"{text.format(folder)}\nint f() {{ return X; }}\n"})
    for place in checkouts.folders:
        (place / "src/x.h").write_text("#define X 1\n")
    checkouts.compile(0, "g++", "-c", "@/src/a.cpp")
    (folder / "one/src/x.h").write_text("#define X 2\n")
    checkouts.compile(1, "g++", "-c", "@/src/a.cpp")


@needs_gcc
@pytest.mark.parametrize(
    "text",
    [
        '#if __has_include("../../y.h")\nint y;\n#endif\n',
        "#if __has_include(<../y.h>)\nint y;\n#endif\n",
        '#define Y "y.h"\n#if __has_include(Y)\nint y;\n#endif\n',
        '#include "../../e/y.h"\nint e = E;\n',
    ],
    ids=["asked", "asked in a search", "computed", "search"],
)
def test_a_file_that_only_another_checkout_has(user: User, text: str, request: pytest.FixtureRequest) -> None:
    foreign = ForeignProject(user, user.folder / f"only {request.node.callspec.id}".replace(" ", "-"))
    checkouts = Checkouts(foreign, {"src/a.cpp": text, "include/x/y/z.h": "", "include/e/y.h": "#define E 1\n"})
    command = ("g++", "-I@", "-I@/include/x/y", "-c", "@/src/a.cpp")
    checkouts.compile(0, *command)
    other = checkouts.folders[1]
    for place in (other.parent / "y.h", other / "src/y.h", other.parent / "e/y.h"):
        place.parent.mkdir(exist_ok=True)
        place.write_text("#define E 2\n")
    checkouts.compile(1, *command)


@needs_gcc
def test_a_file_above_the_working_folder_is_asked_for_in_the_same_checkout(user: User) -> None:
    foreign = ForeignProject(user, user.folder / "above")
    checkouts = Checkouts(foreign, {"src/a.cpp": '#if __has_include("../../y.h")\nint y;\n#endif\n'})
    before = checkouts.compile(0, "g++", "-c", "../src/a.cpp")
    foreign.write("y.h", "")
    assert checkouts.compile(0, "g++", "-c", "../src/a.cpp") != before


@needs_gcc
@pytest.mark.parametrize("below", [".", "sub"], ids=["ninja", "make"])
@pytest.mark.parametrize(
    "text",
    [
        '#include "y.h"',
        '#include "../../build/gen/y.h"',
        '#if __has_include("../../build/gen/z.h")\n#define Y 7\n#else\n#define Y 8\n#endif',
    ],
    ids=["own", "included", "asked"],
)
def test_a_second_build_folder_of_a_checkout(user: User, below: str, text: str, request: pytest.FixtureRequest) -> None:
    """A generated header is found in the other build folder too, unless it names the first one."""
    its_own = text == '#include "y.h"'
    foreign = ForeignProject(user, user.folder / f"second-{request.node.callspec.id}")
    foreign.write("src/a.cpp", "#include <g.h>\nint f() { return Y; }\n")
    made = []
    for name in ("build", "build2"):
        build = foreign.folder / name
        (build / "sub").mkdir(parents=True)
        foreign.write(f"{name}/gen/g.h", f"{text}\n")
        foreign.write(f"{name}/gen/y.h", "#define Y 1\n")
        command = ("g++", f"-I{build}/gen", "-c", f"{foreign.folder}/src/a.cpp", "-o", "a.o")
        assert foreign.call(*command, cwd=build / below).returncode == 0
        foreign.write("build/gen/y.h", "#define Y 1234567\n")
        foreign.write("build/gen/z.h", "")
        made.append((build / below / "a.o").read_bytes())
    plain = foreign.call(*command[:-1], "plain.o", cwd=build / below, environ=foreign.plain)
    assert plain.returncode == 0
    assert made[1] == (build / below / "plain.o").read_bytes() and (made[0] == made[1]) == its_own
    assert foreign.counts() == ((1, 1) if its_own else (0, 2))


def toolkit() -> str:
    return f"{small_toolkit()}/bin"


KERNEL = '#include "h.h"\n__global__ void k(int *p) { *p = H; }\nvoid run(int *p) { int unused; k<<<1, 1>>>(p); }\n'


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("..", ("a", "size", "own")),
        # g++ has a test of each other way in which a path reaches an object.
        pytest.param("..", ("macro", "later"), marks=pytest.mark.slow),
        pytest.param("@", ("a", "macro", "size", "later", "own"), marks=pytest.mark.slow),
    ],
)
def test_nvcc_in_another_checkout(user: User, where: str, names: tuple[str, ...]) -> None:
    foreign = ForeignProject(user, user.folder / f"nvcc{len(where)}{len(names)}", toolkit())
    texts = {
        "src/a.cu": KERNEL,
        "src/macro.cu": f"#define CHECK(x) puts(__FILE__)\n{KERNEL}",
        "src/size.cu": '#include "h.h"\n__global__ void k(int *p) { *p = sizeof(__FILE__); }\n',
        "src/later.cu": '#include "h.h"\n__device__ char const *p; __global__ void k() { p = __builtin_FILE(); }\n',
        "src/own.cu": f"namespace {{\n{KERNEL}}}\nvoid other(int *p) {{ run(p); }}\n",
    }
    checkouts = Checkouts(foreign, texts)
    is_absolute = where == "@"
    figures = {
        "a": (1, 1),
        "macro": (1, 1),
        "size": (0, 2) if is_absolute else (1, 1),
        "later": (0, 2),
        "own": (0, 2),
    }
    for name in names:
        command = ("nvcc", "-arch=sm_80", f"-I{where}/include", "-c", f"{where}/src/{name}.cu")
        assert checkouts.twice(*command) == figures[name], name
        if name == "a":
            assert checkouts.twice(*command, "-lineinfo") == (0, 2)


@pytest.mark.cuda
def test_a_source_of_an_installed_package_is_one_for_all_checkouts(user: User) -> None:
    """A JIT compiles its package's sources in a folder below the user's home. nvcc names a kernel of an anonymous
    namespace after the source's path, which is the same in every home."""
    foreign = ForeignProject(user, user.folder / "package", toolkit())
    source = foreign.write("src/jit.cu", f"namespace {{\n{KERNEL}}}\nvoid other(int *p) {{ run(p); }}\n")
    foreign.write("include/h.h", "#define H 3\n")
    home, objects = foreign.folder.with_name("homes"), []
    command = ("nvcc", "-arch=sm_80", f"-I{foreign.folder}/include", "-c", str(source), "-o")
    for name in ("one", "two"):
        (cache := home / name / "cache").mkdir(parents=True)
        assert foreign.call(*command, f"{cache}/jit.o", cwd=cache).returncode == 0
        objects.append(cache / "jit.o")
    assert foreign.counts() == (1, 1) and objects[0].read_bytes() == objects[1].read_bytes()
    # Another object of the same source is another module, and so is another checkout's source.
    assert foreign.call(*command, f"{cache}/other.o", cwd=cache).returncode == 0
    moved = foreign.write("../moved/src/jit.cu", source.read_text())
    again = tuple(str(moved) if word == str(source) else word for word in command)
    assert foreign.call(*again, f"{cache}/moved.o", cwd=cache).returncode == 0
    objects += [cache / "other.o", cache / "moved.o"]
    modules = [set(re.findall(rb"_[0-9a-f]{8}_6_jit_cu_[0-9a-f]{8}", path.read_bytes())) for path in objects[1:]]
    assert all(len(each) == 1 for each in modules) and len(set.union(*modules)) == 3


@pytest.mark.cuda
def test_a_build_folder_elsewhere_may_be_another_one(user: User) -> None:
    """As the BUILDDIR of a Makefile, or a JIT's cache, below the user's home."""
    foreign = ForeignProject(user, user.folder / "apart", toolkit())
    foreign.write("src/a.cu", f"namespace {{\n{KERNEL}}}\n")
    foreign.write("src/b.cu", f"{KERNEL}namespace {{ int n; struct S {{ S() {{ n = 1; }} }} s; }}\n")
    said, modules, names = [], [], []
    for home in (user.folder / "apart-homes/one", user.folder / "apart-homes/some/where/two"):
        (home / "obj").mkdir(parents=True)
        (home / "include").mkdir()
        (home / "include/h.h").write_text("#define H 3\n")
        for name in ("a", "b"):
            command = (
                "nvcc",
                "-arch=sm_80",
                f"-I{home}/include",
                "-dc",
                f"src/{name}.cu",
                "-o",
                f"{home}/obj/{name}.o",
            )
            done = foreign.call(*command, "-MD", "-MF", f"{home}/obj/{name}.d")
            assert done.returncode == 0, done.stderr
            content = (home / "obj" / f"{name}.o").read_bytes()
            (module,) = set(re.findall(rb"_[0-9a-f]{8}_4_[ab]_cu_[0-9a-f]{8}", content))
            modules.append(module)
            listed = (home / "obj" / f"{name}.d").read_text().replace("\\\n", "").split()
            names.append(
                [
                    word.replace(str(home), "@")
                    for word in listed
                    if str(small_toolkit()) not in word and "/usr/" not in word
                ]
            )
        rules = [foreign.call("nvcc", "-arch=sm_80", f"-I{home}/include", "-MM", "-dc", "src/a.cu")]
        rules += [foreign.call("g++", f"-I{home}/include", "-MM", "-x", "c++", "src/a.cu")]
        assert [done.returncode for done in rules] == [0, 0]
        said.append([done.stdout.replace(os.fsencode(home), b"@") for done in rules])
    assert foreign.counts() == (3, 5)
    assert said[0] == said[1] and b"@/include/h.h" in said[0][0] and b"@/include/h.h" in said[0][1]
    assert len({*modules}) == 4 and names[:2] == names[2:]


@pytest.mark.cuda
def test_two_projects_with_one_relative_path_link_into_one_program(user: User) -> None:
    """A kernel of an anonymous namespace is a global symbol, named after its module."""
    foreign = ForeignProject(user, user.folder / "linked", toolkit())
    kernel = "namespace {{ __global__ void k(int *p) {{ *p = {0}; }} }}\n"
    unit = kernel + "int f{0}() {{ k<<<1, 1>>>(nullptr); return {0}; }}\n"
    objects = []
    for number in (1, 2):
        foreign.write(f"{number}/src/utils.cu", unit.format(number))
        command = ("nvcc", "-arch=sm_80", "-c", "src/utils.cu", "-o", "utils.o")
        assert foreign.call(*command, cwd=foreign.folder / f"{number}").returncode == 0
        objects.append(foreign.folder / f"{number}/utils.o")
    modules = [set(re.findall(rb"_[0-9a-f]{8}_8_utils_cu_[0-9a-f]{8}", path.read_bytes())) for path in objects]
    assert len(modules[0]) == len(modules[1]) == 1 and modules[0] != modules[1]
    main = foreign.write("main.cu", "int f1(), f2();\nint main() { return f1() + f2() - 3; }\n")
    library = Path(toolkit()).parent / "lib"
    linked = foreign.plainly("nvcc", "-arch=sm_80", f"-L{library}", str(main), *map(str, objects), "-o", "main")
    assert linked.returncode == 0, linked.stderr
    assert foreign.plainly(str(foreign.folder / "main")).returncode == 0


@pytest.mark.cuda
def test_one_source_of_two_mapped_projects_links_into_one_program(user: User) -> None:
    """As two projects have it that hold a copy of one library each, all of it in an anonymous namespace."""
    foreign = ForeignProject(user, user.folder / "mapped-twice", toolkit())
    unit = "namespace { __global__ void k(int *p) { *p = 1; } struct Use { Use() { k<<<1, 1>>>(nullptr); } } use; }\n"
    command = ("nvcc", "-arch=sm_80", "-c", "src/utils.cu", "-o", "utils.o")
    objects = []
    for number in (1, 2, 1):
        folder = foreign.folder / f"{number}"
        foreign.write(f"{number}/src/utils.cu", unit)
        environ = {**foreign.environ, "BUILDD_MAP_PATHS": str(folder)}
        assert foreign.call(*command, environ=environ, cwd=folder).returncode == 0
        objects.append(folder / "utils.o")
    assert foreign.counts() == (1, 2)
    main = foreign.write("main.cu", "int main() { return 0; }\n")
    library = Path(toolkit()).parent / "lib"
    linked = foreign.plainly("nvcc", "-arch=sm_80", f"-L{library}", str(main), *map(str, objects[:2]), "-o", "main")
    assert linked.returncode == 0, linked.stderr


WEAK = """template <typename T> __global__ void weak(T *p) { *p = 1; }
template __global__ void weak<int>(int *);
namespace { int kept; struct Use { Use() { kept = 1; } } use; }
"""
OWN = """namespace {
__device__ int hidden;
__global__ void kernel(int *p) { *p = hidden; }
struct Use { Use() { kernel<<<1, 1>>>(nullptr); } } use;
}
"""
"""Two copies of each may be linked into one program, as two archives that hold a copy of one small library."""


@pytest.mark.cuda
def test_relocatable_objects_of_two_checkouts_are_found_and_link_into_one_program(user: User) -> None:
    """Each object has its own module's id, with which the device linker tells the modules of a program apart."""
    foreign = ForeignProject(user, user.folder / "relocatable", toolkit())
    texts = {"src/weak.cu": WEAK, "src/own.cu": OWN}
    checkouts, objects = Checkouts(foreign, texts), []
    for name, figures in (("weak", (1, 1)), ("own", (0, 2))):
        before = foreign.counts()
        for folder in checkouts.folders:
            made = foreign.call(
                "nvcc", "-arch=sm_80", "-dc", f"../src/{name}.cu", "-o", f"{name}.o", cwd=folder / "build"
            )
            assert made.returncode == 0, made.stderr
            objects.append(folder / "build" / f"{name}.o")
        now = foreign.counts()
        assert (now[0] - before[0], now[1] - before[1]) == figures
        one, other = (path.read_bytes() for path in objects[-2:])
        modules = [set(re.findall(rb"_[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}", each)) for each in (one, other)]
        assert len(modules[0]) == len(modules[1]) == 1 and modules[0] != modules[1]
        if name == "weak":
            assert one.replace(*modules[0], *modules[1]) == other
    # What was found is, to the byte, what this checkout's compile makes; a direct hit delivers it too.
    for environ in ({**foreign.environ, "BUILDD_RECACHE": "1"}, foreign.environ):
        command = ("nvcc", "-arch=sm_80", "-dc", "../src/weak.cu", "-o", "weak.o")
        before = objects[1].read_bytes()
        objects[1].unlink()
        assert foreign.call(*command, environ=environ, cwd=checkouts.folders[1] / "build").returncode == 0
        assert objects[1].read_bytes() == before
    main = foreign.write("main.cu", "int main() { return 0; }\n")
    library = Path(toolkit()).parent / "lib"
    link = ("nvcc", "-arch=sm_80", "-rdc=true", f"-L{library}", str(main), *map(str, objects), "-o", "main")
    linked = foreign.plainly(*link)
    assert linked.returncode == 0, linked.stderr
    assert foreign.plainly(str(foreign.folder / "main")).returncode == 0


@pytest.mark.cuda
def test_relocatable_objects_of_mapped_checkouts(user: User) -> None:
    """With the lines of kernels, which name the source."""
    foreign, objects = ForeignProject(user, user.folder / "mapped-relocatable", toolkit()), []
    for name in ("one", "some/where/two"):
        folder = foreign.folder / name
        source = foreign.write(f"{name}/src/a.cu", WEAK)
        environ = {**foreign.environ, "BUILDD_MAP_PATHS": str(folder)}
        command = ("nvcc", "-arch=sm_80", "-lineinfo", "-rdc=true", "-c", str(source), "-o", "a.o")
        assert foreign.call(*command, environ=environ, cwd=folder).returncode == 0
        objects.append((folder / "a.o").read_bytes())
        assert os.fsencode(foreign.folder) not in objects[-1]
    assert foreign.counts() == (1, 1)
    modules = [set(re.findall(rb"_[0-9a-f]{8}_4_a_cu_[0-9a-f]{8}", each)) for each in objects]
    assert len(modules[0]) == len(modules[1]) == 1 and modules[0] != modules[1]
