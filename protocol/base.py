"""The base of all messages."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of everything that travels; the map's `type` says which struct it is."""
