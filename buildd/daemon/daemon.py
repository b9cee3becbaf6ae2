"""The daemon process: lock, sockets, signals, drain, restart.

Connects the parts and decides when the process ends; everything else is in `scheduler` and `server`.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import platform
import resource
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
import uvloop

from buildd import __version__
from buildd.builds.event_log import RequestLog
from buildd.client import start_settings
from buildd.cluster.opening import open_cluster
from buildd.daemon.confined_clients import ConfinedClients, Outside
from buildd.daemon.control import TcpOptions
from buildd.daemon.handler import ClientInfo
from buildd.daemon.idle import IDLE_TIMEOUT_S, IdleWatch, own_memory_bytes
from buildd.daemon.server import Server
from buildd.errors import BuilddError
from buildd.host import confinement, limits
from buildd.identity import package_digest, package_stamp
from buildd.scheduling.foreign_compile import PASSED_THROUGH
from buildd.scheduling.overview import open_requests, running_jobs
from buildd.scheduling.scheduler import Scheduler
from buildd.store.location import store_folder
from buildd.tier.opening import open_tier, status_of
from codegen.errors import RequestError
from codegen.variables.settings import Settings, user_values
from protocol import messages as m
from protocol.curve import AllowList, allow_list_file, load_or_create, server_key_file
from protocol.endpoint import DaemonLock, Folder, new_instance, remove_endpoint, runtime_folder, write_endpoint
from protocol.errors import ProtocolError
from protocol.problem import in_one_line

if TYPE_CHECKING:
    from buildd.daemon.redis import RedisServer

FILE_LIMIT = 65_536
_COLLECT_AFTER = 10_000
"""New objects between two searches for cycles."""
_THREADS = 6
"""For what asyncio.to_thread does."""

_log = logging.getLogger(__name__)


class Daemon:
    """The server's handler, and the end of the process.

    Args:
        settings: the daemon's own variables and the user's configuration file.
        default_store: store of requests that name none.
        folder: has the endpoint file.
        lock: held while this is the user's daemon; released when it accepts no new requests.
    """

    def __init__(self, settings: Settings, default_store: Path, folder: Folder, lock: DaemonLock) -> None:
        self._tier = open_tier(settings, os.environ, serves_programs=True)
        if self._tier.problem:
            _log.warning("tier: %s", self._tier.problem)
        self._cluster = open_cluster(settings, os.environ)
        if self._cluster.problem:
            _log.warning("cluster: %s", self._cluster.problem)
        self.scheduler = Scheduler(
            default_store=default_store,
            cpus=settings.number("BUILDD_JOBS") or 0,
            memory_cap_bytes=settings.number("BUILDD_MEMORY") or 0,
            store_limit_bytes=settings.number("BUILDD_CACHE_SIZE"),
            tier=self._tier.tier,
            cluster=self._cluster.engine,
        )
        self.server: Server | None = None
        self._folder = folder
        self._confined = ConfinedClients(folder.path)
        self._lock: DaemonLock | None = lock
        self._redis: RedisServer | None = None
        self.restart = False
        self._idle_timeout_s = _idle_timeout(settings)
        self._started_s = time.monotonic()
        self._ended = asyncio.Event()
        self._idle: IdleWatch | None = None

    # ---------------------------------------------------------------- the handler

    def submit(self, client: ClientInfo, request: m.Request, log: RequestLog) -> None:
        if request.mode is m.Mode.COMPILE and client.origin != "local":
            # A compile names files by absolute paths; on the client's host they are other files.
            log.append(m.Done(outcome=m.Outcome.REFUSED, code="forbidden", message="compiles are for local clients"))
            return
        try:
            host = self._confined.host_of(client, request, log)
        except Outside:
            text = "the daemon has other limits than its caller"
            log.append(m.Done(outcome=m.Outcome.REFUSED, code=PASSED_THROUGH, message=text))
            return
        self.scheduler.submit(request, log, host, client.pid)
        assert self._idle is not None
        self._idle.wake()

    def cancel(self, request_id: m.RequestId) -> bool:
        return self.scheduler.cancel(request_id)

    def status(self, settle: bool) -> m.Status:
        """Called on the control thread, so it reads only copies of the loop's collections."""
        if settle:
            self.scheduler.stores.settle()
        now_s = time.monotonic()
        scheduler = self.scheduler
        return m.Status(
            pid=os.getpid(),
            daemon="",
            instance="",
            state="",
            uptime_s=now_s - self._started_s,
            rss_bytes=own_memory_bytes(),
            requests=0,
            running=tuple(running_jobs(scheduler.executions, now_s)),
            queued=scheduler.state.table.queued,
            waiting_for=scheduler.state.waiting_for,
            stores=scheduler.stores.folders,
            counters=dict(scheduler.counters) | (self._redis.figures() if self._redis is not None else {}),
            work=tuple(open_requests(scheduler.builds, scheduler.executions, scheduler.state, now_s)),
            builds={name: figures.frozen() for name, figures in list(scheduler.stores.builds.items())},
            cpus=scheduler.cpus,
            budget_bytes=scheduler.gate.budget_bytes,
            unlogged=scheduler.intake.records.unlogged,
            tier=status_of(self._tier, scheduler.stores.open_tiers),
            cluster=self._cluster.status(),
        )

    async def blob(self, store: str, digest: m.Digest) -> bytes | None:
        opened = self.scheduler.stores.get(store)
        return None if opened is None else await asyncio.to_thread(opened.store.get, digest)

    async def drain(self, now: bool) -> None:
        self.restart = False  # a client that asks for this wants the daemon to end
        self._make_room()
        if now:
            why = m.Notice(text="the daemon ends at once (buildd down --now)", severity=m.Severity.WARNING)
            for build in self.scheduler.builds.values():
                if build.request.mode is not m.Mode.COMPILE:
                    build.log.append(why)
            self.scheduler.cancel_all()
        self.scheduler.intake.watches.end_all()
        self.scheduler.intake.profiles.end_all()
        _log.info("draining: %d requests left", len(self.scheduler.builds))
        while not self.scheduler.idle:
            await asyncio.sleep(0.02)
        self._ended.set()

    def audit(self, line: str) -> None:
        _log.info("audit %s", line)

    def _make_room(self) -> None:
        """Let another daemon start beside this one, which only finishes its open requests."""
        if self._lock is not None and self.server is not None:
            self.server.draining = True
            if self._redis is not None:
                self._redis.close()  # the next daemon binds the same address
            remove_endpoint(self._folder, self.server.instance)
            if not self.restart:  # a restart keeps the lock, so that `buildd down` finds the daemon
                self._lock.release()
            self._lock = None

    # ---------------------------------------------------------------- life

    async def live(self, settings: Settings) -> None:
        """Serve until drained or idle for too long."""
        folder = self._folder
        instance = new_instance()
        self.server = Server(
            self,
            folder.addresses(instance),
            instance=instance,
            daemon=f"buildd/{__version__}",
            tcp=_tcp_options(settings),
        )
        self._idle = IdleWatch(self.scheduler, self.server, self._redis_clients, self._idle_timeout_s, self._end)
        await self.scheduler.runner.start()
        # After the process that starts tools has been forked, so that tools keep the user's own limit.
        _raise_file_limit()
        await self.server.start()
        await self._serve_redis(settings)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # A second signal ends running jobs at once. SIGHUP (the terminal closes) is no reason to end.
            handler = self._asked_to_end if number != signal.SIGHUP else lambda: None
            loop.add_signal_handler(number, handler)
        await self._open_tier()
        stamp = package_stamp()  # before the files are read
        endpoint = self.server.endpoint(package_digest(), self.scheduler.stores.default, stamp)
        redis = self._redis.address if self._redis else ""
        started_with = start_settings.digests(os.environ, instance)
        write_endpoint(folder, msgspec.structs.replace(endpoint, redis=redis, settings=started_with))
        # The first request needs this import; its client is still connecting.
        await asyncio.to_thread(importlib.import_module, "codegen.compiled.cuda")
        _log.info("serving in %s, store %s, pid %d", folder.path, self.scheduler.stores.default, os.getpid())
        self._idle.begin()
        await self._ended.wait()
        self._make_room()
        await self.server.close()
        await self.scheduler.close()
        for kind in ("work", "control", "events"):  # libzmq leaves the paths of its sockets
            Path(getattr(self.server.addresses, kind).removeprefix("ipc://")).unlink(missing_ok=True)

    async def _serve_redis(self, settings: Settings) -> None:
        """Serve Redis' protocol if the user asked for it. If that fails, builds go on."""
        text = settings.text("BUILDD_REDIS")
        if not text:
            return
        from buildd.daemon import redis, redis_keyspace  # imported here: most users do not need them
        from buildd.store import shared_kernels

        host, port = redis.address_of(text)
        try:
            opened = await self.scheduler.stores.open("")
            keyspace = redis_keyspace.Keyspace(opened.store.folder, opened.store.limit_bytes // shared_kernels.SHARE)
            self._redis = redis.RedisServer(keyspace, redis.token(os.environ), self._touch)
            await self._redis.start(host, port)
        except (BuilddError, ProtocolError, OSError) as error:
            _log.error("BUILDD_REDIS=%s: %s; the Redis server is off", text, error)

    async def _open_tier(self) -> None:
        """Let programs ask the tier, and write the results to it that the last daemon has left. If that fails, the next
        request says why."""
        if self._tier.tier is not None:
            with suppress(BuilddError, OSError):
                await self.scheduler.stores.open("")

    def _redis_clients(self) -> int:
        return self._redis.users() if self._redis is not None else 0

    def _touch(self) -> None:
        assert self._idle is not None
        self._idle.touch()

    def _end(self, restart: bool) -> None:
        # Set together with the decision: a request that arrives now must not be accepted and then lost.
        assert self.server is not None
        self.restart = self.restart or restart
        self.server.draining = True
        self._ended.set()

    def _asked_to_end(self) -> None:
        assert self.server is not None
        self.server.drain(now=self.server.draining)


def _raise_file_limit() -> None:
    """Raise the limit of open files: each client takes a socket, and a local one a pidfd; the default is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILE_LIMIT if hard == resource.RLIM_INFINITY else min(hard, FILE_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _idle_timeout(settings: Settings) -> float:
    value = settings.value("BUILDD_IDLE_TIMEOUT_S").value
    return float(value) if isinstance(value, (int, float)) and value > 0 else IDLE_TIMEOUT_S


def _tcp_options(settings: Settings) -> TcpOptions | None:
    address = settings.text("BUILDD_TCP")
    if not address:
        return None
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_534:
        raise RequestError(
            "bad-variable",
            f"BUILDD_TCP={address!r} cannot be read; accepted: HOST:PORT, such as 127.0.0.1:7777 (port 0 takes any)",
            next_step="unset BUILDD_TCP or give it another value",
        )
    control_port = "0" if port == "0" else str(int(port) + 1)
    return TcpOptions(
        work=f"tcp://{host}:{port}",
        control=f"tcp://{host}:{control_port}",
        keys=load_or_create(server_key_file(os.environ)),
        allowed=AllowList(allow_list_file(os.environ)),
    )


class CommandServer(Protocol):
    """A process that runs commands on behalf of the daemon's clients."""

    def end(self) -> None: ...


def serve(begin_commands: Callable[[str], CommandServer] | None = None, lock_descriptor: int = -1) -> int:
    """Be the daemon of this user and machine until drained or idle.

    Args:
        begin_commands: starts the process that runs commands, given the runtime folder; raises OSError. Without it each
            command runs in its own process.
        lock_descriptor: of the lock, if this process was the daemon already and has restarted itself.

    Returns:
        0 after a normal end, also if another daemon is running already; 2 if the settings cannot be read; 3 if the
        runtime folder or the store cannot be used.
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr, force=True
    )
    os.umask(0o022)
    try:
        settings = Settings(request_env=dict(os.environ), user_values=user_values(os.environ))
        logging.getLogger().setLevel(settings.number("BUILDD_LOG") or logging.INFO)
        folder = runtime_folder(os.environ)
        lock = DaemonLock.handed_on(folder, lock_descriptor) if lock_descriptor >= 0 else None
        lock = lock or DaemonLock.acquire(folder)
        if lock is None:
            _log.info("another daemon is running; nothing to do")
            return 0
        _log.debug("Python %s in %s, %d CPUs", platform.python_version(), sys.prefix, len(os.sched_getaffinity(0)))
        lock.wipe()
        confinement.take_off()
        limits.check(limits.OF_A_DAEMON)
        location = store_folder(os.environ)
        # Not the folder of the client that started the daemon: that one may be unmounted or removed.
        os.chdir("/")
        commands = _start_commands(begin_commands, folder)  # before the loop: this forks, and the loop has threads
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
                restart = loop.run(_live(folder, lock, settings, location))
        finally:
            if commands is not None:
                commands.end()
    except RequestError as error:
        _log.error("%s (%s)", error.message, error.next_step)
        return 2
    except (BuilddError, ProtocolError, OSError) as error:
        _log.error("cannot serve: %s", in_one_line(error))
        return 3
    if restart:
        os.execv(sys.executable, [sys.executable, "-P", "-m", "buildd", "serve", "--lock", str(lock.hand_on())])
    return 0


def _start_commands(begin_commands: Callable[[str], CommandServer] | None, folder: Folder) -> CommandServer | None:
    """Start the process that runs commands; None if that fails, and each command runs by itself."""
    try:
        return begin_commands(folder.place) if begin_commands is not None else None
    except OSError as error:
        _log.warning("the process for commands could not be started: %s; each command runs by itself", error)
        return None


async def _live(folder: Folder, lock: DaemonLock, settings: Settings, store: Path) -> bool:
    # Python's default is four more than there are CPUs, each with memory of its own.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="asyncio"))
    daemon = Daemon(settings, store, folder, lock)
    # Modules stay. A collection need not look at them, and requests leave few cycles.
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    await daemon.live(settings)
    return daemon.restart
