"""The files that count for one `buildd run`: a store without room for them is said, with the next step."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from buildd.client.run_logs import RunLogs
from buildd.store import answers
from protocol.messages import BuildId


@pytest.mark.parametrize(
    ("number", "next_step"),
    [
        (errno.ENOSPC, "free some space there, or set BUILDD_DIR to another folder"),
        (errno.EROFS, "set BUILDD_DIR to another folder"),
    ],
)
def test_a_store_that_takes_nothing(
    number: int, next_step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(store: Path) -> Path:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(answers, "prepare", refuse)
    logs = RunLogs(tmp_path, BuildId("b"), ["make"], is_timed=False)
    assert logs.problem == f"the store in {tmp_path} cannot be written ({os.strerror(number)})"
    assert logs.next_step == next_step and logs.notes is None
