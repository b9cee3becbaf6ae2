"""Makes the plan of a request: asks codegen, runs the probes that it needs, and asks again.

Knows how answers are remembered, not what they mean. Plans are made in a thread: a plan of thousands of actions takes a
while, and the loop has other requests to answer.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import msgspec
from blake3 import blake3

from buildd.files.digests import Files
from buildd.files.stamp import appeared_since, stamp_of, trustworthy
from buildd.processes.launch import Launch
from buildd.processes.runner import Runner
from buildd.store.packing import write_error
from buildd.store.store import Store
from codegen.errors import RequestError
from codegen.plan import Answer, Knowledge, Plan, Probe, ProbesNeeded
from protocol.messages import Digest, Request

T = TypeVar("T")
_Said = tuple[int, bytes, bytes]
Make = Callable[[Request, Knowledge], Plan]
MOST_ROUNDS = 30
"""A plan that still needs probes after so many rounds never ends."""
MOST_PROBES_AT_ONCE = 4
MOST_EXPECTED = 64


class Planner:
    """Makes the plans of one store's requests.

    Args:
        runner: runs the probes.
        store: remembers their answers.
        files: digests of the files that an answer depends on.
        make: `codegen.generate.make_plan`, unless a test brings its own.
    """

    def __init__(self, runner: Runner, store: Store, files: Files, make: Make | None = None) -> None:
        self._make = make
        self._runner = runner
        self._store = store
        self._files = files
        self._gate = asyncio.Semaphore(MOST_PROBES_AT_ONCE)
        self._asking: dict[Digest, asyncio.Task[Answer]] = {}
        """Running probes, by identity: many requests at once need the same."""
        self._ahead: OrderedDict[tuple[object, ...], _Begun] = OrderedDict()
        """Commands that were started before it was known what their answers depend on."""
        self._expected: dict[str, tuple[Probe, ...]] = {}
        """Probes of the last plan of each project; the newest projects last."""
        self._latest: tuple[Probe, ...] = ()

    async def plan(self, request: Request, is_unwanted: Callable[[], bool] = lambda: False) -> Plan:
        """The plan for a request.

        Args:
            is_unwanted: whether nobody waits for it any more; from any thread.

        Raises:
            Unwanted: nobody waits for it any more.
            RequestError: the request cannot become a plan.
            RunnerError: a probe's program could not be started.
            StoreError: there is no folder for a probe's temporary files.
        """
        if self._make is None:
            from codegen.generate import make_plan  # on first use: an idle daemon needs no generators

            self._make = make_plan
        make = self._make
        plan, asked = await self.learn(request.project, lambda knowledge: make(request, knowledge), is_unwanted)
        return msgspec.structs.replace(plan, read=(*plan.read, *asked))

    async def learn(
        self, name: str, make: Callable[[Knowledge], T], is_unwanted: Callable[[], bool] = lambda: False
    ) -> tuple[T, tuple[str, ...]]:
        """Call `make` until its probes are answered; returns its result and the files that the answers depend on.

        Args:
            name: names the result; probes that it needed the last time are likely to be needed again.
            is_unwanted: see `plan`.

        Raises: as `plan`, and as `make` does.
        """
        knowledge = Knowledge(is_unwanted=is_unwanted)
        # A command that was started for an earlier plan may have read files that are gone by now; no stamp tells that.
        self._ahead = OrderedDict((command, begun) for command, begun in self._ahead.items() if begun.name != name)
        # Looked up at once instead of round by round; the probes of another plan are a good guess, too.
        expected = self._expected.pop(name, self._latest)
        if expected:
            for probe, answer in await asyncio.to_thread(self._recall, expected):
                knowledge.learn(probe, answer)
        reading = _Reading(self._files)
        for _ in range(MOST_ROUNDS):
            try:
                made = await asyncio.to_thread(make, knowledge)
            except ProbesNeeded as needed:
                await reading.begin(knowledge.take_foreseen())
                await reading.end_with(path for probe in needed.probes for path in probe.files)
                digests = await asyncio.to_thread(self._digests, needed.probes)
                ahead = knowledge.take_ahead()
                if ahead and not await asyncio.to_thread(self._recall, needed.probes):
                    self._begin(name, ahead)
                answers = await asyncio.gather(*(self._answer(probe, digests) for probe in needed.probes))
                for probe, answer in zip(needed.probes, answers, strict=True):
                    knowledge.learn(probe, answer)
            else:
                await reading.end()
                self._expect(name, knowledge.asked)
                return made, tuple(dict.fromkeys(path for probe in knowledge.asked for path in probe.files))
        raise RequestError(
            "probes", f"the plan still asks questions after {MOST_ROUNDS} rounds", next_step="report this as a bug"
        )

    def _expect(self, name: str, probes: tuple[Probe, ...]) -> None:
        self._expected[name] = self._latest = probes
        if len(self._expected) > MOST_EXPECTED:
            del self._expected[next(iter(self._expected))]

    def _recall(self, probes: tuple[Probe, ...]) -> list[tuple[Probe, Answer]]:
        """Probes whose answers are remembered and still hold."""
        digests = self._digests(probes)
        answers = ((probe, self._remembered(_identity(probe, digests))) for probe in probes)
        return [(probe, answer) for probe, answer in answers if answer is not None]

    def _remembered(self, digest: Digest) -> Answer | None:
        known = self._store.probe_answer(digest)
        if known is None:
            return None
        try:
            return _answer(*msgspec.msgpack.decode(known, type=tuple[int, bytes, bytes]))
        except msgspec.MsgspecError:
            return None  # written by another version: ask the tool again

    async def _answer(self, probe: Probe, digests: Mapping[str, str]) -> Answer:
        digest = _identity(probe, digests)
        asking = self._asking.get(digest)
        if asking is None:
            asking = self._asking[digest] = asyncio.create_task(self._find_out(probe, digest))
            asking.add_done_callback(lambda _: self._asking.pop(digest, None))
        return await asyncio.shield(asking)

    async def _find_out(self, probe: Probe, digest: Digest) -> Answer:
        known = await asyncio.to_thread(self._remembered, digest)
        if known is not None:
            return known
        said = await self._begun(probe)
        if said is None:
            async with self._gate:
                said = await self._run(probe)
        await asyncio.to_thread(self._store.save_probe_answer, digest, msgspec.msgpack.encode(said))
        return _answer(*said)

    def _begin(self, name: str, probes: Iterable[Probe]) -> None:
        for probe in probes:
            began_ns = self._files.now_ns()
            self._ahead[_command(probe)] = _Begun(name, began_ns, asyncio.create_task(self._run(probe)))
            if len(self._ahead) > MOST_PROBES_AT_ONCE:
                self._ahead.popitem(last=False)

    async def _begun(self, probe: Probe) -> _Said | None:
        """The output of the same command, if it was started after every file that the answer depends on was written."""
        # It stays until the same is planned again: other probes with the same command depend on more files.
        begun = self._ahead.get(_command(probe))
        if begun is None:
            return None
        task = begun.task
        await asyncio.wait((task,))
        if task.cancelled() or task.exception() is not None:
            return None
        return task.result() if await asyncio.to_thread(_are_older, probe.files, begun.began_ns) else None

    def _digests(self, probes: Iterable[Probe]) -> dict[str, str]:
        """Digests of all files that the answers depend on; empty for a file that does not exist."""
        paths = dict.fromkeys(path for probe in probes for path in probe.files)
        self._files.read_ahead(paths)
        facts = ((path, self._files.fact(path)) for path in paths)
        return {path: fact.digest if fact is not None else "" for path, fact in facts}

    async def _run(self, probe: Probe) -> _Said:
        # clang leaves a folder in TMPDIR for each architecture of a dry run.
        private = await asyncio.to_thread(self._private)
        environment = dict(probe.environment)
        usual = environment.get("TMPDIR", "/tmp")
        try:
            launch = Launch(
                argv=probe.argv,
                cwd="/",
                environment=tuple(sorted({**environment, "TMPDIR": private}.items())),
                payload=probe.payload,
                timeout_s=probe.timeout_s,
            )
            exit = await self._runner.run(launch, lambda stream, line: None)
        finally:
            await asyncio.to_thread(shutil.rmtree, private, ignore_errors=True)
        # An answer outlives the folder.
        stdout, stderr = (text.replace(private.encode(), usual.encode()) for text in (exit.stdout, exit.stderr))
        return exit.status, stdout, stderr

    def _private(self) -> str:
        """An empty folder for one probe's temporary files. Raises `StoreError`."""
        folder = self._store.scratch_folder()
        try:
            return tempfile.mkdtemp(prefix="probe-", dir=folder)
        except OSError as error:
            raise write_error(error, folder) from error


class _Begun(NamedTuple):
    """A command that was started before it was known what its answer depends on."""

    name: str
    """Name of the plan; see `Planner.learn`."""
    began_ns: int
    task: asyncio.Task[_Said]


class _Reading:
    """Reads the large files of a tool for their digests, while probes of the tool run."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._paths: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    async def begin(self, paths: tuple[str, ...]) -> None:
        """Start reading these files, once those before them are read."""
        paths = tuple(path for path in paths if path not in self._paths)
        if paths:
            await self.end()
            self._paths.update(paths)
            self._task = asyncio.create_task(asyncio.to_thread(self._files.read_ahead, paths))

    async def end_with(self, paths: Iterable[str]) -> None:
        """Wait if one of these files is being read, so that it is not read twice."""
        if not self._paths.isdisjoint(paths):
            await self.end()

    async def end(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await task


def _command(probe: Probe) -> tuple[object, ...]:
    return probe.argv, probe.environment, probe.payload


def _are_older(paths: Iterable[str], since_ns: int) -> bool:
    """Whether all of these files exist, and have been as they are since before a moment."""
    moved: dict[str, bool] = {}
    for path in paths:
        stamp = stamp_of(path)
        if stamp is None or not trustworthy(stamp, since_ns) or appeared_since(path, since_ns, moved):
            return False
    return True


def _identity(probe: Probe, digests: Mapping[str, str]) -> Digest:
    # Its repr holds every field, and paths that are no UTF-8.
    return Digest(blake3(repr((probe, [digests[path] for path in probe.files])).encode()).hexdigest())


def _answer(status: int, stdout: bytes, stderr: bytes) -> Answer:
    return Answer(
        status=status,
        stdout=stdout.decode(errors="surrogateescape"),
        stderr=stderr.decode(errors="surrogateescape"),
    )
