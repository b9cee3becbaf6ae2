"""Puts off imports inside other packages until they are needed: a short command never uses some of them.

Knows nothing of those packages except what they import. A short command spends most of its time on imports.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """A placeholder for a module; imports it when an attribute is used."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def put_off(*names: str) -> Iterator[None]:
    """Inside the context, an import of one of these modules gives a placeholder; afterwards, the module itself.

    Args:
        names: of top-level modules; those that are imported already stay as they are.
    """
    standing = {name: _Later(name) for name in names if name not in sys.modules}
    sys.modules.update(standing)
    try:
        yield
    finally:
        for name, module in standing.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
