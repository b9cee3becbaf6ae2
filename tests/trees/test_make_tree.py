"""make's view of a build tree, and its output as events."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from buildd.trees.make_tree import MakeTree
from buildd.trees.tree import TreeError
from protocol import messages as m

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make (Debian: make)")
MAKEFILE = """\
all: app lib
app: a.o b.o
\t@cat $^ > $@
%.o: %.c
\tcp $< $@
lib:
\t$(MAKE) -C sub
.PHONY: all lib
include part.mk
-include a.d
"""
ENVIRON = {"PATH": os.defpath}


@pytest.fixture
def tree(tmp_path: Path) -> MakeTree:
    for name, text in {
        "Makefile": MAKEFILE,
        "part.mk": "",
        "a.d": "a.o: inc/x.h\ninc/x.h:\n",
        "a.c": "",
        "b.c": "",
        "inc/x.h": "",
        "sub/Makefile": "c.o: c.c\n\tcp c.c c.o; : -I../inc\n",
        "sub/c.c": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return MakeTree(str(tmp_path), (), ENVIRON)


def test_sources_makefiles_and_what_depfiles_name_are_inputs(tree: MakeTree) -> None:
    tree.describe()
    files = {os.path.relpath(path, tree.project) for path in tree.inputs if os.path.isfile(path)}
    assert files == {"Makefile", "part.mk", "a.c", "b.c", "inc/x.h", "sub/Makefile", "sub/c.c"}
    folders = {os.path.relpath(path, tree.project) for path in tree.inputs if os.path.isdir(path)}
    assert folders == {".", "inc", "sub"}
    made = {os.path.relpath(path, tree.project) for path in tree.outputs}
    assert made == {"a.o", "b.o", "app", "lib", "sub/c.o", "a.d"}


def test_a_run_that_did_something_and_one_that_did_nothing(tree: MakeTree) -> None:
    tree.describe()
    reader = tree.reader(everything=False)
    told = [*reader.line("cp a.c a.o"), *reader.line("cp b.c b.o"), *reader.end(0)]
    assert [type(body) for body in told] == [m.Planned, m.Queued, m.Started, m.LogLine, m.LogLine, m.Finished]
    reader = tree.reader(everything=False)
    for line in ("/usr/bin/make -C sub", "make[1]: Nothing to be done for 'all'.", "make: 'app' is up to date."):
        assert not reader.line(line)
    assert [type(body) for body in reader.end(0)] == [m.Planned, m.CacheHit]


def test_a_run_that_failed(tree: MakeTree) -> None:
    tree.describe()
    reader = tree.reader(everything=False)
    for line in ("gcc -c b.c", "b.c:1:2: error: no", "make: *** [Makefile:5: b.o] Error 1"):
        reader.line(line)
    (failed,) = (body for body in reader.end(2) if isinstance(body, m.Failed))
    assert failed.diagnostics[0].file == "b.c" and reader.problem == "[Makefile:5: b.o] Error 1"


def test_a_folder_without_a_makefile(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match="no Makefile"):
        MakeTree(str(tmp_path), (), ENVIRON)
