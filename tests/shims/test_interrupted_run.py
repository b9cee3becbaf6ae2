"""A `buildd run` that is interrupted, or whose terminal is closed, is in the log."""

from __future__ import annotations

import json
import os
import pty
import signal
import sys

import pytest

from buildd.host.proc import children_of
from protocol.client import Client
from tests.support.developer import Developer
from tests.support.toolkit import host_compiler
from tests.support.user import User
from tests.support.waiting import until

pytestmark = [
    pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)"),
    pytest.mark.timeout(120),
]

DEADLINE_S = 60.0


def logged(user: User) -> dict[str, object]:
    found = json.loads(user.buildd("log", "--json", "-n", "1")[1])
    assert isinstance(found, dict)
    return found


def in_terminal(user: User, *command: str) -> tuple[int, int]:
    """A process with a terminal of its own, and the terminal's other end."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(user.folder)
        os.execve(sys.executable, [sys.executable, "-P", "-m", "buildd", *command], user.environ)
    return pid, terminal


def read_until(terminal: int, word: bytes) -> None:
    said = b""
    while word not in said:
        said += os.read(terminal, 4096)


@pytest.mark.parametrize("server", ["1", "0"])
def test_a_closed_terminal_leaves_a_record(user: User, server: str) -> None:
    (user.folder / "a.c").write_text(f"int a{server};\n")
    user.environ["BUILDD_CLI_SERVER"] = server
    assert user.buildd("up")[0] == 0
    pid, terminal = in_terminal(user, "run", "--", "sh", "-c", "gcc -c a.c && echo ready && exec sleep 100")
    read_until(terminal, b"ready\r\n")
    os.close(terminal)
    os.waitpid(pid, 0)
    found = logged(user)
    assert (found["outcome"], found["summary"]["misses"]) == ("cancelled", 1), found  # type: ignore[index]


def test_a_program_that_ends_with_a_status_of_its_own_was_cancelled(developer: Developer) -> None:
    """As torch's build of an extension does after Ctrl-C: it reports that ninja failed."""
    developer.write("k.cu", "//! wait never\n")
    os.mkfifo(developer.folder / "go")
    script = "nvcc -c project/k.cu; read word <go; exit 3"
    developer.environ["PATH"] = f"{developer.environ['CUDA_HOME']}/bin:{developer.environ['PATH']}"
    assert developer.buildd("up")[0] == 0
    running = developer.start("run", "--", "sh", "-c", script)
    with Client.connect(environ=developer.environ, timeout_s=DEADLINE_S) as client:
        until(lambda: len(client.status().running) == 1, "it compiles")
        (shell,) = [each for each in developer.processes() if each.command.startswith("sh -c")]
        (shim,) = children_of(shell.pid)
        os.kill(shim, signal.SIGINT)
        until(lambda: any(each.cancelled for each in client.status().builds.values()), "it counts as cancelled")
    (developer.folder / "go").write_text("go\n")
    running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 3
    assert logged(developer)["outcome"] == "cancelled"
