"""What a miss says of several inputs that are others than those of the nearest result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.files import kernel_clock
from buildd.files.digests import Files
from buildd.files.snapshot import Snapshot
from buildd.keys import changed_inputs
from buildd.keys.file_names import Names
from buildd.keys.miss_kinds import MissKind, kind_of
from buildd.store.store import InputSet, Store
from codegen.plan import Action
from protocol.messages import Digest

NAMES = tuple("abcde")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as store:
        yield store


def snapshot(store: Store, folder: Path) -> Snapshot:
    return Snapshot(Files(store, now_ns=lambda: kernel_clock.now_ns() + 60_000_000_000), str(folder))


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ("c", ["input c: content changed"]),
        ("ace", [f"input {name}: content changed" for name in "ace"]),
        ("abcd", [*(f"input {name}: content changed" for name in "abc"), "1 more input changed"]),
        ("abcde", [*(f"input {name}: content changed" for name in "abc"), "2 more inputs changed"]),
    ],
)
def test_three_are_named_and_the_others_counted(store: Store, tmp_path: Path, changed: str, wanted: list[str]) -> None:
    for name in NAMES:
        (tmp_path / name).write_text(name)
    before = snapshot(store, tmp_path)
    files = tuple((name, before.digest(name) or Digest("")) for name in NAMES)
    known = InputSet(key=Digest("0" * 64), roots=(), files=files, folders=())
    for name in changed:
        (tmp_path / name).write_text(f"another {name}")
    action = Action(name="o", kind="c", tool="cc", argv=("cc",))
    now, names = snapshot(store, tmp_path), Names((), str(tmp_path))
    told = changed_inputs.reasons(changed_inputs.reason(now, changed[0]), now, action, known, names)
    assert list(told) == wanted and kind_of(told) is MissKind.INPUT
    (tmp_path / changed[0]).unlink()
    now = snapshot(store, tmp_path)
    told = changed_inputs.reasons(changed_inputs.reason(now, changed[0]), now, action, known, names)
    assert told == (f"input {changed[0]}: no longer there", *wanted[1:])
    assert changed_inputs.reasons("folder /x: is another", now, action, known, names) == ("folder /x: is another",)
