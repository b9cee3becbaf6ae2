"""Past builds of one store, for pages: rows, pictures and facts. Facts of all builds are gathered once, newest first.

Reads the build log; knows no page and no daemon. Every method may be called from any thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import msgspec

from buildd.errors import BuilddError
from buildd.store.build_log import MOST_BUILDS, Build
from buildd.store.store import Store
from buildd.web.facts import Facts, facts_of
from buildd.web.timeline import Timeline
from protocol.described import described
from protocol.messages import Event, RequestId

_MOST_PICTURES = 8
_NO_FACTS = Facts()


class Archive:
    """The past builds of one store.

    Args:
        folder: the store's. It may not exist yet: then there are no builds.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._pictures: OrderedDict[str, Timeline] = OrderedDict()
        self._facts: dict[str, Facts] = {}

    @contextlib.contextmanager
    def store(self) -> Iterator[Store | None]:
        """The store, opened for reading; None if there is none yet."""
        with self._lock:
            if self._store is None and (self.folder / "index.db").exists():
                with contextlib.suppress(BuilddError):
                    self._store = Store.open(self.folder, read_only=True)
            store = self._store
        yield store

    def builds(self, limit: int = MOST_BUILDS) -> list[Build]:
        """Past builds, the latest first."""
        with self.store() as store:
            return store.builds(limit) if store is not None else []

    def find(self, name: str) -> Build | None:
        """The build of which `name` is the request's id, the build's id, or the beginning of one of them."""
        builds = self.builds()
        for fits in (str.__eq__, str.startswith):
            for build in builds:
                if fits(build.request_id, name) or fits(build.build_id, name):
                    return build
        return None

    def events(self, request_id: str) -> list[Event]:
        """The events of a build; none where they are not kept, or damaged."""
        with self.store() as store:
            data = store.build_events(RequestId(request_id)) if store is not None else None
        try:
            return msgspec.msgpack.decode(data, type=described(list[Event])) if data is not None else []
        except (msgspec.MsgspecError, ValueError):
            return []

    def picture(self, request_id: str) -> Timeline | None:
        """The picture of a build; None where its events are not kept."""
        with self._lock:
            if (known := self._pictures.get(request_id)) is not None:
                self._pictures.move_to_end(request_id)
                return known
        events = self.events(request_id)
        if not events:
            return None
        made = Timeline.of(events)
        with self._lock:
            self._pictures[request_id] = made
            while len(self._pictures) > _MOST_PICTURES:
                self._pictures.popitem(last=False)
        return made

    def facts(self, request_id: str) -> Facts:
        """The facts of a build, read at the first call."""
        found = self._facts.get(request_id)
        if found is None:
            found = self._facts[request_id] = facts_of(self.events(request_id))
        return found

    def known_facts(self, builds: list[Build], most: int) -> list[tuple[Build, Facts]]:
        """The facts of the newest builds, and of the others as far as they have been read."""
        return [
            (build, self.facts(build.request_id) if place < most else self._facts.get(build.request_id, _NO_FACTS))
            for place, build in enumerate(builds)
        ]

    def gather(self, stop: threading.Event) -> None:
        """Read the facts of all builds, the newest first; forget those of builds that are gone."""
        builds = self.builds()
        for build in builds:
            if stop.is_set():
                return
            self.facts(build.request_id)
        there = {build.request_id for build in builds}
        for name in [name for name in self._facts if name not in there]:
            self._facts.pop(name, None)

    def close(self) -> None:
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None
