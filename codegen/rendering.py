"""Loads the templates of generated sources. Knows their folder and jinja2's settings, not their content."""

from __future__ import annotations

import os
from functools import cache

import jinja2

TEMPLATES = os.path.join(os.path.dirname(__file__), "templates")


@cache
def template(name: str) -> jinja2.Template:
    """Return a template. Rendering it without one of its variables is an error: the kernel would have a gap."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template(name)
