"""`buildd watch --ninja` and `--make` as programs, on trees with real compilers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.trees.tree_watch import LOOK_S
from tests.support.serving import short_folder
from tests.support.toolkit import host_compiler
from tests.support.user import User
from tests.support.watcher import Session

ninja = pytest.importorskip("ninja")
pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
MANIFEST = """\
rule cc
  command = gcc -MMD -MF $out.d -I../include -c $in -o $out
  depfile = $out.d
  deps = gcc
rule all
  command = ./gate $in && cat $in > $out
build a.o: cc ../src/a.c
build b.o: cc ../src/b.c
build app: all a.o b.o
"""


class Tree:
    """A user with a build tree, and a watch of it."""

    def __init__(self, folder: Path) -> None:
        self.user = User(folder)
        self.user.environ["PATH"] = f"{ninja.BIN_DIR}:{self.user.environ['PATH']}"
        self.folder = folder / "project"
        self.write("src/a.c", '#include "x.h"\nint a = X;\n')
        self.write("src/b.c", "int b;\n")
        self.write("include/x.h", "#define X 1\n")

    def write(self, path: str, text: str) -> Path:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def plain(self) -> Tree:
        """With a manifest of ninja's."""
        self.write("build/build.ninja", MANIFEST)
        self.write("build/gate", "#!/bin/sh\n").chmod(0o755)
        return self

    def watch(self, *arguments: str) -> Session:
        return Session(self.user, *arguments)


@pytest.fixture
def tree() -> Iterator[Tree]:
    with short_folder() as folder:
        tree = Tree(folder)
        yield tree
        assert tree.user.end() == []


def compiled(session: Session, outcome: str = "built") -> set[str]:
    """The commands of the next round that ran any, and of the rounds before it that a further save stopped."""
    made: set[str] = set()
    while True:
        done, ran = session.until_done()
        made |= ran
        if done["outcome"] != "cancelled" and ran:
            assert done["outcome"] == outcome, done
            return made


def watching(session: Session) -> None:
    """Wait until the files that the first run has found are watched, too."""
    session.until(lambda body: body["type"] == "watching")


def test_a_save_builds_what_it_touched_and_errors_are_told(tree: Tree) -> None:
    tree.plain()
    session = tree.watch("--ninja", str(tree.folder / "build"))
    try:
        assert compiled(session) == {"a.o", "b.o", "app"}
        watching(session)
        session.round()  # it takes in what was saved before the watch of all files
        tree.write("include/x.h", "#define X 2\n")
        assert session.changed() == ["include/x.h"]
        assert compiled(session) == {"a.o", "app"}
        tree.write("src/b.c", "int b = y;\n")
        failed = session.until(lambda body: body["type"] == "failed")
        assert failed["diagnostics"][0]["file"] == "../src/b.c" and failed["diagnostics"][0]["line"] == 1
        tree.write("src/b.c", '#include "new.h"\n')
        assert compiled(session, "failed") == {"b.o"}
        tree.write("include/new.h", "int b;\n")
        assert compiled(session) == {"b.o", "app"}
        tree.write("src/b.c", "int b;\n")
        # As it was at first: nothing is compiled, and that is said.
        compilers = session.until(lambda body: body["type"] == "notice" and "compilers" in body["text"])
        assert "1 hit, 0 misses" in compilers["text"]
        tree.write("build/build.ninja", MANIFEST.replace("-MMD", "-DNEW -MMD"))
        assert compiled(session) == {"a.o", "b.o", "app"}
        os.utime(tree.folder / "src/a.c")
        tree.user.daemon().kill()
        tree.write("src/b.c", "int bb;\n")
        while "b.o" not in compiled(session):  # the touch so soon after a run may have begun one more
            pass
    finally:
        session.end()
    assert "changed: include/x.h" in session.text and "FAILED" in session.text
    (status, said) = tree.user.buildd("explain", "--last", "-C", str(tree.folder))
    assert status == 0 and "src/b.c" in said, "the folder of the sources has a build, though ninja ran below it"


@pytest.mark.slow
def test_a_daemon_that_ends_under_it_is_replaced(tree: Tree) -> None:
    session = tree.plain().watch("--ninja", str(tree.folder / "build"))
    try:
        assert compiled(session) == {"a.o", "b.o", "app"}
        watching(session)
        daemon = tree.user.daemon()
        assert daemon is not None
        daemon.kill(signal.SIGTERM)
        watching(session)
        tree.write("src/b.c", "int c;\n")
        assert compiled(session) == {"b.o", "app"}
    finally:
        session.end()


def test_a_save_during_a_run_stops_it(tree: Tree) -> None:
    tree.plain()
    tree.write("build/gate", "#!/bin/sh\n[ -e go ] || { touch waits; exec sleep 600; }\n")
    # A name that no message can hold is no reason to watch nothing.
    odd = b"note\xe9"
    (tree.folder / "build/build.ninja").write_bytes(MANIFEST.encode().replace(b"a.o b.o", b"a.o b.o | ../src/" + odd))
    (tree.folder / "src" / os.fsdecode(odd)).touch()
    session = tree.watch("--ninja", str(tree.folder / "build"), "app")
    try:
        session.until(lambda body: body["type"] == "finished")
        session.until(lambda body: body["type"] == "finished")
        tree.write("build/go", "")
        tree.write("src/a.c", "int aa;\n")
        assert compiled(session) == {"a.o", "app"}
        session.until_told("names are not UTF-8: 1 file")
    finally:
        session.end()


def test_a_file_that_was_written_while_the_tool_ran_and_is_as_before_starts_one_more_run(tree: Tree) -> None:
    """It may have been another one just when the tool read it; a tool that writes its inputs is run again once."""
    tree.plain()
    session = tree.watch("--ninja", str(tree.folder / "build"))
    try:
        assert compiled(session) == {"a.o", "b.o", "app"}
        watching(session)
        session.round()
        tree.write("build/gate", "#!/bin/sh\ntouch ../src/a.c\n")
        tree.write("src/b.c", "int bb;\n")
        assert compiled(session) == {"b.o", "app"}
        assert compiled(session) == {"a.o", "app"}
        session.until_told("changed: src/a.c")
        time.sleep(6 * LOOK_S)
        # Two where the change of b.c came in two events: the run that the first one began was replaced.
        assert session.text.count("changed: src/a.c") <= 2, session.text
    finally:
        session.end()


def test_an_interrupt_while_a_tool_is_asked_is_one() -> None:
    """The tool has ended by then, so nothing is left to kill."""
    script = """\
import os, signal
from buildd.trees.tree import tool_output

signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    tool_output(["sh", "-c", "kill -INT $PPID"], "/", os.environ)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, timeout=60, check=True)
    assert done.stdout == b"interrupted\n"


@pytest.mark.slow
def test_a_tree_of_cmakes_is_configured_anew(tree: Tree) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("no cmake (Debian: cmake)")
    lists = "cmake_minimum_required(VERSION 3.18)\nproject(p C)\nadd_library(p STATIC src/a.c{})\n"
    lists += "target_include_directories(p PRIVATE include)\n"
    tree.write("CMakeLists.txt", lists.format(""))
    status, said = tree.user.buildd("run", "--", "cmake", "-G", "Ninja", "-S", "project", "-B", "project/build")
    assert status == 0, said
    session = tree.watch("--ninja", str(tree.folder / "build"))
    try:
        assert "CMakeFiles/p.dir/src/a.c.o" in compiled(session)
        tree.write("CMakeLists.txt", lists.format(" src/b.c"))
        assert "CMakeFiles/p.dir/src/b.c.o" in compiled(session)
        watching(session)
        tree.write("CMakeLists.txt", lists.format(" src/b.c") + "set(X Y")
        failed = session.until(lambda body: body["type"] == "failed")
        assert failed["action"] == "build.ninja"
        assert [(found["file"], found["line"]) for found in failed["diagnostics"]] == [("CMakeLists.txt", 5)]
        assert "Function missing ending" in failed["diagnostics"][0]["message"]
        session.until(lambda body: body["type"] == "done" and body["outcome"] == "failed")
        tree.write("CMakeLists.txt", lists.format(" src/b.c"))
        session.until(lambda body: body["type"] == "done" and body["outcome"] == "built")
        tree.write("src/b.c", "int other;\n")
        assert "CMakeFiles/p.dir/src/b.c.o" in compiled(session)
    finally:
        session.end()
    assert "bypass the cache" not in session.text


@pytest.mark.slow
def test_a_makefile(tree: Tree) -> None:
    if shutil.which("make") is None:
        pytest.skip("no make (Debian: make)")
    tree.write(
        "Makefile",
        "app: src/a.o src/b.o\n\tcat $^ > $@\n%.o: %.c\n\tgcc -MMD -Iinclude -c $< -o $@\n-include src/a.d\n",
    )
    session = tree.watch("--make", str(tree.folder))
    try:
        assert compiled(session) == {"project"}
        watching(session)
        tree.write("include/x.h", "#define X 2\n")
        session.until(lambda body: body["type"] == "changed" and "include/x.h" in body["paths"])
        session.until(lambda body: body["type"] == "log_line" and "-c src/a.c" in body["text"])
        tree.write("src/b.c", "int b = y;\n")
        failed = session.until(lambda body: body["type"] == "failed")
        assert failed["diagnostics"][0]["file"] == "src/b.c"
        session.until(lambda body: body["type"] == "done" and body["outcome"] == "failed")
    finally:
        session.end()
    # Each run that called a compiler is in the log, under the tree's folder.
    (status, said) = tree.user.buildd("explain", "--last", "-C", str(tree.folder))
    assert status == 0 and "failed" in said and "run -- make" in said, said
    assert "input src/b.c: content changed" in said
