"""Who compiles a corpus: plain ninja, ccache, sccache, buildd's shims, `buildd build`.

Each has a project, a cache and its servers of its own in one folder. Knows no row and no corpus.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from common import Cost, Workers, cpu_of, program, run
from corpora import Corpus

from buildd.shims.interposition import LAUNCHER
from tests.support.foreign_project import ForeignProject
from tests.support.user import User
from tests.support.watcher import Session

_HINT = "pip install buildd[bench]"
_DEADLINE_S = 30.0
Around = Callable[[Sequence[str]], list[str]]
MADE = "made"


class Contender(ABC):
    """Compiles one project.

    Args:
        folder: short; everything of it is below.
        corpus: its own copy of the project.
        width: of ninja.
    """

    name: str
    launcher = ""

    def __init__(self, folder: Path, corpus: Corpus, width: int) -> None:
        self.folder, self.corpus, self.width = folder, corpus, width
        self.ninja = program("ninja", _HINT)
        self.caches = 0
        (folder / "home").mkdir(exist_ok=True)
        self.environ: Mapping[str, str] = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(folder / "home"),
            "LC_ALL": "C.UTF-8",
            **({"HIP_PLATFORM": "amd"} if corpus.hip else {}),
        }
        self.configure()

    def configure(self, *, added: bool = False) -> None:
        self.corpus.configure(self.launcher, MADE, added=added)

    def build(self) -> Cost:
        """What it costs to have every object as it has to be."""
        return self.build_within(list)

    def build_within(self, around: Around) -> Cost:
        """As `build`, by a ninja that another command line starts."""
        command = around([self.ninja, f"-j{self.width}"])
        return run(command, cwd=self.corpus.folder, environment=self.environ, others=self.others_cpu)

    def helpers(self) -> list[int]:
        """Processes that work for it without being its children."""
        return []

    def clean(self) -> None:
        """Objects go; ninja's log stays, as after `ninja -t clean`."""
        for path in (self.corpus.folder / MADE).glob("*.o"):
            path.unlink()

    def forget(self) -> None:
        """An empty cache, and no outputs."""
        shutil.rmtree(self.corpus.folder / MADE, ignore_errors=True)

    def others_cpu(self) -> float:
        """CPU seconds so far of processes that work for it without being its children."""
        return 0.0

    def missed(self) -> int:
        """How many compiles were no hits so far; -1 where nobody counts."""
        return -1

    def objects(self) -> list[Path]:
        return [self.corpus.folder / self.corpus.object(MADE, unit) for unit in self.corpus.units]

    def end(self) -> list[str]:
        """Ends what it started; what had to be killed."""
        return []


class Plain(Contender):
    name = "plain"


class Ccache(Contender):
    name = "ccache"

    def __init__(self, folder: Path, corpus: Corpus, width: int) -> None:
        self.launcher = program("ccache", _HINT)
        super().__init__(folder, corpus, width)

    def forget(self) -> None:
        super().forget()
        shutil.rmtree(self.folder / "ccache", ignore_errors=True)
        self.environ = {**self.environ, "CCACHE_DIR": str(self.folder / "ccache")}


class Sccache(Contender):
    """With a server of its own, on a port that was free."""

    name = "sccache"

    def __init__(self, folder: Path, corpus: Corpus, width: int) -> None:
        self.launcher = program("sccache", _HINT)
        self._server: subprocess.Popen[bytes] | None = None
        self._used_s = 0.0
        super().__init__(folder, corpus, width)

    def forget(self) -> None:
        super().forget()
        self.end()
        self.caches += 1
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.environ = {
            **self.environ,
            "SCCACHE_DIR": str(self.folder / f"sccache-{self.caches}"),
            "SCCACHE_SERVER_PORT": str(port),
            "SCCACHE_CONF": str(self.folder / "no-such-file"),
        }
        server = {**self.environ, "SCCACHE_START_SERVER": "1", "SCCACHE_NO_DAEMON": "1"}
        with open(self.folder / "sccache.log", "ab") as log:
            self._server = subprocess.Popen(
                [self.launcher], env=server, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > deadline or self._server.poll() is not None:
                    raise SystemExit(f"sccache's server does not start; see {self.folder / 'sccache.log'}") from None
                time.sleep(0.02)

    def others_cpu(self) -> float:
        return cpu_of([self._server.pid]) if self._server is not None else 0.0

    def end(self) -> list[str]:
        if self._server is not None:
            self._server.terminate()
            self._server.wait(_DEADLINE_S)
            self._server = None
            shutil.rmtree(self.folder / f"sccache-{self.caches}", ignore_errors=True)
        return []


class Daemon(Contender):
    """With a user and a daemon of its own."""

    def __init__(self, folder: Path, corpus: Corpus, width: int) -> None:
        self.user = User(folder, {"HIP_PLATFORM": "amd"} if corpus.hip else {})
        self._workers = Workers(self.user.processes)
        super().__init__(folder, corpus, width)

    def forget(self) -> None:
        """A fresh daemon with an empty store."""
        super().forget()
        if self.caches:
            self.user.buildd("down")
        shutil.rmtree(self.folder / f"store-{self.caches}", ignore_errors=True)
        self.caches += 1
        store = str(self.folder / f"store-{self.caches}")
        # Its turn comes again after all others compiled everything.
        self.user.environ = {**self.user.environ, "BUILDD_DIR": store, "BUILDD_IDLE_TIMEOUT_S": "86400"}
        status, said = self.user.buildd("up")
        if status != 0:
            raise SystemExit(f"no daemon: {said}")

    def helpers(self) -> list[int]:
        return [process.pid for process in self.user.processes()]

    def others_cpu(self) -> float:
        return self._workers.cpu_s()

    def end(self) -> list[str]:
        return [process.command for process in self.user.end()]


class Shims(Daemon):
    """`buildd run -- ninja`, without the start of its command line."""

    name = "buildd run"

    def forget(self) -> None:
        super().forget()
        self.foreign = ForeignProject(self.user, self.folder / f"build-{self.caches}", str(self.corpus.compiler.parent))
        self.environ = self.foreign.environ
        self.launcher = str(self.foreign.shims / LAUNCHER)
        self.configure()

    def missed(self) -> int:
        figures = self.foreign.figures()
        return figures.misses + sum(figures.passed_through.values())


class Targets(Daemon):
    """`buildd build`, all of it."""

    name = "buildd build"

    def build(self) -> Cost:
        import sys

        command = [sys.executable, "-P", "-m", "buildd", "build", "-C", str(self.corpus.folder), f"-j{self.width}"]
        return run(command, cwd=self.folder, environment=self.user.environ, others=self.others_cpu)

    def clean(self) -> None:
        shutil.rmtree(self.corpus.folder / "build", ignore_errors=True)

    def forget(self) -> None:
        super().forget()
        self.clean()

    def missed(self) -> int:
        from protocol.client import Client

        with Client.connect(environ=self.user.environ) as client:
            return client.status().counters.get("misses", 0)

    def objects(self) -> list[Path]:
        found = {path.name: path for path in (self.corpus.folder / "build").rglob("*.o")}
        return [found[f"{os.path.basename(unit.source)}.o"] for unit in self.corpus.units]


class Watched(Targets):
    """`buildd watch`: the save itself has it built. Of what is no save it knows nothing."""

    name = "buildd watch"

    def __init__(self, folder: Path, corpus: Corpus, width: int) -> None:
        self._session: Session | None = None
        super().__init__(folder, corpus, width)

    def build(self) -> Cost:
        """From when the save was made to the end of the build."""
        before_s, started_s = self.others_cpu(), time.perf_counter()
        if self._session is None:
            self._session = Session(self.user, "-C", str(self.corpus.folder), f"-j{self.width}")
        done = self._session.round()
        if done["outcome"] != "built":
            raise SystemExit(f"buildd watch: {done['message']}\n{self._session.text}")
        return Cost(time.perf_counter() - started_s, self.others_cpu() - before_s)

    def forget(self) -> None:
        self._leave()
        super().forget()

    def end(self) -> list[str]:
        self._leave()
        return super().end()

    def _leave(self) -> None:
        if self._session is not None:
            self._session.end()
            self._session = None


ALL: tuple[type[Contender], ...] = (Plain, Ccache, Sccache, Shims, Targets)
NAMES = tuple(kind.name for kind in ALL)
