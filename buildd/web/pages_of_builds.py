"""The page of one build that has ended: its line of the log and its picture.

Knows the archive; needs no server.
"""

from __future__ import annotations

import msgspec

from buildd.web import views
from buildd.web.archive import Archive
from buildd.web.picture import Change

LAST = "last"


class BuildPage(msgspec.Struct, frozen=True, kw_only=True):
    """A build's page: its line, if it has ended, and its picture."""

    id: str
    line: views.BuildLine | None
    change: Change
    live: bool = False


def page_of(archive: Archive, name: str) -> BuildPage | None:
    """The page of a build of the log; None if it has none of that name."""
    build = next(iter(archive.builds(1)), None) if name == LAST else archive.find(name)
    picture = archive.picture(build.request_id) if build is not None else None
    if build is None or picture is None:
        return None
    return BuildPage(id=build.request_id, line=views.line_of(build), change=picture.since(0))
