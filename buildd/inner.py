"""The steps of one job while they are built: a request in the scheduler, whose files reach each other in one folder.

Knows which steps' results are filed by twins, and how what the steps said and read becomes one tool's output and
inputs. Which steps there are is `codegen.nvcc_steps`' and `hipcc_steps`', how they are carried out `stepwise`'s.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

import msgspec
from blake3 import blake3

from buildd import bundler, fatbin, history, twins
from buildd.building import Building
from buildd.command import output_path
from buildd.errors import StoreError
from buildd.eventlog import RequestLog
from buildd.launch import Exit
from buildd.lookup import Found, Missing
from buildd.products import Failure, Product, Ran, recalled
from buildd.store import Result
from buildd.traits import Traits
from codegen import moved
from codegen.expansion import barely, fatbin_apart, frame_of
from codegen.plan import BARE, Action, Kept, Plan
from codegen.step_kinds import Kind
from protocol import messages as m


class Quiet(RequestLog):
    """Steps have no followers of their own."""

    def append(self, body: m.EventBody) -> None:
        return None


@dataclass(slots=True)
class Inner(Building):
    """The steps of one job while they are built. Sees the files as the job's request does; what the steps make stays
    below `scratch`, in one folder: some find each other's files by a bare name."""

    _: KW_ONLY
    outer: Building
    said: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    """Standard output and error of the steps that ended or were found."""
    reads: dict[int, tuple[str, ...] | None] = field(default_factory=dict)
    exits: list[Exit] = field(default_factory=list)
    """Of the steps that ran."""
    done: list[tuple[str, int, Exit | None]] = field(default_factory=list)
    """Name of each step that is done, when it began, how it ended where it ran."""
    failed: dict[int, Failure] = field(default_factory=dict)
    exact: bool = False
    """No text is taken for another one with other line numbers."""
    silent: bool = False
    """See `Steps`."""
    remade: bool = False
    """Files of which only the digests are kept are made again."""
    lacking: bool = False
    """A step that has to run reads such a file."""
    named: set[str] = field(default_factory=set)
    """Moving roots whose folder stands in a preprocessed text; device code does not show it any more."""
    _recalled: set[str] = field(default_factory=set)
    """The files of this kind that were not made."""
    _moved: set[str] = field(default_factory=set)
    """Files that were made of such a text."""
    _bare: dict[int, Missing] = field(default_factory=dict)
    """Misses of the steps whose result may be filed without line numbers."""
    _wanted: set[str] = field(default_factory=set)
    _embeds: bool = False
    """A file that a step read embeds another one below the preprocessor."""
    _examined: set[int] = field(default_factory=set)
    """The steps whose files were looked through for that."""
    _scanned: set[str] = field(default_factory=set)
    """Those files, as they were spelled."""

    def __post_init__(self) -> None:
        self.snapshot, self.lookup, self.tools = self.outer.snapshot, self.outer.lookup, self.outer.tools

    @property
    def inner(self) -> bool:
        return True

    @property
    def writes_outputs(self) -> bool:
        return False

    @property
    def tells_kernels(self) -> bool:
        return False

    def begin(self, plan: Plan, said: str) -> None:
        """Take the steps on. In a worker thread; raises OSError.

        Args:
            said: what the compiler says on standard error before its first step.
        """
        self.said[-1] = (b"", said.encode(errors="surrogateescape"))
        identities = [(self.lookup.name_key(a), a.kind, a.resources) for a in plan.actions]
        self.plan = plan
        self.resources = [e.resources for e in history.estimates(self.store, identities)]
        self._wanted = {path for action in plan.actions for path in action.inputs}
        self._wanted.update(output.path for output in plan.actions[-1].outputs if output.name != BARE)
        self._wanted.add(fatbin_apart(plan))
        for file in plan.files:
            Path(self._place_of(file.path)).write_bytes(file.content)
            product = Product(m.Digest(blake3(file.content).hexdigest()), len(file.content), False)
            self.products[file.path] = product
            self.snapshot.produced(file.path, product.digest)

    def look(self, index: int, *, fresh: bool) -> Found | Missing:
        with self._lock:
            # A copy: the event loop tells of other steps meanwhile.
            for made in {*self.reads.copy()} - self._examined:
                self._examined.add(made)
                # A depfile does not list the source itself.
                read = {*self.plan.actions[made].inputs, *(self.reads[made] or ())} - self._scanned
                self._scanned |= read
                self._embeds = self._embeds or self._embedding(read)
            action = self.plan.actions[index]
            if self._embeds and action.kept is not Kept.NOTHING and not action.uncacheable:
                # The assembler will read a file that no depfile names.
                actions = list(self.plan.actions)
                actions[index] = msgspec.structs.replace(action, uncacheable="a source embeds another file")
                self.plan = msgspec.structs.replace(self.plan, actions=tuple(actions))
        if fresh:
            self.forget_inputs(action)
        if self.remade and action.kept is Kept.DIGESTS:
            self.misses[index] = self.lookup.missing(action, self.tool(action), "its files are needed")
            return self.misses[index]
        answer = self._look_bare(index) or Building.look(self, index, fresh=False)
        if isinstance(answer, Missing) and not self._recalled.isdisjoint(action.inputs):
            self.lacking = True
            raise StoreError("only the digest of what it reads was kept", next_step="build again")
        return answer

    def take(self, action: Action, result: Result) -> bool:
        if action.kept is not Kept.DIGESTS:
            return Building.take(self, action, result)
        record = self.store.get(result.outputs[0].digest)
        if record is None:
            return False
        self.store.touch((result.key,))
        for output, product in zip(action.outputs, recalled(record), strict=True):
            self.products[output.path] = product
            self.snapshot.produced(output.path, product.digest)
            self._recalled.add(output.path)
        return True

    def _look_bare(self, index: int) -> Found | None:
        """A result of files that were the same as far as it matters where nothing is said."""
        action = self.plan.actions[index]
        made = (self.products[f"{path}.{BARE}"].digest for path in action.twins)
        if not action.twins or twins.NO_TWIN in made:
            return None
        bare, tool = barely(action), self.tool(action)
        answer = self.lookup.look(bare, tool, explain=False)
        if isinstance(answer, Found):
            silent = not (answer.result.stdout or answer.result.stderr)
            if (
                silent
                and not self.exact
                and self.take(bare, answer.result)
                and (action.kind != Kind.HOST.value or self._put_fatbin(action, answer.result))
            ):
                self._moved.update(output.path for output in action.outputs)
                return answer
            answer = self.lookup.missing(bare, tool, "it said something, or is not there")
        self._bare[index] = answer
        return None

    def filed_as(self, index: int, exit: Exit) -> tuple[Action, Missing]:
        if index in self._bare and not exit.stdout and not exit.stderr:
            return barely(self.plan.actions[index]), self._bare[index]
        return Building.filed_as(self, index, exit)

    def finish_outputs(self, action: Action, private: str, read: tuple[str, ...]) -> Mapping[str, bytes]:
        """The twins: what files are apart from what may not matter, and which fatbin is in an object."""
        made = {}
        if action.kind == Kind.PREPROCESS.value and self.outer.roots:
            text = Path(output_path(private, action, action.outputs[0].name)).read_bytes()
            self.named |= moved.names_in(text, self.outer.roots, lines=True)
        files = {f"{output.path}.{BARE}": output_path(private, action, output.name) for output in action.outputs}
        for output in action.outputs:
            if output.name == BARE:
                if action.kind == Kind.HOST.value:
                    content = self.products[frame_of(action)].digest.encode()
                else:
                    key = (
                        self.lookup.first_level(barely(action), self.tool(action))[0]
                        if action.kind == Kind.CUDAFE.value
                        else None
                    )
                    text = Path(files[output.path]).read_bytes()
                    content = twins.of_text(Kind(action.kind), text, key, clang=self.silent)
                made[BARE] = content
        return made

    def compose(self, index: int) -> bool:
        """Do a step without its program, where what that makes is known: see `bundler`. Such a step is not stored."""
        action = self.plan.actions[index]
        way = bundler.way_of(action, self.lookup.tool_digest(self.tool(action)))
        if way is None or not bundler.is_proven(way):
            return False
        bundle = bundler.composed(way, self._parts_of(action))
        if bundle is None:
            return False
        Path(self._place_of(action.outputs[0].path)).write_bytes(bundle)
        for output, content in zip(action.outputs, (bundle, twins.of_text(Kind.BUNDLE, bundle, None)), strict=True):
            digest = m.Digest(blake3(content).hexdigest())
            self.products[output.path] = Product(digest, len(content), output.executable)
            self.snapshot.produced(output.path, digest)
        return True

    def _prove(self, action: Action, ran: Ran) -> None:
        """Have what a bundler made compared with what `compose` would make."""
        way = bundler.way_of(action, self.lookup.tool_digest(self.tool(action)))
        if way is not None and not bundler.is_proven(way) and not (ran.exit.stdout or ran.exit.stderr):
            bundler.prove(way, self._parts_of(action), Path(self._place_of(action.outputs[0].path)).read_bytes())

    def _parts_of(self, action: Action) -> list[bytes]:
        return [Path(self.where(path)).read_bytes() for path in action.inputs]

    def join(self) -> bool:
        """Put the fatbin into the object that was compiled beside it; False where that cannot be done."""
        text, host = fatbin_apart(self.plan), self.plan.actions[-1]
        if not text:
            return True
        if self.products[f"{text}.{BARE}"].digest != self.products[f"{frame_of(host)}.{BARE}"].digest:
            return False
        return self._exchange(host, Path(self.where(host.outputs[0].path)).read_bytes(), text)

    def _put_fatbin(self, action: Action, result: Result) -> bool:
        """Put the fatbin of today into an object that was found; False where that cannot be done."""
        if fatbin_apart(self.plan):
            return True  # at the end: `join`
        digests = {output.name: output.digest for output in result.outputs}
        text = frame_of(action)
        if self.store.get(digests[BARE]) == self.products[text].digest.encode():
            return True
        made = self.store.get(digests[action.outputs[0].name])
        return made is not None and self._exchange(action, made, text)

    def _exchange(self, host: Action, made: bytes, text: str) -> bool:
        path = host.outputs[0].path
        data = fatbin.data(Path(self.where(text)).read_bytes())
        whole = fatbin.exchanged(made, data) if data is not None else None
        if whole is None:
            return False
        aside = Path(f"{self._place_of(path)}.new")
        aside.write_bytes(whole)
        aside.replace(self._place_of(path))
        self.products[path] = Product(m.Digest(blake3(whole).hexdigest()), len(whole), False)
        self.snapshot.produced(path, self.products[path].digest)
        return True

    def failed_actions(self) -> Iterator[Action]:
        return (self.plan.actions[index] for index in self.failed)

    @property
    def outdated(self) -> bool:
        """Something was said with line numbers of another text than today's."""
        return any(
            self._moved.intersection(action.twins) and (index in self.failed or any(self.said.get(index, ())))
            for index, action in enumerate(self.plan.actions)
        )

    @property
    def broke_silence(self) -> bool:
        """A step said something that the compiler itself says in other words."""
        return self.silent and (bool(self.failed) or any(any(said) for said in self.said.values()))

    def _embedding(self, read: Iterable[str]) -> bool:
        names = (self.lookup.normal(spelled) for spelled in read)
        facts = (self.snapshot.fact(name) for name in names if not self.snapshot.is_aside(name))
        return any(fact is not None and Traits.EMBED in fact.traits for fact in facts)

    def _place_of(self, path: str) -> str:
        return f"{self.scratch}/{os.path.basename(path)}"

    def where(self, path: str) -> str:
        product = self.products.get(path)
        if product is None:
            return self.outer.where(path)
        place = self._place_of(path)
        with self._lock:
            if not os.path.exists(place) and not self.store.restore(product.digest, Path(place)):
                raise StoreError("the result of a step is no longer there", file=place, next_step="build again")
        return place

    def place_made(self, path: str, made: Path, product: Product) -> None:
        if path in self._wanted:
            place = self._place_of(path)
            try:
                os.link(made, place)
            except OSError:  # there from a run whose inputs changed, or a file system without links
                shutil.copyfile(made, f"{place}.new")
                os.replace(f"{place}.new", place)
        self.products[path] = product
        self.snapshot.produced(path, product.digest)
        self._recalled.discard(path)

    def hand_over(self, index: int, ran: Ran) -> None:
        Building.hand_over(self, index, ran)
        self._prove(self.plan.actions[index], ran)
        self._ended(index, ran.exit)
        self.reads[index] = ran.read
        self.done.append((self.plan.actions[index].name, ran.began_ns, ran.exit))

    def _ended(self, index: int, exit: Exit) -> None:
        self.said[index] = (exit.stdout, exit.stderr)
        self.exits.append(exit)

    def tell_hit(self, index: int, result: Result) -> None:
        stdout, stderr = (self.store.get(digest) or b"" if digest else b"" for digest in (result.stdout, result.stderr))
        self.said[index] = (stdout, stderr)
        self.done.append((self.plan.actions[index].name, time.time_ns(), None))
        self.reads[index] = self.lookup.used_by(self.plan.actions[index])

    def tell_failed(self, job: m.JobId, index: int, failure: Failure) -> None:
        self.failed[index] = failure
        if failure.exit is not None:
            self._ended(index, failure.exit)

    def close(self) -> None:
        """The folder is the job's."""

    def read(self) -> tuple[str, ...] | None:
        """What the steps with a depfile read together; None where one did not say."""
        found: dict[str, None] = {}
        for index, action in enumerate(self.plan.actions):
            read = self.reads.get(index)
            if action.discovery.value != "none":
                if read is None:
                    return None
                found.update(dict.fromkeys(read))
        return tuple(found)

    def shown(self) -> Iterator[tuple[str, bytes]]:
        """What was said up to the first failure, in the order of the steps: stream and text."""
        last = min(self.failed, default=len(self.plan.actions))
        for index in sorted(self.said):
            if index <= last:
                yield from zip(("stdout", "stderr"), self.said[index], strict=True)

    def exit(self, wall_s: float) -> Exit:
        """The steps as one process, which stops at the first failure."""
        failed = self.failed[min(self.failed)].exit if self.failed else None
        timings = [exit.timing for exit in self.exits]
        return Exit(
            status=failed.status if failed is not None else 0,
            signal=failed.signal if failed is not None else 0,
            # What the compiler says of a step that a signal ended, only it knows.
            lost=failed is not None and (failed.lost or failed.signal != 0),
            output_truncated=any(exit.output_truncated for exit in self.exits),
            timing=m.Timing(
                wall_s=wall_s,
                user_s=sum(timing.user_s for timing in timings),
                system_s=sum(timing.system_s for timing in timings),
                peak_rss_bytes=max((timing.peak_rss_bytes for timing in timings), default=0),
            ),
            stdout=b"".join(text for stream, text in self.shown() if stream == "stdout"),
            stderr=b"".join(text for stream, text in self.shown() if stream == "stderr"),
        )
