"""ninja's view of a build tree, and its output as events."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from buildd.shims.interposition import LIBRARY
from buildd.trees.ninja_tree import STATUS, NinjaLog, NinjaTree
from buildd.trees.tree import TreeError, include_folders, is_by_product, source_root, tool_output
from protocol import messages as m
from tests.support.toolkit import host_compiler
from tests.support.waiting import until

ninja = pytest.importorskip("ninja")
needs_gcc = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
ENVIRON = {"PATH": f"{ninja.BIN_DIR}:/usr/local/bin:/usr/bin:/bin"}
MANIFEST = """\
rule cc
  command = gcc -MMD -MF $out.d -I../include -c $in -o $out
  depfile = $out.d
  deps = gcc
rule plain
  command = cp $in $out
rule again
  command = touch $out
  generator = 1
include rules.ninja
build a.o: cc ../src/a.c | made.h
build b.o: cc ../src/b$ c.c
build made.h: plain ../src/made.h.in
build other.o: cc ../src/other.c
build build.ninja: again ../configure.txt
build all: phony a.o b.o
default all
"""


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(
        tmp_path,
        **{
            "build/build.ninja": MANIFEST,
            "build/rules.ninja": "",
            "src/a.c": '#include "x.h"\n#include <stddef.h>\nint a = X;\n',
            "src/b c.c": "int b;\n",
            "src/other.c": "int other;\n",
            "src/made.h.in": "",
            "include/x.h": "#define X 1\n",
            "configure.txt": "",
        },
    )
    os.utime(tmp_path / "configure.txt", (1, 1))
    return tmp_path


def names(tree: NinjaTree) -> set[str]:
    return {os.path.relpath(path, tree.project) for path in tree.inputs}


def run(tree: NinjaTree) -> list[m.EventBody]:
    reader = tree.reader(everything=False)
    foreseen = reader.foresee()
    ran = subprocess.run(
        tree.command(1),
        cwd=tree.folder,
        env={**ENVIRON, "NINJA_STATUS": STATUS},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    told = [body for line in ran.stdout.split("\n") for body in reader.line(line)]
    return [*foreseen, *told, *reader.end(ran.returncode)]


@needs_gcc
def test_sources_at_first_and_headers_once_they_were_read(folder: Path) -> None:
    tree = NinjaTree(str(folder / "build"), (), ENVIRON)
    tree.describe()
    assert tree.project == str(folder)
    assert names(tree) == {"src/a.c", "src/b c.c", "src/made.h.in", "configure.txt", "src", "include", "."}
    assert str(folder / "build/made.h") in tree.outputs
    ended = [body for body in run(tree) if isinstance(body, m.Finished)]
    assert {body.action for body in ended} == {"a.o", "b.o", "made.h"}
    assert all(body.timing.wall_s > 0 for body in ended if body.action != "made.h")
    tree.describe()
    assert [type(body) for body in run(tree)] == [m.Planned]
    write(folder, **{"src/b c.c": "int b = 2;\n"})
    foreseen = tree.reader(everything=False).foresee()
    assert [type(body) for body in foreseen] == [m.Planned, m.Queued]
    assert isinstance(foreseen[1], m.Queued) and foreseen[1].action == "b.o" and foreseen[1].expected_s > 0
    again = run(tree)
    numbers = {body.job_id for body in again if isinstance(body, m.Queued | m.Started | m.Finished)}
    assert len(numbers) == 1 and sum(isinstance(body, m.Queued) for body in again) == 1
    assert "include/x.h" in names(tree) and not any(path.startswith("/usr") for path in tree.inputs)


def test_what_a_manifest_is_made_from_is_watched_although_it_is_phony(folder: Path) -> None:
    """CMake declares its inputs so. What it writes itself while it configures is no input."""
    made = "build build.ninja: again ../configure.txt | ../src/made.cmake CMakeCache.txt CMakeFiles/x.cmake\n"
    phony = "build ../configure.txt ../src/made.cmake CMakeCache.txt CMakeFiles/x.cmake: phony\n"
    manifest = MANIFEST.replace("build build.ninja: again ../configure.txt\n", made + phony)
    write(folder, **{"build/build.ninja": manifest, "src/made.cmake": "", "build/CMakeCache.txt": ""})
    tree = NinjaTree(str(folder / "build"), (), ENVIRON)
    tree.describe()
    assert {"configure.txt", "src/made.cmake"} <= names(tree)
    assert not any(name.startswith("build/") for name in names(tree))
    assert tree.outputs.isdisjoint(tree.inputs) and f"{folder}/build/CMakeCache.txt" in tree.outputs


def test_an_error_of_a_silent_configuration_is_one_of_its_command(folder: Path) -> None:
    """And the files that it names are watched: the manifest does not know the new ones."""
    write(folder, **{"src/deep/a": ""})
    tree = NinjaTree(str(folder / "build"), (), ENVIRON)
    tree.describe()
    reader = tree.reader(everything=False)
    command = next(command for command, output in tree.graph.by_command.items() if output == "build.ninja")
    told = reader.line(f"\x1e0/1\x1e{command}")
    assert reader.pause() == [], "it may be silent for long"
    said = f"CMake Error at src/new.cmake:3 (add_subdirectory):\n  The folder\n\n    {folder}/src/deep\n\n  is empty."
    for line in (*said.split("\n"), "FAILED: [code=1] build.ninja ", command):
        told += reader.line(line)
    told += reader.line("ninja: error: rebuilding 'build.ninja': subcommand failed")
    (failed,) = (body for body in told if isinstance(body, m.Failed))
    assert failed.action == "build.ninja"
    assert [(found.file, found.line) for found in failed.diagnostics] == [("src/new.cmake", 3)]
    tree.describe()
    assert {"src/new.cmake", "src/deep/CMakeLists.txt"} <= names(tree)


@needs_gcc
def test_an_error_is_told_with_its_command_and_its_place(folder: Path) -> None:
    (folder / "src/a.c").write_text("int a = y;\n")
    tree = NinjaTree(str(folder / "build"), ["a.o"], ENVIRON)
    tree.describe()
    told = run(tree)
    (failed,) = (body for body in told if isinstance(body, m.Failed))
    assert (
        failed.action == "a.o" and failed.command.startswith(f"cd {folder}/build && gcc ") and failed.exit_status == 1
    )
    assert [(found.file, found.line) for found in failed.diagnostics if found.severity is m.Severity.ERROR] == [
        ("../src/a.c", 1)
    ]
    assert not any("gcc" in body.text for body in told if isinstance(body, m.LogLine))


@needs_gcc
def test_what_may_mend_a_source_that_failed_is_watched(folder: Path) -> None:
    """Also a header that another one includes, and a missing one wherever it would be."""
    headers = {"include/x.h": '#include "sub/y.h"\n', "include/sub/y.h": '#include <stddef.h>\n#include "z.h"\n'}
    write(folder, **headers)
    tree = NinjaTree(str(folder / "build"), ["a.o"], ENVIRON)
    tree.describe()
    run(tree)
    tree.describe()
    assert {"include/x.h", "include/sub/y.h", "include/sub/z.h", "include/z.h", "include/sub"} <= names(tree)
    assert not any(name.endswith("stddef.h") for name in names(tree)), "the compiler has it"
    write(folder, **{"include/sub/z.h": "#define X 2\n"})
    run(tree)
    tree.describe()
    assert "include/sub/z.h" in names(tree) and "include/z.h" not in names(tree)


def test_a_target_that_is_not_there_and_a_folder_without_a_tree(folder: Path) -> None:
    tree = NinjaTree(str(folder / "build"), ["none"], ENVIRON)
    with pytest.raises(TreeError, match="unknown target 'none'"):
        tree.describe()
    with pytest.raises(TreeError, match=r"no build\.ninja"):
        NinjaTree(str(folder / "src"), [], ENVIRON)
    write(folder, **{"build/build.ninja": "rule cc\n  command = gcc $in\nbuild a.o: none a.c\n"})
    with pytest.raises(TreeError, match=r"ninja: error: build\.ninja:3: unknown build rule 'none'"):
        NinjaTree(str(folder / "build"), [], ENVIRON).describe()


@needs_gcc
def test_the_command_of_an_error_can_be_pasted(folder: Path) -> None:
    other = folder.rename(folder.parent / "it's here")
    (other / "src/a.c").write_text("int a = y;\n")
    tree = NinjaTree(str(other / "build"), ["a.o"], ENVIRON)
    tree.describe()
    (failed,) = (body for body in run(tree) if isinstance(body, m.Failed))
    again = subprocess.run(["sh", "-c", failed.command], env=ENVIRON, capture_output=True, text=True)
    assert "../src/a.c:1" in again.stderr


def test_what_is_told_can_be_sent(folder: Path) -> None:
    (folder / "build/build.ninja").write_bytes(b"rule a\n  command = touch $out\nbuild x\xe9.o: a rules.ninja\n")
    tree = NinjaTree(str(folder / "build"), [], ENVIRON)
    tree.describe()
    told = tree.reader(everything=False).foresee()
    assert [body.action for body in told if isinstance(body, m.Queued)] == ["x?.o"]


def test_what_comes_and_goes_beside_outputs_is_no_save() -> None:
    made = {"/t/a.o", "/t/app"}
    for path in ("/t/a.o", "/t/a.o.d", "/t/a.d", "/t/app.rsp", "/t/.ninja_lock", "/t/.buildd-12-ab.tmp"):
        assert is_by_product(path, made), path
    for path in ("/t/a.c", "/t/b.d", "/t/a.o.h", "/t/a.h", "/t/ninja_log"):
        assert not is_by_product(path, made), path


def test_a_tool_that_gives_no_answer_leaves_nothing_behind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "held")
    held = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(TreeError, match="no answer"):
            tool_output(["sh", "-c", "sleep 300 > held & wait"], str(tmp_path), ENVIRON, timeout_s=0.5)

        def is_let_go() -> bool:
            try:
                return os.read(held, 1) == b""
            except BlockingIOError:
                return False

        until(is_let_go, "what the tool began goes on")
    finally:
        os.close(held)


def test_a_manifest_that_nobody_makes_is_watched_with_what_it_includes(folder: Path) -> None:
    manifest = folder / "build/build.ninja"
    manifest.write_text(MANIFEST.replace("build build.ninja: again ../configure.txt\n", ""))
    tree = NinjaTree(str(folder / "build"), [], ENVIRON)
    tree.describe()
    assert {"build/build.ninja", "build/rules.ninja"} <= names(tree) and "configure.txt" not in names(tree)


def test_the_log_is_read_as_it_grows_and_when_it_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / ".ninja_log"
    log = NinjaLog(str(path))
    log.read()
    path.write_text("# ninja log v6\n0\t1500\t0\ta.o\tff\n10\t20\t0\thalf")
    log.read()
    assert log.wall_s == {"a.o": 1.5} and log.new == {"a.o"}
    with path.open("a") as file:
        file.write(" done\tff\n")
    log.read()
    assert log.wall_s["half done"] == 0.01
    (tmp_path / "new").write_text("# ninja log v6\n0\t2000\t0\ta.o\tff\n")
    (tmp_path / "new").replace(path)
    log.read()
    assert log.wall_s["a.o"] == 2.0


def test_a_command_passes_a_cache_by(folder: Path) -> None:
    tree = NinjaTree(str(folder / "build"), [], ENVIRON)
    tree.describe()
    assert tree.notice() == ""
    manifest = folder / "build/build.ninja"
    manifest.write_text(MANIFEST.replace("command = gcc", "command = /usr/bin/gcc"))
    tree = NinjaTree(str(folder / "build"), [], ENVIRON)
    tree.describe()
    assert tree.notice().startswith("3 of 6 commands")
    tree = NinjaTree(str(folder / "build"), [], {**ENVIRON, "LD_PRELOAD": f"/store/programs/{LIBRARY}"})
    tree.describe()
    assert tree.notice() == "", "the library of buildd run takes them"


def test_a_toolkits_headers_are_not_watched(folder: Path) -> None:
    write(folder, **{"toolkit/bin/gcc": "#!/bin/sh\n", "toolkit/include/theirs.h": "", "toolkit/src/ours.c": ""})
    (folder / "toolkit/bin/gcc").chmod(0o755)
    rule = "rule cc\n  command = gcc $in\n"
    build = "build o: cc ../src/ours.c ../../toolkit/include/theirs.h\n"
    write(folder / "work", **{"tree/build.ninja": rule + build, "src/ours.c": ""})
    environ = {"PATH": f"{folder}/toolkit/bin:{ENVIRON['PATH']}"}
    tree = NinjaTree(str(folder / "work/tree"), [], environ)
    tree.describe()
    assert tree.project == str(folder / "work")
    assert names(tree) == {"src", "src/ours.c", "tree/build.ninja"}


def test_a_width_is_told_in_words_only_where_there_is_no_jobserver(folder: Path) -> None:
    for offered, words in (("", ["-j3"]), ("pipe:/run/jobs", ["-j3"]), ("/run/jobs", [])):
        tree = NinjaTree(str(folder / "build"), ["a.o"], {**ENVIRON, "BUILDD_JOBSERVER": offered})
        assert tree.command(3) == ["ninja", "-v", *words, "a.o"]


def test_folders_of_a_command() -> None:
    command = "nvcc -Ia -I b -isystem=c '-I' -I\"d e\" -isystem 'f g' --idirafter -Inot/really x.cu"
    assert include_folders(command) == ["a", "b", "c", "d e", "f g", "not/really"]


def test_the_sources_folder(tmp_path: Path) -> None:
    assert source_root("/x/y/build", ["/x/y/src/a.c", "/usr/include/x.h"]) == "/x/y"
    assert source_root("/x/build", ["/y/a.c"]) == "/x/build"
    (tmp_path / "CMakeCache.txt").write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={tmp_path}\n")
    assert source_root(str(tmp_path), ["/y/a.c"]) == str(tmp_path)
