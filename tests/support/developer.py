"""A user with a fake compiler and a project, for tests of the whole: command line, daemon, store.

Knows how to make, change and build the project, and where Linux lets a test have namespaces and small disks.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.own_programs import keep_programs, lend_programs
from tests.support.user import Process, User, start_ticks
from tests.support.waiting import DEADLINE_S, until

_SUMMARY = re.compile(r"(\d+) hits?, (\d+) compiled")
PROJECT = """\
[target.demo]
kind = "cuda"
sources = ["src/*.cu"]
arch = ["sm_80"]
"""


_CLEAN: dict[tuple[str, tuple[tuple[str, bytes], ...]], bytes] = {}
"""Library of each toolkit and project that a build without any cache has made in this process: the compiler writes the
same bytes for the same texts."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a command came to."""

    status: int
    text: str

    @property
    def hits(self) -> int:
        return self._number(1)

    @property
    def compiled(self) -> int:
        return self._number(2)

    def _number(self, group: int) -> int:
        found = _SUMMARY.search(self.text)
        assert found is not None, self.text
        return int(found[group])


class Developer(User):
    """A user whose toolkit is tests/fakes/fake-toolkit.c, with a project of two sources and a header."""

    def __init__(self, folder: Path, toolkit: Path, **environment: str) -> None:
        super().__init__(folder, {"CUDA_HOME": str(toolkit), **environment})
        self.project = folder / "project"
        self.write("buildd.toml", PROJECT)
        self.write("src/a.cu", '#include "x.h"\na\n')
        self.write("src/b.cu", "b\n")
        self.write("src/x.h", "x\n")

    def write(self, path: str, text: str) -> Path:
        target = self.project / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def build(self, *arguments: str, project: Path | None = None, timeout_s: float = 120.0) -> Said:
        """`buildd build` in the project, to its end."""
        return Said(*self.buildd("build", "-C", str(project or self.project), *arguments, timeout_s=timeout_s))

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """`buildd build` in the project, running."""
        return self.start("build", "-C", str(self.project), *arguments)

    def finish(self, process: subprocess.Popen[str]) -> Said:
        output, _ = process.communicate(timeout=DEADLINE_S)
        return Said(process.returncode, output)

    @property
    def library(self) -> Path:
        return self.project / "build" / "demo" / "libdemo.so"

    def compiler_of(self, source: str) -> Process | None:
        """The process that compiles a source now."""
        for name in filter(str.isdecimal, os.listdir("/proc")):
            try:
                arguments = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")[:-1]
                # It is asked often: only of a compiler more is read.
                if arguments and arguments[0].endswith(b"/nvcc") and arguments[-1] == source.encode():
                    ticks = start_ticks(int(name))
                    if ticks is not None and os.readlink(f"/proc/{name}/cwd").startswith(f"{self.folder}/"):
                        return Process(int(name), ticks, source)
            except OSError:
                continue
        return None

    def until_compiling(self, source: str) -> Process:
        return until(lambda: self.compiler_of(source), f"nobody compiles {source}")

    def clean(self) -> bytes:
        """What a build without any cache makes of the project as it is now. Equal projects share one such build."""
        sources = [
            path for path in sorted(self.project.rglob("*")) if "build" not in path.relative_to(self.project).parts
        ]
        content = tuple((str(path.relative_to(self.project)), path.read_bytes()) for path in sources if path.is_file())
        state = (self.environ["CUDA_HOME"], content)
        if state not in _CLEAN:
            _CLEAN[state] = self._built_clean()
        return _CLEAN[state]

    def _built_clean(self) -> bytes:
        store = self.environ["BUILDD_DIR"]
        self.environ["BUILDD_DIR"] = str(self.folder / "clean-store")
        lend_programs(self.folder / "clean-store")
        copy = self.folder / "clean"
        try:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(self.project, copy, ignore=shutil.ignore_patterns("build"))
            said = self.build("--no-daemon", "--recache", project=copy)
            assert said.status == 0, said.text
            return (copy / "build" / "demo" / "libdemo.so").read_bytes()
        finally:
            self.environ["BUILDD_DIR"] = store

    def inside(self, script: str, *, timeout_s: float = 120.0) -> Said:
        """A shell script in mount and pid namespaces of its own, as in a container; all that it started ends with it.
        $BUILDD is the command."""
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-euc", script],
            cwd=self.folder,
            env={**self.environ, "BUILDD": f"{sys.executable} -P -m buildd", "PYTHON": f"{sys.executable} -P"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )
        return Said(done.returncode, done.stdout)


def make_another_developer(kept: Developer) -> Developer:
    """A developer with a folder and a store of its own, whom the daemon of `kept` serves.

    That daemon must be up: a daemon that this developer starts is its own.
    """
    # Below the other's folder: a daemon that ends makes a store that was removed under it once more.
    another_developer = Developer(
        Path(tempfile.mkdtemp(prefix="another-", dir=kept.folder)), Path(kept.environ["CUDA_HOME"])
    )
    another_developer.run_folder = kept.run_folder
    another_developer.environ["BUILDD_RUNTIME_DIR"] = str(kept.run_folder)
    return another_developer


def end_another_developer(another_developer: Developer) -> None:
    keep_programs(another_developer.store)
    left = another_developer.leftovers(within_s=5)
    for process in left:
        process.kill()
    shutil.rmtree(another_developer.folder, ignore_errors=True)
    assert not left, left


def make_developer(toolkit: Path, **environment: str) -> Developer:
    """A developer in a new folder: a socket's path has 107 bytes at most, and pytest's folders are long."""
    return Developer(Path(tempfile.mkdtemp(prefix="buildd-test-", dir="/tmp")), toolkit, **environment)


def end_developer(developer: Developer) -> None:
    left = developer.end()
    shutil.rmtree(developer.folder, ignore_errors=True)
    assert not left, left


def why_no_namespaces() -> str:
    """Why this machine permits no namespaces with mounts; empty where it does."""
    try:
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "mount", "-t", "tmpfs", "none", "/mnt"],
            capture_output=True,
            text=True,
        )
    except OSError as error:
        return f"no unshare: {error.strerror}"
    return done.stderr.strip() if done.returncode else ""
