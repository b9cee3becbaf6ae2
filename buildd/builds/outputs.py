"""Where the files of a build go: the base of the strategies that `ActiveBuild` is given.

Knows no build; each strategy knows its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from buildd.builds.products import Product, Ran
from buildd.keys.depfiles import Listing
from buildd.store.store import Result
from codegen.compilers.temporary_roots import Roots
from codegen.plan import Action, Output
from protocol import messages as m

Build = TypeVar("Build")


class Outputs(ABC, Generic[Build]):
    """Where the files of a build go, and where tools find them. Called in worker threads."""

    build: Build
    """Set by the build that these are given to."""

    lists = False
    """Whether a depfile is made of what the tool's own would list."""
    colours: str | None = None
    """As in a request: with which colours the tool writes its messages; None: with none."""
    in_project = False
    """Whether outputs are files of the project."""
    stood: Collection[str] = ()
    """Outputs that were found, and lay in their places already."""
    roots: Roots = ()
    """Folders that have another name each time."""
    holds_id = False
    """The result holds a name that is a digest of its source's path, so that no option takes the path out of it."""
    only_names = False
    """The outputs hold names of files, and nothing that the files say."""

    def spared_s(self, outputs: Iterable[Output], result: Result) -> float:
        """The time that a hit spared, in seconds: none if all its outputs lay in their places already."""
        return 0.0 if all(output.path in self.stood for output in outputs) else result.timing.wall_s

    @abstractmethod
    def place(self, path: str, digest: m.Digest, *, executable: bool) -> bool:
        """Put a stored output in its place; False where it is not in the store any more."""

    @abstractmethod
    def place_made(self, path: str, made: Path, product: Product) -> None:
        """Put a file that was just made in its place."""

    @abstractmethod
    def where(self, path: str) -> str:
        """The place where a tool can read a made file."""

    def prepare(self) -> None:
        """Write the plan's generated files, and make folders, before anything runs. Raises OSError."""
        return None

    def placed(self, action: Action, ran: Ran) -> None:
        """Called when all that a job has made is in its place."""
        return None

    def more_words(self, action: Action) -> tuple[str, ...]:
        """Words for a tool that are in no key, because what they do is undone in `finish`."""
        return ()

    def finish(
        self, action: Action, private: str, read: tuple[str, ...], listing: Listing | None = None
    ) -> Mapping[str, bytes]:
        """Make outputs that no tool makes, once a job has ended well.

        Args:
            private: the job's folder.
            read: the files that its tool said it read.
            listing: those that its own depfile lists; None where that is all of them.

        Returns:
            By name, the content of those that no other job reads as files; the others are written to the folder.
        """
        return {}

    def named_by(self, action: Action, private: str, said: bytes) -> Collection[str]:
        """Roots whose folder's path stands in the files of a job's folder, or in its tool's output in such a way that
        it cannot be replaced."""
        return ()

    def published(self, result: Result, held: Roots) -> None:
        """Called when a job of the build is stored.

        Args:
            held: roots whose folder's path can stand in the result.
        """
        return None

    def remember(self) -> None:
        """Write down what spares the next such request its look-ups, once all is built."""
        return None

    def put_off(self) -> None:
        """Free memory that `remember` does not need, as it comes later. In a worker thread."""
        return None

    def close(self) -> None:
        """Remove what was only needed while it was built."""
        return None
