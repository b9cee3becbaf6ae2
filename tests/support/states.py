"""Compares a foreign project's compiles with the plain compiler's, in several states of its files."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.foreign_project import ForeignProject


def check(project: ForeignProject, command: str, *states: Callable[[], object], **variables: str) -> list[bytes]:
    """Compile in each state, and again in the first one; the objects."""
    made = []
    for state in (*states, states[0], states[0]):
        state()
        for environ, name in ((project.environ, "a.o"), (project.plain, "plain.o")):
            done = project.call(*command.split(), "-o", name, environ={**environ, **variables})
            assert done.returncode == 0, done.stderr.decode()
        assert (project.folder / "a.o").read_bytes() == (project.folder / "plain.o").read_bytes(), command
        made.append((project.folder / "a.o").read_bytes())
    assert len(set(made)) == len(states)
    return made
