"""Private folders of jobs: how tools name them in their messages, and how they are removed.

A tool below the daemon has its temporary files and outputs there. Its user knows neither the folder nor the store
around it. Knows no job.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace

from buildd.processes.launch import Exit


def unnamed(exit: Exit, outputs: Mapping[str, str], around: Iterable[str]) -> Exit:
    """How a tool ended, with messages that name no private folder.

    Args:
        outputs: by an output's path in the tool's private folder, the path that the user knows.
        around: the folders that private folders are made in. A step may name a file of an earlier one.
    """
    if not (exit.stdout or exit.stderr):
        return exit
    places = [os.fsencode(place) for place in dict.fromkeys(way for folder in around for way in _ways(folder))]

    def replaced(text: bytes) -> bytes:
        if not any(place in text for place in places):
            return text
        for private, path in outputs.items():
            shown = os.fsencode(path).replace(b"\\", rb"\\")
            for way in _ways(private):
                text = re.sub(re.escape(os.fsencode(way)) + rb"(?![\w.+-])", shown, text)
        for place in places:
            text = re.sub(re.escape(place) + rb"/job-[^/\s]+", b"/tmp", text)
        return text

    return replace(exit, stdout=replaced(exit.stdout), stderr=replaced(exit.stderr))


def remove(folder: str) -> None:
    """Remove a private folder; most hold two or three files and no folder, which takes a third of rmtree's time."""
    try:
        for name in os.listdir(folder):
            os.unlink(f"{folder}/{name}")
        os.rmdir(folder)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)


def _ways(folder: str) -> tuple[str, str]:
    """The names by which a tool may call it."""
    return folder, os.path.realpath(folder)
