"""`buildd trace`: a file for a viewer, of a build in which something ran; no JSON on a terminal."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.developer import Developer
from tests.support.terminal import Terminal
from tests.support.toolkit import host_compiler

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


def test_the_last_build_that_compiled_is_written_and_a_terminal_gets_no_json(another_developer: Developer) -> None:
    developer = another_developer
    assert developer.build().compiled == 3
    assert developer.build().compiled == 0, "the build after it has no action to draw"
    file = developer.folder / "trace.json"
    status, text = developer.buildd("trace", "-o", str(file))
    assert (status, text) == (0, f"{file}: 3 actions that ran, 0 hits; open it at https://ui.perfetto.dev\n")
    assert sum(entry.get("ph") == "X" for entry in json.loads(file.read_text())) >= 3
    status, text = developer.buildd("trace", "last")
    assert status == 0 and not any(entry.get("ph") == "X" for entry in json.loads(text))
    command = (sys.executable, "-P", "-m", "buildd", "trace")
    with Terminal(*command, environ=developer.environ, cwd=str(developer.project)) as terminal:
        assert terminal.ended() == 2
        assert b"-o trace.json" in terminal.output and b'"ph"' not in terminal.output
