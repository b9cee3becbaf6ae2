"""The life of a real daemon process: start, answer, drain, end, and what it leaves behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import psutil
import pytest

from buildd.builds.event_log import RequestLog
from buildd.commands import daemon_control
from buildd.daemon import daemon as serving
from buildd.daemon.handler import ClientInfo
from buildd.host import proc
from protocol import endpoint as ep
from protocol import messages as m
from protocol.client import Client
from tests.support.own_programs import lend_programs

DEADLINE_S = 30.0


class Daemon:
    """`buildd serve` with a runtime folder, a store and a configuration of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # A socket's path has 107 bytes at most, and pytest's folders are long.
        self.runtime = Path("/tmp") / f"buildd-test-{uuid.uuid4().hex[:12]}"
        self.environ = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "BUILDD_RUNTIME_DIR": str(self.runtime),
            "BUILDD_DIR": str(folder / "store"),
        }
        lend_programs(folder / "store")
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, **environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "buildd", "serve"],
            env={**self.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def ready(self) -> ep.Endpoint:
        folder = ep.runtime_folder(self.environ)
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            endpoint = ep.read_endpoint(folder)
            if endpoint is not None and ep.is_alive(endpoint):
                return endpoint
            assert self.processes[-1].poll() is None or len(self.processes) > 1, self.processes[-1].communicate()[0]
            os.sched_yield()
        raise TimeoutError

    def client(self) -> Client:
        return Client.connect(start=None, environ=self.environ, timeout_s=DEADLINE_S)

    def request(self, project: Path, **fields: object) -> m.Request:
        name = uuid.uuid4().hex
        return m.Request(request_id=name, build_id=name, project=str(project), store="", **fields)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
            try:
                process.communicate(timeout=DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        subprocess.run(["rm", "-rf", str(self.runtime)], check=True)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path)
    yield daemon
    daemon.close()


def test_it_answers_drains_and_leaves_nothing(daemon: Daemon) -> None:
    process = daemon.start()
    endpoint = daemon.ready()
    assert endpoint.pid == process.pid
    children = psutil.Process(process.pid).children()
    with daemon.client() as client:
        status = client.status()
        assert status.pid == process.pid and status.state == "serving"
        client.drain()
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    assert ep.read_endpoint(ep.runtime_folder(daemon.environ)) is None
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert not list(ep.runtime_folder(daemon.environ).path.glob("work-*"))


def test_a_second_one_leaves_at_once(daemon: Daemon) -> None:
    daemon.start()
    first = daemon.ready()
    second = daemon.start()
    output, _ = second.communicate(timeout=DEADLINE_S)
    assert second.returncode == 0 and "another daemon is running" in output
    assert daemon.ready() == first


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_it(daemon: Daemon, number: signal.Signals) -> None:
    process = daemon.start()
    daemon.ready()
    process.send_signal(number)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output


def test_a_hangup_does_not_end_it(daemon: Daemon) -> None:
    process = daemon.start()
    daemon.ready()
    process.send_signal(signal.SIGHUP)
    with daemon.client() as client:
        assert client.status().state == "serving"


def test_killed_and_started_again(daemon: Daemon) -> None:
    process = daemon.start()
    daemon.ready()
    helpers = psutil.Process(process.pid).children()
    process.kill()
    process.communicate()
    psutil.wait_procs(helpers, timeout=DEADLINE_S)
    again = daemon.start()
    deadline = time.monotonic() + DEADLINE_S
    while daemon.ready().pid != again.pid:
        assert time.monotonic() < deadline
    with daemon.client() as client:
        assert client.status().pid == again.pid


def test_idle_for_long_enough_it_ends(daemon: Daemon) -> None:
    process = daemon.start(BUILDD_IDLE_TIMEOUT_S="1")
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0 and "idle for" in output


ALONE = """
import sys
from buildd.daemon import daemon, idle
idle.REST_AFTER_S, idle._LOOK_S, answers = 0.05, 0.05, [(True, True), (False, True)]
idle.proc.neighbours = lambda: answers.pop(0)
sys.exit(daemon.serve())
"""


def test_it_ends_when_nobody_is_left_in_its_mount_namespace(daemon: Daemon) -> None:
    """Each command of a build may have one."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", ALONE],
        env={**daemon.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0 and "no process is left in this mount namespace" in done.stdout


def test_neighbours_are_told_by_their_mount_namespace() -> None:
    inside, _ = proc.neighbours()
    assert inside, "the process that started this one"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs leave to make a mount namespace")
    code = "from buildd.host import proc; print(*proc.neighbours())"
    words = ["unshare", "--mount", sys.executable, "-P", "-c", code]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(words, env=environ, capture_output=True, text=True, check=True).stdout == "False True\n"


ANEW = """
import os, sys
from buildd.daemon import daemon, idle
idle.IDLE_CAP_BYTES, idle.REST_AFTER_S, become = 1, 0.05, os.execv
idle.RESTART_AFTER_S = 0.2
os.execv = lambda program, arguments: become(sys.argv[1], arguments)
daemon.serve()
"""
"""A daemon that starts itself anew at once, by way of another program."""


def test_down_ends_one_that_just_starts_itself_anew(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gate, between = daemon.folder / "gate", daemon.folder / "python"
    os.mkfifo(gate)
    between.write_text(f'#!/bin/sh\nread line < {gate}\nexec {sys.executable} "$@"\n')
    between.chmod(0o700)
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", ANEW, str(between)],
        env={**daemon.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    daemon.processes.append(process)
    writer = os.open(gate, os.O_WRONLY)  # as soon as it is neither the old nor the new one
    looks = []

    def looked(seconds: float) -> None:
        """`down` has found nobody to talk to, and does not leave."""
        looks.append(seconds)
        if len(looks) == 1:
            os.write(writer, b"go\n")
        os.sched_yield()

    with monkeypatch.context() as patched:
        for name, value in daemon.environ.items():
            patched.setenv(name, value)
        patched.setattr(daemon_control.time, "sleep", looked)
        assert daemon_control.stop_daemon(now=True) == 0
    os.close(writer)
    assert capsys.readouterr().out == "the daemon has ended\n" and looks
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0 and "restarting" in output, output


WARM = """
import os
import re
from buildd.daemon import daemon, idle
from buildd.processes.runner import Runner
idle.IDLE_CAP_BYTES, idle.REST_AFTER_S, looks = 1, 0.05, []
idle.RESTART_AFTER_S = 0.2
Runner.warm_s = lambda runner: looks.append(0) or (0.1 if len(looks) < 3 else 0.0)
os.execv = lambda program, arguments: print(f"{len(looks)} looks", flush=True) or os._exit(0)
daemon.serve()
"""
"""A daemon that holds too much, beside processes that are kept for 0.1 s more, twice."""


def test_one_whose_workers_are_warm_starts_anew_once_they_are_gone(daemon: Daemon) -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", WARM],
        env={**daemon.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    daemon.processes.append(process)
    output, _ = process.communicate(timeout=DEADLINE_S)
    looks = re.search(r"(\d+) looks", output)
    assert process.returncode == 0 and looks and int(looks[1]) >= 3, output


def test_a_wrong_setting_is_named(daemon: Daemon) -> None:
    process = daemon.start(BUILDD_MEMORY="plenty")
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2 and 'BUILDD_MEMORY="plenty" cannot be read' in output


def test_a_wrong_request_is_refused_with_the_next_step(daemon: Daemon, tmp_path: Path) -> None:
    daemon.start()
    daemon.ready()
    (tmp_path / "buildd.toml").write_text('[target.saxpy]\nkind = "cuda"\nsources = ["a.cu"]\n')
    with daemon.client() as client:
        done = list(client.submit(daemon.request(tmp_path, targets=("saxpi",))))[-1].body
    assert isinstance(done, m.Done)
    assert done.outcome is m.Outcome.REFUSED and done.code == "unknown-target"
    assert 'did you mean "saxpy"' in done.message + done.next_step


def test_a_client_from_elsewhere_has_nothing_compiled_by_path(daemon: Daemon, tmp_path: Path) -> None:
    request = daemon.request(tmp_path, mode=m.Mode.COMPILE, command=("/usr/bin/gcc", "-c", "a.c"))
    client = ClientInfo(name="x", user="", pid=0, origin="tcp:x", namespaces=m.Namespaces())
    log = RequestLog(request.request_id)
    # It is refused before anything of the daemon is looked at.
    serving.Daemon.submit(cast(serving.Daemon, None), client, request, log)
    assert log.done is not None and (log.done.outcome, log.done.code) == (m.Outcome.REFUSED, "forbidden")


def test_every_request_leaves_an_audit_line(daemon: Daemon, tmp_path: Path) -> None:
    process = daemon.start()
    daemon.ready()
    with daemon.client() as client:
        request = daemon.request(tmp_path)
        list(client.submit(request))
        client.drain()
    output, _ = process.communicate(timeout=DEADLINE_S)
    (line,) = [line for line in output.splitlines() if "audit" in line and request.request_id in line]
    assert str(os.getpid()) in line


def test_an_unusable_store_is_an_answer_not_the_end(daemon: Daemon, tmp_path: Path) -> None:
    """A build goes on without it; a request that is about the store alone cannot."""
    daemon.start()
    daemon.ready()
    file = tmp_path / "file"
    file.touch()
    with daemon.client() as client:
        request = m.Request(
            request_id="a", build_id="a", project=str(tmp_path), store=str(file / "store"), mode=m.Mode.WARM
        )
        done = list(client.submit(request))[-1].body
        assert isinstance(done, m.Done) and done.outcome is m.Outcome.DAEMON_ERROR and done.code == "store"
        assert client.status().state == "serving"


def test_it_imports_nothing_heavy(daemon: Daemon) -> None:
    """Torch, triton and jax live in workers; what is slow to import comes with its first use."""
    code = (
        "import sys, buildd.daemon.daemon, codegen.generate\n"
        "print([n for n in ('torch', 'triton', 'jax', 'ray', 'jinja2', 'rich', 'sqlite_utils') if n in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_above_its_memory_cap_it_makes_room_and_finishes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In this process, with a cap below any process's memory: a running request is finished, no new one is accepted."""
    import asyncio

    from buildd.daemon import daemon as module
    from buildd.daemon import idle
    from codegen.variables.settings import Settings
    from tests.support.scheduler_harness import Workspace, fake_plan
    from tests.support.waiting import until_async

    monkeypatch.setattr(idle, "MEMORY_CAP_BYTES", 1)
    monkeypatch.setattr(idle, "REST_AFTER_S", 0.05)
    workspace = Workspace(tmp_path)
    workspace.write("src/a.cu", "//! touch started\n//! wait-for go\n")
    runtime = Path("/tmp") / f"buildd-test-{uuid.uuid4().hex[:12]}"
    environ = {"BUILDD_RUNTIME_DIR": str(runtime)}

    async def story() -> m.Done:
        folder = ep.runtime_folder(environ)
        lock = ep.DaemonLock.acquire(folder)
        assert lock is not None
        daemon = module.Daemon(Settings(), workspace.store, folder, lock)
        daemon.scheduler.stores._make = fake_plan
        living = asyncio.create_task(daemon.live(Settings()))
        await until_async(lambda: ep.read_endpoint(folder), "the daemon is up")
        from buildd.builds.event_log import RequestLog

        request = workspace.request()
        log = RequestLog(request.request_id)
        client = ClientInfo(name="x", user="", pid=0, origin="local", namespaces=m.Namespaces())
        daemon.submit(client, request, log)
        await until_async(
            lambda: ep.read_endpoint(folder) is None and (workspace.project / "started").exists(),
            "it builds and is gone",
        )
        another = ep.DaemonLock.acquire(folder)
        assert another is not None, "a new daemon may start beside it"
        another.release()
        workspace.write("go", "")
        await asyncio.wait_for(living, DEADLINE_S)
        assert log.done is not None
        return log.done

    try:
        assert asyncio.run(story()).outcome is m.Outcome.BUILT
    finally:
        subprocess.run(["rm", "-rf", str(runtime)], check=True)
