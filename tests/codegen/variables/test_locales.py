"""One locale has one name, however the variables spell it."""

from __future__ import annotations

import pytest

from codegen.variables.locales import locale_of


@pytest.mark.parametrize(
    ("variables", "locale"),
    [
        ({}, "C"),
        ({"LANG": "", "LC_ALL": "", "PATH": "/usr/bin"}, "C"),
        ({"LANG": "POSIX"}, "C"),
        ({"LANG": "C.utf8"}, "C.UTF-8"),
        ({"LC_ALL": "C.UTF-8", "LANG": "de_DE.UTF-8", "LC_MESSAGES": "fr_FR.UTF-8"}, "C.UTF-8"),
        ({"LANG": "C.UTF-8", "LC_CTYPE": "C.utf8"}, "C.UTF-8"),
        ({"LANG": "de_DE.UTF-8", "LC_MESSAGES": "C"}, "de_DE.UTF-8 LC_MESSAGES=C"),
        ({"LC_CTYPE": "C.UTF-8"}, "C LC_CTYPE=C.UTF-8"),
        ({"LANG": "de_DE.UTF-8", "LANGUAGE": "nds:de"}, "de_DE.UTF-8 LANGUAGE=nds:de"),
        ({"LANGUAGE": "de"}, "C"),
        ({"LANG": "de_DE.UTF-8", "LC_MESSAGES": "POSIX", "LANGUAGE": "de"}, "de_DE.UTF-8 LC_MESSAGES=C"),
        ({"LANG": "de_DE", "LC_PAPER": "en_US"}, "de_DE LC_PAPER=en_US"),
        ({"LANG": "ja_JP.eucJP"}, "ja_JP.eucJP"),
    ],
)
def test_a_locale_has_one_name(variables: dict[str, str], locale: str) -> None:
    assert locale_of(tuple(variables.items())) == locale
