"""Tells what is impossible in a request before anything begins. Pure.

Types and ranges of numbers are checked when the message is decoded; whether a path exists is found out later.
"""

from __future__ import annotations

from collections.abc import Iterator

from protocol.messages import Mode, Request

MAX_REQUEST_ID_CHARACTERS = 200


def fault_of(request: Request) -> str:
    """What makes a request impossible, in words; empty if nothing does."""
    if not 0 < len(request.request_id) <= MAX_REQUEST_ID_CHARACTERS:
        return f"a request id has 1 to {MAX_REQUEST_ID_CHARACTERS} characters"
    for name in request.__struct_fields__:
        if any("\0" in text for text in _texts(getattr(request, name))):
            return f"`{name}` holds a zero byte, which no path, argument or variable can"
    if not request.project.startswith("/"):
        return "`project` must be an absolute path: the daemon has a folder of its own"
    if request.store and not request.store.startswith("/"):
        return "`store` must be an absolute path, or empty for the daemon's default"
    if request.mode is Mode.COMPILE and not (request.command and request.command[0].startswith("/")):
        return "`command` must begin with the absolute path of the tool"
    return ""


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case tuple():
            yield from (item for item in value if isinstance(item, str))
        case dict():
            yield from value
            yield from (item for item in value.values() if isinstance(item, str))  # specs are checked as targets
