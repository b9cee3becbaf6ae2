"""What is known of the files on the nodes: which contents were given to a node, and which projects no node shows.

Only hints: a node that lacks something says so each time. They keep jobs that begin together from sending the same
headers to one node several times.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable

from buildd.cluster.wire import InputFile

MOST_KNOWN = 200_000


class NodeContents:
    """The contents of a cluster's nodes. Used on one event loop."""

    def __init__(self) -> None:
        self.apart: set[str] = set()
        """Project folders that some node does not have as this machine has them."""
        self.listing = asyncio.Semaphore(len(os.sched_getaffinity(0)))
        """Held while a job's files are listed: the jobs of a cluster begin together, and this machine has few CPUs."""
        self._given: dict[str, dict[InputFile, float]] = {}
        """Id of a node -> file -> when it was last seen to have it (monotonic, s)."""
        self._turns: dict[str, asyncio.Lock] = {}

    def turn(self, node: str) -> asyncio.Lock:
        """Held while a node is given files: the next job sends only what is missing then."""
        return self._turns.setdefault(node, asyncio.Lock())

    def given(self, node: str, files: Iterable[InputFile], now_s: float) -> None:
        """Note that a node has laid out files."""
        known = self._given.setdefault(node, {})
        if len(known) > MOST_KNOWN:
            known.clear()
        known.update(dict.fromkeys(files, now_s))

    def still_lacking(
        self, node: str, files: Iterable[InputFile], digests: Collection[str], asked_s: float
    ) -> frozenset[str]:
        """The contents that a node needs now.

        Args:
            files: of the job.
            digests: the contents that it needed when it was asked.
            asked_s: when that was.
        """
        known, needed = self._given.get(node, {}), frozenset(digests)
        return frozenset(file.sha256 for file in files if file.sha256 in needed and known.get(file, 0.0) < asked_s)
