"""The runner with real processes: streams, ends, measures; and that nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from buildd.errors import RunnerError
from buildd.host.proc import all_pids, children_of, stat_of
from buildd.processes.launch import EndReason, Launch, out_of_memory
from buildd.processes.runner import Runner
from buildd.processes.streams import PIECE_BYTES, Capture, Lines
from tests.support.paths import FAKES
from tests.support.waiting import until_async

FAKE_CC = FAKES / "fake-cc"
ENVIRONMENT = (("PATH", "/usr/bin:/bin"),)
DEADLINE_S = 30.0


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __call__(self, stream: str, text: str) -> None:
        self.lines.append((stream, text))

    def of(self, stream: str) -> list[str]:
        return [text for name, text in self.lines if name == stream]


def with_runner(body: Callable[[Runner], Awaitable[None]], *, grace_s: float = 0.3, linger_s: float = 0.3) -> None:
    async def run() -> None:
        runner = Runner(grace_s=grace_s, linger_s=linger_s)
        try:
            await asyncio.wait_for(body(runner), DEADLINE_S)
        finally:
            await runner.close()

    asyncio.run(run())


def shell(script: str, cwd: str | Path = "/", **more: object) -> Launch:
    return Launch(("sh", "-c", script), str(cwd), ENVIRONMENT, **more)  # type: ignore[arg-type]


def fake(folder: Path, source: str, **more: object) -> Launch:
    (folder / "a.c").write_text(source)
    argv = (sys.executable, "-I", "-S", str(FAKE_CC), "-o", "a.o", "a.c")
    return Launch(argv, str(folder), ENVIRONMENT, **more)  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    return stat_of(pid) is not None


def in_session(session: int) -> list[int]:
    return [pid for pid in all_pids() if (stat := stat_of(pid)) is not None and stat[1] == session]


# ---------------------------------------------------------------- what a tool gets


def test_tool_sees_exactly_what_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAK", "the daemon's own")

    async def body(runner: Runner) -> None:
        heard = Heard()
        launch = Launch(
            ("/usr/bin/env",), str(tmp_path), (("A", "b c"), ("E", ""), ("U", "\udcff"), ("X", "1=2")), umask=0o027
        )
        end = await runner.run(launch, heard)
        assert end.ok and end.stdout == b"A=b c\nE=\nU=\xff\nX=1=2\n"
        assert heard.of("stdout") == ["A=b c", "E=", "U=\ufffd", "X=1=2"]

        end = await runner.run(shell("pwd; umask; ls -l /proc/self/fd", tmp_path, umask=0o027), Heard())
        folder, umask, _, *descriptors = end.stdout.decode().splitlines()
        assert (folder, umask) == (str(tmp_path), "0027")
        # 3 is ls's own look at the folder.
        assert [line.split()[8] for line in descriptors] == ["0", "1", "2", "3"]
        assert descriptors[0].endswith("/dev/null")

    with_runner(body)


def test_tool_has_default_signals_and_a_session_of_its_own(tmp_path: Path) -> None:
    async def body(runner: Runner) -> None:
        end = await runner.run(shell("grep -E '^Sig(Ign|Blk)' /proc/self/status; cat /proc/self/stat"), Heard())
        ignored, blocked, stat = end.stdout.decode().splitlines()[:3]
        # Above 31 are the C library's own: glibc's posix_spawn ignores two of them.
        assert [int(text.split()[1], 16) & 0x7FFFFFFF for text in (ignored, blocked)] == [0, 0]
        assert int(stat.split()[5]) != os.getsid(0)
        end = await runner.run(shell("cat /proc/self/oom_score_adj"), Heard())
        assert int(end.stdout) > 0

    with_runner(body)


@pytest.mark.parametrize("payload", [b"one\ntwo\0three", b"x" * 300_000])
def test_payload_is_standard_input(payload: bytes) -> None:
    async def body(runner: Runner) -> None:
        end = await runner.run(Launch(("cat",), "/", ENVIRONMENT, payload=payload), Heard())
        assert end.stdout == payload

    with_runner(body)


def test_arguments_pass_unchanged(tmp_path: Path) -> None:
    argv = ("printf", "%s|", "", " ", "a\nb", b"\xff\xfe", "-", "é")

    async def body(runner: Runner) -> None:
        end = await runner.run(Launch(argv, os.fsencode(tmp_path), ENVIRONMENT), Heard())
        assert end.stdout == b"| |a\nb|\xff\xfe|-|\xc3\xa9|"
        long = "y" * 100_000
        end = await runner.run(Launch(("printf", "%s", *[long] * 10), "/", ENVIRONMENT), Heard())
        assert end.stdout == long.encode() * 10

    with_runner(body)


# ---------------------------------------------------------------- what cannot start


@pytest.mark.parametrize(
    ("launch", "says"),
    [
        (Launch(("no-such-tool",), "/", ENVIRONMENT), "no-such-tool: No such file"),
        (Launch(("/no/such/tool",), "/", ENVIRONMENT), "/no/such/tool: No such file"),
        (Launch(("true",), "/no/such/folder", ENVIRONMENT), "in /no/such/folder: No such file"),
        (Launch(("true",), "/etc/passwd", ENVIRONMENT), "in /etc/passwd: Not a directory"),
        (Launch(("/etc/passwd",), "/", ENVIRONMENT), "/etc/passwd: Permission denied"),
        (Launch(("true", "a\0b"), "/", ENVIRONMENT), "Invalid argument"),
        (Launch(("true", *["x" * 100_000] * 100), "/", ENVIRONMENT), "Argument list too long"),
        (Launch((), "/", ENVIRONMENT), "Invalid argument"),
        (Launch(("true",), "/", (("", "x"),)), "Invalid argument"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_start_is_an_error_for_people(launch: Launch, says: str) -> None:
    async def body(runner: Runner) -> None:
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(RunnerError, match=says) as caught:
            await runner.run(launch, Heard())
        assert caught.value.next_step and caught.value.command == launch.command
        assert (await runner.run(Launch(("true",), "/", ENVIRONMENT), Heard())).ok
        # The helper's channel and the loop's are there after the first launch; nothing else stays open.
        assert len(set(os.listdir("/proc/self/fd")) - before) <= 1

    with_runner(body)


# ---------------------------------------------------------------- how it ends


def test_status_signal_and_streams_apart() -> None:
    async def body(runner: Runner) -> None:
        heard = Heard()
        end = await runner.run(shell("echo out; echo err >&2; printf rest; exit 3"), heard)
        assert (end.status, end.signal, end.ok) == (3, 0, False)
        assert (heard.of("stdout"), heard.of("stderr")) == (["out", "rest"], ["err"])
        assert (end.stdout, end.stderr) == (b"out\nrest", b"err\n")
        end = await runner.run(shell("kill -SEGV $$"), Heard())
        assert (end.status, end.signal, end.out_of_memory) == (139, signal.SIGSEGV, False)

    with_runner(body)


def test_the_output_of_a_quiet_tool_comes_at_its_end(tmp_path: Path) -> None:
    async def body(runner: Runner) -> None:
        heard = Heard()
        before = len(os.listdir("/proc/self/fd"))
        end = await runner.run(shell("echo out; echo err >&2; printf rest; exit 3", quiet=True), heard)
        assert (end.status, end.stdout, end.stderr) == (3, b"out\nrest", b"err\n")
        end = await runner.run(fake(tmp_path, "//! line first\n//! print 10M\n//! line last\n", quiet=True), heard)
        assert end.output_truncated and len(end.stdout) < (1 << 20) + 100
        assert end.stdout.startswith(b"first\nxxx") and end.stdout.endswith(b"x\nlast\n")
        with pytest.raises(RunnerError, match="cannot start nothing-of-this-name"):
            await runner.begin(Launch(("nothing-of-this-name",), "/", ENVIRONMENT, quiet=True), heard).wait()
        assert not heard.lines
        assert len(os.listdir("/proc/self/fd")) <= before + 1, "the helper's channel"

    with_runner(body)


def test_killed_by_the_kernel_counts_as_out_of_memory(tmp_path: Path) -> None:
    async def body(runner: Runner) -> None:
        assert (await runner.run(fake(tmp_path, "//! signal 9\n"), Heard())).out_of_memory
        assert (await runner.run(fake(tmp_path, "//! oom\n"), Heard())).out_of_memory
        assert not (await runner.run(fake(tmp_path, "//! error no\n"), Heard())).out_of_memory

    with_runner(body)


@pytest.mark.parametrize(
    ("status", "text", "kills", "expected"),
    [
        (0, b"nvcc error   : 'cicc' died due to signal 9 (Kill signal)", 1, False),
        (1, b"g++: fatal error: Killed signal terminated program cc1plus", 0, True),
        (1, b"terminate called after throwing an instance of 'std::bad_alloc'", 0, True),
        (1, b"cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes", 0, True),
        (1, b"virtual memory exhausted: Cannot allocate memory", 0, True),
        (134, b"LLVM ERROR: out of memory", 0, True),
        (1, b"clang: error: unable to execute command: Killed", 0, True),
        (1, b"a.cu:1: error: identifier undefined", 1, False),
        (1, b"", 1, True),
        (1, b"", 0, False),
        (139, b"died due to signal 11", 0, False),
        (2, b"a.cu(3): error: no instance matches MemoryError", 0, False),
    ],
)
def test_out_of_memory_is_recognised(status: int, text: bytes, kills: int, expected: bool) -> None:
    assert out_of_memory(status, [b"", text], kills) is expected


def test_timeout_ends_the_tool(tmp_path: Path) -> None:
    async def body(runner: Runner) -> None:
        end = await runner.run(shell("echo begun; exec sleep 60", timeout_s=0.2), Heard())
        assert end.timed_out and not end.cancelled and not end.out_of_memory
        assert (end.signal, end.stdout) == (signal.SIGTERM, b"begun\n")
        assert 0.15 < end.timing.wall_s < 10

        end = await runner.run(fake(tmp_path, "//! ignore-term\n//! sleep 60\n", timeout_s=0.5), Heard())
        assert end.timed_out and end.signal == signal.SIGKILL and not end.out_of_memory

    with_runner(body)


def test_cancelling_the_task_ends_the_tool_and_all_below_it(tmp_path: Path) -> None:
    async def body(runner: Runner) -> None:
        task = asyncio.create_task(runner.run(shell("sleep 61 & echo $!; sleep 62"), heard := Heard()))
        await until_async(lambda: len(heard.lines) == 1 and len(runner.processes()) == 2)
        grandchild, tool = int(heard.lines[0][1]), runner.processes()[1]
        assert alive(grandchild)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not alive(grandchild) and not alive(tool)
        assert runner.jobs() == ()

    with_runner(body)


def test_cancelling_at_any_moment_leaves_nothing() -> None:
    async def body(runner: Runner) -> None:
        for turns in range(60):
            task = asyncio.create_task(runner.run(shell("sleep 59 & echo $!; sleep 58"), Heard()))
            for _ in range(turns // 4):
                await asyncio.sleep(0)
            if turns % 4 == 0:
                await asyncio.sleep(turns / 10_000)
            helper, *tools = runner.processes() or (0,)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not any(map(in_session, tools))
            assert helper == 0 or [pid for pid in _children(helper) if alive(pid)] == []

    with_runner(body)


def test_kill_reaches_descendants_that_left_the_group(tmp_path: Path) -> None:
    """A stubborn one in a session of its own, and another whose parent ended already."""

    async def body(runner: Runner) -> None:
        script = (
            "trap '' TERM; setsid sh -c 'echo $$; sleep 63; sleep 64' & (setsid sh -c 'echo $$; sleep 65' &) ; wait"
        )
        job = await runner.launch(shell(script), heard := Heard())
        await until_async(lambda: len(heard.lines) == 2)
        sessions = [job.pid, *(int(text) for _, text in heard.lines)]
        assert all(in_session(session) for session in sessions)
        job.kill()
        end = await job.wait()
        assert end.cancelled
        assert [in_session(session) for session in sessions] == [[], [], []]

    with_runner(body)


def test_kill_for_memory_has_no_grace() -> None:
    async def body(runner: Runner) -> None:
        job = await runner.launch(shell("trap '' TERM; echo; while :; do sleep 1; done"), heard := Heard())
        await until_async(lambda: bool(heard.lines))
        job.kill(EndReason.MEMORY)
        job.kill(EndReason.CANCELLED)
        end = await job.wait()
        assert end.out_of_memory and not end.cancelled and end.signal == signal.SIGKILL

    with_runner(body, grace_s=25.0)


def test_grandchild_that_holds_the_output_is_not_waited_for(tmp_path: Path) -> None:
    async def body(runner: Runner) -> None:
        began = time.monotonic()
        end = await runner.run(fake(tmp_path, "//! line early\n//! spawn-grandchild 60\n"), heard := Heard())
        assert end.ok and heard.of("stdout") == ["early"]
        assert time.monotonic() - began < 20
        # The helper has no children left.
        assert (await runner.run(shell("ps -o pid= --ppid $PPID || true"), Heard())).ok

    with_runner(body)


def test_background_process_that_ends_in_time_is_heard() -> None:
    async def body(runner: Runner) -> None:
        end = await runner.run(shell("(read line < /dev/null; printf late) & exit 0"), Heard())
        assert end.stdout == b"late"

    with_runner(body, linger_s=20.0)


def test_daemonised_processes_are_ended_with_the_job_that_made_them(tmp_path: Path) -> None:
    async def body(runner: Runner) -> None:
        helper = await _helper(runner)
        before = set(_children(helper))
        assert (await runner.run(fake(tmp_path, "//! spawn-daemon 60\n"), Heard())).ok
        assert set(_children(helper)) == before

    with_runner(body)


def test_daemonised_process_outlives_its_job_only_while_another_could_own_it(tmp_path: Path) -> None:
    async def body(runner: Runner) -> None:
        other = await runner.launch(shell("echo; sleep 60"), Heard())
        script = "(setsid sh -c 'echo $$; exec sleep 66 >/dev/null 2>&1' &); sleep 0.1"
        end = await runner.run(shell(script), heard := Heard())
        assert end.ok
        session = int(heard.lines[0][1])
        other.kill()
        await other.wait()
        assert in_session(session) == []

    with_runner(body)


async def _helper(runner: Runner) -> int:
    await runner.start()
    return runner.processes()[0]


def _children(pid: int) -> list[int]:
    return [child for child in all_pids() if (stat := stat_of(child)) is not None and stat[0] == pid]


def test_close_ends_everything(tmp_path: Path) -> None:
    seen: list[int] = []

    async def body(runner: Runner) -> None:
        for _ in range(3):
            await runner.launch(shell("trap '' TERM; sleep 67; sleep 68"), Heard())
        await runner.launch(shell("setsid sleep 69"), Heard())
        seen.extend(runner.processes())

    with_runner(body)
    assert len(seen) == 5 and not any(map(alive, seen)) and not any(map(in_session, seen))


# ---------------------------------------------------------------- output


def test_much_output_neither_blocks_nor_grows(tmp_path: Path) -> None:
    async def body(runner: Runner) -> None:
        counted = [0, 0]

        def count(stream: str, text: str) -> None:
            counted[0] += 1
            counted[1] += len(text) + 1

        end = await runner.run(fake(tmp_path, "//! line first\n//! print 10M\n//! line last\n"), count)
        assert end.ok and end.output_truncated
        assert counted[1] == (10 << 20) + len("first\nlast\n")
        assert end.stdout.startswith(b"first\nxxx") and end.stdout.endswith(b"x\nlast\n")
        assert len(end.stdout) < (1 << 20) + 100 and b" bytes left out ...]\n" in end.stdout

    with_runner(body)


def test_listener_that_fails_does_not_end_the_tool(caplog: pytest.LogCaptureFixture) -> None:
    def listener(stream: str, text: str) -> None:
        raise ValueError("listener")

    async def body(runner: Runner) -> None:
        end = await runner.run(shell("echo a; echo b"), listener)
        assert end.ok and end.stdout == b"a\nb\n"

    with_runner(body)
    assert "the listener of sh -c" in caplog.text


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_lines_are_the_same_however_the_bytes_arrive(size: int) -> None:
    text = "short\r\n\n" + "é" * PIECE_BYTES + "\n" + "\N{GRINNING FACE}" * 9000 + "\nend"
    data, lines, found = text.encode(), Lines(), []
    for start in range(0, len(data), size):
        found += lines.feed(data[start : start + size])
    found += lines.finish()
    assert found[:2] == ["short", ""] and found[-1] == "end"
    assert "".join(found) == text.replace("\r", "").replace("\n", "")
    assert max(len(line.encode()) for line in found) <= PIECE_BYTES
    assert lines.finish() == []


def test_lines_replace_what_is_not_utf_8() -> None:
    lines = Lines()
    assert lines.feed(b"\xff\x80" * PIECE_BYTES + b"\n\xfe\n")[-1] == "\ufffd"


@pytest.mark.parametrize("total", [0, 5, 10, 20, 21, 30, 31, 55])
def test_capture_keeps_both_ends(total: int) -> None:
    data = bytes(range(total))
    capture = Capture(10, 10)
    for start in range(0, total, 3):
        capture.add(data[start : start + 3])
    assert capture.truncated is (total > 20)
    if total > 20:
        assert capture.value() == data[:10] + b"\n[... %d bytes left out ...]\n" % (total - 20) + data[-10:]
    else:
        assert capture.value() == data


# ---------------------------------------------------------------- measures


def test_peak_memory_is_that_of_the_tree_not_of_the_daemon(tmp_path: Path) -> None:
    ballast = bytearray(64 << 20)
    ballast[::4096] = b"x" * len(ballast[::4096])

    async def body(runner: Runner) -> None:
        small = await runner.run(shell("exit 0"), Heard())
        assert 0 < small.timing.peak_rss_bytes < 24 << 20

        # Two processes of 60 MB at once: neither alone has 100 MB.
        (tmp_path / "one.c").write_text("//! memory 60M\n//! touch ready1\n//! wait-for go\n")
        (tmp_path / "two.c").write_text("//! memory 60M\n//! touch ready2\n//! wait-for go\n")
        compiler = f"{sys.executable} -I -S {FAKE_CC}"
        job = await runner.launch(shell(f"{compiler} one.c & {compiler} two.c; wait", tmp_path), Heard())
        await until_async(lambda: (tmp_path / "ready1").exists() and (tmp_path / "ready2").exists())
        await until_async(lambda: runner.memory_of(job) > 120 << 20)
        (tmp_path / "go").touch()
        end = await job.wait()
        assert 120 << 20 < end.timing.peak_rss_bytes < 200 << 20
        assert runner.memory_of(job) == 0

    with_runner(body)


def test_memory_shared_by_forks_counts_once(tmp_path: Path) -> None:
    async def body(runner: Runner) -> None:
        job = await runner.launch(
            fake(tmp_path, "//! memory 80M\n//! spawn-grandchild 60\n//! touch ready\n//! sleep 60\n"), Heard()
        )
        await until_async((tmp_path / "ready").exists)
        await until_async(lambda: runner.memory_of(job) > 80 << 20)
        job.kill()
        assert (await job.wait()).timing.peak_rss_bytes < 140 << 20

    with_runner(body)


def test_times_are_the_tools(tmp_path: Path) -> None:
    async def body(runner: Runner) -> None:
        end = await runner.run(shell("i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done"), Heard())
        assert 0 < end.timing.user_s <= end.timing.wall_s + 0.05
        assert end.timing.wall_s < 20

    with_runner(body)


def test_many_at_once() -> None:
    async def body(runner: Runner) -> None:
        ends = await asyncio.gather(*(runner.run(shell(f"echo {n}; exit {n % 3}"), Heard()) for n in range(60)))
        assert [(int(end.stdout), end.status) for end in ends] == [(n, n % 3) for n in range(60)]

    with_runner(body)


# ---------------------------------------------------------------- the helper dies, the daemon dies


def test_killed_helper_loses_its_jobs_and_is_replaced() -> None:
    async def body(runner: Runner) -> None:
        job = await runner.launch(shell("sleep 70 & setsid sleep 71 & echo; sleep 72"), heard := Heard())
        await until_async(lambda: bool(heard.lines))
        await until_async(lambda: job.memory_bytes > 0)
        left = [*in_session(job.pid), *_children(job.pid)]
        assert len(set(left)) == 4
        helper = runner.processes()[0]
        os.kill(helper, signal.SIGKILL)
        end = await job.wait()
        assert end.lost and (end.status, end.signal) == (137, signal.SIGKILL)
        assert not end.out_of_memory and not end.cancelled
        assert not any(map(alive, left))
        assert (await runner.run(shell("exit 4"), Heard())).status == 4
        assert runner.processes()[0] != helper

    with_runner(body)


DAEMON = """
import asyncio, sys
from buildd.processes.launch import Launch
from buildd.processes.runner import Runner
async def main():
    runner = Runner(grace_s=0.3)
    script = "trap '' TERM; echo $$; setsid sh -c 'echo $$; sleep 73; sleep 74' & sleep 75; sleep 76"
    launch = Launch(("sh", "-c", script), "/", (("PATH", "/usr/bin:/bin"),))
    job = await runner.launch(launch, lambda _, text: print(text, flush=True))
    print(runner.processes()[0], flush=True)
    await job.wait()
asyncio.run(main())
"""


def test_nothing_outlives_a_killed_daemon() -> None:
    async def body() -> None:
        daemon = await asyncio.create_subprocess_exec(sys.executable, "-c", DAEMON, stdout=asyncio.subprocess.PIPE)
        assert daemon.stdout is not None
        pids = [int(await daemon.stdout.readline()) for _ in range(3)]
        assert all(map(alive, pids))
        daemon.kill()
        await daemon.wait()
        await until_async(lambda: not any(map(alive, pids)) and not any(map(in_session, pids)))

    asyncio.run(asyncio.wait_for(body(), DEADLINE_S))


def ticks(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def test_a_held_tool_stops_with_all_that_it_started_and_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "ticks"
    script = f"(while :; do printf x >> {file}; done) & sleep 0.01; while [ ! -e {tmp_path}/end ]; do :; done; kill $!"

    async def body(runner: Runner) -> None:
        job = await runner.launch(shell(script), Heard())
        await until_async(lambda: ticks(file) > 0, "its child works")
        job.hold(True)
        # The `sleep` may have ended in the same moment: a shell that is stopped reaps it later.
        await until_async(lambda: all(map(is_stopped, filter(alive, (job.pid, *children_of(job.pid))))), "all stopped")
        before = ticks(file)
        (tmp_path / "end").touch()
        assert not job.done and ticks(file) == before
        job.hold(False)
        exit = await job.wait()
        assert exit.ok and ticks(file) >= before

    with_runner(body)


def test_a_held_tool_can_be_ended_and_its_time_stands_still(tmp_path: Path) -> None:
    async def body(runner: Runner) -> None:
        job = await runner.launch(shell("sleep 60", timeout_s=2.0), Heard())
        job.hold(True)
        await until_async(lambda: is_stopped(job.pid), "it is stopped")
        started_s = time.monotonic()
        await until_async(lambda: time.monotonic() > started_s + 2.5, "longer than its time")
        assert not job.done
        job.kill()
        exit = await job.wait()
        assert exit.cancelled and not exit.timed_out and exit.timing.wall_s < 2.4

    with_runner(body)


def is_stopped(pid: int) -> bool:
    """Also while it waits, without being stopped itself, for a child of its vfork that was stopped before its exec."""
    state = state_of(pid)
    return state == "T" or (state == "D" and any(state_of(child) == "T" for child in children_of(pid)))


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
