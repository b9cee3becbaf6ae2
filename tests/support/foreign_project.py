"""A foreign build for tests: a user, their daemon, and a project whose compilers are shims.

Knows how `buildd run` sets an environment up; a test calls compilers by their plain names.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from buildd.client.foreign_build import figures_of, variables
from buildd.shims.interposition import below, folder_of
from buildd.store.hit_notes import Notes
from protocol.client import Client
from protocol.messages import BuildFigures, BuildId, Status
from tests.support.toolkit import small_toolkit
from tests.support.user import User

DEADLINE_S = 60.0


@contextmanager
def kept_up(user: User) -> Iterator[None]:
    """The user's daemon lives, and is the same one all the while: a resting one without a client may start anew, to
    give memory back, and then it counts anew."""
    assert user.buildd("up")[0] == 0
    with Client.connect(environ=user.environ) as client:
        assert client.instance, "it shakes hands now, not when it is first used"
        yield


def declaration(name: str) -> str:
    """A line of C that makes a source another one than those of other tests."""
    return f"extern int {re.sub('[^0-9A-Za-z]', '_', name)};\n"


class ForeignProject:
    """One build of a foreign project: its folder, its environment, its figures.

    Args:
        user: whose daemon serves.
        folder: the project; made here.
        path: before the user's own PATH, as a toolkit's bin/.
    """

    def __init__(self, user: User, folder: Path, path: str = "") -> None:
        folder.mkdir(parents=True)
        self.user = user
        self.folder = folder
        self.build = BuildId(f"build of {folder.name}")
        self.plain: dict[str, str] = {}
        self.environ: dict[str, str] = {}
        self.search(path)
        self.notes = Notes(user.store, self.build)
        weakref.finalize(self, self.notes.close)

    @classmethod
    def with_nvcc(cls, user: User, name: str) -> ForeignProject:
        """A project of this name, with the nvcc of `small_toolkit` before all others on its PATH."""
        folder = user.folder / name.replace("[", "-").rstrip("]").replace(" ", "_")
        return cls(user, folder, f"{small_toolkit()}/bin")

    def search(self, path: str) -> None:
        """Have tools found there first, as a `buildd run` that begins now would."""
        usual = self.user.environ["PATH"]
        self.plain = {**self.user.environ, "PATH": f"{path}{os.pathsep}{usual}" if path else usual}
        self.environ = {**self.plain, **variables(self.plain, self.build)}

    @property
    def shims(self) -> Path:
        """The folder of shims that this build's calls go to."""
        return Path(folder_of(self.environ))

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def start(
        self, *command: str | bytes, environ: Mapping[str, str] | None = None, cwd: Path | None = None, umask: int = -1
    ) -> subprocess.Popen[bytes]:
        environ = self.environ if environ is None else environ
        words, program = below([os.fsdecode(word) for word in command], environ)
        # Popen searches this process's PATH, not that of the environment that it is given.
        program = program or shutil.which(words[0], path=environ["PATH"])
        assert program, command[0]
        return subprocess.Popen(
            [os.fsencode(word) for word in words],
            executable=program,
            cwd=cwd or self.folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            umask=umask,
        )

    def call(
        self,
        *command: str | bytes,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        umask: int = -1,
        timeout_s: float = DEADLINE_S,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command as `buildd run` would. Raises subprocess.TimeoutExpired."""
        process = self.start(*command, environ=environ, cwd=cwd, umask=umask)
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    def plainly(self, *command: str | bytes, cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
        """The same without us."""
        return self.call(*command, environ=self.plain, cwd=cwd)

    def good(self, *command: str | bytes) -> subprocess.CompletedProcess[bytes]:
        """`call` of a command that must succeed."""
        done = self.call(*command)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done

    def status(self) -> Status:
        with Client.connect(environ=self.user.environ) as client:
            return client.status()

    def figures(self) -> BuildFigures:
        return figures_of(self.user.environ, self.build, self.notes)

    def counts(self) -> tuple[int, int]:
        """Hits and misses so far."""
        figures = self.figures()
        return figures.hits, figures.misses


def prerequisites(depfile: bytes) -> tuple[str, list[str]]:
    """Target and prerequisites of a depfile's first rule."""
    rule = depfile.decode().replace("\\\n", " ").splitlines()[0]
    target, _, rest = rule.partition(": ")
    return target.rstrip(), rest.split()


def same_files(one: Sequence[str], other: Sequence[str]) -> bool:
    return {os.path.normpath(path) for path in one} == {os.path.normpath(path) for path in other}
