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
from tests.support.developer import (
    Developer,
    end_another_developer,
    end_developer,
    make_another_developer,
    make_developer,
)
from tests.support.serving import short_folder
from tests.support.toolkit import host_compiler, make_toolkit
from tests.support.user import ROOT
from tests.support.waiting import DEADLINE_S, until

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toolkit")
    make_toolkit(folder)
    return folder


@contextmanager
def with_a_daemon(toolkit: Path) -> Iterator[Developer]:
    """A developer whose daemon takes commands."""
    made = make_developer(toolkit)
    try:
        until(package_stamp.__wrapped__, "the code is too young to be told by its stamps")
        assert made.buildd("up")[0] == 0
        until(lambda: next(made.run_folder.rglob(cli_client.SOCKET), None), "nobody takes commands")
        yield made
    finally:
        end_developer(made)


@pytest.fixture
def developer(toolkit: Path) -> Iterator[Developer]:
    with with_a_daemon(toolkit) as made:
        yield made


@pytest.fixture(scope="module")
def first(toolkit: Path) -> Iterator[Developer]:
    with with_a_daemon(toolkit) as made:
        yield made


@pytest.fixture
def another(first: Developer) -> Iterator[Developer]:
    """One whom the daemon of `first` serves, for tests after which it still takes commands."""
    made = make_another_developer(first)
    yield made
    end_another_developer(made)


def submitters(developer: Developer) -> list[int]:
    """The processes that submitted builds, as the daemon's log has them."""
    (log,) = developer.run_folder.rglob("daemon.log")
    return [int(pid) for pid in re.findall(r"audit submit .*? pid=(\d+) ", log.read_text())]


def test_a_build_is_carried_out_elsewhere_and_says_and_does_the_same(another: Developer) -> None:
    assert another.build().compiled == 3
    said = {}
    for served in ("0", "1"):
        another.environ["BUILDD_CLI_SERVER"] = served
        another.library.unlink()
        process = another.begin()
        told = another.finish(process)
        assert told.status == 0 and another.library.exists()
        said[served] = re.sub(r"[\d.]+ s", "TIME", told.text)
        assert (submitters(another)[-1] == process.pid) is (served == "0")
    assert said["0"] == said["1"]


def test_a_command_is_its_callers(another: Developer) -> None:
    """Its folder, umask, variables, ignored signals and streams."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "buildd", "build", "-j3", "--json"],
        cwd=another.project / "src",
        env={**another.environ, "NVCC_APPEND_FLAGS": "-DMINE", "PYTHONIOENCODING": "latin-1:replace"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        umask=0o077,
    )
    events, words = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0 and submitters(another)[-1] != process.pid
    assert b'"type":"done"' in events and b"built 1 target" in words
    assert stat.S_IMODE(another.library.stat().st_mode) & 0o077 == 0
    assert another.build().hits == 0, "without the variable it is another result"


@pytest.mark.parametrize("arguments", [("build", "nothing"), ("build", "--nonsense"), ("status", "--nonsense")])
def test_errors_and_statuses_are_the_same(another: Developer, arguments: tuple[str, ...]) -> None:
    served = another.start(*arguments, "-C", str(another.project))
    answer = (served.communicate(timeout=DEADLINE_S)[0], served.returncode)
    another.environ["BUILDD_CLI_SERVER"] = "0"
    alone = another.start(*arguments, "-C", str(another.project))
    assert answer == (alone.communicate(timeout=DEADLINE_S)[0], alone.returncode) and answer[1] != 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_what_asks_the_caller_to_stop_stops_the_build(another: Developer, number: signal.Signals) -> None:
    another.write("src/b.cu", "//! sleep 600\n")
    before = signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # what a shell begins in the background ignores it
    try:
        process = another.begin()
    finally:
        signal.signal(signal.SIGQUIT, before)
    compiler = another.until_compiling("src/b.cu")
    process.send_signal(number)
    said = another.finish(process)
    assert said.status == (-number if number == signal.SIGQUIT else 128 + number), said
    until(lambda: not compiler.lives, "it still compiles")


def test_a_caller_that_is_killed_takes_its_build_along(another: Developer) -> None:
    another.write("src/b.cu", "//! sleep 600\n")
    process = another.begin()
    compiler = another.until_compiling("src/b.cu")
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    until(lambda: not compiler.lives, "it still compiles")


def test_only_the_callers_end_ends_its_command() -> None:
    """The kernel may tell of a byte after it was read: a sender can lose the processor between the two."""
    code = """
import os, signal, socket, time
from buildd.cli_server import passed_command
ours, theirs = socket.socketpair()
passed_command.tie(ours)
theirs.send(b"x")
assert ours.recv(1) == b"x"
os.kill(os.getpid(), signal.SIGIO)
print("lives", flush=True)
theirs.close()
time.sleep(60)
"""
    command, environ = [sys.executable, "-P", "-c", code], {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert (done.stdout, done.returncode) == ("lives\n", -signal.SIGTERM), done.stderr


def test_a_command_whose_process_is_killed_says_so(developer: Developer) -> None:
    developer.write("src/b.cu", "//! sleep 600\n")
    process = developer.begin()
    developer.until_compiling("src/b.cu")
    os.kill(submitters(developer)[-1], signal.SIGKILL)
    said = developer.finish(process)
    assert said.status == 3 and "was killed" in said.text and "next: give the command again" in said.text


def test_a_build_outlives_the_daemon_that_it_was_forked_from(developer: Developer) -> None:
    developer.write("src/b.cu", "//! wait go\n")
    process = developer.begin()
    developer.until_compiling("src/b.cu")
    daemon = developer.daemon()
    assert daemon is not None
    daemon.kill()
    (developer.project / "go").touch()
    said = developer.finish(process)
    assert said.status == 0 and developer.library.exists(), said


def test_a_stopped_command_goes_on_later(another: Developer) -> None:
    another.write("src/b.cu", "//! wait go\n")
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "buildd", "build", "-C", str(another.project)],
        cwd=another.folder,
        env=another.environ,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # the system stops no group that nobody could wake
    )
    another.until_compiling("src/b.cu")
    pid = submitters(another)[-1]
    process.send_signal(signal.SIGTSTP)
    until(lambda: state(process.pid) == state(pid) == "T", "they have not stopped")
    process.send_signal(signal.SIGCONT)
    (another.project / "go").touch()
    assert another.finish(process).status == 0


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("what", ["code", "interpreter", "warnings", "limits", "garbage"])
def test_who_is_not_the_same_runs_alone(another: Developer, what: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "buildd", "build", "-C", str(another.project), "--no-daemon"]
    if what == "code":
        (socket_file,) = another.run_folder.rglob(cli_client.SOCKET)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(socket_file))
            data = b"\0".join([b"/elsewhere", *cli_client.identity()[1:]])
            socket.send_fds(connection, [len(data).to_bytes(4, "little") + data], [0, 0, 1, 2])
            assert connection.recv(5) == b"\0" * 5
        return
    if what == "garbage":
        (socket_file,) = another.run_folder.rglob(cli_client.SOCKET)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(socket_file))
            connection.sendall(b"\5\0\0\0hello")
            assert connection.recv(5) == b"\0" * 5
        assert another.build().status == 0, "it serves the next one"
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
        another.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT), *filter(None, sys.path)))
    before = len(submitters(another))
    process = subprocess.Popen(command, env=another.environ, cwd=another.folder, stdout=subprocess.PIPE)
    assert b"built 1 target" in process.communicate(timeout=DEADLINE_S)[0]
    assert submitters(another)[before:] in ([], [process.pid])


def test_code_that_was_changed_is_taken_for_other_code(toolkit: Path, tmp_path: Path) -> None:
    """As by an upgrade in place: neither its process for commands nor the daemon may go on with what they imported."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    developer = make_developer(toolkit, PYTHONPATH=os.pathsep.join((str(tmp_path), *filter(None, sys.path))))
    try:
        newest_ns = max(path.stat().st_ctime_ns for path in tmp_path.rglob("*"))
        until(lambda: time.time_ns() - newest_ns > YOUNG_NS, "the copied code stays young")
        assert developer.buildd("up")[0] == 0
        until(lambda: next(developer.run_folder.rglob(cli_client.SOCKET), None), "nobody takes commands")
        before = developer.daemon()
        for _ in range(2):  # the first one has Python make its folders for bytecode
            process = developer.begin()
            assert developer.finish(process).status == 0
            assert submitters(developer)[-1] != process.pid, "it was not handed over"
        assert developer.daemon() == before
        with open(tmp_path / "buildd/cli.py", "a") as code:
            code.write("# another version\n")
        assert developer.build().status == 0
        assert developer.daemon() not in (before, None), "the daemon of before was asked"
    finally:
        end_developer(developer)


def test_a_daemon_that_began_with_young_code_takes_commands_once_it_is_older(toolkit: Path, tmp_path: Path) -> None:
    """As one that took over after an upgrade."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    developer = make_developer(toolkit, PYTHONPATH=os.pathsep.join((str(tmp_path), *filter(None, sys.path))))
    try:
        (tmp_path / "buildd/__init__.py").touch()
        assert developer.buildd("up")[0] == 0
        until(lambda: next(developer.run_folder.rglob(cli_client.SOCKET), None), "nobody takes commands")
        before = developer.daemon()

        def is_handed_over() -> bool:
            process = developer.begin()
            assert developer.finish(process).status == 0
            return submitters(developer)[-1] != process.pid

        until(is_handed_over, "no command is handed over")
        assert developer.daemon() == before
    finally:
        end_developer(developer)


def test_a_command_imports_nothing_and_makes_no_decoder(another: Developer) -> None:
    """It finds what all commands use: each would import it again, in its own process."""
    script = (
        "import sys\n"
        "from buildd import cli\n"
        "from buildd.cli_server import server, warm_up\n"
        "from protocol import described, wire\n"
        "warm_up.import_all()\n"
        "before = set(sys.modules), set(described._described)\n"
        "assert cli.main(sys.argv[1:]) == 0\n"
        "made = set(sys.modules) - before[0], described._described - before[1]\n"
        # These two: where this process has no stamp of the code, it reads it.
        "print('MADE', [name for name in made[0] if 'blake3' not in name], made[1])\n"
    )
    command = [sys.executable, "-P", "-c", script, "build", "-C", str(another.project)]
    ran = subprocess.run(
        command, env=another.environ, stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=True
    )
    assert "MADE [] set()" in ran.stdout, ran.stdout


@pytest.mark.parametrize("served", ["0", "1"])
def test_a_program_below_run_does_not_see_the_locale_that_python_made(another: Developer, served: str) -> None:
    variables = {"BUILDD_CLI_SERVER": served}
    bare = {name: value for name, value in another.environ.items() if name != "LANG" and not name.startswith("LC_")}
    for given, seen in (({}, ""), ({"LC_CTYPE": "C.UTF-8"}, "C.UTF-8")):
        command = [sys.executable, "-P", "-m", "buildd", "run", "--", "sh", "-c", 'echo "locale=$LC_CTYPE"']
        done = subprocess.run(command, env={**bare, **variables, **given}, capture_output=True, text=True)
        assert f"locale={seen}\n" in done.stdout, done


def test_a_command_says_goodbye_though_its_end_is_told_first(developer: Developer) -> None:
    for _ in range(3):
        process = developer.begin()
        assert developer.finish(process).status == 0
        assert submitters(developer)[-1] != process.pid, "it was not handed over"
    with Client.connect(environ=developer.environ) as client:
        until(lambda: client.status().clients == 0, "a client has not left")
        assert "clients_died" not in client.status().counters


def waiting(developer: Developer) -> int:
    """The process that was forked for the next command, 0 while there is none."""
    daemon = developer.daemon()
    assert daemon is not None
    (server,) = (pid for pid in children(daemon.pid) if Path(f"/proc/{pid}/comm").read_text() == "buildd-cli\n")
    ran = submitters(developer)  # the last of them may not have been reaped yet
    return next((child for child in children(server) if child not in ran), 0)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_next_command_is_waited_for_by_a_process_that_may_die(developer: Developer) -> None:
    assert not waiting(developer)
    assert developer.build().compiled == 3
    until(lambda: waiting(developer), "nobody waits for the next command")
    expected = waiting(developer)
    developer.build()
    assert submitters(developer)[-1] == expected
    until(lambda: waiting(developer) not in (0, expected), "nobody waits for the next command")
    killed = waiting(developer)
    os.kill(killed, signal.SIGKILL)
    until(lambda: state(killed) == "Z", "it lives")
    developer.build()
    assert submitters(developer)[-1] not in (killed, expected)


SERVER = """
import sys
from buildd.cli import main
from buildd.cli_server import server
server._AHEAD_S = float(sys.argv[2])
server._has_free_processor = lambda: False
begun = server.begin(sys.argv[1], main)
print(begun.pid, flush=True)
sys.stdin.read()
begun.end()
"""
"""With another pause, as on a busy machine; ends with its standard input."""


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
                # It waits again, with nobody left: the process of the next command is forked when that command comes.
                until(lambda: not children(pid) and state(pid) == "S", "the command's process is still there")
                assert not children(pid)
        with server(place, pause_s=0.0) as pid:
            first = taken_by(place)
            until(lambda: children(pid) not in ([], [first]), "nobody waits for the next command")
            expected = [child for child in children(pid) if child != first]
            assert [taken_by(place)] == expected


def test_a_socket_that_was_removed_is_missed_by_nobody(developer: Developer) -> None:
    (path,) = developer.run_folder.rglob(cli_client.SOCKET)
    (log,) = developer.run_folder.rglob("daemon.log")
    path.unlink()
    process = developer.begin()
    assert developer.finish(process).status == 0 and submitters(developer) == [process.pid]
    assert developer.buildd("down")[0] == 0
    assert "Traceback" not in log.read_text()


def test_it_ends_with_the_daemon_and_leaves_no_socket(developer: Developer) -> None:
    (path,) = developer.run_folder.rglob(cli_client.SOCKET)
    assert developer.buildd("down")[0] == 0
    until(lambda: not path.exists(), "its socket is still there")
    assert developer.buildd("status")[0] == 3
