"""The runtime folder, the lock and the endpoint file, with real processes and real folders."""

from __future__ import annotations

import fcntl
import os
import pwd
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from protocol.curve import (
    AllowList,
    Scope,
    allow_list_file,
    load_or_create,
    new_key_pair,
    parse_allow_list,
    server_key_file,
)
from protocol.endpoint import (
    DaemonLock,
    Endpoint,
    Folder,
    is_alive,
    open_pidfd,
    own_namespaces,
    read_endpoint,
    remove_endpoint,
    runtime_folder,
    send_signal,
    start_ticks,
    write_endpoint,
)
from protocol.errors import EndpointError
from protocol.places import SOCKET_PATH_BYTES, boot_id, choose_base, place_name
from tests.support.serving import short_folder


@pytest.fixture
def place() -> Iterator[Path]:
    with short_folder() as made:
        yield made


@pytest.fixture
def folder(place: Path) -> Folder:
    return runtime_folder({"BUILDD_RUNTIME_DIR": str(place / "run")})


def an_endpoint(pid: int, ticks: int, *, boot: str | None = None, instance: str = "i1") -> Endpoint:
    return Endpoint(
        pid=pid,
        start_ticks=ticks,
        boot_id=boot_id() if boot is None else boot,
        instance=instance,
        work="ipc://w",
        control="ipc://c",
    )


# ---------------------------------------------------------------- which folder


def session(place: Path, name: str = "1000", mode: int = 0o700) -> Path:
    made = place / name
    made.mkdir(parents=True)
    made.chmod(mode)
    return made


def base(environ: dict[str, str], place: Path) -> Path:
    return choose_base(environ, login_root=str(place / "user"), linger_root=str(place / "linger"), temporary=str(place))


def test_the_explicit_folder_wins(place: Path) -> None:
    environ = {"BUILDD_RUNTIME_DIR": str(place / "mine"), "XDG_RUNTIME_DIR": str(session(place))}
    assert base(environ, place) == place / "mine"


def test_the_session_folder_is_used_when_it_is_ours_and_closed(place: Path) -> None:
    assert base({"XDG_RUNTIME_DIR": str(session(place))}, place) == place / "1000" / "buildd"


def fallback(place: Path) -> Path:
    return place / f"buildd-{os.geteuid()}"


def test_without_a_session_folder_it_is_tmp(place: Path) -> None:
    assert base({}, place) == fallback(place)
    assert base({"XDG_RUNTIME_DIR": ""}, place) == fallback(place)
    assert base({"XDG_RUNTIME_DIR": str(place / "gone")}, place) == fallback(place)
    assert base({"XDG_RUNTIME_DIR": "relative"}, place) == fallback(place)


def test_a_session_folder_open_to_others_is_not_used(place: Path) -> None:
    assert base({"XDG_RUNTIME_DIR": str(session(place, mode=0o755))}, place) == fallback(place)


def test_a_session_folder_that_is_a_link_is_not_used(place: Path) -> None:
    session(place, "real")
    (place / "link").symlink_to(place / "real")
    assert base({"XDG_RUNTIME_DIR": str(place / "link")}, place) == fallback(place)


def test_a_session_path_too_long_for_sockets_is_not_used(place: Path) -> None:
    long = session(place, "x" * max(1, 100 - len(str(place))))
    assert base({"XDG_RUNTIME_DIR": str(long)}, place) == fallback(place)


def test_what_logout_removes_is_used_only_by_those_who_linger(place: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(session(place, "user/1000"))}
    assert base(environ, place) == fallback(place)
    (place / "linger").mkdir()
    (place / "linger" / pwd.getpwuid(os.geteuid()).pw_name).touch()
    assert base(environ, place) == place / "user" / "1000" / "buildd"


def test_an_explicit_path_too_long_is_a_clear_error(place: Path) -> None:
    with pytest.raises(EndpointError) as caught:
        runtime_folder({"BUILDD_RUNTIME_DIR": str(place / ("x" * 100))})
    assert caught.value.code == "runtime-path-too-long" and "107" in caught.value.message and caught.value.next_step


def test_the_longest_allowed_base_gives_paths_that_bind(place: Path) -> None:
    room = SOCKET_PATH_BYTES - len("/" + "0" * 12 + "/control-00000000")
    assert room > len(str(place)) + 1
    explicit = str(place) + "/" + "x" * (room - len(str(place)) - 1)
    made = runtime_folder({"BUILDD_RUNTIME_DIR": explicit})
    path = made.addresses("0123456789abcdef").control.removeprefix("ipc://")
    assert len(path) == SOCKET_PATH_BYTES
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path)
    with pytest.raises(EndpointError):
        runtime_folder({"BUILDD_RUNTIME_DIR": explicit + "x"})


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(EndpointError):
        choose_base({"BUILDD_RUNTIME_DIR": "run"})


# ---------------------------------------------------------------- its safety


def test_the_folder_is_ours_alone(folder: Folder) -> None:
    for path in (folder.path, folder.path.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert folder.path.name == place_name()


def test_a_folder_open_to_others_is_refused(place: Path) -> None:
    (place / "run").mkdir(mode=0o755)
    (place / "run").chmod(0o755)
    with pytest.raises(EndpointError) as caught:
        runtime_folder({"BUILDD_RUNTIME_DIR": str(place / "run")})
    assert caught.value.code == "runtime-folder-open" and "chmod 700" in caught.value.next_step


def test_a_link_is_not_followed(place: Path) -> None:
    (place / "real").mkdir(mode=0o700)
    (place / "run").symlink_to(place / "real")
    with pytest.raises(EndpointError, match="link"):
        runtime_folder({"BUILDD_RUNTIME_DIR": str(place / "run")})
    assert list((place / "real").iterdir()) == []


def test_a_file_in_its_place_is_a_clear_error(place: Path) -> None:
    (place / "run").write_text("")
    with pytest.raises(EndpointError) as caught:
        runtime_folder({"BUILDD_RUNTIME_DIR": str(place / "run")})
    assert caught.value.next_step


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_is_refused(place: Path) -> None:
    (place / "run").mkdir(mode=0o700)
    os.chown(place / "run", 12345, 12345)
    with pytest.raises(EndpointError) as caught:
        runtime_folder({"BUILDD_RUNTIME_DIR": str(place / "run")})
    assert caught.value.code == "runtime-folder-foreign"


def test_namespaces_have_numbers() -> None:
    assert own_namespaces().mount == os.stat("/proc/self/ns/mnt").st_ino


# ---------------------------------------------------------------- the endpoint file


def test_the_endpoint_file_is_read_back(folder: Folder) -> None:
    assert read_endpoint(folder) is None
    endpoint = an_endpoint(os.getpid(), start_ticks(os.getpid()))
    write_endpoint(folder, endpoint)
    assert read_endpoint(folder) == endpoint and is_alive(endpoint)
    assert stat.S_IMODE(folder.endpoint_file.stat().st_mode) == 0o600
    assert [entry.name for entry in folder.path.iterdir()] == ["endpoint.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x"}', b"\xff\xfe", b"{}"])
def test_a_damaged_endpoint_file_is_no_endpoint(folder: Folder, content: bytes) -> None:
    folder.endpoint_file.write_bytes(content)
    assert read_endpoint(folder) is None


def test_fields_of_a_later_version_are_ignored(folder: Folder) -> None:
    endpoint = an_endpoint(1, 2)
    folder.endpoint_file.write_bytes(msgspec.json.encode({**msgspec.to_builtins(endpoint), "more": 1}))
    assert read_endpoint(folder) == endpoint


def test_only_its_own_endpoint_is_removed(folder: Folder) -> None:
    write_endpoint(folder, an_endpoint(1, 2, instance="new"))
    remove_endpoint(folder, "old")
    assert read_endpoint(folder) is not None
    remove_endpoint(folder, "new")
    assert read_endpoint(folder) is None


def test_a_reused_pid_is_neither_alive_nor_signalled() -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        try:
            ticks = start_ticks(stranger.pid)
            assert ticks > 0 and is_alive(an_endpoint(stranger.pid, ticks))
            for wrong in (
                an_endpoint(stranger.pid, ticks + 1),
                an_endpoint(stranger.pid, 0),
                an_endpoint(stranger.pid, ticks, boot="another boot"),
            ):
                assert not is_alive(wrong)
                assert not send_signal(wrong, signal.SIGKILL)
            assert open_pidfd(stranger.pid, ticks + 1) is None
            assert stranger.poll() is None
            assert send_signal(an_endpoint(stranger.pid, ticks), signal.SIGTERM)
            assert stranger.wait(10) == -signal.SIGTERM
        finally:
            stranger.kill()
    assert not send_signal(an_endpoint(stranger.pid, ticks), signal.SIGTERM)


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen(["true"])
    ticks = start_ticks(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert os.path.exists(f"/proc/{child.pid}")
    assert start_ticks(child.pid) == 0 and not is_alive(an_endpoint(child.pid, ticks or 1))
    child.wait()


# ---------------------------------------------------------------- the lock

HOLD = """
import sys
from protocol.endpoint import *
lock = DaemonLock.acquire(runtime_folder({"BUILDD_RUNTIME_DIR": sys.argv[1]}))
print("got" if lock else "busy", flush=True)
sys.stdin.read()
"""


def test_many_processes_at_once_have_one_holder(folder: Folder) -> None:
    command = [sys.executable, "-c", HOLD, str(folder.path.parent)]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    words = []
    for child in children:
        assert child.stdout is not None
        words.append(child.stdout.readline().strip())
    assert sorted(words) == ["busy"] * 5 + ["got"]
    assert DaemonLock.acquire(folder) is None
    children[words.index("got")].kill()
    children[words.index("got")].wait()
    # Killed, not released: the kernel has let go of it.
    lock = DaemonLock.acquire(folder)
    assert lock is not None
    lock.release()
    for child in children:
        child.kill()
        child.communicate()


def test_a_released_lock_can_be_taken_again(folder: Folder) -> None:
    first = DaemonLock.acquire(folder)
    assert first is not None and DaemonLock.acquire(folder) is None
    first.release()
    second = DaemonLock.acquire(folder)
    assert second is not None
    second.release()


def test_who_only_asks_for_the_lock_keeps_nobody_from_it(folder: Folder) -> None:
    probe = os.open(folder.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(probe, fcntl.LOCK_SH)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(DaemonLock.acquire, folder)
        try:
            with pytest.raises(TimeoutError):
                taken.result(timeout=0.05)
        finally:
            os.close(probe)
        lock = taken.result(timeout=10)
    assert lock is not None
    assert DaemonLock.is_held(folder)
    lock.release()
    assert not DaemonLock.is_held(folder)


def test_a_process_that_becomes_another_program_keeps_the_lock(folder: Folder) -> None:
    place = str(folder.path.parent)
    after = (
        "import sys\nfrom protocol.endpoint import *\nfolder = runtime_folder({'BUILDD_RUNTIME_DIR': sys.argv[1]})\n"
    )
    before = after + "lock = DaemonLock.acquire(folder)\nimport os\nos.execv(sys.executable, [sys.executable, '-c', "
    before += "sys.argv[2], sys.argv[1], str(lock.hand_on())])"
    after += "assert DaemonLock.acquire(folder) is None and DaemonLock.handed_on(folder, 0) is None\n"
    after += "lock = DaemonLock.handed_on(folder, int(sys.argv[2]))\nprint(bool(lock), flush=True)\nsys.stdin.read()\n"
    assert not DaemonLock.is_held(folder), "there is no such file yet"
    with subprocess.Popen(
        [sys.executable, "-c", before, place, after], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "True\n"
        assert DaemonLock.is_held(folder)
        process.kill()
    assert not DaemonLock.is_held(folder)


def test_the_lock_does_not_reach_children(folder: Folder) -> None:
    lock = DaemonLock.acquire(folder)
    assert lock is not None
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
        lock.release()
        again = DaemonLock.acquire(folder)
        assert again is not None
        again.release()
        child.kill()


def test_stale_sockets_are_wiped_and_live_ones_stay(folder: Folder) -> None:
    lock = DaemonLock.acquire(folder)
    assert lock is not None
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as live:
        dead.bind(str(folder.path / "work-00000000"))
        live.bind(str(folder.path / "work-11111111"))
        live.listen()
        dead.close()
        (folder.path / "endpoint.xyz.new").write_text("{")
        lock.wipe()
    lock.release()
    assert sorted(entry.name for entry in folder.path.iterdir()) == ["daemon.lock", "work-11111111"]


# ---------------------------------------------------------------- keys


def test_the_key_pair_is_made_once_and_closed_to_others(place: Path) -> None:
    path = server_key_file({"XDG_CONFIG_HOME": str(place)})
    pair = load_or_create(path)
    assert load_or_create(path) == pair and len(pair.public) == len(pair.secret) == 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["server.key"]
    path.chmod(0o644)
    with pytest.raises(EndpointError, match="open to others"):
        load_or_create(path)


def test_a_damaged_key_file_is_a_clear_error(place: Path) -> None:
    path = place / "server.key"
    path.touch(mode=0o600)
    with pytest.raises(EndpointError) as caught:
        load_or_create(path)
    assert caught.value.code == "bad-key" and caught.value.next_step


def test_the_allow_list_is_read(place: Path) -> None:
    odd = "#" + "a" * 39
    clients = parse_allow_list(f"# our machines\n\n{odd} submit,follow ci runner\n{'b' * 40} control\n")
    assert clients[odd].scopes == {Scope.SUBMIT, Scope.FOLLOW} and clients[odd].name == "ci runner"
    assert clients["b" * 40].scopes == {Scope.CONTROL}


@pytest.mark.parametrize("text", ["short submit", "a" * 40, "a" * 40 + " fly", "a" * 40 + " ,"])
def test_a_bad_line_of_the_allow_list_is_named(text: str) -> None:
    with pytest.raises(EndpointError, match="line 2"):
        parse_allow_list("# first\n" + text)


def test_an_allow_list_that_cannot_be_trusted_allows_nobody(place: Path) -> None:
    key = new_key_pair().public
    path = allow_list_file({"XDG_CONFIG_HOME": str(place)})
    listed = AllowList(path)
    assert listed.find(key) is None
    path.parent.mkdir()
    path.write_text(f"{key} follow\n")
    path.chmod(0o600)
    found = listed.find(key)
    assert found is not None and found.scopes == {Scope.FOLLOW}
    path.chmod(0o666)
    path.write_text(f"{key} follow,submit\n")
    assert listed.find(key) is None
