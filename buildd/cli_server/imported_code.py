"""Whether the code that this process has imported is still the code on the disk. Knows no command."""

from __future__ import annotations

from collections.abc import Callable

from buildd.identity import as_marked, code_marks, package_digest, package_stamp


class ImportedCode:
    """The code that this process has imported."""

    def __init__(self, main: Callable[[list[str]], int]) -> None:
        self.main = main
        self._marks = code_marks()
        self._digest = package_digest()  # both are from the daemon's start, before anything was imported
        stamp = package_stamp()
        self._stamp = stamp if package_stamp.__wrapped__() == stamp else ""

    def stands(self) -> bool:
        """Whether a command would import the same code now."""
        self.settle()
        if as_marked(self._marks):
            return bool(self._stamp)
        # Python may only have made a folder for bytecode.
        return package_stamp.__wrapped__() == self._stamp != ""

    def settle(self) -> None:
        """Take the stamps again if the files were too young at the start for their stamps to mean anything: otherwise a
        daemon that starts right after an upgrade would never take a command."""
        if not self._stamp:
            marks, stamp = code_marks(), package_stamp.__wrapped__()
            if stamp and package_digest.__wrapped__() == self._digest:
                self._marks, self._stamp = marks, stamp
