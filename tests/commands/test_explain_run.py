"""`buildd explain --last` and BUILD after `buildd run`: what each call of a foreign build came to, and why."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from buildd.commands import explain
from codegen.errors import RequestError
from tests.support.foreign_project import ForeignProject
from tests.support.toolkit import copy_toolkit, host_compiler, small_toolkit
from tests.support.user import User

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


def buildd(foreign: ForeignProject, folder: Path, *arguments: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "buildd", *arguments],
        cwd=folder,
        env=foreign.plain,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_a_configure_step_that_tries_the_compiler_out_is_no_lost_chance(kept_user: User) -> None:
    """CMake asks for -v in its own checks: nobody can leave that out."""
    foreign = ForeignProject(kept_user, kept_user.folder / "tried")
    place = "CMakeFiles/CMakeScratch/TryCompile-aB3dE6"
    foreign.write("a.c", "int a;\n")
    foreign.write(f"{place}/.keep", "")
    script = f"gcc -v -c a.c -o {place}/a.o; gcc -v -c a.c; true"
    _, said = buildd(foreign, foreign.folder, "run", "--", "sh", "-c", script)
    assert "1 passed through (unsupported-option 1), 1 compiler check" in said
    _, *lines = buildd(foreign, foreign.folder, "explain", "--last")[0].splitlines()
    assert lines[0].startswith("ran gcc a.c (in ") and lines[1:3] == [
        "    passed through: unsupported-option: -v",
        "    next: compiles with it are not cached: leave it out where it is not needed",
    ]
    assert len(lines) == 4 and lines[3].endswith(
        "passed through: trial: a configure step tries the compiler out (unsupported-option: -v)"
    )


def test_a_miss_is_compared_with_the_nearest_result_and_not_with_the_newest(kept_user: User) -> None:
    """An edit that was taken back is none: what was compiled with it is not what was there last."""
    foreign = ForeignProject(kept_user, kept_user.folder / "nearest")
    foreign.write("a.c", '#include "one.h"\n#include "two.h"\nint a = ONE + TWO;\n')
    foreign.write("two.h", "#define TWO 2\n")
    for one, two, reasons in (
        (1, 2, ["ran a.c: never built before"]),
        (7, 2, ["ran a.c: input one.h: content changed"]),
        (1, 2, None),
        (1, 8, ["ran a.c: input two.h: content changed"]),
    ):
        foreign.write("one.h", f"#define ONE {one}\n")
        foreign.write("two.h", f"#define TWO {two}\n")
        buildd(foreign, foreign.folder, "run", "--", "gcc", "-c", "a.c")
        _, *lines = buildd(foreign, foreign.folder, "explain", "--last")[0].splitlines()
        assert lines == reasons if reasons else lines[0].startswith("hit")


def test_a_result_that_is_not_stored_says_why(kept_user: User) -> None:
    foreign = ForeignProject(kept_user, kept_user.folder / "unstored")
    foreign.write("a.c", "char const *a = __TIME__;\n")
    for _ in range(2):
        buildd(foreign, foreign.folder, "run", "--", "gcc", "-c", "a.c")
        _, *lines = buildd(foreign, foreign.folder, "explain", "--last")[0].splitlines()
        assert lines[:2] == ["ran a.c", "    never built before"]
        assert len(lines) == 3 and lines[2].startswith("    not stored: a.c mentions __DATE__ or __TIME__ (set SOURCE")


def test_a_precompiled_header_hands_on_a_macro_of_the_clock(kept_user: User) -> None:
    """Its sources do not name the header that defines it."""
    foreign = ForeignProject(kept_user, kept_user.folder / "clocked")
    foreign.write("v.h", "#define WHEN __TIME__\n")
    foreign.write("p.h", '#include "v.h"\n')
    foreign.write("a.c", '#include "p.h"\nchar const *a = WHEN;\n')
    foreign.write("b.c", '#include "v.h"\nint b;\n')
    for hits in (0, 1):
        for command in ("gcc -c p.h -o p.h.gch", "gcc -c a.c", "gcc -c b.c"):
            foreign.good(*command.split())
        assert foreign.counts()[0] == hits, "b.c alone is stored"
        for made in ("p.h.gch", "a.o", "b.o"):
            (foreign.folder / made).unlink()


def test_link_time_optimization_ties_an_object_to_the_folders_that_its_command_names(kept_user: User) -> None:
    """gcc's object has the names of files, packed. --map-paths has to be called above the sources."""
    foreign = ForeignProject(kept_user, kept_user.folder / "lto")
    for name in ("one", "two"):
        foreign.write(f"{name}/src/a.c", "int a(int x) { return x + 5; }\n")
        foreign.write(f"{name}/build/.keep", "")

    def compiled(name: str, source: str) -> str:
        command = ("gcc", "-O2", "-flto", "-c", source, "-o", "a.o")
        return buildd(foreign, foreign.folder / name / "build", "run", "--", *command)[1]

    assert "1 miss (new 1)" in compiled("one", f"{foreign.folder}/one/src/a.c")
    said = compiled("two", f"{foreign.folder}/two/src/a.c")
    assert "1 miss (folder 1)" in said
    assert f"same inputs as results made in {foreign.folder}/one," in said
    assert "--map-paths, called in a folder above the sources, find each other's results" in said
    assert "1 miss" in compiled("one", "../src/a.c")
    assert "1 miss (folder 1)" in compiled("two", "../src/a.c"), "it has the working folder too"


def test_a_list_of_headers_is_told_from_the_compile(kept_user: User) -> None:
    foreign = ForeignProject(kept_user, kept_user.folder / "listed")
    foreign.write("a.c", "int listed;\n")
    buildd(foreign, foreign.folder, "run", "--", "sh", "-c", "gcc -M a.c -o a.d; gcc -c a.c")
    said, _ = buildd(foreign, foreign.folder, "explain", "--last")
    assert "ran a.c (its headers): never built before" in said and "ran a.c: never built before" in said


def test_what_a_configure_script_tries_out_is_found_from_any_folder(kept_user: User) -> None:
    """autoconf compiles with -g, and removes what it made."""
    foreign = ForeignProject(kept_user, kept_user.folder / "configured")
    for name in ("one", "some/where/two"):
        foreign.write(f"{name}/conftest.c", "int main(void) { return 3; }\n")
        foreign.write(f"{name}/app.c", "int app(void) { return 3; }\n")
        for command in ("gcc -g -c conftest.c", "gcc -g -O2 -o conftest conftest.c", "gcc -g -c app.c"):
            foreign.good("sh", "-c", f"cd {name}; {command}")
    assert foreign.counts() == (2, 4)
    assert foreign.figures().missed == {"new": 3, "folder": 1}


def test_a_folder_of_the_same_checkout_is_no_other_one(kept_user: User) -> None:
    foreign = ForeignProject(kept_user, kept_user.folder / "same")
    for name in ("one", "one/two"):
        foreign.write(f"{name}/a.c", "int a;\n")
    script = "for each in . two; do cd $each; gcc -g -c a.c; done"
    _, said = buildd(foreign, foreign.folder / "one", "run", "--", "sh", "-c", script)
    assert "2 misses (folder 1, new 1)" in said
    assert "--map-paths" not in said


def test_what_can_serve_one_folder_alone_says_so(kept_user: User) -> None:
    """As CMake's precompiled headers and its sources of unity builds."""
    foreign = ForeignProject(kept_user, kept_user.folder / "alone")
    folder = foreign.folder
    foreign.write("p.h", "#define ALONE 1\n")
    foreign.write("a.c", "int a = ALONE;\n")
    foreign.write("b.c", "int b;\n")
    foreign.write("unity.c", f'#include "{folder}/b.c"\n')
    foreign.write("build/sub/unity.c", f'#include "{folder}/src/b.c"\n')
    foreign.write("src/b.c", "int b;\n")
    script = (
        f"gcc -c {folder}/p.h -o {folder}/p.h.gch; gcc -include {folder}/p.h -c {folder}/a.c; gcc -c {folder}/unity.c;"
        f" cd build; gcc -c {folder}/build/sub/unity.c; gcc -S {folder}/src/b.c -o {folder}/b.s"
    )
    buildd(foreign, folder, "run", "--", "sh", "-c", script)
    said = buildd(foreign, folder, "explain", "--last")[0].splitlines()
    reasons = {line.removeprefix("ran "): said[at + 2].strip() for at, line in enumerate(said) if line[:4] == "ran "}
    assert reasons == {
        "p.h": f"it contains the path of each header that it includes: it holds for {folder} alone",
        "a.c": "a precompiled header holds for one folder alone, and so do the objects of sources that read it",
        "unity.c": f"the source itself names {folder}: its object holds for that folder alone, also with --map-paths",
        "build/sub/unity.c": (
            f"the source itself names {folder}: its object holds for that folder alone, also with --map-paths"
        ),
        "src/b.c": (
            "with -S the result may show its folder where buildd does not find it: it holds for that folder alone"
        ),
    }


def test_a_run_is_explained_without_a_project_file(kept_user: User) -> None:
    foreign = ForeignProject(kept_user, kept_user.folder / "explained")
    for name in ("one", "far/away/two"):
        foreign.write(f"{name}/x.h", "#define X 1\n")
        foreign.write(f"{name}/a.c", '#include "x.h"\nint a = X;\n')
        foreign.write(f"{name}/b.c", "char const *b = __FILE__;\n")
        foreign.write(f"{name}/build/sub/.keep", "")
    folder = foreign.folder / "one"
    script = f"cd build; gcc -c {folder}/a.c; gcc -c {folder}/b.c; gcc -c a.c --unheard-of; gcc -E ../a.c; true"

    def explained(folder: Path = folder) -> list[str]:
        return buildd(foreign, folder, "explain", "--last")[0].splitlines()

    _, said = buildd(foreign, folder, "run", "--", "sh", "-c", script)
    assert "0 hits, 2 misses (new 2), 2 passed through" in said
    heading, *lines = explained()
    assert "run -- sh -c" in heading
    assert lines[:2] == ["ran a.c: never built before", "ran b.c: never built before"]
    assert any("passed through: unknown-option: --unheard-of" in line for line in lines)
    assert any("passed through: preprocess" in line for line in lines)
    assert "    next: leave the option out, if the compile does not need it" in lines
    first = lines

    foreign.write("one/x.h", "#define X 2\n")
    _, said = buildd(foreign, folder, "run", "--", "sh", "-c", script)
    assert "1 hit, 1 miss (input 1)" in said
    heading, *lines = explained(folder / "build/sub")
    assert lines[0] == f"ran a.c: input {folder}/x.h: content changed"
    assert lines[1].startswith("hit ") and "b" in lines[1], "hits come before what was passed through"
    assert lines[2:] == first[2:]
    build = heading.split()[0]
    assert buildd(foreign, Path("/"), "explain", build)[0].splitlines() == [heading, *lines]
    shown = buildd(foreign, folder, "explain", build, "--json")[0].splitlines()
    assert [json.loads(line)["body"]["would_run"] for line in shown].count(False) == 1
    assert "content changed" not in buildd(foreign, folder, "log", build)[0]

    other = foreign.folder / "far/away/two"
    foreign.write("far/away/two/x.h", "#define X 2\n")
    _, said = buildd(foreign, other, "run", "--", "sh", "-c", script.replace(str(folder), str(other)))
    assert "1 hit, 1 miss (folder 1)" in said
    assert f"1 miss has the same inputs as results made in {folder}, " in said and "--map-paths" in said
    _, *lines = explained(other)
    assert lines[0].startswith("ran b.c") and f"    {folder} has a result made from the same inputs" in lines
    assert "    next: call both builds with `buildd run --map-paths`, in a folder above the sources" in lines[:4]

    # --map-paths replaces no path outside of the folder where the build was called, and the words say so.
    third = foreign.folder / "far/away/three"
    shutil.copytree(other, third)
    script = f"cd {third}; {script.replace(str(folder), str(third))}"
    _, said = buildd(foreign, foreign.folder / "far/away/three/build", "run", "--", "sh", "-c", script)
    assert "1 hit, 1 miss (folder 1)" in said and "--map-paths, called in a folder above the sources" in said


@pytest.mark.cuda
def test_debug_information_of_nvcc_that_keeps_another_checkout_from_hitting_is_named(kept_user: User) -> None:
    foreign = ForeignProject(kept_user, kept_user.folder / "lines")
    copy_toolkit(small_toolkit(), foreign.folder / "cuda")
    nvcc = f"{foreign.folder}/cuda/bin/nvcc"

    def built(name: str, *options: str, flag: str = "-lineinfo") -> list[str]:
        foreign.write(f"{name}/k.cu", "__global__ void lines(int *p) { *p = 1; }\n")
        made = ("-o", f"k{flag}.o")
        buildd(foreign, foreign.folder / name, "run", *options, "--", nvcc, "-arch=sm_80", flag, "-c", "k.cu", *made)
        return buildd(foreign, foreign.folder / name, "explain", "--last")[0].splitlines()[1:]

    first = built("one")
    assert first[:2] == ["ran k.cu", "    never built before"]
    assert f"nvcc's result holds for {foreign.folder}/one alone; with --map-paths it serves" in first[2]
    assert first[2].endswith(" other checkouts too, unless a kernel lies in an anonymous namespace")
    whole = built("one", flag="-G")
    assert whole[-1] == f"    with -G nvcc's result holds for {foreign.folder}/one alone, also with --map-paths"
    assert built("two", "--map-paths") == ["ran k.cu: never built before"]
    assert built("three", "--map-paths")[0].startswith("hit k.cu")


@pytest.mark.skipif(not shutil.which("hipcc"), reason="no hipcc (Debian: apt install hipcc)")
def test_debug_information_of_hipcc_is_named(kept_user: User) -> None:
    foreign = ForeignProject(kept_user, kept_user.folder / "hip lines")
    foreign.write("k.hip", "#include <hip/hip_runtime.h>\n__global__ void lines(int *p) { *p = 1; }\n")
    command = ("hipcc", "-g", "--offload-arch=gfx90a", "-c", "k.hip", "-o", "k.o")
    buildd(foreign, foreign.folder, "run", "--", *command)
    said = buildd(foreign, foreign.folder, "explain", "--last")[0]
    assert f"with -g hipcc's result holds for {foreign.folder} alone, also with --map-paths" in said


def test_mapping_paths_is_not_offered_for_a_macro_that_holds_the_path(kept_user: User) -> None:
    """As tests of libsodium have it for their data, in a folder that pip makes for one build."""
    foreign = ForeignProject(kept_user, kept_user.folder / "pip-req-build-abcd1234")
    source = foreign.write("a.c", "char const *top = TOP;\n")
    for definition in ((f'-DTOP="{source.parent}/data"',), ("-D", f'TOP="{source.parent}"')):
        _, said = buildd(foreign, source.parent, "run", "--", "gcc", *definition, "-c", "a.c")
        assert "builds with --map-paths" not in said and "1 object cannot be shared between checkouts" in said
        why = buildd(foreign, source.parent, "explain", "--last")[0]
        assert "the macro TOP holds the folder's path: --map-paths does not help" in why


@pytest.mark.cuda
def test_mapping_paths_is_offered_only_where_it_helps(kept_user: User) -> None:
    """nvcc names a kernel in an anonymous namespace after its source; `__FILE__` is a path that is mapped."""
    foreign = ForeignProject.with_nvcc(kept_user, "offered")
    texts = {
        "own": "namespace { __global__ void k(int *p) { *p = 1; } }\nvoid run(int *p) { k<<<1, 1>>>(p); }\n",
        "file": "__global__ void k(int *p) { *p = 1; }\nchar const *file() { return __FILE__; }\n",
        "linked": "static __device__ int v;\n__global__ void k(int *p) { *p = v++; }\n",
    }
    for name, helps, id_of in (
        ("own", False, "names a kernel in an anonymous namespace by an id"),
        ("linked", False, "gives the module an id"),
        ("file", True, "id"),
    ):
        makes = ("-rdc=true", "-fatbin") if name == "linked" else ("-c",)
        for folder in ("one", "two"):
            source = foreign.write(f"{folder}/{name}.cu", texts[name])
            _, said = buildd(foreign, source.parent, "run", "--", "nvcc", "-arch=sm_80", *makes, str(source))
            assert "folder 1" in said or folder == "one"
        assert ("builds with --map-paths" in said and "compiles every source once more" in said) is helps
        assert ("1 object cannot be shared between checkouts, even with --map-paths: " in said) is not helps
        why = buildd(foreign, source.parent, "explain", "--last")[0]
        assert (f"nvcc {id_of} that it makes of the source's path: --map-paths does not help" in why) is not helps
        assert ("next: call both builds with `buildd run --map-paths`" in why) is helps


def test_statistics_name_what_missed_and_how_hits_were_found(kept_user: User) -> None:
    foreign = ForeignProject(kept_user, kept_user.folder / "counted")
    foreign.write("a.c", "int counted;\n")

    def figures() -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = json.loads(buildd(foreign, foreign.folder, "cache", "stats", "--json")[0])
        return found

    before = figures()
    for command in ("gcc -c a.c", "rm a.o && gcc -c a.c", "gcc -c a.c -o other.o", "gcc -O1 -c a.c"):
        buildd(foreign, foreign.folder, "run", "--", "sh", "-c", command)
    now = figures()
    grown = {
        f"{name} {kind}": count - before[name].get(kind, 0)
        for name in ("missed", "hit")
        for kind, count in now[name].items()
    }
    assert {name: count for name, count in grown.items() if count} == {
        "missed new": 1,
        "missed command": 1,
        "hit direct": 1,
        "hit by content": 1,
    }
    text = buildd(foreign, foreign.folder, "cache", "stats")[0]
    assert re.search(r"^misses .*\n(  \d+ +\w[\w-]*\n)+", text, re.MULTILINE)


def test_questions_to_a_compiler_are_listed_last_and_without_advice(kept_user: User) -> None:
    foreign = ForeignProject(kept_user, kept_user.folder / "asked")
    foreign.write("a.c", "int a;\n")
    _, said = buildd(
        foreign, foreign.folder, "run", "--", "sh", "-c", "gcc -dumpmachine; gcc --version; gcc -qversion; gcc -c a.c"
    )
    assert "0 hits, 1 miss (new 1), 3 compiler checks" in said
    _, *lines = buildd(foreign, foreign.folder, "explain", "--last")[0].splitlines()
    assert lines[0] == "ran a.c: never built before"
    assert [line.rpartition(": ")[2] for line in lines[1:]] == ["-dumpmachine", "--version", "-qversion"]


def test_a_failed_check_of_a_configure_script_is_no_failed_compile(kept_user: User) -> None:
    foreign = ForeignProject(kept_user, kept_user.folder / "tried-out")
    foreign.write("conftest.c", "int main() { return no_such_thing(); }\n#error no\n")
    foreign.write("a.c", "int configured_a;\n")
    _, said = buildd(foreign, foreign.folder, "run", "--", "sh", "-c", "gcc -c conftest.c || gcc -c a.c")
    assert "0 hits, 1 miss (new 1), 1 compiler check" in said and "failed" not in said
    lines = buildd(foreign, foreign.folder, "explain", "--last")[0].splitlines()
    assert any("it failed: buildd log" in line for line in lines), "the reason for its failure can be looked up"
    _, said = buildd(foreign, foreign.folder, "run", "--", "sh", "-c", "gcc -c conftest.c -o b.o || true")
    assert "1 failed" in said


def test_an_option_that_keeps_a_call_out_of_the_cache_is_named_in_the_summary(kept_user: User) -> None:
    foreign = ForeignProject(kept_user, kept_user.folder / "odd")
    foreign.write("a.c", "int a;\n")
    _, said = buildd(foreign, foreign.folder, "run", "--", "sh", "-c", "gcc -c a.c -save-temps; gcc -c a.c -save-temps")
    assert "options keep calls out of the cache: -save-temps (`buildd explain --last` names the calls)" in said
    _, said = buildd(foreign, foreign.folder, "run", "--", "gcc", "-c", "a.c", "-fstack-usage")
    assert "the cache: -fstack-usage writes a report (`buildd" in said
    _, said = buildd(foreign, foreign.folder, "run", "--", "gcc", "--version")
    assert "nothing to compile in 1 compiler check" in said and "options keep" not in said


def test_a_link_of_many_objects_says_that_its_list_is_cut(kept_user: User) -> None:
    foreign = ForeignProject(kept_user, kept_user.folder / "long")
    for name in "abcde":
        foreign.write(f"{name}.c", f"int {name};\n")
    script = "gcc -c a.c b.c c.c d.c e.c; gcc -shared -o libl.so a.o b.o c.o d.o e.o; gcc -shared -o l.so a.o b.o"
    buildd(foreign, foreign.folder, "run", "--", "sh", "-c", script)
    lines = buildd(foreign, foreign.folder, "explain", "--last")[0].splitlines()
    place = f"(in {foreign.folder})"
    links = [line for line in lines if ".so" in line and line.startswith("ran ")]
    assert [line.partition(":")[0] for line in links] == [
        f"ran gcc libl.so a.o b.o and 3 more {place}",
        f"ran gcc l.so a.o b.o {place}",
    ]


def test_a_later_run_that_called_no_compiler_is_not_passed_over(kept_user: User) -> None:
    foreign = ForeignProject(kept_user, kept_user.folder / "idle")
    foreign.write("a.c", "int idle;\n")
    foreign.write("elsewhere/.keep", "")
    buildd(foreign, foreign.folder, "run", "--", "gcc", "-c", "a.c")
    explained = buildd(foreign, foreign.folder, "explain", "--last")[0].splitlines()
    for arguments in ("run", "--quiet"), ("run",):
        assert buildd(foreign, foreign.folder, *arguments, "--", "echo", "no work to do")[1] == ""
    buildd(foreign, foreign.folder / "elsewhere", "run", "--", "echo", "of another folder")
    told, *lines = buildd(foreign, foreign.folder, "explain", "--last")[0].splitlines()
    assert told.endswith("  run -- echo 'no work to do' called no compiler; before it:") and lines == explained
    build = explained[0].split()[0]
    assert buildd(foreign, foreign.folder, "explain", build)[0].splitlines() == explained, "that one was asked for"
    buildd(foreign, foreign.folder, "run", "--", "gcc", "-O1", "-c", "a.c")
    assert "no compiler" not in buildd(foreign, foreign.folder, "explain", "--last")[0]


def test_a_word_that_is_neither_a_target_nor_a_build_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError) as caught:
        explain.run(["nosuch"])
    assert caught.value.message.startswith("nosuch is no build that buildd log lists, and no buildd.toml in ")


def test_a_changed_flag_is_named_where_the_build_before_was_a_hit(kept_user: User) -> None:
    foreign = ForeignProject(kept_user, kept_user.folder / "flags")
    # In a folder with a blank, no shim answers by itself.
    one, two = (foreign.folder / name for name in ("one", "number two"))
    for folder in (one, two):
        foreign.write(f"{folder.name}/a.c", "int of_flags;\n")
    for folder, found in ((one, "0 hits, 1 miss (new 1)"), (two, "1 hit, 0 misses")):
        assert found in buildd(foreign, folder, "run", "--", "gcc", "-c", "a.c")[1]
    assert "0 hits, 1 miss (command 1)" in buildd(foreign, two, "run", "--", "gcc", "-O1", "-c", "a.c")[1]
    _, *lines = buildd(foreign, two, "explain", "--last")[0].splitlines()
    assert lines == ["ran a.c: command: added -O1"]


def test_a_flag_that_makes_folders_count_otherwise_is_the_only_reason(kept_user: User) -> None:
    foreign = ForeignProject(kept_user, kept_user.folder / "otherwise")
    source = foreign.write("src/a.c", "int otherwise;\n")
    for options, why in (("-O1", "never built before"), ("-O1 -flto", "command: added -flto")):
        command = f"mkdir -p build && cd build && gcc {options} -c {source}"
        buildd(foreign, foreign.folder, "run", "--", "sh", "-c", command)
        _, *lines = buildd(foreign, foreign.folder, "explain", "--last")[0].splitlines()
        assert lines == [f"ran src/a.c: {why}"]


def test_a_compile_that_failed_is_told_so_and_is_no_miss(kept_user: User) -> None:
    foreign = ForeignProject(kept_user, kept_user.folder / "failing")
    foreign.write("a.c", "int good;\n")
    foreign.write("b.c", "int bad = q;\n")
    _, said = buildd(foreign, foreign.folder, "run", "--", "sh", "-c", "gcc -c a.c; gcc -c b.c; true")
    assert "buildd: 0 hits, 1 miss (new 1), 1 failed\n" in said
    heading, *lines = buildd(foreign, foreign.folder, "explain", "--last")[0].splitlines()
    log = f"buildd log {heading.split()[0]}"
    failed = f"    it failed: {log} shows what the compiler said"
    assert lines == ["ran b.c", "    never built before", failed, "ran a.c: never built before"], "failures first"
    assert "b.c:1:11: error" in buildd(foreign, foreign.folder, *log.split()[1:])[0]


def test_many_calls_of_the_same_reason_are_told_together(kept_user: User) -> None:
    foreign = ForeignProject(kept_user, kept_user.folder / "many")
    for number in range(9):
        foreign.write(f"s{number}.c", f"int s{number};\n")
    buildd(foreign, foreign.folder, "run", "--", "sh", "-c", "for s in s?.c; do gcc -c $s; done; gcc --version")
    heading, *lines = buildd(foreign, foreign.folder, "explain", "--last")[0].splitlines()
    build = heading.split()[0]
    assert lines[:5] == [
        "ran 9 actions: never built before",
        "      s0.c",
        "      s1.c",
        "      s2.c",
        f"      and 6 more; buildd explain {build} --all lists all",
    ]
    assert "query" in lines[5] and len(lines) == 6
    every = [f"ran s{number}.c: never built before" for number in range(9)]
    assert buildd(foreign, foreign.folder, "explain", build, "--all")[0].splitlines()[1:10] == every
    assert buildd(foreign, foreign.folder, "explain", "--last", "s7.c")[0].splitlines()[1:] == every[7:8]
