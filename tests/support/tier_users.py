"""Users with daemons of their own who share a tier: the first one has a signing key, and the others trust it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.serving import short_folder
from tests.support.tiers import HttpCache
from tests.support.user import User
from tests.support.waiting import until

Machines = Callable[..., User]
_DEADLINE_S = 60.0


@contextmanager
def machines_at(cache: HttpCache) -> Iterator[Machines]:
    """Makes a user of the tier at each call, from variables of theirs."""
    made: list[User] = []
    with short_folder() as folder:

        def work(**more: str) -> User:
            place = Path(folder) / str(len(made))
            place.mkdir()
            path = f"{os.environ['PATH']}:/usr/bin:/bin"
            user = User(place, {"BUILDD_TIER": cache.url, "PATH": path, **more})
            if made:
                _, key = made[0].buildd("cache", "key")
                assert user.buildd("cache", "trust", key.strip(), "first")[0] == 0
            else:
                user.buildd("cache", "key")
            made.append(user)
            return user

        try:
            yield work
        finally:
            for user in made:
                user.end()


def until_written(cache: HttpCache, records: int) -> None:
    """Wait until the tier has so many records; a trail is one, too."""
    until(lambda: len(cache.records()) >= records, f"there are fewer than {records} records", _DEADLINE_S)
