"""How `scripts/docs` turns these pages into a site: settings of Sphinx. The pages themselves stay plain Markdown."""

import re

from sphinx.application import Sphinx

project = "buildd"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "buildd"
root_doc = "docs/index"
# The repository is the source folder, so that links between pages, SPEC.md and the examples lead where they do in it.
include_patterns = [
    "docs/**.md",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "protocol/SPEC.md",
    "examples/**/README.md",
]
exclude_patterns = [".*", "build", "node_modules", "tests"]
myst_heading_anchors = 4
suppress_warnings = [
    "myst.xref_missing",
    "misc.highlighting_failure",
]  # files that are no pages: a test checks their links
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
# A page that was opened as a file may not read the others, and the search would try to.
html_show_search_summary = False
html_show_sourcelink = False
html_show_copyright = False

TARGETS = ("cuda", "hip", "gemm", "conv2d", "arrays", "model", "triton", "torch", "jax", "extension")
NOTES = ("keys", "steps", "foreign-compiles", "programs", "watching", "processes", "shared-tier")
EXAMPLES = ("quickstart", "hip", "mlp", "triton", "torch", "ci")
CONTENTS = {
    "Start": ["getting-started", "existing-builds", "troubleshooting"],
    "Guides": [
        "torch-and-triton",
        "jax",
        "watch-and-editors",
        "profiling",
        "ci",
        "shared-cache",
        "ray",
        "pages-and-metrics",
    ],
    "Targets": [f"targets/{kind}" for kind in TARGETS],
    "Reference": ["project-file", "commands", "environment", "torch-options", "/protocol/SPEC", "glossary"],
    "Background": ["how-caching-works", "security", "benchmarks", "architecture"],
    "Design notes": [f"design/{note}" for note in NOTES],
    "Examples": [f"/examples/{example}/README" for example in EXAMPLES],
    "Project": ["/README", "/CONTRIBUTING"],
}


_EXAMPLE = re.compile(r"\]\(((?:\.\./)*examples/\w+)\)")


def lead_to_pages(app: Sphinx, name: str, source: list[str]) -> None:
    """Let a link to the folder of an example lead to the folder's page, as it does where the repository is browsed."""
    source[0] = _EXAMPLE.sub(r"](\1/README.md)", source[0])


def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Give the first page its table of contents, which is the menu of every page."""
    if name == root_doc:
        for caption, pages in CONTENTS.items():
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"


def setup(app: Sphinx) -> None:
    app.connect("source-read", lead_to_pages)
    app.connect("source-read", add_contents)
