"""Imports of other packages put off until they are needed: what a package imports and this command never uses.

Knows nothing of those packages but what they import. A short command is little else than imports.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """Stands for a module in whoever imported it, and is asked for it as soon as something of it is used."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def put_off(*names: str) -> Iterator[None]:
    """Within, whoever imports one of these modules gets it when something of it is used; afterwards, the module itself.

    Args:
        names: of modules without a package; those that are there already stay as they are.
    """
    standing = {name: _Later(name) for name in names if name not in sys.modules}
    sys.modules.update(standing)
    try:
        yield
    finally:
        for name, module in standing.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
