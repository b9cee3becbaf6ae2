"""The locale that a process runs in, however its variables spell it. Pure: knows no process."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

_CATEGORIES = ("LC_CTYPE", "LC_MESSAGES", "LC_COLLATE", "LC_MONETARY", "LC_NUMERIC", "LC_TIME")
"""Categories that programs set, with those that compilers use first."""
_C = "C"
Environment = tuple[tuple[str, str], ...]


def is_of_locale(name: str) -> bool:
    """Tell whether a variable chooses a locale, or the language of messages."""
    return name in ("LANG", "LANGUAGE") or name.startswith("LC_")


@lru_cache(maxsize=256)
def locale_of(environment: Environment) -> str:
    """Return the locale of a process in short: "C", "de_DE.UTF-8", or "C LC_MESSAGES=de_DE.UTF-8 LANGUAGE=de".

    Two environments with the same answer give a program the same locale: LC_ALL comes before a category's own variable,
    that before LANG, an empty value counts as unset (POSIX, section 8.2), and glibc spells a codeset in several ways.

    Args:
        environment: names and values.
    """
    values = {name: value for name, value in environment if value and is_of_locale(name)}
    usual = values.get("LC_ALL") or values.get("LANG", _C)
    words = [_spelled(usual)]
    if "LC_ALL" not in values:
        own = dict.fromkeys((*_CATEGORIES, *sorted(name for name in values if name.startswith("LC_"))))
        words += _differing(((name, _spelled(values.get(name, usual))) for name in own), words[0])
    # gettext ignores LANGUAGE in the C locale.
    messages = _spelled(values.get("LC_ALL") or values.get("LC_MESSAGES") or usual)
    if messages != _C and "LANGUAGE" in values:
        words.append(f"LANGUAGE={values['LANGUAGE']}")
    return " ".join(words)


def _differing(categories: Iterable[tuple[str, str]], usual: str) -> list[str]:
    return [f"{name}={value}" for name, value in categories if value != usual]


def _spelled(name: str) -> str:
    if name == "POSIX":
        return _C
    language, dot, codeset = name.partition(".")
    return f"{language}.UTF-8" if dot and codeset.lower() in ("utf8", "utf-8") else name
