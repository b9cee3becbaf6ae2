"""Depfiles as commands ask for them: where, for which targets, and how make wants names quoted.

Knows no compiler's options (`command_parser`), and not how a depfile looks (`buildd.scheduling.make_rules`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from codegen.plan import Frozen

_ODD = re.compile(r"[\s$#]")


class Depfile(Frozen, frozen=True):
    """The make rules that a command writes in addition to its object, or instead of one (gcc's -M)."""

    path: str
    """Empty for standard output."""
    targets: tuple[str, ...]
    """The targets as written in the file: -MT's unchanged, -MQ's quoted."""
    phony: bool = False
    """-MP: an empty rule for each header."""
    system: bool = True
    """Includes headers of system folders (-MD, not -MMD)."""
    is_output: bool = False
    """-o names it, in a command that makes nothing else."""
    twice: bool = False
    """The command has -MD and -MMD: clang warns of one of them."""


class HeaderFolders(Frozen, frozen=True):
    """The folders that decide which headers -MMD leaves out. Each has a final slash."""

    system: tuple[str, ...] = ()
    user: tuple[str, ...] = ()
    """Folders of -I that lie in a system folder, as with -I/usr/include/node. Their headers are listed."""

    def is_system(self, path: str) -> bool:
        """Tell whether the innermost of these folders that holds a file is a system folder. In a folder of both kinds
        the compiler ignores -I."""
        if not self.user or not path.startswith(self.system):
            return path.startswith(self.system)
        return _longest(self.system, path) >= _longest(self.user, path)


class Rule(Frozen, frozen=True):
    """The names of the rule in a depfile, quoted for make."""

    targets: tuple[str, ...]
    files: tuple[str, ...]
    source: int
    """Index of the source among the files."""
    phony: bool
    """An empty rule follows for each of the other files."""
    clang: bool = False
    """Lines end where clang ends them."""


def _longest(folders: Iterable[str], path: str) -> int:
    return max((len(folder) for folder in folders if path.startswith(folder)), default=0)


@lru_cache(maxsize=1 << 12)  # the compiles of a project list the same headers
def quoted(name: str) -> str:
    """Return a file's name quoted for make (gcc's -MQ)."""
    if not _ODD.search(name):
        return name
    name = re.sub(r"(\\*)([ \t])", lambda match: match[1] * 2 + "\\" + match[2], name)
    return name.replace("$", "$$").replace("#", "\\#")
