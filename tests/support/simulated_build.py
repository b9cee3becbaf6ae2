"""A wide build on a simulated machine in virtual time: real admission, state machine and history; compiles that only
use memory, as a table says.

Knows nothing of steps: each compile is one process, as an nvcc that cannot be taken apart.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from buildd.host.admission import Ask, Budget, Running
from buildd.host.claims import Claims
from buildd.host.gate import HostGate
from buildd.host.memory import HostMemory
from buildd.state.events import (
    Complete,
    Deliver,
    Delivered,
    Ending,
    Instruction,
    JobEnded,
    Kill,
    LookUp,
    Missed,
    NodeSpec,
    Released,
    Relieve,
    Start,
    StateEvent,
    Submitted,
    Tick,
)
from buildd.state.machine import State
from buildd.store import job_history
from buildd.store.store import Store
from codegen.plan import Resources
from protocol.messages import JobId, RequestId, Timing

GIB = 1 << 30
STEP_S = 0.25
"""Virtual time between two looks at the memory."""
SAMPLE_LAG_S = 0.5
"""A job's own memory is known as it was so long ago."""


@dataclass(frozen=True, slots=True)
class Compile:
    """One compile.

    Args:
        shape: (share of its time, share of its peak), ascending from (0, ...) to (1, ...); linear in between.
    """

    name: str
    wall_s: float
    peak_bytes: int
    shape: tuple[tuple[float, float], ...]

    def bytes_at(self, age_s: float) -> int:
        """Its memory at an age."""
        share = min(1.0, max(0.0, age_s / self.wall_s))
        for (start, low), (end, high) in zip(self.shape, self.shape[1:], strict=False):
            if share <= end:
                return int(self.peak_bytes * (low + (high - low) * (share - start) / (end - start)))
        return 0


@dataclass(slots=True)
class SimulatedOutcome:
    """How a build went."""

    wall_s: float
    peak_bytes: int
    kills: int = 0
    """Times that the machine had no memory left."""
    held: int = 0
    """Times that a job was stopped."""
    gave_way: int = 0
    """Jobs that were ended and began anew."""


FORWARD = (
    *((0.0, 0.0), (0.065, 0.23), (0.078, 0.02), (0.13, 0.16), (0.2, 0.29), (0.4, 0.6), (0.43, 1.0)),
    *((0.45, 0.6), (0.47, 0.1), (0.55, 0.32), (0.73, 0.31), (0.8, 0.17), (1.0, 0.145)),
)
SPLIT = ((0.0, 0.0), (0.06, 0.22), (0.12, 0.34), (0.18, 0.84), (0.42, 1.0), (0.44, 0.73), (0.48, 0.09), (1.0, 0.26))
BACKWARD = (
    *((0.0, 0.0), (0.06, 0.12), (0.18, 0.31), (0.42, 0.52), (0.48, 0.59), (0.54, 0.81), (0.66, 0.94), (0.74, 1.0)),
    *((0.78, 0.96), (0.79, 0.08), (1.0, 0.2)),
)
"""Memory of nvcc 13.0 over its time on three of flash-attn 2.8.3's sources for sm_80, bfloat16, sampled twice a second:
flash_fwd_hdim64 (at most 3.6 GiB), flash_fwd_split_hdim128 (3.9 GiB), flash_bwd_hdim128 (6.0 GiB). They ran beside
other work and were ended after 460 s, so the last fifth is a guess."""


def flash_attn() -> list[Compile]:
    """flash-attn's 72 sources: three kinds of kernels for six head sizes, each in four variants. The measured sources
    are in the middle; the others are a little smaller or larger."""
    found = []
    kinds = (("fwd", 40, 3.5, FORWARD), ("fwd_split", 60, 3.6, SPLIT), ("bwd", 60, 5.7, BACKWARD))
    for place, head in enumerate((32, 64, 96, 128, 192, 256)):
        for variant in ("fp16", "bf16", "fp16_causal", "bf16_causal"):
            for kind, wall_s, least_gib, shape in kinds:
                name = f"flash_{kind}_hdim{head}_{variant}_sm80"
                found.append(Compile(name, wall_s + 20.0 * place, int((least_gib + 0.1 * place) * GIB), shape))
    return found


def four_of_flash_attention() -> list[Compile]:
    """Four sources of ejkernel's flash_attention for sm_90, two sizes: 110 and 140 s, at most 3.2 and 3.5 GiB."""
    sizes = (("hdim32", 115, 3.2), ("hdim64", 145, 3.5))
    return [Compile(f"{name}_{n}", wall_s, int(gib * GIB), FORWARD) for name, wall_s, gib in sizes for n in range(2)]


def fp4_gemm() -> list[Compile]:
    """FlashInfer's fp4_gemm_cutlass_sm120: 18 sources of 3 to 8 GiB, 13 minutes with four at once, as reported."""
    return [Compile(f"fp4_gemm_{n}", 100.0 + 25 * (n % 6), int((3 + 5 * n / 17) * GIB), FORWARD) for n in range(18)]


def varied(compiles: Sequence[Compile], seed: int) -> list[Compile]:
    """The same compiles in another order, each a tenth larger or smaller."""
    rng = random.Random(seed)
    found = []
    for each in compiles:
        peak_bytes = int(each.peak_bytes * rng.uniform(0.9, 1.1))
        found.append(replace(each, wall_s=each.wall_s * rng.uniform(0.9, 1.1), peak_bytes=peak_bytes))
    rng.shuffle(found)
    return found


def plain(compiles: Sequence[Compile], width: int, total_bytes: int, held_bytes: int = 0) -> SimulatedOutcome:
    """A build of so many compiles at once, without anything that looks at memory."""
    waiting, now_s, outcome = list(compiles), 0.0, SimulatedOutcome(0.0, 0)
    running: list[tuple[float, Compile]] = []
    while waiting or running:
        while waiting and len(running) < width:
            running.append((now_s, waiting.pop(0)))
        used = held_bytes + sum(each.bytes_at(now_s - start_s) for start_s, each in running)
        outcome.peak_bytes = max(outcome.peak_bytes, used)
        outcome.kills += used > total_bytes
        now_s += STEP_S
        running = [(start_s, each) for start_s, each in running if now_s - start_s < each.wall_s]
    outcome.wall_s = now_s
    return outcome


@dataclass(slots=True)
class _Job:
    compile: Compile
    started_s: float
    age_s: float = 0.0
    """How long its processes have run."""
    held: bool = False


class SimulatedBuild:
    """A build through the daemon.

    Args:
        compiles: in the build tool's order.
        cpus: of the machine; as many compiles are asked for at once.
        total_bytes: of the machine or its cgroup.
        held_bytes: of other processes, all the time.
        guess: of a compile without history.
    """

    def __init__(
        self,
        compiles: Sequence[Compile],
        *,
        cpus: int,
        total_bytes: int,
        held_bytes: int = 0,
        guess: Resources,
        store: Store,
        width: int = 0,
    ) -> None:
        self._waiting = list(compiles)
        self._total_bytes, self._held_bytes, self._guess, self._store = total_bytes, held_bytes, guess, store
        self._width = width or cpus
        self._now_s = 0.0
        self._asked: dict[RequestId, Compile] = {}
        self._jobs: dict[JobId, _Job] = {}
        self._outcome = SimulatedOutcome(0.0, 0)
        claims = Claims("/nonexistent/claims")
        self._gate = HostGate(Budget(cpus), claims, self._look, clock=lambda: self._now_s)
        self._state = State(self._refusal, cpus=cpus)

    def run(self) -> SimulatedOutcome:
        """Carry the build out."""
        next_look_s = 0.0
        while self._waiting or self._asked:
            while self._waiting and len(self._asked) < self._width:
                self._ask(self._waiting.pop(0))
            used = self._used_bytes()
            self._outcome.peak_bytes = max(self._outcome.peak_bytes, used)
            self._outcome.kills += used > self._total_bytes
            if self._now_s >= next_look_s:
                for hold in self._gate.hold(self._running()):
                    self._jobs[hold.job_id].held = not hold.go_on
                    self._outcome.held += not hold.go_on
                victim = self._gate.relieve(self._running())
                if victim is not None:
                    self._feed(Relieve(victim))
                self._feed(Tick())
                next_look_s = self._now_s + self._gate.look_after_s
            self._now_s += STEP_S
            for number, job in list(self._jobs.items()):
                job.age_s += 0 if job.held else STEP_S
                if job.age_s >= job.compile.wall_s:
                    self._end(number, job)
        self._outcome.wall_s = self._now_s
        return self._outcome

    # ----------------------------------------------------------------

    def _ask(self, compile: Compile) -> None:
        request = RequestId(compile.name)
        self._asked[request] = compile
        self._feed(Submitted(request, (NodeSpec((), self._estimate(compile).wall_s),)))

    def _estimate(self, compile: Compile) -> Resources:
        return job_history.estimate(self._store, compile.name, "nvcc", self._guess).resources

    def _feed(self, event: StateEvent) -> None:
        for instruction in self._state.handle(event):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case LookUp():
                compile = self._asked[instruction.request]
                needs = self._estimate(compile)
                self._feed(Missed(instruction.request, 0, compile.name, needs.cpus, needs.memory_bytes))
            case Start():
                self._jobs[instruction.job] = _Job(self._asked[instruction.request], self._now_s)
            case Kill():
                job = self._jobs.pop(instruction.job)
                self._outcome.gave_way += 1
                seen = self._learn(job, job_history.JobEnd.OUT_OF_MEMORY)
                self._feed(JobEnded(instruction.job, Ending.OUT_OF_MEMORY, job_history.needed_bytes(seen)))
            case Deliver():
                self._feed(Delivered(instruction.request, instruction.node))
            case Complete():
                del self._asked[instruction.request]
            case _:
                pass

    def _end(self, number: JobId, job: _Job) -> None:
        del self._jobs[number]
        self._feed(Released(number))
        self._learn(job, job_history.JobEnd.BUILT)
        self._feed(JobEnded(number, Ending.SUCCESS))

    def _learn(self, job: _Job, ended: job_history.JobEnd) -> int:
        """Note what a job used; returns its peak."""
        age_s = job.age_s
        peak = max(job.compile.bytes_at(age_s * share / 20) for share in range(21))
        job_history.record(self._store, job.compile.name, "nvcc", Timing(wall_s=age_s, peak_rss_bytes=peak), ended)
        return peak

    # ----------------------------------------------------------------

    def _used_bytes(self) -> int:
        jobs = sum(job.compile.bytes_at(job.age_s) for job in self._jobs.values())
        return self._held_bytes + jobs

    def _look(self) -> HostMemory:
        return HostMemory(self._total_bytes, max(0, self._total_bytes - self._used_bytes()))

    def _running(self) -> list[Running]:
        return [
            Running(
                job.id,
                job.cpus,
                job.memory_bytes,
                self._resident_bytes(job.id),
                job.alone,
                started=self._jobs[job.id].started_s if job.id in self._jobs else 0.0,
                held=job.id in self._jobs and self._jobs[job.id].held,
            )
            for job in self._state.running
        ]

    def _resident_bytes(self, number: JobId) -> int:
        job = self._jobs.get(number)
        return 0 if job is None else job.compile.bytes_at(job.age_s - (0 if job.held else SAMPLE_LAG_S))

    def _refusal(self, cpus: int, memory_bytes: int, alone: bool, running: int, request: RequestId) -> str:
        return self._gate.refusal(Ask(cpus, memory_bytes, alone), self._running())
