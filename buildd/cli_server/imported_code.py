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
        try:
            return (as_marked(self._marks) and self._stamp != "") or self._stands_by_stamps()
        except OSError:  # files that are being replaced
            return False

    def _stands_by_stamps(self) -> bool:
        """The longer way, which then takes new marks: Python may only have made a folder for bytecode.

        It also takes the stamps again if the files were too young at the start for their stamps to mean anything:
        otherwise a daemon that starts right after an upgrade would never take a command.
        """
        marks, stamp = code_marks(), package_stamp.__wrapped__()
        if not stamp or stamp != (self._stamp or stamp):
            return False
        if not self._stamp and package_digest.__wrapped__() != self._digest:
            return False
        self._marks, self._stamp = marks, stamp
        return True
