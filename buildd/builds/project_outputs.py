"""Outputs of a target's build: files of the project, or of a scratch folder for a build that only fills the store.

Knows files and their places; does not know what made them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from pathlib import Path

from buildd.builds import output_restore
from buildd.builds.active_build import ActiveBuild
from buildd.builds.last_builds import LastBuilds
from buildd.builds.outputs import Outputs
from buildd.builds.products import Product
from buildd.files.atomic_write import copy_file, make_folders, replace_file, usable
from buildd.files.listings import IGNORE
from codegen.reach import read_regular
from protocol import messages as m

IGNORED = "*\n"
"""Content of the .gitignore that buildd writes when it makes the folder of all outputs, so that git shows none."""


class ProjectOutputs(Outputs[ActiveBuild]):
    """For a build whose outputs are files of the project.

    Args:
        last_builds: keeps what the build has seen, for the next one.
    """

    in_project = True

    def __init__(self, last_builds: LastBuilds) -> None:
        self._last_builds = last_builds
        self.stood: set[str] = set()

    def prepare(self) -> None:
        _write_generated(self.build)
        # Before anything runs: a folder that changes while a tool searches it is one that cannot be trusted.
        outputs = [output.path for action in self.build.plan.actions for output in action.outputs]
        for folder in dict.fromkeys(os.path.dirname(path) for path in outputs):
            with contextlib.suppress(OSError):
                _make(self.build, folder)
        _see_generated(self.build)

    def place(self, path: str, digest: m.Digest, *, executable: bool) -> bool:
        destination = Path(self.build.project, path)
        if self._is_there(destination, digest, executable):
            self.stood.add(path)
            return True
        if not os.path.isdir(destination.parent):
            with contextlib.suppress(OSError):  # the store says what is wrong
                _make(self.build, os.path.dirname(path))
        return self.build.store.restore(digest, destination, executable=executable, umask=self.build.request.umask)

    def place_made(self, path: str, made: Path, product: Product) -> None:
        destination = Path(self.build.project, path)
        if not self._is_there(destination, product.digest, product.executable):
            _make(self.build, os.path.dirname(path))
            copy_file(made, destination, executable=product.executable, umask=self.build.request.umask)

    def _is_there(self, destination: Path, digest: m.Digest, executable: bool) -> bool:
        fact = self.build.files.fact(str(destination))
        return fact is not None and fact.digest == digest and usable(destination, executable)

    def where(self, path: str) -> str:
        return f"{self.build.project}/{path}" if not path.startswith("/") else path

    def remember(self) -> None:
        output_restore.keep(self.build)
        self._last_builds.keep(self.build)


class ScratchOutputs(Outputs[ActiveBuild]):
    """For a build that puts no outputs into the project: tools read made files in a scratch folder."""

    def __init__(self) -> None:
        self._folder = ""
        """Made when first needed."""
        self._lock = threading.Lock()

    def prepare(self) -> None:
        _write_generated(self.build)
        _see_generated(self.build)

    def place(self, path: str, digest: m.Digest, *, executable: bool) -> bool:
        return True  # a result is only found while its blobs are in the index

    def place_made(self, path: str, made: Path, product: Product) -> None:
        copy_file(made, Path(self.where(path)), executable=product.executable)

    def where(self, path: str) -> str:
        store = self.build.store
        with self._lock:
            if not self._folder:
                self._folder = tempfile.mkdtemp(prefix="warm-", dir=store.scratch_folder())
        place = Path(self._folder, path)
        product = self.build.products.get(path)
        if product is not None and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            store.restore(product.digest, place, executable=product.executable)
        place.parent.mkdir(parents=True, exist_ok=True)
        return str(place)

    def close(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _make(build: ActiveBuild, folder: str) -> None:
    """Make a folder of outputs; if the first one on the way to it is new, git is told to ignore it."""
    project, umask = build.project, build.request.umask
    first = os.path.join(project, folder.partition("/")[0])
    is_new = bool(folder) and not folder.startswith("/") and not os.path.lexists(first)
    make_folders(os.path.join(project, folder), umask)
    if is_new:
        replace_file(Path(first, IGNORE), IGNORED.encode(), umask)


def _write_generated(build: ActiveBuild) -> None:
    """Write the plan's generated files, where they differ."""
    for generated in build.plan.files:
        path = Path(build.project, generated.path)
        try:
            if read_regular(str(path)) == generated.content:
                continue
        except OSError:
            pass
        _make(build, os.path.dirname(generated.path))
        replace_file(path, generated.content, build.request.umask)


def _see_generated(build: ActiveBuild) -> None:
    """Look at generated files now, so that a run that reads one at once does not take its young stamp for a change."""
    for generated in build.plan.files:
        build.inputs.snapshot.fact(generated.path)
