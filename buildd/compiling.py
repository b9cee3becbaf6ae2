"""One compile of a foreign build while it is carried out: what differs from a target of our own.

Its outputs go where the command says, with the caller's umask and a fresh time; what the tool said goes back byte for
byte; the depfile is written from what the tool was seen to read. Knows no queue and no process (`scheduler`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from buildd import precompiled, runlog
from buildd.building import HIT, Building
from buildd.command import DEPFILE, output_path
from buildd.files import Files
from buildd.placing import copy_file
from buildd.products import Failure, Product, Ran
from buildd.store import Result, Store
from codegen import moved
from codegen.foreign import DEPENDENCIES
from codegen.parsing import Compile, Depfile, HandThrough, Makes, Reason, quoted
from codegen.plan import Action
from protocol import messages as m

_PIECE_BYTES = 256 << 10
_MOST_EVENTS = 1 << 20
_NO_SPACE = b"No space left on device"


@dataclass(slots=True)
class Figures:
    """What the compiles of one build came to; `protocol.messages.BuildFigures` while it grows."""

    hits: int = 0
    misses: int = 0
    failures: int = 0
    saved_s: float = 0.0
    handed_through: dict[str, int] = field(default_factory=dict)
    holding_paths: int = 0

    def frozen(self) -> m.BuildFigures:
        return m.BuildFigures(
            hits=self.hits,
            misses=self.misses,
            failures=self.failures,
            saved_s=self.saved_s,
            handed_through=dict(self.handed_through),
            holding_paths=self.holding_paths,
        )


def encoded(builds: Mapping[m.BuildId, Figures]) -> bytes:
    """Figures of builds, for the daemon that follows this one."""
    return msgspec.msgpack.encode({name: figures.frozen() for name, figures in list(builds.items())})


def decoded(record: bytes | None) -> dict[m.BuildId, Figures]:
    """What `encoded` wrote; nothing where that is damaged."""
    try:
        found = msgspec.msgpack.decode(record or b"", type=dict[str, m.BuildFigures])
    except (msgspec.MsgspecError, ValueError):
        return {}
    return {m.BuildId(name): Figures(**msgspec.structs.asdict(figures)) for name, figures in found.items()}


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where the results of a compile go, and how they are written.

    Args:
        folder: where the command was called.
        system: folders whose headers -MMD leaves out, each with its final slash.
        roots: folders that have another name each time.
    """

    compile: Compile
    folder: str
    umask: int
    system: tuple[str, ...]
    roots: moved.Roots = ()

    def check(self) -> None:
        """Raises HandThrough where the tool would do something else than write a file of its own."""
        depfile = self.compile.depfile
        for path in (self.compile.output, *((depfile.path,) if depfile else ())):
            place = os.path.join(self.folder, path)
            if os.path.basename(path) in ("", DEPFILE) or not os.path.isdir(os.path.dirname(place)):
                raise HandThrough(Reason.OUTPUT, path)
            if os.path.lexists(place) and (os.path.islink(place) or not os.path.isfile(place)):
                raise HandThrough(Reason.OUTPUT, path)
            if os.path.realpath(place) == os.path.realpath(os.path.join(self.folder, self.compile.source)):
                raise HandThrough(Reason.OUTPUT, f"{path} is the source")

    def put_object(self, files: Files, digest: m.Digest, write: Callable[[Path], bool]) -> bool:
        """Have the object there, new or as new: make and ninja go by its time. False where `write` says so."""
        place = os.path.join(self.folder, self.compile.output)
        fact = files.fact(place)
        if fact is not None and fact.digest == digest and not os.path.islink(place):
            os.utime(place)
            if self.compile.makes is Makes.LINKED:
                os.chmod(place, self.mode & ~self.umask)
            return True
        if not write(Path(place)):
            return False
        os.chmod(place, self.mode & ~self.umask)
        return True

    @property
    def mode(self) -> int:
        """The object's, before the umask."""
        return 0o777 if self.compile.makes is Makes.LINKED else 0o666

    def rules(self, listed: bytes) -> bytes:
        """The depfile that the command asks for; empty where it asks for none.

        Args:
            listed: the output `DEPENDENCIES`.
        """
        depfile = self.compile.depfile
        if depfile is None:
            return b""
        paths, _ = moved.read(listed, self.roots)
        return make_rules(depfile, self.compile.source, paths, self.system)

    def said(self, store: Store, result: Result) -> tuple[bytes, bytes] | None:
        """What the tool said when the result was made, in today's names; None where that is lost."""
        listed = next((store.get(output.digest) for output in result.outputs if output.name == DEPENDENCIES), None)
        texts = [b"" if digest is None else store.get(digest) for digest in (result.stdout, result.stderr)]
        if listed is None or texts[0] is None or texts[1] is None:
            return None
        _, moves = moved.read(listed, self.roots)
        for old, new in moves:
            texts = [text.replace(old, new) for text in texts if text is not None]
        return texts[0] or b"", texts[1] or b""

    def put_depfile(self, rules: bytes) -> None:
        """Write the depfile, as tools do: in place."""
        depfile = self.compile.depfile
        if depfile is None:
            return
        place = os.path.join(self.folder, depfile.path)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(place, flags, 0o666), "r+b", buffering=0) as file:
            if file.read() == rules:
                # Not written again: ext4 takes two milliseconds for a file that was emptied.
                os.utime(file.fileno())
            else:
                os.fchmod(file.fileno(), 0o666 & ~self.umask)
                file.seek(0)
                file.truncate()
                file.write(rules)


def make_rules(depfile: Depfile, source: str, paths: Iterable[str], system: tuple[str, ...]) -> bytes:
    """A depfile as gcc writes it.

    Args:
        paths: what was read, as the tool spelled it, without the source.
        system: folders whose headers -MMD leaves out.
    """
    headers = [quoted(p) for p in paths if p != source and (depfile.system or not p.startswith(system))]
    text = f"{' '.join(depfile.targets)}: " + " \\\n ".join((quoted(source), *headers)) + "\n"
    if depfile.phony:
        text += "".join(f"{header}:\n" for header in headers)
    return os.fsencode(text)


def pieces(stream: str, data: bytes) -> list[m.ToolOutput]:
    """What a tool wrote, as it travels."""
    starts = range(0, len(data), _PIECE_BYTES)
    return [m.ToolOutput(stream=stream, data=data[start : start + _PIECE_BYTES]) for start in starts]


@dataclass(slots=True, kw_only=True)
class Compiling(Building):
    """State of one compile."""

    delivery: Delivery
    figures: Figures
    keep: Callable[[Compiling], None]
    """Is told once it was built, in a worker thread."""
    carried_out: bool = False
    """Otherwise the caller has to run the tool itself."""
    exit_status: int = 0
    signal: int = 0
    outputs: list[m.ToolOutput] = field(default_factory=list)
    result: Result | None = None
    """What was found, or stored."""
    holds_path: bool = False
    """A folder's path stands in it whose name is another one in the next build."""

    # ---------------------------------------------------------------- files (worker threads)

    @property
    def tells_kernels(self) -> bool:
        return False

    def write_generated(self) -> None:
        """There is none, and no folder is made that the tool would not make."""

    def finish_outputs(self, action: Action, private: str, read: tuple[str, ...]) -> Mapping[str, bytes]:
        """List what the tool read as one more output."""
        scratch = str(self.store.scratch_folder())
        mine = tuple(f"{folder}/" for folder in (scratch, os.path.realpath(scratch)))
        paths = [path for path in read if not path.startswith(mine)]
        place = Path(output_path(private, action, DEPENDENCIES))
        place.write_bytes(moved.listed(self.delivery.roots, paths))
        return {}

    @property
    def roots(self) -> moved.Roots:
        return self.delivery.roots

    def named_by(self, action: Action, private: str) -> Collection[str]:
        if not self.roots:
            return ()
        return moved.names_in(Path(output_path(private, action, action.outputs[0].name)).read_bytes(), self.roots)

    def _place(self, path: str, digest: m.Digest, *, executable: bool) -> bool:
        if path != self.delivery.compile.output:
            listed = self.store.get(digest)
            if listed is not None:
                self.delivery.put_depfile(self.delivery.rules(listed))
            return listed is not None
        self._vouch_for(digest)
        return self.delivery.put_object(self.files, digest, partial(self.store.restore, digest))

    def place_made(self, path: str, made: Path, product: Product) -> None:
        def copy(place: Path) -> bool:
            copy_file(made, place, executable=False)
            return True

        if path == self.delivery.compile.output:
            self.delivery.put_object(self.files, product.digest, copy)
        else:
            self.delivery.put_depfile(self.delivery.rules(made.read_bytes()))
        self.products[path] = product

    def hand_over(self, index: int, ran: Ran) -> None:
        Building.hand_over(self, index, ran)
        if ran.exit.output_truncated:
            return  # what is missing in the middle nobody has any more
        self.outputs = [*pieces("stdout", ran.exit.stdout), *pieces("stderr", ran.exit.stderr)]
        self.carried_out = True

    def is_settled(self) -> bool:
        """Unlike a build of ours, a foreign one would wait once for each of its compiles."""
        return not self.snapshot.has_seen_young()

    def published(self, result: Result, held: moved.Roots) -> None:
        self.result = result
        self.holds_path = not {*held}.isdisjoint(self.roots)
        self._vouch_for(next(output.digest for output in result.outputs if output.name != DEPENDENCIES))

    def _vouch_for(self, digest: m.Digest) -> None:
        """A precompiled header that could be stored: its sources mention nothing that would be hidden in it. Only of a
        clock that stood still while it was made nothing is known."""
        stood_still = any(name == "SOURCE_DATE_EPOCH" for name, _ in self.plan.actions[0].environment)
        if self.delivery.compile.makes is Makes.HEADER and not stood_still:
            precompiled.remember(self.store, digest)

    def remember(self) -> None:
        self.keep(self)

    def keep_log(self) -> None:
        """A build of ten thousand compiles would have ten thousand of them; see `runlog`."""

    # ---------------------------------------------------------------- what is said

    def tell_hit(self, index: int, result: Result) -> None:
        said = self.delivery.said(self.store, result)
        self.counts.hits += 1
        self.counts.saved_s += result.timing.wall_s
        self.result = result
        if said is not None:
            self.outputs, self.carried_out = [*pieces("stdout", said[0]), *pieces("stderr", said[1])], True
        self.log.append(m.CacheHit(job_id=HIT, action=self.plan.actions[index].name, reason="same inputs"))

    def tell_failed(self, job: m.JobId, index: int, failure: Failure) -> None:
        Building.tell_failed(self, job, index, failure)
        kind, exit = failure.kind, failure.exit
        by_itself = kind is m.FailureKind.COMPILE_ERROR or (kind is m.FailureKind.KILLED and exit and exit.signal)
        if exit is None or exit.lost or exit.output_truncated or not by_itself or _NO_SPACE in exit.stderr:
            return  # our fault, perhaps: the caller tries again without us
        self.outputs = [*pieces("stdout", exit.stdout), *pieces("stderr", exit.stderr)]
        self.exit_status, self.signal = 0 if exit.signal else exit.status, exit.signal
        self.carried_out = True

    def tell_end(self, outcome: m.Outcome) -> None:
        if self.counts.failures:
            runlog.note(self.store.folder, self.request.build_id, self.log.after(0, _MOST_EVENTS))
        if self.carried_out:
            for output in self.outputs:
                self.log.append(output)
        self.tell_done(outcome)

    def tell_progress(self, running: int, waiting_for: str, eta_s: float) -> None:
        """Nobody looks at one compile's progress."""

    def tell_done(self, outcome: m.Outcome, **fields: Any) -> None:
        if self.log.done is not None:
            return  # at the end of the work, before it was written down
        counts = self.counts
        self.figures.hits += counts.hits
        self.figures.misses += counts.misses
        self.figures.failures += counts.failures
        self.figures.saved_s += counts.saved_s
        self.figures.holding_paths += self.holds_path
        if not self.carried_out and outcome is not m.Outcome.CANCELLED:
            outcome = m.Outcome.DAEMON_ERROR
            reason = Reason.NOT_CARRIED_OUT.value
            self.figures.handed_through[reason] = self.figures.handed_through.get(reason, 0) + 1
            self.store.tally.count_handed_through(reason)
        Building.tell_done(self, outcome, exit_status=self.exit_status, signal=self.signal)
