"""Notes about the files of an input set that show no line."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from buildd.keys import line_notes
from buildd.store.notebook import Notebook
from buildd.store.result_rows import InputSet
from buildd.store.store import Store
from protocol.messages import Digest


def known(key: str, *names: str) -> InputSet:
    return InputSet(files=tuple((name, Digest("0" * 64)) for name in names), folders=(), roots=(), key=Digest(key * 64))


def test_a_note_belongs_to_one_result(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path / "store")) as store:
        notebook = Notebook(store)
        one = known("a", "h.h", "g.h", "{cuda}/x.h")
        line_notes.note(notebook, one, {"h.h", "{cuda}/x.h", "of another run.h"})
        notebook.write()
        assert line_notes.silent_in(store, one) == {"h.h", "{cuda}/x.h"}
        assert line_notes.silent_in(store, known("b", "h.h", "g.h", "{cuda}/x.h")) == frozenset()
        # The list of files is a part of the result's key; a note of another length is damaged.
        assert line_notes.silent_in(store, known("a", "h.h")) == frozenset()


def test_a_run_in_which_every_file_may_show_lines_leaves_no_note(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path / "store")) as store:
        notebook = Notebook(store)
        line_notes.note(notebook, known("a", "h.h"), ())
        assert notebook.components_of(line_notes._key(known("a", "h.h"))) is None
