"""A build's page as one HTML file that needs no server: styles, scripts and data are inside.

Knows the front end's files, not what is in the data. The scripts are ES modules that import each other by name: an
import map gives each name a `data:` address.
"""

from __future__ import annotations

import base64
import html
import json
from importlib.resources import files

_POLICY = "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:"
_MODULE = ".js"


def page(data: bytes) -> bytes:
    """The file.

    Args:
        data: the build's page as JSON, in UTF-8.
    """
    folder = files("buildd.web") / "pages"
    entries = {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}
    imports = {
        f"buildd/{name}": "data:text/javascript;base64," + base64.b64encode(_named(content)).decode()
        for name, content in sorted(entries.items())
        if name.endswith(_MODULE)
    }
    style = entries["style.css"].decode()
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{html.escape(_POLICY)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            "<title>buildd: a build</title>",
            f"<style>{style}</style>",
            f'<script type="importmap">{json.dumps({"imports": imports})}</script>',
            "</head><body>",
            '<main id="main" tabindex="-1"></main>',
            f'<script type="application/json" id="data">{_inert(data.decode())}</script>',
            '<script type="module">import "buildd/exported.js"</script>',
            "</body></html>\n",
        )
    ).encode()


def _named(source: bytes) -> bytes:
    """A module whose imports of its neighbours have the names of the import map: `data:` addresses have no folder."""
    return source.replace(b'from "./', b'from "buildd/')


def _inert(data: str) -> str:
    """JSON that cannot end the script element that holds it, whatever its strings are."""
    return data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
