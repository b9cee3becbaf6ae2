"""`buildd run` whose work is done elsewhere: its command is the caller's, and the caller imports next to nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd import caller, cli_client
from buildd.identity import package_stamp
from buildd.shims.jobserver import Jobserver
from tests.support.developer import Developer, end_developer, make_developer
from tests.support.serving import short_folder
from tests.support.terminal import Terminal
from tests.support.toolkit import host_compiler, make_toolkit
from tests.support.waiting import DEADLINE_S, until

pytestmark = pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
BUILDD = (sys.executable, "-P", "-m", "buildd")
IN_C = ("errno", "pwd", "resource", "_sha256", "_signal", "_socket", "select")
SERVED = "grep -q zmq /proc/$PPID/maps && echo here || echo elsewhere"
"""The process that carries out the command says where the run is at work."""


@pytest.fixture(scope="module")
def developer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Developer]:
    folder = tmp_path_factory.mktemp("toolkit")
    make_toolkit(folder)
    made = make_developer(folder)
    try:
        until(package_stamp.__wrapped__, "the code is too young to be told by its stamps")
        assert made.buildd("up")[0] == 0
        until(lambda: next(made.run_folder.rglob(cli_client.SOCKET), None), "nobody takes commands")
        assert made.buildd("run", "--", "true")[0] == 0  # makes the shims
        yield made
    finally:
        end_developer(made)


def begun(developer: Developer, *command: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        [*BUILDD, "run", "--", *command],
        env=developer.environ,
        cwd=developer.project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def ended(process: subprocess.Popen[str]) -> tuple[str, int]:
    return process.communicate(timeout=DEADLINE_S)[0], process.returncode


def worker_of(developer: Developer, process: subprocess.Popen[str]) -> int:
    """The process that is at work for a run: the other end of the connection holds the run's log."""
    (log,) = Path(developer.environ["BUILDD_DIR"], "answers", "failed").glob("*[0-9a-f]")
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if any(os.readlink(place) == str(log) for place in Path(f"/proc/{name}/fd").iterdir()):
                return int(name)
        except OSError:
            continue
    raise AssertionError("nobody is at work for the run")


def test_the_caller_imports_next_to_nothing(developer: Developer) -> None:
    """Each of these modules would be a part of every run's time."""
    script = (
        "import sys\nbefore = set(sys.modules)\nfrom buildd import cli_client\n"
        "status = cli_client.run(['run', '--', 'true'])\n"
        "print(status, *{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    said = subprocess.run(
        [sys.executable, "-P", "-c", script], env=developer.environ, capture_output=True, text=True, check=True
    )
    status, *found = said.stdout.split()
    assert status == "0", "it was not handed over"
    assert set(found) <= {"__future__", "buildd", "protocol", *IN_C}


def test_what_works_for_the_caller_imports_nothing(developer: Developer) -> None:
    """It would do it again in each run's own process."""
    script = (
        "import sys\nfrom buildd import cli\nfrom buildd.cli_server import server, warm_up\n"
        "warm_up.import_all()\nbefore = set(sys.modules)\n"
        "assert cli.main(['run', '--', 'true']) == 0\n"
        "print(*(name for name in set(sys.modules) - before if 'blake3' not in name))"
    )
    said = subprocess.run(
        [sys.executable, "-P", "-c", script], env=developer.environ, capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == []


def test_the_command_is_the_callers(developer: Developer) -> None:
    """Its parent, limits, processors, files, folder and variables; buildd's own are there too."""
    alone = ("prlimit", "--nofile=77:77", "taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))
    reading, writing = os.pipe()
    script = f"{SERVED}; ulimit -n; nproc; cat /proc/self/fd/{reading}; pwd; "
    script += "echo $MINE $BUILDD_RUN_FOLDER ${LD_PRELOAD:+interposed}"
    os.write(writing, b"passed on\n")
    os.close(writing)
    try:
        process = subprocess.Popen(
            [*alone, *BUILDD, "run", "--", "sh", "-c", script],
            env={**developer.environ, "MINE": "mine"},
            cwd=developer.project,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(reading,),
        )
        said, status = ended(process)
    finally:
        os.close(reading)
    folder = str(developer.project)
    assert (said.split("\n"), status) == (
        ["elsewhere", "77", "1", "passed on", folder, f"mine {folder} interposed", ""],
        0,
    )


@pytest.mark.parametrize("command", ["true", "false", "no such program", "/etc/passwd", "/", "kill -9 $$", "exit 77"])
def test_errors_and_statuses_are_the_same(developer: Developer, command: str) -> None:
    words = ("sh", "-c", command) if "$" in command or "exit" in command else (command,)
    served = ended(begun(developer, *words))
    developer.environ["BUILDD_CLI_SERVER"] = "0"
    try:
        assert ended(begun(developer, "sh", "-c", SERVED)) == ("here\n", 0)
        assert ended(begun(developer, *words)) == served
    finally:
        del developer.environ["BUILDD_CLI_SERVER"]


def test_the_summary_is_that_of_the_run(developer: Developer) -> None:
    nvcc = f"{developer.environ['CUDA_HOME']}/bin/nvcc -c src/b.cu -o b.o; echo compiled"
    said, status = ended(begun(developer, "sh", "-c", nvcc))
    assert status == 0 and re.search(r"compiled\nbuildd: 0 hits, 1 miss", said), said
    said, status = ended(begun(developer, "sh", "-c", f"rm b.o; {nvcc}"))
    assert status == 0 and re.search(r"compiled\nbuildd: 1 hit, 0 misses", said), said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("server", ["1", "0"])
def test_a_signal_to_the_caller_reaches_the_command(
    developer: Developer, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, server: str
) -> None:
    monkeypatch.setitem(developer.environ, "BUILDD_CLI_SERVER", server)
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo told; exit 9' {name}; echo ready; while :; do sleep 0.02; done"
    process = begun(developer, "sh", "-c", script)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert ended(process) == ("told\n", 9)


def interrupt_waits(pid: int) -> bool:
    """Whether a process has a SIGINT that it has not taken yet."""
    (pending,) = re.findall(r"^ShdPnd:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(pending, 16) >> (signal.SIGINT - 1) & 1)


@pytest.mark.parametrize("progress", ["1", "0"])
@pytest.mark.parametrize("server", ["1", "0"])
def test_interrupts_reach_the_command_once(developer: Developer, server: str, progress: str) -> None:
    """Those of the terminal reach it by themselves, and those of a process through the caller."""
    # dash runs a trap between two commands: one that waits for ever would keep it from the second.
    wait = "until test -s go; do sleep 0.02; done; read word < go"
    script = f"trap 'n=$((n + 1)); echo told $n' INT; echo ready; {wait}; echo $word $n"
    go = developer.project / "go"
    go.unlink(missing_ok=True)
    environ = {**developer.environ, "BUILDD_CLI_SERVER": server, "BUILDD_PROGRESS": progress, "TERM": "xterm"}
    command = (*BUILDD, "run", "--", "sh", "-c", script)
    with Terminal(*command, environ=environ, cwd=str(developer.project)) as terminal:
        terminal.has_shown(b"ready")
        terminal.type(b"\x03")
        terminal.has_shown(b"told 1")
        # Two that wait in one process are one.
        until(lambda: not interrupt_waits(terminal.pid), "the caller has taken Ctrl-C")
        os.kill(terminal.pid, signal.SIGINT)
        terminal.has_shown(b"told 2")
        go.write_text("end\n")
        terminal.has_shown(b"end 2")
        assert terminal.ended() == 0


def test_an_interrupt_of_the_commands_own_is_not_passed_on(developer: Developer) -> None:
    """A SIGTERM that the caller passes on says that it has seen the interrupt."""
    wait = "until test $t; do sleep 0.02; done"
    script = f"trap 'n=$((n + 1))' INT; trap 't=1' TERM; kill -INT 0; kill -TERM $PPID; {wait}; echo $n"
    process = begun(developer, "sh", "-c", script, process_group=0)
    assert ended(process) == ("1\n", 0)


@pytest.mark.parametrize("server", ["1", "0"])
def test_an_interrupt_that_is_ignored_stays_ignored(
    developer: Developer, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    monkeypatch.setitem(developer.environ, "BUILDD_CLI_SERVER", server)
    script = f"trap '' INT; exec {' '.join(BUILDD)} run -- sh -c 'kill -INT $PPID $$; echo alive'"
    done = subprocess.run(
        ["sh", "-c", script],
        env=developer.environ,
        cwd=developer.project,
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    assert done.stdout == "alive\n"


def test_a_caller_that_is_killed_leaves_no_process_and_no_log(developer: Developer) -> None:
    process = begun(developer, "sleep", "600", process_group=0)
    log = Path(developer.environ["BUILDD_DIR"], "answers", "failed")
    until(lambda: any(log.iterdir()), "nothing is at work")
    worker = worker_of(developer, process)
    until(lambda: Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(), "the command has not begun")
    process.kill()
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=DEADLINE_S)
    until(lambda: not any(log.iterdir()), "the log of the run is still there")
    until(lambda: not Path(f"/proc/{worker}").exists(), "a process is still at work")


def test_the_command_outlives_the_process_that_sums_it_up(developer: Developer) -> None:
    process = begun(developer, "sh", "-c", "echo ready; read word < still; exit 5")
    os.mkfifo(developer.project / "still")
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    os.kill(worker_of(developer, process), signal.SIGKILL)
    (developer.project / "still").write_text("go\n")
    said, status = ended(process)
    assert status == 5 and "its summary is missing" in said


def test_tokens_are_those_of_the_callers_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobserver may be held by a process that is no parent of the command."""
    holder = "f=$0; exec 5<>$f; head -c1 <&5 >/dev/null; echo; read word"
    with short_folder() as folder, Jobserver(folder, 2) as server:
        command = ["sh", "-c", f"sh -c '{holder}' {server.path}; :"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "\n"
            monkeypatch.setattr(caller, "pid", process.pid)
            assert [server.restore() for _ in range(3)] == [0, 0, 0]
            monkeypatch.setattr(caller, "pid", 1 << 22)  # the caller has no such process
            assert max(server.restore() for _ in range(3)) == 1
            process.communicate("\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_ends_by_the_signal_that_ended_its_command(developer: Developer, number: signal.Signals) -> None:
    """A shell's loop goes on after a program that ends with a status, even with 130."""
    assert ended(begun(developer, "sh", "-c", f"kill -{number.value} $$"))[1] == -number
    assert ended(begun(developer, "sh", "-c", f"exit {128 + number}"))[1] == 128 + number


def test_a_run_in_a_folder_that_is_gone(developer: Developer) -> None:
    script = f"mkdir gone; cd gone; rmdir ../gone; exec {' '.join(BUILDD)} run -- echo said"
    done = subprocess.run(
        ["sh", "-c", script], env=developer.environ, cwd=developer.project, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "said\n"), done.stderr
