"""The files in the store to which shims, daemon and programs add the hits and failures of one `buildd run`.

Knows no command's environment; counts nothing itself.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from buildd.shims.run_log import RunNotes
from buildd.store.found_notes import FoundNotes
from buildd.store.hit_notes import Notes
from protocol.messages import BuildId


class RunLogs:
    """The files of one running build; each is None if the store cannot be written.

    Args:
        command: None within another run, which has the failures and the programs' hits.
        is_timed, project: as for `RunNotes`.
    """

    def __init__(
        self,
        store: Path,
        build: BuildId,
        command: Sequence[str] | None,
        *,
        is_timed: bool = False,
        project: str = "",
    ) -> None:
        self.notes: Notes | None = None
        """Direct hits of the shims."""
        self.run: RunNotes | None = None
        """What the daemon and programs have noted of it."""
        self.found: FoundNotes | None = None
        """Kernels and graphs that programs took from the store."""
        self.problem = self.next_step = ""
        """Why there are none; empty if there are."""
        self._held = ExitStack()
        try:
            with ExitStack() as held:
                notes = held.enter_context(Notes(store, build))
                if command is not None:
                    run = held.enter_context(RunNotes(store, build, command, is_timed=is_timed, project=project))
                    found = held.enter_context(FoundNotes(store, build))
                    self.run, self.found = run, found
                self.notes = notes
                self._held = held.pop_all()
        except OSError as error:
            self.notes = self.run = self.found = None
            self.problem = f"the store in {store} cannot be written ({error.strerror})"
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            self.next_step = f"{'free some space there, or ' if is_full else ''}set BUILDD_DIR to another folder"

    def __enter__(self) -> RunLogs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()
