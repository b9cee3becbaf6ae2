"""Compares a foreign project's compiles with the plain compiler's, in several states of its files."""

from __future__ import annotations

from collections.abc import Callable

from protocol.client import Client
from tests.support.foreign_project import ForeignProject
from tests.support.waiting import until


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


def until_answered(project: ForeignProject, command: str) -> None:
    """Have the shim know the answer: files that are too young to trust make none."""

    def is_asked() -> bool:
        with Client.connect(environ=project.user.environ) as client:
            before = client.status().counters["requests"]
            project.good(*command.split())
            return client.status().counters["requests"] > before

    until(lambda: not is_asked(), "an answer")
