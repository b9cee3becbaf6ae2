"""Prints the table of a build's kernels at its end: `buildd build --kernels`."""

from __future__ import annotations

import os

from buildd.ui import text
from buildd.ui.kernel_table import kernel_table
from buildd.ui.text import Line, Style
from buildd.ui.view import Writer
from protocol import messages as m


class KernelsView:
    """A view that prints registers, spills and other needs of every kernel of the built targets, hits included.

    It prints when it is closed. Closed after the view of the build's progress, it writes below that view's last line,
    and not into the region that a terminal redraws.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._is_built = False
        self._kernels: dict[tuple[str, str], m.Kernel] = {}

    def event(self, event: m.Event) -> None:
        body = event.body
        if isinstance(body, m.Finished | m.CacheHit):
            # A library reports the kernels of its objects again.
            self._kernels |= {(kernel.name, kernel.arch): kernel for kernel in body.kernels}
        elif isinstance(body, m.Done) and body.outcome is m.Outcome.BUILT:
            self._is_built = True

    def close(self) -> None:
        if not self._is_built:
            return
        if not self._kernels:
            self._writer.lines([Line("no kernels", Style.FAINT)])
            return
        found = [(None, kernel) for kernel in self._kernels.values()]
        table = kernel_table(found, whole=True, columns=self._columns(), most=len(found))
        self._writer.lines([Line(text.count(len(found), "kernel")), *table])

    def _columns(self) -> int:
        """Width of the terminal; 0 in a pipe."""
        try:
            return os.get_terminal_size(self._writer.stream.fileno()).columns
        except (OSError, ValueError):
            return 0
