"""Python's collector rests while a large library is imported below `buildd run`, and works again afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from buildd.hooks import collector
from buildd.shims.framework_environment import variables

PACKAGE = """\
import gc

DURING = gc.isenabled()
RING = []
RING.append(RING)
if {fails}:
    raise RuntimeError("it fails")
"""
PROGRAM = """\
import gc, json, sys, weakref

sys.path.insert(0, sys.argv[1])
exec(sys.argv[2])
was_frozen = gc.get_freeze_count()
try:
    import jax
    during = jax.DURING
except RuntimeError:
    during = None

class Ring:
    def __init__(self):
        self.own = self

ended = weakref.ref(Ring())
is_on = gc.isenabled()
gc.collect()
print(json.dumps([during, is_on, gc.get_freeze_count() == was_frozen, ended() is None]))
"""


def imported(folder: Path, before: str = "", *, fails: bool = False, **more: str) -> list[object]:
    """Whether the collector works during the import and after it, whether as many objects are frozen, and whether a
    collection still finds garbage."""
    package = folder / "site" / "jax"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(PACKAGE.format(fails=fails))
    given = {"BUILDD_DIR": str(folder), **more}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(package.parent), before],
        env={name: value for name, value in {**given, **variables(given)}.items() if value},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: list[object] = json.loads(done.stdout)
    return found


def test_nothing_is_collected_during_the_import_of_a_large_library(tmp_path: Path) -> None:
    assert imported(tmp_path) == [False, True, True, True]
    assert imported(tmp_path, fails=True) == [None, True, True, True]
    assert imported(tmp_path, BUILDD_DISABLE="1") == [True, True, True, True]


@pytest.mark.parametrize(("before", "after"), [("gc.disable()", False), ("gc.freeze()", True)])
def test_what_the_program_itself_asks_of_the_collector_stays(tmp_path: Path, before: str, after: bool) -> None:
    assert imported(tmp_path, before) == [False, after, True, True]


def test_a_pause_within_a_pause_ends_with_the_outer_one() -> None:
    import gc

    assert gc.isenabled()
    with collector.paused(then_old=True):
        with collector.paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
