"""Desktop notifications: what the desktop's program is given."""

from __future__ import annotations

import os
from pathlib import Path

from buildd.ui.notifier import Notifier


def test_the_desktops_program_is_given_clean_words(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = tmp_path / "notify-send"
    program.write_text(f'#!/bin/sh\nprintf "%s|" "$@" > {pipe}\n')
    program.chmod(0o755)
    notifier = Notifier({"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert not notifier.problem
    notifier.notify("build failed", "-x\x1b[31m" + "y" * 1000)
    app, end, title, text, _ = pipe.read_text().split("|")
    assert (app, end, title) == ("--app-name=buildd", "--", "build failed")
    assert text.startswith("-xy") and len(text) == 300


def test_without_it_that_is_said(tmp_path: Path) -> None:
    notifier = Notifier({"PATH": str(tmp_path)})
    assert "notify-send is missing" in notifier.problem
    notifier.notify("nobody", "hears")
