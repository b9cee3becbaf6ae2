"""Claims of several daemons in one folder. Other daemons are other `Claims`, or real processes where death matters."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildd.host.admission import Ask, Budget, Running
from buildd.host.claims import LINE_BYTES, Claims
from buildd.host.gate import HostGate
from buildd.host.memory import HostMemory
from protocol.messages import JobId

GIB = 1 << 30
UID = os.geteuid()
DAEMON = """
import sys, time
from buildd.host.claims import Claims
claims = Claims(sys.argv[1])
claims.publish(int(sys.argv[2]))
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "claims")


@pytest.fixture
def ours(folder: str) -> Iterator[Claims]:
    claims = Claims(folder)
    yield claims
    claims.close()


@pytest.fixture
def theirs(folder: str) -> Iterator[Claims]:
    # Our own parent's pid: alive, and not ours.
    claims = Claims(folder, pid=os.getppid())
    yield claims
    claims.close()


def write_claim(folder: str, name: str, size_bytes: int, mode: int = 0o644) -> int:
    """A claim as another user's daemon would hold it; the descriptor keeps it alive."""
    descriptor = os.open(f"{folder}/{name}", os.O_RDWR | os.O_CREAT, mode)
    line = f"buildd 1 pid=1 start=0 boot={_boot()} bytes={size_bytes}"
    os.write(descriptor, line.ljust(LINE_BYTES - 1).encode() + b"\n")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_daemons_see_each_others_claims_not_their_own(ours: Claims, theirs: Claims) -> None:
    assert ours.others(16 * GIB).bytes == 0
    theirs.publish(3 * GIB)
    ours.publish(2 * GIB)
    assert (ours.others(16 * GIB).bytes, theirs.others(16 * GIB).bytes) == (3 * GIB, 2 * GIB)
    theirs.publish(GIB)
    assert ours.others(16 * GIB).bytes == GIB
    theirs.publish(0)
    assert ours.others(16 * GIB).bytes == 0
    theirs.publish(5)
    theirs.close()
    assert ours.others(16 * GIB).bytes == 0


def test_the_folder_is_for_everybody_whatever_the_umask(folder: str) -> None:
    before = os.umask(0o077)
    try:
        claims = Claims(folder)
        claims.publish(7)
    finally:
        os.umask(before)
    assert os.stat(folder).st_mode & 0o7777 == 0o1777
    file = Path(folder, f"{UID}.{os.getpid()}")
    assert file.stat().st_mode & 0o777 == 0o644
    assert file.read_bytes().endswith(b"\n") and file.stat().st_size == LINE_BYTES
    claims.close()
    assert os.listdir(folder) == []


def test_the_claim_of_a_killed_daemon_is_gone_at_once(folder: str, ours: Claims) -> None:
    with subprocess.Popen([sys.executable, "-c", DAEMON, folder, str(GIB)], stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.readline()
        assert ours.others(16 * GIB).bytes == GIB
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
        assert ours.others(16 * GIB).bytes == 0
    assert os.listdir(folder) == [f"{UID}.{os.getpid()}"]


def test_what_is_no_honest_claim_is_ignored(folder: str, ours: Claims, tmp_path: Path) -> None:
    ours.publish(0)
    (tmp_path / "elsewhere").write_text("x")
    os.symlink(tmp_path / "elsewhere", f"{folder}/{UID}.11")
    os.mkfifo(f"{folder}/{UID}.12")
    os.mkdir(f"{folder}/{UID}.13")
    held = [
        write_claim(folder, f"{UID + 1}.14", GIB),  # not that user's file
        write_claim(folder, "name", GIB),
        write_claim(folder, f"{UID}.15x", GIB),
        write_claim(folder, f"{UID}.-1", GIB),
    ]
    for number, content in enumerate(
        [b"", b"buildd 1 pid=1", b"\xff" * 5000, b"buildd 1 pid=1 start=0 boot= bytes=-1\n"]
    ):
        descriptor = os.open(f"{folder}/{UID}.2{number}", os.O_RDWR | os.O_CREAT)
        os.write(descriptor, content)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        held.append(descriptor)
    assert ours.others(16 * GIB).bytes == 0
    held.append(write_claim(folder, f"{UID}.16", GIB))
    assert ours.others(16 * GIB).bytes == GIB
    for descriptor in held:
        os.close(descriptor)


def test_a_lock_that_a_fork_still_holds_does_not_keep_a_claim(folder: str, ours: Claims) -> None:
    descriptor = os.open(_made(folder, ours) + f"/{UID}.{os.getppid()}", os.O_RDWR | os.O_CREAT)
    line = f"buildd 1 pid={os.getppid()} start=1 boot={_boot()} bytes={GIB}"  # that pid started later than 1
    os.write(descriptor, line.ljust(LINE_BYTES - 1).encode() + b"\n")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert ours.others(16 * GIB).bytes == 0
    os.close(descriptor)


def _made(folder: str, claims: Claims) -> str:
    claims.publish(0)
    return folder


def test_a_claim_that_is_not_renewed_expires(folder: str, ours: Claims, theirs: Claims) -> None:
    theirs.publish(GIB)
    assert ours.others(16 * GIB).bytes == GIB
    file = f"{folder}/{UID}.{os.getppid()}"
    os.utime(file, (time.time() - 60, time.time() - 60))
    assert ours.others(16 * GIB).bytes == 0
    assert os.path.exists(file)
    theirs.publish(GIB)
    assert ours.others(16 * GIB).bytes == GIB


@pytest.mark.skipif(UID != 0, reason="needs root to make another user's file")
def test_a_greedy_user_is_believed_for_a_while_then_gets_a_fair_share(folder: str) -> None:
    patient, impatient = Claims(folder, patience_s=3600), Claims(folder, pid=os.getppid(), patience_s=0)
    patient.publish(0)
    impatient.publish(0)
    held = [write_claim(folder, f"1234.{pid}", 1 << 50) for pid in (30, 31)]
    for pid in (30, 31):
        os.chown(f"{folder}/1234.{pid}", 1234, -1)
    assert (patient.others(16 * GIB).bytes, patient.others(16 * GIB).users) == (16 * GIB, 2)
    assert impatient.others(16 * GIB).bytes == 8 * GIB
    for descriptor in held:
        os.close(descriptor)
    assert patient.others(16 * GIB).users == 1
    patient.close()
    impatient.close()


@pytest.mark.parametrize("kind", ["missing parent", "a file", "a link"])
def test_without_a_usable_folder_it_works_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "claims"
    if kind == "missing parent":
        path = tmp_path / "no" / "claims"
    elif kind == "a file":
        path.write_text("")
    else:
        (tmp_path / "other").mkdir()
        path.symlink_to(tmp_path / "other")
    claims = Claims(str(path))
    with claims.section():
        claims.publish(GIB)
        assert claims.others(16 * GIB).bytes == 0
    claims.close()


def test_a_folder_that_was_removed_is_made_again(folder: str, ours: Claims, theirs: Claims) -> None:
    ours.publish(GIB)
    os.unlink(f"{folder}/{UID}.{os.getpid()}")
    os.rmdir(folder)
    theirs.publish(2 * GIB)
    assert ours.others(16 * GIB).bytes == 2 * GIB
    assert theirs.others(16 * GIB).bytes == GIB


def test_nobody_can_stop_us_by_holding_the_lock(folder: str, ours: Claims) -> None:
    ours.publish(0)
    holder = os.open(folder, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with ours.section():  # entered while the other one holds it
        ours.publish(GIB)
    os.close(holder)


# ---------------------------------------------------------------- with admission


HOST = HostMemory(16 * GIB, 10 * GIB)


def test_two_daemons_do_not_promise_the_same_memory_twice(ours: Claims, theirs: Claims) -> None:
    gates = [HostGate(Budget(64), claims, lambda: HOST) for claims in (ours, theirs)]
    admitted: list[list[Running]] = [[], []]
    for turn in range(20):
        side = turn % 2
        if gates[side].refusal(Ask(1, GIB), admitted[side]) == "":
            admitted[side].append(Running(JobId(turn), 1, GIB, 0))
    # The margin is 491 MiB: nine fit, in whichever daemon.
    assert sum(map(len, admitted)) == 9
    reason = gates[0].refusal(Ask(1, GIB), admitted[0])
    assert reason.startswith("memory: needs 1.0 GiB, 532 MiB free (") and "promised by other daemons" in reason
    admitted[1].clear()
    assert gates[1].relieve([]) is None
    assert gates[0].refusal(Ask(1, GIB), admitted[0]) == ""


USER = """
import os, sys
from buildd.host.admission import Ask, Budget, Running
from buildd.host.claims import Claims
from buildd.host.gate import HostGate
from buildd.host.memory import HostMemory
from protocol.messages import JobId
# Only now: another user may not be able to read this Python.
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
gib = 1 << 30
claims = Claims(sys.argv[1])
gate = HostGate(Budget(64), claims, lambda: HostMemory(16 * gib, 10 * gib))
admitted = []
for line in sys.stdin:
    if line == "more\\n":
        refused = gate.refusal(Ask(1, gib), admitted)
        if not refused:
            admitted.append(Running(JobId(len(admitted)), 1, gib, 0))
    else:
        admitted.clear()
        gate.rest()
    print(len(admitted), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_two_users_share_a_host(tmp_path: Path) -> None:
    """Two processes of two real users: together no more than there is, each at least something, and what one gives
    back the other gets. The first daemon makes the folder."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
        os.chmod(shared, 0o777)
        users = [
            subprocess.Popen(
                [sys.executable, "-c", USER, f"{shared}/claims", uid],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            for uid in ("65533", "65534")
        ]

        def say(user: subprocess.Popen[str], word: str) -> int:
            assert user.stdin is not None and user.stdout is not None
            user.stdin.write(word + "\n")
            return int(user.stdout.readline())

        try:
            one, two = users
            first = [say(one, "more") for _ in range(12)][-1]
            second = [say(two, "more") for _ in range(12)][-1]
            assert 1 <= second <= first <= 9 and first + second <= 10, "one job always runs, so ten at most"
            assert say(one, "rest") == 0
            assert [say(two, "more") for _ in range(12)][-1] == 8, "half of the host while there was another just now"
        finally:
            for user in users:
                user.kill()
                user.communicate()


def test_a_daemon_without_jobs_always_gets_one(ours: Claims, theirs: Claims) -> None:
    theirs.publish(100 * GIB)
    gate = HostGate(Budget(4), ours, lambda: HOST)
    assert gate.refusal(Ask(1, 3 * GIB), []) == ""
    assert theirs.others(16 * GIB).bytes == 3 * GIB
    assert gate.refusal(Ask(1, GIB), [Running(JobId(1), 1, 3 * GIB, 0)]) != ""


def test_a_refusal_promises_nothing(ours: Claims, theirs: Claims) -> None:
    gate = HostGate(Budget(4), ours, lambda: HOST)
    running = [Running(JobId(1), 1, 3 * GIB, 2 * GIB)]
    assert gate.refusal(Ask(1, 60 * GIB), running) != ""
    assert theirs.others(16 * GIB).bytes == GIB
    gate.rest()
    assert theirs.others(16 * GIB).bytes == 0


def test_where_memory_makes_a_job_wait_others_are_told_to_spare_it(ours: Claims) -> None:
    told: list[str] = []
    gate = HostGate(Budget(4), ours, lambda: HOST, short=lambda: told.append("short"))
    running = [Running(JobId(1), cpus=1, memory_bytes=GIB, resident_bytes=GIB)]
    assert gate.refusal(Ask(1, GIB), running) == "" and gate.refusal(Ask(4, GIB), running).startswith("cpu")
    assert not told
    assert gate.refusal(Ask(1, HOST.total_bytes), running).startswith("memory")
    assert told == ["short"]


def test_jobs_that_start_together_share_a_look_at_a_roomy_host(ours: Claims) -> None:
    looks: list[HostMemory] = []

    def look() -> HostMemory:
        looks.append(hosts[min(len(looks), len(hosts) - 1)])
        return looks[-1]

    hosts = [HostMemory(16 * GIB, 12 * GIB), HostMemory(16 * GIB, 7 * GIB)]
    gate = HostGate(Budget(64), ours, look)
    running: list[Running] = []
    for number in range(3):
        assert gate.refusal(Ask(1, GIB), running) == ""
        running.append(Running(JobId(number), 1, GIB, 0))
    assert len(looks) == 1
    # What an old look would refuse, and what is short, is decided by a new one.
    assert gate.refusal(Ask(1, 10 * GIB), running).startswith("memory") and len(looks) == 2
    assert gate.refusal(Ask(1, GIB), running) == "" and len(looks) == 3
