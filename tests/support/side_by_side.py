"""Edits a foreign project, compiles it with and without the shims, side by side, and tells every difference.

For `scripts/campaign/soundness` and its small sister among the tests. Knows how a build is asked for, not what an edit
changes (`foreign_edits`).
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.foreign_edits import Compiled, EditedForeignProject
from tests.support.foreign_project import ForeignProject
from tests.support.user import User

_CALL = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
for name in sys.argv[2:]:
    numbers = (ctypes.c_int * 16)()
    getattr(library, "host_" + name)(numbers)
    print(name, list(numbers), flush=True)
    print(getattr(library, "odd_host_" + name)(), flush=True)
"""
_HELPERS = 'extern "C" int helper() { return 1; }\nextern "C" int odd_host_helper(int x) { return x; }\n'
_VOLATILE = ("__DATE__", "__TIME__", "__TIMESTAMP__", ".incbin")
"""Where one of these is used nothing is stored."""


@dataclass(slots=True)
class Tally:
    """What a campaign came to."""

    edits: int = 0
    compiles: int = 0
    known: int = 0
    """Compiles whose right result was known from before."""
    failing: int = 0
    builds: int = 0
    """`buildd build`."""
    programs: int = 0
    moves: int = 0
    wrong: int = 0
    false_misses: int = 0
    hits: int = 0
    misses: int = 0
    through: dict[str, int] = field(default_factory=dict)
    """Passed through, by reason."""
    seen: dict[str, int] = field(default_factory=dict)
    """How often each part differed."""


_NAME_FILES = ("__FILE__", "assert", "source_location", "__builtin_FILE")


class SideBySide:
    """One project, compiled twice after each edit.

    Args:
        user: whose daemon serves; it must be up.
        folder: everything is made there; its path has to be short.
        nvcc: empty: plain C++ only.
        moves: the project is in a folder of a random name, as Python makes them for pip and others; `moved`.
    """

    def __init__(
        self,
        user: User,
        folder: Path,
        nvcc: str,
        rng: random.Random,
        units: tuple[str, ...],
        *,
        moves: bool = False,
    ) -> None:
        self.user, self.rng, self.folder, self.moves = user, rng, folder, moves
        place = Path(tempfile.mkdtemp()) if moves else folder
        self.work = EditedForeignProject(place / "project", nvcc, folder / "real", rng, units)
        self.foreign = ForeignProject(user, folder / "build", self._tools())
        self.tally = Tally()
        self._right: dict[str, tuple[Compiled, Path]] = {}
        self._pool = ThreadPoolExecutor(2)
        (folder / "helpers.cpp").write_text(_HELPERS)

    def _tools(self) -> str:
        return str(self.work.folder / "toolkit" / "bin") if self.work.cuobjdump else ""

    def edit(self, name: str) -> list[str]:
        """Carry an edit out and compile everything. Returns what is wrong then."""
        self.work.edits()[name].do()
        self.tally.edits += 1
        return self.check()

    def check(self, what: str = "") -> list[str]:
        sources = self.work.sources()
        rights = {source: self._pool.submit(self._plain, source) for source in sources}
        mine = {source: self._pool.submit(self._ours, source) for source in sources}
        return [fault for source in sources for fault in self._compare(source, mine[source], rights[source], what)]

    def again(self, *, clean: bool) -> list[str]:
        """The same once more: all are hits, with or without outputs there."""
        if clean:
            shutil.rmtree(self.work.folder / "out")
            (self.work.folder / "out").mkdir()
        before, failing = self.foreign.figures(), self.tally.failing
        faults = self.check("once more")
        after = self.foreign.figures()
        texts = [path.read_text(errors="replace") for path in self.work.everything()]
        stored = not any(word in text for word in _VOLATILE for text in texts)
        is_known = before.hits or before.misses  # a daemon that has just begun has not heard of the build
        if is_known and stored and failing == self.tally.failing and after.misses > before.misses:
            self.tally.false_misses += after.misses - before.misses
        return faults

    def moved(self) -> list[str]:
        """What is wrong in a folder of another name, where objects may hold what it is called."""
        assert self.moves
        former = self.work.folder
        self.work.move(Path(tempfile.mkdtemp()) / former.name)
        former.parent.rmdir()
        self.foreign.search(self._tools())
        self._right.clear()
        self.tally.moves += 1
        return self.check("moved")

    def restarted(self) -> None:
        """The daemon begins anew; what it knew by heart is gone."""
        self.count()
        self.user.buildd("down")
        self.user.buildd("up")

    def count(self) -> Tally:
        """The tally, with the build's figures. Another daemon goes on from those of the one before."""
        figures = self.foreign.figures()
        if figures.hits or figures.misses or figures.passed_through:
            self.tally.hits, self.tally.misses = figures.hits, figures.misses
            self.tally.through = dict(figures.passed_through)
        return self.tally

    def built(self) -> list[str]:
        """What is wrong with the objects of `buildd build`, which has the same sources as a target."""
        texts = [path.read_text(errors="replace") for path in self.work.everything()]
        if os.path.isabs(self.work.source_path) and any(name in text for text in texts for name in _NAME_FILES):
            return []  # a target names its sources by relative paths: they are other ones
        self.tally.builds += 1
        environ = self.user.environ
        self.user.environ = {**environ, **self.work.environment}
        try:
            status, said = self.user.buildd("build", "-C", str(self.work.folder), timeout_s=300)
        finally:
            self.user.environ = environ
        rights = {source: self._plain(source) for source in self.work.sources() if source.endswith(".cu")}
        fails = any(right.status for right, _ in rights.values())
        if (status != 0) != fails:
            return [
                self._count("buildd build", f"status {status}, {'an error' if fails else 'none'} without us: {said}")
            ]
        faults: list[str] = []
        for source, (_, place) in rights.items() if not fails else ():
            made = self.work.folder / "build" / "t" / "obj" / "src" / f"{source}.o"
            for part in self.work.object_faults(source, made, place):
                faults.append(self._count(part, f"buildd build: {source}: {part}"))
                self._put_aside(source, made, place)
        return faults

    def linked(self) -> list[str]:
        """What is wrong with a library of the objects, and with what its host code says."""
        self.tally.programs += 1
        sources = self.work.sources()
        rights = [self._plain(source) for source in sources]
        if any(right.status for right, _ in rights):
            return []
        ours = [self.work.folder / "out" / f"{source}.o" for source in sources]
        said = [self._run(name, objects) for name, objects in (("ours", ours), ("theirs", [p for _, p in rights]))]
        return [] if said[0] == said[1] else [self._count("program", f"programs: {said[0]!r}, not {said[1]!r}")]

    def _run(self, name: str, objects: list[Path]) -> tuple[int, str]:
        library = self.folder / f"{name}.so"
        if self.work.cuobjdump:
            lib = self.work.real / "lib"
            command = ["nvcc", *self.work.arch_flags(), "-shared", f"-L{lib}", "-Xcompiler=-fPIC"]
        else:
            command = ["g++", "-shared", "-fPIC"]
        # Not two of one name beside each other: nvcc would take the names of its temporary files from them.
        places = [self.folder / f"linked_{number}.o" for number in range(len(objects))]
        for place, made in zip(places, objects, strict=True):
            shutil.copyfile(made, place)
        helpers = str(self.folder / "helpers.cpp")
        done = self.foreign.plainly(*command, "-o", str(library), helpers, *map(str, places), cwd=self.folder)
        if done.returncode != 0:
            return done.returncode, done.stderr.decode(errors="replace")
        units = [source.rpartition(".")[0] for source in self.work.sources()]
        ran = subprocess.run(
            [sys.executable, "-I", "-c", _CALL, str(library), *units], capture_output=True, text=True, check=False
        )
        return ran.returncode, ran.stdout

    def _ours(self, source: str) -> Compiled:
        return self.work.compiled(self.foreign, self.foreign.environ, source, "out")

    def _plain(self, source: str) -> tuple[Compiled, Path]:
        """What is right, and a copy of that object."""
        state = self.work.state(source)
        if state not in self._right:
            compiled = self.work.compiled(self.foreign, self.foreign.plain, source, "clean")
            # A known one is wanted again only if it was not long ago.
            while len(self._right) >= 200:
                _, old = self._right.pop(next(iter(self._right)))
                old.unlink(missing_ok=True)
            place = self.folder / "right" / f"{state}.o"
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(compiled.object)
            self._right[state] = compiled, place
        else:
            self.tally.known += 1
        return self._right[state]

    def _compare(
        self, source: str, mine: Future[Compiled], right: Future[tuple[Compiled, Path]], what: str
    ) -> list[str]:
        self.tally.compiles += 1
        (theirs, place), ours = right.result(), mine.result()
        self.tally.failing += theirs.status != 0
        made = self.work.folder / "out" / f"{source}.o"
        parts = self.work.faults(source, ours, theirs, made, place)
        if parts:
            self._put_aside(source, made, place, ours, theirs)
        return [self._count(part, f"{what} {source}: {part}".strip()) for part in parts]

    def _count(self, part: str, told: str) -> str:
        self.tally.wrong += 1
        self.tally.seen[part] = self.tally.seen.get(part, 0) + 1
        return told

    def _put_aside(
        self, source: str, made: Path, place: Path, ours: Compiled | None = None, theirs: Compiled | None = None
    ) -> None:
        """Keep what differs, and the project as it is now."""
        folder = self.folder / "faults" / str(self.tally.edits)
        if not folder.exists():
            ignored = shutil.ignore_patterns("out", "clean", "build")
            shutil.copytree(self.work.folder, folder / "project", symlinks=True, ignore=ignored)
            (folder / "commands").write_text(
                "".join(f"{self.work.command(name, 'out')}\n" for name in self.work.sources())
                + f"{self.work.environment}\n"
            )
        for name, path, compiled in (("ours", made, ours), ("theirs", place, theirs)):
            if path.exists():
                shutil.copyfile(path, folder / f"{source}.{name}.o")
            if compiled is not None:
                (folder / f"{source}.{name}.txt").write_text(
                    f"{compiled.status}\n{compiled.stdout}\n{compiled.stderr}\n"
                    + os.linesep.join(sorted(compiled.headers))
                )

    def close(self) -> None:
        self._pool.shutdown()

    def remove(self) -> None:
        """Everything that was made."""
        for place in (self.folder, *((self.work.folder.parent,) if self.moves else ())):
            shutil.rmtree(place, ignore_errors=True)
