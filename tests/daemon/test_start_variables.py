"""Variables that act on the daemon when it starts: from the shell that starts it, or from the user's config.toml."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from buildd.daemon import daemon as module
from codegen.variables.settings import Settings, user_values
from protocol import endpoint as ep
from tests.support.toolkit import host_compiler
from tests.support.user import User
from tests.support.waiting import until

Factory = pytest.TempPathFactory


DEADLINE_S = 60.0


@pytest.mark.parametrize("place", [pytest.param("shell", marks=pytest.mark.slow), "config.toml"])
def test_a_daemon_starts_with_what_the_shell_or_the_users_file_says(tmp_path_factory: Factory, place: str) -> None:
    user = User(tmp_path_factory.mktemp("u"))
    try:
        del user.environ["BUILDD_IDLE_TIMEOUT_S"]
        values = {"BUILDD_TCP": "127.0.0.1:0", "BUILDD_LOG": "DEBUG", "BUILDD_IDLE_TIMEOUT_S": "3"}
        set_in(place, user.folder / "home", user.environ, values)
        process = user.start("serve")
        folder = ep.runtime_folder(user.environ)
        until(lambda: ep.read_endpoint(folder), "the daemon is up")
        endpoint = ep.read_endpoint(folder)
        assert endpoint is not None and endpoint.tcp_work.startswith("tcp://127.0.0.1:")
        (user.folder / "a.c").write_text("int a;\n")
        user.buildd("run", "--", host_compiler() or "cc", "-c", "a.c", cwd=user.folder)
        said, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0 and "idle for" in said, said
        assert " DEBUG buildd.daemon" in said
        assert not host_compiler() or " DEBUG buildd.scheduling.scheduler: JobEnded" in said, said
        quiet = {"BUILDD_LOG": "ERROR", "BUILDD_IDLE_TIMEOUT_S": "0.2"}
        set_in(place, user.folder / "home", user.environ, quiet)
        assert user.start("serve").communicate(timeout=DEADLINE_S)[0] == "", "only errors"
    finally:
        assert user.end() == []


@pytest.mark.parametrize("place", ["shell", "config.toml"])
def test_the_bounds_of_the_machine_come_from_the_same_places(tmp_path: Path, place: str) -> None:
    environ = {"HOME": str(tmp_path), "BUILDD_RUNTIME_DIR": str(tmp_path)}
    set_in(place, tmp_path, environ, {"BUILDD_JOBS": "3", "BUILDD_MEMORY": "7GiB", "BUILDD_CACHE_SIZE": "1GiB"})

    async def bounds() -> tuple[object, ...]:
        folder = ep.runtime_folder(environ)
        lock = ep.DaemonLock.acquire(folder)
        assert lock is not None
        made = module.Daemon(Settings(environ, user_values=user_values(environ)), tmp_path / "store", folder, lock)
        try:
            store = await made.scheduler.stores.open("")
            return made.scheduler.cpus, made.scheduler.gate._budget.memory_cap_bytes, store.store.limit_bytes
        finally:
            await made.scheduler.close()
            lock.release()

    assert asyncio.run(bounds()) == (3, 7 << 30, 1 << 30)


def set_in(place: str, home: Path, environ: dict[str, str], values: dict[str, str]) -> None:
    if place == "shell":
        environ |= values
        return
    (home / ".config/buildd").mkdir(parents=True, exist_ok=True)
    lines = "".join(f'{name} = "{value}"\n' for name, value in values.items())
    (home / ".config/buildd/config.toml").write_text(f"[environment]\n{lines}")
