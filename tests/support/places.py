"""The places where a user sets variables: the shell, the project's buildd.toml and the user's config.toml."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from protocol.messages import Request

FROM_EACH_PLACE = pytest.mark.parametrize("place", ["shell", "buildd.toml", "config.toml"])


def with_set(request: Request, place: str, **values: str) -> Request:
    """The request with variables set in one place; HOME is then the project's folder."""
    folder = Path(request.project)
    environment = {**request.environment, "HOME": str(folder)}
    if place == "shell":
        return msgspec.structs.replace(request, environment={**environment, **values})
    text = "[environment]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())
    file = folder / (place if place == "buildd.toml" else ".config/buildd/config.toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    named = place if place == "buildd.toml" else request.file
    return msgspec.structs.replace(request, environment=environment, file=named)
