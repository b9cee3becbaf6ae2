"""The process that carries out a request of mode "profile" for a daemon: request on stdin, event bodies on stdout.

A process of its own, so that a driver that hangs or crashes costs one request. The daemon compiles the candidates; this
process is its client, and measures. Knows no socket of other clients.

    python -P -m buildd.profiling.served [ADDRESS PYTHON] < request.msgpack

ADDRESS and PYTHON are the daemon's Ray cluster, if it has one: a client does not name the machines that measure.
"""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec

from buildd.client.candidate_builds import Builder, ThroughDaemon
from buildd.cluster.ray_settings import RaySettings
from buildd.errors import BuilddError
from buildd.profiling import call
from buildd.profiling.far_gpus import find_far_gpus
from buildd.profiling.gpus import find_gpus
from buildd.profiling.reports import Chosen, Told, Tried
from codegen.errors import RequestError
from protocol import messages as m
from protocol.errors import ProtocolError
from protocol.problem import Problem


def _print(body: m.EventBody) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(body) + b"\n")
    sys.stdout.buffer.flush()


class _Teller:
    """Turns reports into events."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        """Problems without a kernel."""

    def tell(self, told: Told) -> None:
        match told:
            case Tried():
                fields = {name: getattr(told, name) for name in m.Candidate.__struct_fields__}
                _print(m.Candidate(**fields))
            case Chosen():
                if not told.candidate:
                    self.unknown.append(f"{told.target}: {told.problem}")
                _print(m.Chosen(**{name: getattr(told, name) for name in m.Chosen.__struct_fields__}))


def _say(words: str) -> None:
    _print(m.Notice(text=words))


async def _profile(request: m.Request) -> m.Done:
    teller, options = _Teller(), request.profile

    async def builder() -> Builder:
        return await asyncio.to_thread(ThroughDaemon, os.environ)

    async def look() -> call.Seen:
        return await asyncio.to_thread(find_gpus, os.environ) if options.measure else ((), call.NO_GPU)

    cluster = RaySettings(*sys.argv[1:3]) if len(sys.argv) > 2 and options.measure else None
    building, looking = asyncio.create_task(builder()), asyncio.create_task(look())
    reaching = asyncio.create_task(find_far_gpus(cluster, os.environ))
    plain = msgspec.structs.replace(request, mode=m.Mode.BUILD)
    try:
        summary, _ = await call.profile(
            plain, options, building, looking, reaching, teller.tell, _say, most_builds=request.jobs
        )
    finally:
        await asyncio.wait([looking])
        if (far := await reaching) is not None:
            await far.close()
        await (await building).close()
    outcome = m.Outcome.FAILED if teller.unknown else m.Outcome.BUILT
    message = f"no kernel is known to work for {', '.join(teller.unknown)}" if teller.unknown else ""
    return m.Done(
        outcome=outcome,
        message=message,
        hits=summary.hits,
        misses=summary.built,
        failures=summary.failed,
        wall_s=summary.wall_s,
    )


def main() -> int:
    """Carry out one request; its last line is a `Done`."""
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=m.Request)
    try:
        done = asyncio.run(_profile(request))
    except RequestError as error:
        done = _failed(m.Outcome.REFUSED, error)
    except (BuilddError, ProtocolError) as error:
        done = _failed(m.Outcome.DAEMON_ERROR, error)
    _print(done)
    return 0


def _failed(outcome: m.Outcome, error: Problem) -> m.Done:
    return m.Done(outcome=outcome, code=error.code, message=error.message, file=error.file, next_step=error.next_step)


if __name__ == "__main__":
    sys.exit(main())
