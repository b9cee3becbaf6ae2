"""The helper process by itself, spoken to over its socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buildd.host import proc
from buildd.host.proc import stat_of
from buildd.processes import spawner
from buildd.processes.spawner_wire import (
    EXITED,
    GONE,
    KILL,
    LAUNCH,
    REPLY,
    REQUEST,
    STARTED,
    pack_spec,
    unpack_spec,
)

FIELD = st.binary(max_size=20).map(lambda data: data.replace(b"\0", b""))


@given(FIELD, st.lists(FIELD), st.lists(FIELD))
def test_a_specification_comes_back_as_it_was(cwd: bytes, argv: list[bytes], environment: list[bytes]) -> None:
    assert unpack_spec(pack_spec(cwd, argv, environment)) == (cwd, argv, environment)


class Peer:
    """The daemon's side, blocking."""

    def __init__(self, channel: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self.channel = channel
        self.process = process

    def launch(self, number: int, *argv: str) -> int:
        specification = os.memfd_create("launch")
        os.write(specification, pack_spec(b"/", [item.encode() for item in argv], [b"PATH=/usr/bin:/bin"]))
        with open(os.devnull, "wb") as null:
            descriptors = [specification, null.fileno(), null.fileno()]
            socket.send_fds(self.channel, [REQUEST.pack(LAUNCH, number, 0, 0o22, 0)], descriptors)
        os.close(specification)
        kind, told, pid, *_ = self.reply()
        assert (kind, told) == (STARTED, number)
        return pid

    def reply(self) -> tuple[int, int, int, int]:
        kind, number, pid, status, *_ = REPLY.unpack(self.channel.recv(REPLY.size))
        return kind, number, pid, status


@contextmanager
def helper(grace_s: float = 0.2) -> Iterator[Peer]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(30)
    command = [sys.executable, "-I", "-S", spawner.__file__, str(theirs.fileno()), str(grace_s)]
    process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), start_new_session=True)
    theirs.close()
    try:
        yield Peer(ours, process)
    finally:
        ours.close()
        assert process.wait(30) == 0


def test_a_job_is_told_of_in_order() -> None:
    with helper() as peer:
        pid = peer.launch(7, "sh", "-c", "exit 5")
        kind, number, ended, status = peer.reply()
        assert (kind, number, ended, os.waitstatus_to_exitcode(status)) == (EXITED, 7, pid, 5)
        assert peer.reply()[:2] == (GONE, 7)


def test_hanging_up_ends_every_tool_and_the_helper() -> None:
    with helper() as peer:
        polite = peer.launch(1, "sleep", "80")
        stubborn = peer.launch(2, "sh", "-c", "trap '' TERM; sleep 81; sleep 82")
        assert stat_of(polite) and stat_of(stubborn)
    assert not stat_of(polite) and not stat_of(stubborn)


def test_signals_to_the_helper_do_not_end_it() -> None:
    with helper() as peer:
        tool = peer.launch(1, "sleep", "83")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            peer.process.send_signal(number)
        peer.launch(2, "true")
        assert [peer.reply()[0], peer.reply()[0]] == [EXITED, GONE]
        assert stat_of(tool)


def test_kill_of_an_unknown_job_is_ignored() -> None:
    with helper() as peer:
        peer.channel.send(REQUEST.pack(KILL, 99, 0, 0, 0))
        peer.launch(1, "true")


def test_the_environment_is_not_the_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with helper() as peer:
        pid = peer.launch(1, "sleep", "84")
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        # A vfork returns within exec, a moment before the environment is in place.
        deadline = time.monotonic() + 30
        while not (environment := Path(f"/proc/{pid}/environ").read_bytes()):
            assert time.monotonic() < deadline
        assert environment == b"PATH=/usr/bin:/bin\0"


def test_it_is_small_and_needs_the_standard_library_only() -> None:
    with helper() as peer:
        peer.launch(1, "true")
        status = Path(f"/proc/{peer.process.pid}/status").read_text()
        peak_kib = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
        assert peak_kib < 20_000
    root = str(Path(spawner.__file__).parents[2])
    script = f"import sys; sys.path.append({root!r}); import buildd.processes.spawner; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, check=True, text=True)
    loaded = set(done.stdout.split())
    assert not {"asyncio", "subprocess", "json", "re"} & loaded
    ours = {name for name in loaded if name.partition(".")[0] in ("buildd", "codegen", "protocol")}
    packages = {"buildd", "buildd.host", "buildd.processes"}
    modules = {f"buildd.processes.{name}" for name in ("spawner", "spawner_wire", "warm_workers")}
    assert ours == packages | modules | {"buildd.host.proc"}


def test_children_are_found_without_the_kernels_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """CONFIG_PROC_CHILDREN may be off: the children files are not there then."""
    with subprocess.Popen(["sleep", "85"]) as child:
        try:
            assert child.pid in proc.children_of(os.getpid())
            real = proc._read

            def read(path: str) -> bytes:
                if path.endswith("/children"):
                    raise FileNotFoundError(2, "off", path)
                return real(path)

            monkeypatch.setattr(proc, "_read", read)
            assert child.pid in proc.children_of(os.getpid())
        finally:
            child.kill()
    assert proc.stat_of(child.pid) is None


def test_a_process_of_any_name_can_be_read(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 1 (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "86"]) as child:
        try:
            stat = stat_of(child.pid)
            assert stat is not None and stat[0] == os.getpid() and stat[1] == os.getsid(0)
        finally:
            child.kill()
