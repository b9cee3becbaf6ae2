"""Random edits of a project with two watches: after each both tell what matters, and the next build is the right one.
And without a watch, where somebody also lays hands on the outputs.

BUILDD_SOAK="FIRST:COUNT:STEPS" takes other seeds and more edits than the few of every day.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from buildd.watch import watches
from protocol import messages as m
from tests.support.scheduler_harness import Harness, Story, Workspace
from tests.support.watch_request import Watcher, built, clean, watching

Build = Callable[[Harness, m.Request], Awaitable[Story]]
FIRST, COUNT, STEPS = map(int, os.environ.get("BUILDD_SOAK", "3:1:10").split(":"))
SOURCES = ("src/a.cu", "src/b.cu", "src/c.cu")
HEADERS = ("include/x.h", "include/z.h", "include/sub/y.h", "first/x.h", "first/sub/y.h", "src/x.h", "src/sub/y.h")
NAMES = ("x.h", "z.h", "sub/y.h", "y.h")
FOLDERS = ("include/sub", "first/sub", "first", "include", "src/sub")
SEARCH = ("first", "include")


@dataclass
class Model:
    """What fake-cc makes of the files of a project as they are."""

    project: Path
    objects: dict[str, str | None] = field(default_factory=dict)
    read: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for source in sorted(path.name for path in (self.project / "src").glob("*.cu")):
            self.objects[source] = self._compiled(f"src/{source}")

    def _compiled(self, source: str) -> str | None:
        digest, seen = hashlib.sha256(), list[str]()
        fine = self._read(source, digest.update, seen)
        return f"fake object\n{digest.hexdigest()}\n" if fine else None

    def _read(self, path: str, take: Callable[[bytes], None], seen: list[str]) -> bool:
        data = self.read[path] = (self.project / path).read_bytes()
        seen.append(path)
        take(data)
        fine = True
        for line in data.split(b"\n"):
            if line.startswith(b"//! error"):
                fine = False
            elif line.startswith(b'#include "'):
                name = line.split(b'"')[1].decode()
                places = [os.path.join(folder, name) for folder in (os.path.dirname(path), *SEARCH)]
                found = next((place for place in places if (self.project / place).exists()), None)
                if found is None or (found not in seen and not self._read(found, take, seen)):
                    return False
        return fine

    @property
    def library(self) -> str | None:
        if None in self.objects.values():
            return None
        text = "".join(self.objects[name] or "" for name in sorted(self.objects))
        return f"fake object\n{hashlib.sha256(text.encode()).hexdigest()}\n"


class Editor:
    """Somebody who edits a project in all the ways there are."""

    def __init__(self, workspace: Workspace, seed: int) -> None:
        self.workspace, self.random = workspace, random.Random(seed)
        self.number = 0
        self.silent = False
        """The last edit gave no event."""
        self.did: list[str] = []

    def edit(self) -> None:
        self.silent = False
        for _ in range(self.random.choice((1, 1, 2, 3))):
            ways = (self.write, self.write, self.write, self.rename_over, self.remove, self.touch, self.fill)
            ways += (self.replace_folder, self.turn_folder, self.turn_file, self.write_by_other_name)
            way = self.random.choice(ways)
            self.did.append(f"{way.__name__} {way()}")

    def _text(self, path: str) -> str:
        self.number += 1
        lines = [f"{self.number}"]
        lines += [f'#include "{name}"' for name in NAMES if self.random.random() < 0.3]
        lines += ["__TIME__"] if self.random.random() < 0.1 else []
        lines += ["//! error broken"] if self.random.random() < 0.05 else []
        return "\n".join(lines) + "\n"

    def _any(self) -> str:
        return self.random.choice((*SOURCES, *HEADERS, *HEADERS))

    def write(self, path: str = "") -> str:
        path = path or self._any()
        place = self.workspace.project / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(self._text(path))
        return path

    def rename_over(self) -> str:
        path, aside = self._any(), self.workspace.folder / "aside"
        aside.write_text(self._text(path))
        (self.workspace.project / path).parent.mkdir(parents=True, exist_ok=True)
        aside.rename(self.workspace.project / path)
        return path

    def remove(self) -> str:
        path = self.random.choice((*SOURCES[1:], *HEADERS))
        (self.workspace.project / path).unlink(missing_ok=True)
        return path

    def touch(self) -> str:
        path = self.workspace.project / self._any()
        if path.exists():
            os.utime(path)
        return path.name

    def fill(self) -> str:
        """A folder that comes with its files."""
        folder = self.random.choice(FOLDERS)
        self._clear(folder)
        self._filled().rename(self.workspace.project / folder)
        return folder

    def _filled(self) -> Path:
        aside = self.workspace.folder / f"aside-{self.number}"
        (aside / "sub").mkdir(parents=True)
        for name in self.random.sample(("x.h", "z.h", "y.h", "sub/y.h"), 3):
            (aside / name).write_text(self._text(name))
        return aside

    def _clear(self, folder: str) -> None:
        place = self.workspace.project / folder
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink():
            place.unlink()
        else:
            shutil.rmtree(place, ignore_errors=True)

    def replace_folder(self) -> str:
        """The one that was there goes elsewhere as it is."""
        folder = self.random.choice(FOLDERS)
        place, new = self.workspace.project / folder, self._filled()
        place.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(place):
            place.rename(self.workspace.folder / f"old-{self.number}")
        new.rename(place)
        return folder

    def turn_folder(self) -> str:
        folder = self.random.choice(FOLDERS)
        # Never one that the link is in.
        kind = "deep" if "/" in folder else "top"
        target = self.workspace.project / f"{kind}-{self.random.randrange(2)}"
        if not target.exists():
            self._filled().rename(target)
        self._clear(folder)
        (self.workspace.project / folder).symlink_to(target)
        return folder

    def turn_file(self) -> str:
        path = self.random.choice(HEADERS)
        place = self.workspace.project / path
        target = self.workspace.project / f"version-{self.random.randrange(2)}.h"
        if not target.exists():
            target.write_text(self._text(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(target)
        return path

    def write_by_other_name(self) -> str:
        """That it has one is seen when it is written next: of the link itself no event tells."""
        path = self.random.choice(HEADERS)
        place, other = self.workspace.project / path, self.workspace.folder / path.replace("/", "-")
        if place.is_file() and other.exists() and other.samefile(place):
            self.silent = True
            other.write_text(self._text(path))
        elif place.is_file():
            other.unlink(missing_ok=True)
            os.link(place.resolve(), other)
            self.write(path)
        return path


async def told(workspace: Workspace, watcher: Watcher, since: int, before: Model, after: Model) -> None:
    """The watch has told every file that was read and is another one, and anything at all where the result is."""
    wanted = set()
    for path, content in before.read.items():
        place = workspace.project / path
        if (place.read_bytes() if place.is_file() else None) != content:
            wanted.add(path)
    any_will_do = before.objects != after.objects
    while True:
        named = [body.paths for body in watcher.told()[since:] if isinstance(body, m.Changed)]
        missing = wanted - {path for paths in named for path in paths}
        if not missing and (named or not any_will_do):
            return
        try:
            await watcher.change()
        except AssertionError as error:
            raise AssertionError(f"not told: {missing or 'anything'}") from error


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_random_edits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(watches, "SWEEP_S", 3600.0)
    workspace = Workspace(tmp_path)
    editor = Editor(workspace, seed)
    for path in (*SOURCES, "include/x.h", "include/z.h", "include/sub/y.h"):
        editor.write(path)

    async def go() -> None:
        async with watching(workspace) as (harness, watcher):
            known, several = "", (watcher, Watcher(harness))
            await several[1].next(m.Watching)
            for _ in range(STEPS):
                before, since = Model(workspace.project), [len(each.told()) for each in several]
                editor.did.append(f"-- {before.library is not None} {sorted(before.read)}")
                editor.edit()
                after = Model(workspace.project)
                if known and not editor.silent and editor.random.random() < 0.5:
                    editor.did.append("told")
                    for each, number in zip(several, since, strict=True):
                        await told(workspace, each, number, before, after)
                # Half of the edits come while the watches learn.
                build = editor.random.choice((built, Harness.build))
                known = await right(harness, workspace, after, known if editor.random.random() < 0.9 else "none", build)
            if Model(workspace.project).library is not None:
                assert workspace.library == await clean(workspace)

    try:
        asyncio.run(go())
    except BaseException:
        print(f"seed {seed}:", *editor.did, sep="\n")
        raise


async def right(harness: Harness, workspace: Workspace, model: Model, known: str, build: Build) -> str:
    """A build makes what the model says; what is known then."""
    request = workspace.request(known=m.RequestId(known))
    story = await build(harness, request)
    assert (story.done.outcome is m.Outcome.BUILT) == (model.library is not None), story.done
    if model.library is None:
        return known
    made = {name: (workspace.project / f"build/{name}.o").read_text() for name in model.objects}
    assert made == model.objects
    assert workspace.library.decode() == model.library
    return request.request_id


def meddle(project: Path, choose: random.Random, number: int) -> str:
    """Do something to the outputs; what it was."""
    build = project / "build"
    outputs = sorted(build.glob("*.*")) if build.is_dir() else []
    way = choose.choice(("all", "one", "alter", "read-only", "stray", "link", "nothing"))
    if way == "all":
        shutil.rmtree(build, ignore_errors=True)
    elif outputs and way != "nothing":
        output = choose.choice(outputs)
        if way == "stray":
            (build / f"stray-{number}").write_text("")
        elif way == "read-only":
            output.chmod(0o444)
        elif way == "link":
            output.rename(project.parent / f"moved-{number}")
            output.symlink_to(project.parent / f"moved-{number}")
        else:
            output.unlink()
            if way == "alter":
                output.write_bytes(b"altered")
    return way


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_random_edits_and_outputs_that_are_gone(tmp_path: Path, seed: int) -> None:
    workspace, choose = Workspace(tmp_path), random.Random(seed)
    editor = Editor(workspace, seed)
    for path in (*SOURCES, "include/x.h", "include/z.h", "include/sub/y.h"):
        editor.write(path)

    async def go() -> None:
        async with Harness(workspace) as harness:
            for number in range(2 * STEPS):
                if choose.random() < 0.2:
                    editor.edit()
                editor.did.append(f"-- {meddle(workspace.project, choose, number)}")
                await right(harness, workspace, Model(workspace.project), "", built)

    try:
        asyncio.run(go())
    except BaseException:
        print(f"seed {seed}:", *editor.did, sep="\n")
        raise
