"""Templates of generated sources. Knows where they are and how jinja2 is to treat them, not what they say."""

from __future__ import annotations

import os
from functools import cache

import jinja2

TEMPLATES = os.path.join(os.path.dirname(__file__), "templates")


@cache
def template(name: str) -> jinja2.Template:
    """A template; a variable that it is not given is an error, since it would be an empty place in a kernel."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template(name)
