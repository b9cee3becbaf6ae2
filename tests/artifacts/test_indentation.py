"""Which sources clang may see with other indentation than their preprocessed text has."""

from __future__ import annotations

import pytest

from buildd.artifacts.indentation import asks, is_mixed


@pytest.mark.parametrize(
    ("lines", "mixed"),
    [
        (("    if (x)", "\tg();", "        h();"), True),
        (("  if (x)", "    g();", "/**/    h();"), True),
        (("if (x) {", "\tg();", "}", "        h();"), True),
        (("\tif (x)", "\t\tg();", "\th();"), False),
        (("\tif (x)", "\t\tg();", "\t  h();"), True),
        (("  if (x)", "    g();  // a\tb", "  h();"), False),
        (("/* if */", "\tg();", "        h();"), False),
        (("  if (x)", "    g(); /* why */", "  h();"), False),
        (("        g();", "\th();"), False),
    ],
)
def test_indentation_that_compares_by_its_width(lines: tuple[str, ...], mixed: bool) -> None:
    assert is_mixed("\n".join((*lines, "")).encode()) is mixed


def test_options_that_ask_for_it() -> None:
    assert asks(("hipcc", "-Wall", "-c"))
    assert not asks(("hipcc", "-Wextra", "-c"))
