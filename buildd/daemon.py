"""Wiring and life of the daemon: lock, sockets, signals, idle, its own memory, drain.

Knows who talks to whom and when the process ends; everything else is in `scheduler` and `server`.
"""

from __future__ import annotations

import asyncio
import ctypes
import ctypes.util
import gc
import importlib
import logging
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from buildd import __version__, cli_server
from buildd.control import TcpOptions
from buildd.errors import BuilddError
from buildd.eventlog import RequestLog
from buildd.handler import ClientInfo
from buildd.identity import package_digest, package_stamp
from buildd.location import store_folder
from buildd.scheduler import Scheduler
from buildd.server import Server
from codegen.environment import Settings, user_values
from codegen.plan import RequestError
from protocol import messages as m
from protocol.curve import AllowList, allow_list_file, load_or_create, server_key_file
from protocol.endpoint import DaemonLock, Folder, new_instance, remove_endpoint, runtime_folder, write_endpoint
from protocol.errors import ProtocolError

if TYPE_CHECKING:
    from buildd.resp import RedisServer

REST_AFTER_S = 5.0
"""Idle for so long: give memory back."""
IDLE_TIMEOUT_S = 3600.0
MEMORY_CAP_BYTES = 1 << 30
"""Above this the daemon takes nothing new, finishes what it has and ends; the next client starts a fresh one beside."""
IDLE_CAP_BYTES = 56 << 20
"""What a resting daemon may hold; memory that a large build left fragmented is given back by starting anew, once nobody
may miss the processes that would end with it: each has torch or Triton imported, which takes seconds."""

FILE_LIMIT = 65_536

_log = logging.getLogger(__name__)


class Daemon:
    """The handler behind the server, and what ends the process.

    Args:
        settings: the daemon's own variables and the user's configuration file.
        default_store: store of requests that name none.
        folder: where the endpoint file is.
        lock: held while this is the user's daemon; let go as soon as it takes nothing new.
    """

    def __init__(self, settings: Settings, default_store: Path, folder: Folder, lock: DaemonLock) -> None:
        self.scheduler = Scheduler(
            default_store=default_store,
            cpus=settings.number("BUILDD_JOBS") or 0,
            memory_cap_bytes=settings.number("BUILDD_MEMORY") or 0,
            store_limit_bytes=settings.number("BUILDD_CACHE_SIZE"),
        )
        self.server: Server | None = None
        self._folder = folder
        self._lock: DaemonLock | None = lock
        self._redis: RedisServer | None = None
        self.restart = False
        self._memory_cap_bytes = MEMORY_CAP_BYTES
        self._idle_timeout_s = float(settings.text("BUILDD_IDLE_TIMEOUT_S") or 0) or _idle_timeout(settings)
        self._started_s = time.monotonic()
        self._ended = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._touched_s = time.monotonic()
        self._rested = False
        self._woken = asyncio.Event()

    # ---------------------------------------------------------------- what the server asks

    def submit(self, client: ClientInfo, request: m.Request, log: RequestLog) -> None:
        if request.mode is m.Mode.COMPILE and client.origin != "local":
            # It names files by their absolute paths, which mean something else where the client is.
            log.append(m.Done(outcome=m.Outcome.REFUSED, code="forbidden", message="compiles are for local clients"))
            return
        self._touched_s = time.monotonic()
        rested, self._rested = self._rested, False
        self.scheduler.submit(request, log)
        self._watch_idle(wake=rested)

    def cancel(self, request_id: m.RequestId) -> bool:
        return self.scheduler.cancel(request_id)

    def status(self, settle: bool) -> m.Status:
        """From the control thread: only copies of what the loop owns."""
        if settle:
            self.scheduler.intake.settle()
        now_s = time.monotonic()
        scheduler = self.scheduler
        running = [
            m.JobStatus(
                job_id=number,
                action=execution.action.name,
                elapsed_s=now_s - execution.started_s,
                expected_s=execution.expected_s,
                memory_bytes=execution.memory_bytes,
            )
            for number, execution in list(scheduler.executions.items())
            if not execution.action.steps  # its steps are here themselves
        ]
        return m.Status(
            pid=os.getpid(),
            daemon="",
            instance="",
            state="",
            uptime_s=now_s - self._started_s,
            rss_bytes=own_memory_bytes(),
            requests=0,
            running=tuple(running),
            queued=scheduler.state.queued,
            waiting_for=scheduler.state.waiting_for,
            stores=tuple(list(scheduler.intake.stores)),
            counters=dict(scheduler.counters) | (self._redis.figures() if self._redis is not None else {}),
            builds={name: figures.frozen() for name, figures in list(scheduler.intake.builds.items())},
        )

    async def blob(self, store: str, digest: m.Digest) -> bytes | None:
        opened = self.scheduler.intake.stores.get(store or self.scheduler.intake.default_store)
        return None if opened is None else await asyncio.to_thread(opened.store.get, digest)

    async def drain(self, now: bool) -> None:
        self.restart = False  # whoever asks wants it to end
        self._make_room()
        if now:
            self.scheduler.cancel_all()
        self.scheduler.intake.watches.end_all()
        _log.info("draining: %d requests left", len(self.scheduler.buildings))
        while not self.scheduler.idle:
            await asyncio.sleep(0.02)
        self._ended.set()

    def audit(self, line: str) -> None:
        _log.info("audit %s", line)

    def _make_room(self) -> None:
        """From now on another daemon may start beside this one, which only finishes what it has."""
        if self._lock is not None and self.server is not None:
            self.server.draining = True
            if self._redis is not None:
                self._redis.close()  # the next daemon has the same address
            remove_endpoint(self._folder, self.server.instance)
            if not self.restart:  # else it has the lock all the while, so that `buildd down` knows of it
                self._lock.release()
            self._lock = None

    # ---------------------------------------------------------------- life

    async def live(self, settings: Settings) -> None:
        """Serve until drained or idle for too long."""
        folder = self._folder
        instance = new_instance()
        self.server = Server(
            self, folder.addresses(instance), instance=instance, daemon=f"buildd/{__version__}", tcp=_tcp(settings)
        )
        await self.scheduler.runner.start()
        # After the helper that starts tools, so that they keep the user's own limit.
        _raise_file_limit()
        await self.server.start()
        await self._serve_redis(settings)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # A second signal does not wait for what still runs. SIGHUP (a terminal that closes) is no reason to end.
            handler = self._asked_to_end if number != signal.SIGHUP else lambda: None
            loop.add_signal_handler(number, handler)
        stamp = package_stamp()  # before the files are read
        endpoint = self.server.endpoint(package_digest(), self.scheduler.intake.default_store, stamp)
        write_endpoint(folder, msgspec.structs.replace(endpoint, redis=self._redis.address if self._redis else ""))
        # What the first request needs next, while its client is still connecting.
        await asyncio.to_thread(importlib.import_module, "codegen.cuda")
        _log.info("serving in %s, store %s, pid %d", folder.path, self.scheduler.intake.default_store, os.getpid())
        self._watch_idle()
        await self._ended.wait()
        self._make_room()
        await self.server.close()
        await self.scheduler.close()
        for kind in ("work", "control", "events"):  # libzmq leaves the paths of its sockets
            Path(getattr(self.server.addresses, kind).removeprefix("ipc://")).unlink(missing_ok=True)

    async def _serve_redis(self, settings: Settings) -> None:
        """Speak Redis' protocol, where the user asked for that. Where it cannot be, builds go on."""
        text = settings.text("BUILDD_REDIS")
        if not text:
            return
        from buildd import kept_kernels, resp  # here: most users want none of it

        host, port = resp.address_of(text)
        try:
            opened = await self.scheduler.intake.opened("")
            values = resp.Values(opened.store.folder, opened.store.limit_bytes // kept_kernels.SHARE)
            self._redis = resp.RedisServer(values, resp.token(os.environ), self._touch)
            await self._redis.start(host, port)
        except (BuilddError, ProtocolError, OSError) as error:
            _log.error("BUILDD_REDIS=%s: %s; nothing is served there", text, error)

    def _touch(self) -> None:
        self._touched_s = time.monotonic()

    def _end(self) -> None:
        # In one step with the decision: a request that comes now must not be taken and then forgotten.
        assert self.server is not None
        self.server.draining = True
        self._ended.set()

    def _asked_to_end(self) -> None:
        assert self.server is not None
        self.server.drain(now=self.server.draining)

    def _watch_idle(self, *, wake: bool = True) -> None:
        """Called at every request; one that comes while it looks every few seconds anyway need not wake it."""
        if self._watch is None or self._watch.done():
            self._watch = asyncio.get_running_loop().create_task(self._until_idle())
        if wake:
            self._woken.set()

    async def _until_idle(self) -> None:
        """Gives memory back after a while of rest, ends the daemon after a long one. Sleeps in between: no polling."""
        assert self.server is not None
        while True:
            if not self.scheduler.idle or self.server.open_requests > len(self.scheduler.intake.watches):
                self._touched_s = time.monotonic()
                if own_memory_bytes() > self._memory_cap_bytes and not self.server.draining:
                    _log.warning("%d MiB held: finishing what runs, a new daemon takes over", own_memory_bytes() >> 20)
                    self.server.drain()
            quiet_s = time.monotonic() - self._touched_s
            if quiet_s >= REST_AFTER_S and not self._rested:
                self._rested = True
                await asyncio.to_thread(self.scheduler.rest)
                release_memory()
            noted = await asyncio.to_thread(self.scheduler.intake.settle) if self._rested else 0
            if noted:  # somebody builds, and needed nothing of us so far
                self._touched_s = time.monotonic()
                quiet_s = 0.0
            alone = not (self.server.status().clients or (self._redis is not None and self._redis.clients))
            warm_s = self.scheduler.runner.warm_s()
            if (
                alone
                and self._rested
                and not warm_s
                and own_memory_bytes() > IDLE_CAP_BYTES
                and not self.server.draining
            ):
                # What a large build left is fragmented: only a new process gives it back.
                _log.info("starting anew: %d MiB held while idle", own_memory_bytes() >> 20)
                self.restart = True
                self._end()
                return
            if alone and quiet_s >= self._idle_timeout_s:
                _log.info("idle for %.0f s: ending", quiet_s)
                self._end()
                return
            # With a client there, or more held than there should be, it is worth looking again soon.
            soon = not self._rested or not alone
            left_s = self._idle_timeout_s - quiet_s
            await self._sleep(REST_AFTER_S if soon else min(left_s, warm_s or left_s))

    async def _sleep(self, seconds: float) -> None:
        """Until a request comes, at most so long."""
        self._woken.clear()
        try:
            await asyncio.wait_for(self._woken.wait(), max(0.05, seconds))
        except TimeoutError:
            pass


def _raise_file_limit() -> None:
    """A client costs a socket, and a local one a pidfd; the default of 1,024 files would be its limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILE_LIMIT if hard == resource.RLIM_INFINITY else min(hard, FILE_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def own_memory_bytes() -> int:
    """Resident memory of this process."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def release_memory() -> None:
    """Hand freed memory back to the system (glibc keeps it otherwise)."""
    gc.collect()
    library = ctypes.util.find_library("c")
    if library:
        trim = getattr(ctypes.CDLL(library), "malloc_trim", None)
        if trim is not None:
            trim(0)


def _idle_timeout(settings: Settings) -> float:
    value = settings.value("BUILDD_IDLE_TIMEOUT_S").value
    return float(value) if isinstance(value, (int, float)) and value > 0 else IDLE_TIMEOUT_S


def _tcp(settings: Settings) -> TcpOptions | None:
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


def serve(lock_descriptor: int = -1) -> int:
    """Be the daemon of this user and machine until drained or idle.

    Args:
        lock_descriptor: of the lock, where this process was the daemon already and started itself anew.

    Returns:
        0 after a good end, also when another daemon lives already; 2 for settings that cannot be read; 3 where the
        runtime folder or the store cannot be used.
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr, force=True
    )
    os.umask(0o022)
    try:
        settings = Settings(request_env=dict(os.environ), user_values=user_values(os.environ))
        logging.getLogger().setLevel(settings.text("BUILDD_LOG") or "INFO")
        folder = runtime_folder(os.environ)
        lock = DaemonLock.handed_on(folder, lock_descriptor) if lock_descriptor >= 0 else None
        lock = lock or DaemonLock.acquire(folder)
        if lock is None:
            _log.info("another daemon has the lock; nothing to do")
            return 0
        lock.wipe()
        location = store_folder(os.environ)
        # Not the folder that the client happened to start us in: that one may be unmounted or removed.
        os.chdir("/")
        commands = _begin_commands(folder)  # here: it is a fork, and the loop has threads
        try:
            restart = asyncio.run(_live(folder, lock, settings, location))
        finally:
            if commands is not None:
                commands.end()
    except RequestError as error:
        _log.error("%s (%s)", error.message, error.next_step)
        return 2
    except (BuilddError, ProtocolError, OSError) as error:
        _log.error("cannot serve: %s", error)
        return 3
    if restart:
        os.execv(sys.executable, [sys.executable, "-P", "-m", "buildd", "serve", "--lock", str(lock.hand_on())])
    return 0


def _begin_commands(folder: Folder) -> cli_server.CliServer | None:
    """The process that commands are handed to; None where there can be none, and each runs by itself."""
    try:
        return cli_server.begin(folder.place)
    except OSError as error:
        _log.warning("no process for commands: %s", error)
        return None


async def _live(folder: Folder, lock: DaemonLock, settings: Settings, store: Path) -> bool:
    daemon = Daemon(settings, store, folder, lock)
    await daemon.live(settings)
    return daemon.restart
