"""Random headers in which macros may show their lines: calls over many lines, within each other, of a system header's
macros, joined and put in quotes. No digit stands in them but those of lines.
"""

from __future__ import annotations

import random

SYSTEM = """\
#define SYSTEM(x) (x ? y : fail(#x, __LINE__))
#define ALL(...) __VA_ARGS__
#define QUIET(x) ((x) + y)
"""
MACROS = """\
#define ID(...) __VA_ARGS__
#define ONE(x) x
#define JOIN(a, b) JOINED(a, b)
#define JOINED(a, b) a##b
#define QUOTE(x) #x
#define QUOTED(x) QUOTE(x)
#define HIDDEN ONE(__LINE__)
#define OPEN ONE(
#define PRAGMA(x) _Pragma("GCC poison q") x
#define PUSH _Pragma("GCC diagnostic push")
"""
_PLAIN = ("a", "x", "b+c", '"s"')
_SHOWING = (
    "__LINE__",
    "HIDDEN",
    "JOIN(v, __LINE__)",
    "QUOTED(__LINE__)",
    "QUOTED(a __LINE__)",
    "JOIN(__LINE__, 000)",
)
_GAPS = ("", " ", "\n", "\n\n", "\n // c\n", " /* a\n b */ ")
_CALLS = ("ID", "ONE", "SYSTEM", "ALL", "QUIET", "QUOTED", "ONE", "ID", "ID", "PRAGMA")


def random_header(rng: random.Random, *, shows: bool) -> str:
    """A header; without `shows` only a system header's macro shows lines in it."""
    return "".join(_statement(rng, shows) for _ in range(rng.randint(1, 12)))


def _statement(rng: random.Random, shows: bool) -> str:
    match rng.randrange(10):
        case 0:
            return "// comment\n"
        case 1:
            return "\n" * rng.randint(1, 14)
        case 2:
            return rng.choice(("PUSH int z;\n", "OPEN x )\n"))
        case _:
            return f"int v = {_expression(rng, shows, 0)}{rng.choice(_GAPS)};{rng.choice((' ', chr(10)))}"


def _expression(rng: random.Random, shows: bool, depth: int) -> str:
    if depth > 3 or rng.random() < 0.35:
        return rng.choice(_SHOWING if shows and rng.random() < 0.4 else _PLAIN)
    name = rng.choice(_CALLS)
    count = rng.randint(1, 3) if name in ("ID", "ALL") else 1
    gap = [rng.choice(_GAPS) for _ in range(count + 3)]
    inside = ",".join(gap[number] + _expression(rng, shows, depth + 1) for number in range(count))
    return f"{name}{gap[-3]}({inside}{gap[-1]})"
