"""Imports the modules of one compile of `triton_worker` under names that do not show where they lie.

Knows nothing of kernels. No absolute path of the project, of Triton's folder or of a temporary folder reaches the code
that Triton reads."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import linecache
import os
import sys
import types
from typing import Any


class Folders:
    """Absolute prefixes and their replacements."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, str]] = []

    def add(self, folder: str, instead: str) -> None:
        for spelled in {os.path.abspath(folder), os.path.realpath(folder)}:
            self.shown.append((spelled.rstrip(os.sep) + os.sep, instead))
        self.shown.sort(key=lambda pair: -len(pair[0]))

    def hide(self, path: str) -> str:
        for prefix, instead in self.shown:
            if path.startswith(prefix):
                return instead + path[len(prefix) :]
        return path

    def hide_all(self, value: Any) -> Any:
        """Replace the prefixes in every string of a JSON value."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, list):
            return [self.hide_all(item) for item in value]
        if isinstance(value, dict):
            return {name: self.hide_all(item) for name, item in value.items()}
        return value


FOLDERS = Folders()


class Loader(importlib.machinery.SourceFileLoader):
    """Gives code its file name without the folder of the checkout or of the virtual environment.

    Triton writes a function's file name into its intermediate languages and, as line information, into the binary.
    """

    text: str | None = None
    """Text of the compiled file, if it is one of the project's."""

    def get_code(self, fullname: str) -> types.CodeType | None:
        path = self.get_filename(fullname)
        shown = FOLDERS.hide(path)
        if shown == path:
            return super().get_code(fullname)
        if shown.startswith("triton/"):
            code = super().get_code(fullname)
            if code is None:
                return None
            code = _renamed(code, shown)
            text = self.get_source(fullname)
        else:
            # Not from __pycache__: a source written twice within a second has the stamp of its first version.
            data = self.get_data(path)
            code = compile(data, shown, "exec", dont_inherit=True)
            text = self.text = importlib.util.decode_source(data)
        text = text or ""
        # For inspect.getsource, with which Triton reads kernels; without a stamp the entry is never dropped.
        linecache.cache[shown] = (len(text), None, text.splitlines(keepends=True), shown)
        return code


def _renamed(code: types.CodeType, name: str) -> types.CodeType:
    constants = tuple(_renamed(item, name) if isinstance(item, types.CodeType) else item for item in code.co_consts)
    return code.replace(co_filename=name, co_consts=constants)


def install() -> None:
    extensions = (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)
    sources = (Loader, importlib.machinery.SOURCE_SUFFIXES)
    bytecode = (importlib.machinery.SourcelessFileLoader, importlib.machinery.BYTECODE_SUFFIXES)
    usual = importlib.machinery.FileFinder.path_hook(extensions, sources, bytecode)
    # In the project a source has precedence: a hit would not notice a new extension module beside it.
    own = importlib.machinery.FileFinder.path_hook(sources, extensions, bytecode)

    def hook(path: str) -> Any:
        return (own if FOLDERS.hide(os.path.join(path, "")) != os.path.join(path, "") else usual)(path)

    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()
