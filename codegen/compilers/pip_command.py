"""The pip command that installs one of buildd's extras, as it works on this machine: buildd is in no package index.

Reads the installed package's own description, and runs nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit


def pip_install(*packages: str, python: str = "") -> str:
    """Return a command that installs packages for a Python, by default the one that runs buildd."""
    ours = not python or os.path.realpath(python) == os.path.realpath(sys.executable)
    program = shlex.quote(python or sys.executable)
    quoted = " ".join(f'"{each}"' if re.search(r"[^\w./=-]", each) else each for each in packages)
    if ours and importlib.util.find_spec("pip") is None:
        return f"uv pip install --python {program} {quoted}"
    return f"{program} -m pip install {quoted}"


def install_extra(extra: str) -> str:
    """Return a command that installs what an extra of buildd brings, for the Python that runs buildd."""
    checkout = source_folder()
    return pip_install(f"{checkout}[{extra}]") if checkout else pip_install(*_requirements(extra))


def source_folder() -> str:
    """Return the folder that buildd was installed from; empty if it is not there any more."""
    from importlib.metadata import PackageNotFoundError, distribution

    found = [str(Path(__file__).resolve().parents[2])]
    try:
        said = json.loads(distribution("buildd").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        said = {}
    place = urlsplit(said.get("url", ""))
    if place.scheme == "file":
        found.append(unquote(place.path))
    return next((folder for folder in found if _is_source(folder)), "")


def _is_source(folder: str) -> bool:
    try:
        text = Path(folder, "pyproject.toml").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r'^name = "buildd"$', text, re.MULTILINE) is not None


def _requirements(extra: str) -> list[str]:
    """Return the packages that an extra names."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        listed = requires("buildd") or []
    except PackageNotFoundError:
        listed = []
    marked = re.compile(rf"""extra == ['"]{re.escape(extra)}['"]""")
    return [each.partition(";")[0].strip() for each in listed if marked.search(each)] or [f"buildd[{extra}]"]
