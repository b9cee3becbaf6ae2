"""The PROFILE requests of a daemon: a process for each, whose lines become the request's events.

Knows the process's name and its lines; nothing of GPUs or kernels. Runs on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from functools import partial

import msgspec

from buildd.builds.event_log import RequestLog
from buildd.cluster.ray_settings import RaySettings
from buildd.errors import RunnerError
from buildd.processes.launch import Launch
from buildd.processes.runner import Runner
from buildd.scheduling.refusal import refuse
from protocol import messages as m
from protocol.described import described

_COMMAND = ("-P", "-m", "buildd.profiling.served")
_DAEMONS = ("BUILDD_RUNTIME_DIR", "XDG_RUNTIME_DIR", "PYTHONPATH")
"""Variables of the daemon itself: the process must find it, and its code."""
_RAYS = "RAY_"
"""How the names of Ray's variables begin: the cluster is the daemon's."""
_log = logging.getLogger(__name__)


class ProfileRequests:
    """All PROFILE requests.

    Args:
        default_store: of requests that name none.
        cluster: measures too, if the daemon has one; a client's own does not.
    """

    def __init__(self, runner: Runner, default_store: str, cluster: RaySettings | None = None) -> None:
        self._runner, self._default_store = runner, default_store
        self._cluster = (cluster.address, cluster.python) if cluster is not None else ()
        self._running: dict[m.RequestId, asyncio.Task[None]] = {}
        self._decoder = msgspec.json.Decoder(described(m.Candidate | m.Chosen | m.Notice | m.Done))

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, request: m.Request, log: RequestLog) -> None:
        """Begin a request. Its last event comes when its process has ended."""
        request = msgspec.structs.replace(request, store=request.store or self._default_store)
        task = asyncio.get_running_loop().create_task(self._run(request, log))
        self._running[request.request_id] = task
        task.add_done_callback(partial(self._forget, request.request_id))

    def end(self, request_id: m.RequestId) -> bool:
        """Cancel a request; False when there is none of that name."""
        task = self._running.get(request_id)
        return task is not None and task.cancel()

    def end_all(self) -> None:
        """Cancel all requests: their builds are refused from now on."""
        for task in self._running.values():
            task.cancel()

    async def close(self) -> None:
        """Cancel all requests, and wait for the end of their processes."""
        self.end_all()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _forget(self, request_id: m.RequestId, task: asyncio.Task[None]) -> None:
        del self._running[request_id]

    async def _run(self, request: m.Request, log: RequestLog) -> None:
        own = {name: os.environ[name] for name in os.environ if name in _DAEMONS or name.startswith(_RAYS)}
        theirs = {name: value for name, value in request.environment.items() if not name.startswith(_RAYS)}
        launch = Launch(
            argv=(sys.executable, *_COMMAND, *self._cluster),
            cwd="/",
            environment=tuple(sorted({**theirs, **own}.items())),
            payload=msgspec.msgpack.encode(request),
            timeout_s=0.0,
        )
        done: list[m.Done] = []

        def hear(stream: str, line: str) -> None:
            try:
                body = self._decoder.decode(line) if stream == "stdout" else None
            except (msgspec.MsgspecError, UnicodeDecodeError):
                body = None
            if isinstance(body, m.Done):
                done.append(body)
            elif body is not None:
                log.append(body)
            else:
                _log.info("profile %s: %s", request.request_id, line)

        try:
            exit = await self._runner.run(launch, hear)
        except asyncio.CancelledError:
            log.append(m.Done(outcome=m.Outcome.CANCELLED))
            return
        except RunnerError as error:
            refuse(log, m.Outcome.DAEMON_ERROR, error)
            return
        if done:
            log.append(done[-1])
            return
        last = exit.stderr.decode(errors="replace").strip().rpartition("\n")[2][:300]
        text = f"the profiling process ended with status {exit.status}{f': {last}' if last else ''}"
        log.append(m.Done(outcome=m.Outcome.DAEMON_ERROR, message=text, next_step="`buildd profile` shows more"))
