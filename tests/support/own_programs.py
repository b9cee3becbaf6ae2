"""buildd's own compiled programs, which one store of a test run lends to the next: a compiler takes a second for each.

Knows the folder that keeps them between tests. A program's name says what it was compiled from, and with what, so a
store never gets another one than it would compile.
"""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

from buildd.native.programs import NATIVE, is_sound

PROGRAM_CACHE = "PROGRAM_CACHE_OF_TESTS"
"""Variable of the process that runs tests: the folder; without it, every store compiles its own."""


def lend_programs(store: Path) -> None:
    """Put what is kept into a store that does not exist yet."""
    cache = os.environ.get(PROGRAM_CACHE)
    if cache is None or store.exists():
        return
    (store / NATIVE).mkdir(mode=0o700, parents=True)
    store.chmod(0o700)
    for program in Path(cache).iterdir():
        if not program.name.startswith("."):  # another process is just writing it
            shutil.copy2(program, store / NATIVE)


def keep_programs(store: Path) -> None:
    """Keep what a store has compiled. Several processes may keep the same program."""
    cache, made = os.environ.get(PROGRAM_CACHE), store / NATIVE
    if cache is None or not made.is_dir():
        return
    for program in made.iterdir():
        kept = Path(cache) / program.name
        # A test may have damaged it.
        if not program.name.startswith(".") and not kept.exists() and is_sound(program):
            aside = kept.with_name(f".{kept.name}.{os.getpid()}.{threading.get_ident()}")
            shutil.copy2(program, aside)
            aside.replace(kept)
