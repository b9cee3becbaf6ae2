"""Commands that are handed to the process with everything imported: they do what they do alone, as their caller."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from buildd import cli_client
from buildd.identity import PACKAGES, YOUNG_NS, package_stamp
from protocol.client import Client
from tests.estate import DEADLINE_S, Estate, end_estate, make_estate, until
from tests.household import ROOT
from tests.serving import short_folder
from tests.toolkit import host_compiler, make_toolkit

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toolkit")
    make_toolkit(folder)
    return folder


@pytest.fixture
def estate(toolkit: Path) -> Iterator[Estate]:
    made = make_estate(toolkit)
    try:
        until(package_stamp.__wrapped__, "the code is too young to be told by its stamps")
        assert made.buildd("up")[0] == 0
        until(lambda: next(made.run_folder.rglob(cli_client.SOCKET), None), "nobody takes commands")
        yield made
    finally:
        end_estate(made)


def submitters(estate: Estate) -> list[int]:
    """The processes that submitted builds, as the daemon's log has them."""
    (log,) = estate.run_folder.rglob("daemon.log")
    return [int(pid) for pid in re.findall(r"audit submit .*? pid=(\d+) ", log.read_text())]


def test_a_build_is_carried_out_elsewhere_and_says_and_does_the_same(estate: Estate) -> None:
    assert estate.build().compiled == 3
    said = {}
    for served in ("0", "1"):
        estate.environ["BUILDD_CLI_SERVER"] = served
        estate.library.unlink()
        process = estate.begin()
        told = estate.finish(process)
        assert told.status == 0 and estate.library.exists()
        said[served] = re.sub(r"[\d.]+ s", "TIME", told.text)
        assert (submitters(estate)[-1] == process.pid) is (served == "0")
    assert said["0"] == said["1"]


def test_a_command_is_its_callers(estate: Estate) -> None:
    """Its folder, umask, variables, ignored signals and streams."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "buildd", "build", "-j3", "--json"],
        cwd=estate.project / "src",
        env={**estate.environ, "NVCC_APPEND_FLAGS": "-DMINE", "PYTHONIOENCODING": "latin-1:replace"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        umask=0o077,
    )
    events, words = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0 and submitters(estate)[-1] != process.pid
    assert b'"type":"done"' in events and b"built 1 target" in words
    assert stat.S_IMODE(estate.library.stat().st_mode) & 0o077 == 0o055, "the daemon's umask, not the caller's"
    assert estate.build().hits == 0, "without the variable it is another result"


@pytest.mark.parametrize("arguments", [("build", "nothing"), ("build", "--nonsense"), ("status", "--nonsense")])
def test_errors_and_statuses_are_the_same(estate: Estate, arguments: tuple[str, ...]) -> None:
    served = estate.start(*arguments, "-C", str(estate.project))
    answer = (served.communicate(timeout=DEADLINE_S)[0], served.returncode)
    estate.environ["BUILDD_CLI_SERVER"] = "0"
    alone = estate.start(*arguments, "-C", str(estate.project))
    assert answer == (alone.communicate(timeout=DEADLINE_S)[0], alone.returncode) and answer[1] != 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_what_asks_the_caller_to_stop_stops_the_build(estate: Estate, number: signal.Signals) -> None:
    estate.write("src/b.cu", "//! sleep 600\n")
    before = signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # what a shell begins in the background ignores it
    try:
        process = estate.begin()
    finally:
        signal.signal(signal.SIGQUIT, before)
    compiler = estate.until_compiling("src/b.cu")
    process.send_signal(number)
    said = estate.finish(process)
    assert said.status == (-number if number == signal.SIGQUIT else 128 + number), said
    until(lambda: not compiler.lives, "it still compiles")


def test_a_caller_that_is_killed_takes_its_build_along(estate: Estate) -> None:
    estate.write("src/b.cu", "//! sleep 600\n")
    process = estate.begin()
    compiler = estate.until_compiling("src/b.cu")
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    until(lambda: not compiler.lives, "it still compiles")


def test_a_command_whose_process_is_killed_says_so(estate: Estate) -> None:
    estate.write("src/b.cu", "//! sleep 600\n")
    process = estate.begin()
    estate.until_compiling("src/b.cu")
    os.kill(submitters(estate)[-1], signal.SIGKILL)
    said = estate.finish(process)
    assert said.status == 3 and "was killed" in said.text and "next: give the command again" in said.text


def test_a_build_outlives_the_daemon_that_it_was_forked_from(estate: Estate) -> None:
    estate.write("src/b.cu", "//! wait go\n")
    process = estate.begin()
    estate.until_compiling("src/b.cu")
    daemon = estate.daemon()
    assert daemon is not None
    daemon.kill()
    (estate.project / "go").touch()
    said = estate.finish(process)
    assert said.status == 0 and estate.library.exists(), said


def test_a_stopped_command_goes_on_later(estate: Estate) -> None:
    estate.write("src/b.cu", "//! wait go\n")
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "buildd", "build", "-C", str(estate.project)],
        cwd=estate.folder,
        env=estate.environ,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # the system stops no group that nobody could wake
    )
    estate.until_compiling("src/b.cu")
    pid = submitters(estate)[-1]
    process.send_signal(signal.SIGTSTP)
    until(lambda: state(process.pid) == state(pid) == "T", "they have not stopped")
    process.send_signal(signal.SIGCONT)
    (estate.project / "go").touch()
    assert estate.finish(process).status == 0


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("what", ["code", "interpreter", "warnings", "limits", "garbage"])
def test_who_is_not_the_same_runs_alone(estate: Estate, what: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "buildd", "build", "-C", str(estate.project), "--no-daemon"]
    if what == "code":
        (socket_file,) = estate.run_folder.rglob(cli_client.SOCKET)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(socket_file))
            data = b"\0".join([b"/elsewhere", *cli_client.identity()[1:]])
            socket.send_fds(connection, [len(data).to_bytes(4, "little") + data], [0, 0, 1, 2])
            assert connection.recv(5) == b"\0" * 5
        return
    if what == "garbage":
        (socket_file,) = estate.run_folder.rglob(cli_client.SOCKET)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(socket_file))
            connection.sendall(b"\5\0\0\0hello")
            assert connection.recv(5) == b"\0" * 5
        assert estate.build().status == 0, "it serves the next one"
        return
    command.remove("--no-daemon")
    if what == "limits":
        command[:0] = ["prlimit", "--fsize=1000000000"]
    elif what == "warnings":
        command[1:1] = ["-W", "error"]
    else:
        link = tmp_path / "python"
        link.symlink_to(sys.executable)
        command[0] = str(link)
        estate.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT), *filter(None, sys.path)))
    process = subprocess.Popen(command, env=estate.environ, cwd=estate.folder, stdout=subprocess.PIPE)
    assert b"built 1 target" in process.communicate(timeout=DEADLINE_S)[0]
    assert submitters(estate)[-1:] in ([], [process.pid])


def test_code_that_was_changed_is_taken_for_other_code(toolkit: Path, tmp_path: Path) -> None:
    """As by an upgrade in place: neither its process for commands nor the daemon may go on with what they imported."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    estate = make_estate(toolkit, PYTHONPATH=os.pathsep.join((str(tmp_path), *filter(None, sys.path))))
    try:
        newest_ns = max(path.stat().st_ctime_ns for path in tmp_path.rglob("*"))
        until(lambda: time.time_ns() - newest_ns > YOUNG_NS, "the copied code stays young")
        assert estate.buildd("up")[0] == 0
        until(lambda: next(estate.run_folder.rglob(cli_client.SOCKET), None), "nobody takes commands")
        before = estate.daemon()
        for _ in range(2):  # the first one has Python make its folders for bytecode
            process = estate.begin()
            assert estate.finish(process).status == 0
            assert submitters(estate)[-1] != process.pid, "it was not handed over"
        assert estate.daemon() == before
        with open(tmp_path / "buildd/cli.py", "a") as code:
            code.write("# another version\n")
        assert estate.build().status == 0
        assert estate.daemon() not in (before, None), "the daemon of before was asked"
    finally:
        end_estate(estate)


def test_a_daemon_that_began_with_young_code_takes_commands_once_it_is_older(toolkit: Path, tmp_path: Path) -> None:
    """As one that took over after an upgrade."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    estate = make_estate(toolkit, PYTHONPATH=os.pathsep.join((str(tmp_path), *filter(None, sys.path))))
    try:
        (tmp_path / "buildd/__init__.py").touch()
        assert estate.buildd("up")[0] == 0
        until(lambda: next(estate.run_folder.rglob(cli_client.SOCKET), None), "nobody takes commands")
        before = estate.daemon()

        def is_handed_over() -> bool:
            process = estate.begin()
            assert estate.finish(process).status == 0
            return submitters(estate)[-1] != process.pid

        until(is_handed_over, "no command is handed over")
        assert estate.daemon() == before
    finally:
        end_estate(estate)


def test_a_command_imports_nothing_and_makes_no_decoder(estate: Estate) -> None:
    """Of what all commands use: each would do it again, in its own process."""
    script = (
        "import sys\n"
        "from buildd import cli, cli_server\n"
        "from protocol import described, wire\n"
        "cli_server._warm_up()\n"
        "before = set(sys.modules), set(described._described)\n"
        "assert cli.main(sys.argv[1:]) == 0\n"
        "made = set(sys.modules) - before[0], described._described - before[1]\n"
        # These two: where this process has no stamp of the code, it reads it.
        "print('MADE', [name for name in made[0] if 'blake3' not in name], made[1])\n"
    )
    command = [sys.executable, "-P", "-c", script, "build", "-C", str(estate.project)]
    ran = subprocess.run(command, env=estate.environ, stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=True)
    assert "MADE [] set()" in ran.stdout, ran.stdout


def test_a_command_says_goodbye_though_its_end_is_told_first(estate: Estate) -> None:
    for _ in range(3):
        process = estate.begin()
        assert estate.finish(process).status == 0
        assert submitters(estate)[-1] != process.pid, "it was not handed over"
    with Client.connect(environ=estate.environ) as client:
        until(lambda: client.status().clients == 0, "a client has not left")
        assert "clients_died" not in client.status().counters


def waiting(estate: Estate) -> int:
    """The process that was forked for the next command, 0 while there is none."""
    daemon = estate.daemon()
    assert daemon is not None
    (server,) = (pid for pid in children(daemon.pid) if Path(f"/proc/{pid}/comm").read_text() == "buildd-cli\n")
    ran = submitters(estate)  # the last of them may not have been reaped yet
    return next((child for child in children(server) if child not in ran), 0)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_next_command_is_waited_for_by_a_process_that_may_die(estate: Estate) -> None:
    assert not waiting(estate)
    assert estate.build().compiled == 3
    until(lambda: waiting(estate), "nobody waits for the next command")
    expected = waiting(estate)
    estate.build()
    assert submitters(estate)[-1] == expected
    until(lambda: waiting(estate) not in (0, expected), "nobody waits for the next command")
    killed = waiting(estate)
    os.kill(killed, signal.SIGKILL)
    until(lambda: state(killed) == "Z", "it lives")
    estate.build()
    assert submitters(estate)[-1] not in (killed, expected)


SERVER = """
import sys
from buildd import cli_server
cli_server._AHEAD_S = float(sys.argv[2])
server = cli_server.begin(sys.argv[1])
print(server.pid, flush=True)
sys.stdin.read()
server.end()
"""
"""With another pause; ends with its standard input."""


@contextmanager
def server(place: Path, pause_s: float) -> Iterator[int]:
    command = [sys.executable, "-P", "-c", SERVER, str(place), str(pause_s)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *filter(None, sys.path)))}
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        pid = int(process.stdout.readline())
        until((place / cli_client.SOCKET).exists, "nobody takes commands")
        yield pid
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 0


def taken_by(place: Path) -> int:
    """The process that a command is given, which is then not let go on."""
    until(package_stamp.__wrapped__, "the code is too young to be told by its stamps")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(place / cli_client.SOCKET))
        data = cli_client.pack(["log"], {}, 0o022, [])
        socket.send_fds(connection, [data], [0, 0, 1, 2])
        answer = connection.recv(5)
        assert answer[:1] == cli_client.TAKEN
        return int.from_bytes(answer[1:], "little")


def test_the_process_of_the_next_command_is_forked_after_a_pause_and_not_before() -> None:
    with short_folder() as place:
        with server(place, pause_s=86400.0) as pid:
            for _ in range(3):
                taken_by(place)
                # It waits again, with nobody left: whoever takes the next command is forked when that has come.
                until(lambda: not children(pid) and state(pid) == "S", "the command's process is still there")
                assert not children(pid)
        with server(place, pause_s=0.0) as pid:
            first = taken_by(place)
            until(lambda: children(pid) not in ([], [first]), "nobody waits for the next command")
            expected = [child for child in children(pid) if child != first]
            assert [taken_by(place)] == expected


def test_a_socket_that_was_removed_is_missed_by_nobody(estate: Estate) -> None:
    (path,) = estate.run_folder.rglob(cli_client.SOCKET)
    (log,) = estate.run_folder.rglob("daemon.log")
    path.unlink()
    process = estate.begin()
    assert estate.finish(process).status == 0 and submitters(estate) == [process.pid]
    assert estate.buildd("down")[0] == 0
    assert "Traceback" not in log.read_text()


def test_it_ends_with_the_daemon_and_leaves_no_socket(estate: Estate) -> None:
    (path,) = estate.run_folder.rglob(cli_client.SOCKET)
    assert estate.buildd("down")[0] == 0
    until(lambda: not path.exists(), "its socket is still there")
    assert estate.buildd("status")[0] == 3
