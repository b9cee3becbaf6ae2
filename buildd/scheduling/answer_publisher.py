"""Publishes the answers of foreign compiles, with which shims serve the same command again without the daemon.

Knows what an answer depends on: stamps of the files that were read, and of the folders that were searched. The answer
to a command that was divided depends on the files of all its parts. `answers` knows the files that hold answers.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce

from blake3 import blake3

from buildd.builds.active_build import ActiveBuild
from buildd.files.snapshot import Snapshot, is_old
from buildd.files.stamp_set import FolderStamp, Stamps, listed_names, trusted_stamps
from buildd.files.traits import Traits
from buildd.keys.checkout_paths import installed, installed_folders
from buildd.keys.include_search import asked_names, library_rivals
from buildd.keys.text_digests import bare_of
from buildd.scheduling import call_notes, checkout_answers
from buildd.scheduling.foreign_compile import CommandOutputs
from buildd.scheduling.make_rules import written
from buildd.store.answer_questions import question_of
from buildd.store.answers import Answer, Answers
from buildd.store.store import Store
from codegen.compilers import temporary_roots
from codegen.compilers.command_parser import PARTS, Compile
from codegen.compilers.temporary_roots import is_part, part_number
from codegen.foreign.compile_plan import DEPENDENCIES
from codegen.foreign.several_sources import Parts
from codegen.plan import Action, Tool
from codegen.reach import read_regular
from protocol import messages as m

_NO_DIGEST = bytes(32)
_NO_STAMPS = Stamps([], b"", ())
_MOST_ASKING = 1 << 10
"""Headers whose `__has_include` words are remembered."""
_MOST_DIVIDED = 16
_ABOVE = re.compile(r"/\.\.(?=/|$)")
"""Divided commands that wait for their link."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A compile or a link that was carried out or found, and what its answer depends on."""

    outputs: CommandOutputs
    used: tuple[str, ...]
    tool: Stamps

    @property
    def build(self) -> ActiveBuild:
        return self.outputs.build

    @property
    def action(self) -> Action:
        return self.build.plan.actions[0]

    @property
    def compile(self) -> Compile:
        return self.outputs.delivery.compile


@dataclass(slots=True)
class _Divided:
    """A command that links and that a shim carries out in parts."""

    request: m.Request
    commands: tuple[tuple[str, ...], ...]
    """The last one links."""
    parts: dict[str, _Part] = field(default_factory=dict)
    """The compiles that have ended, by the paths of their objects."""

    def has(self, request: m.Request) -> bool:
        """Whether a request is one of the parts. Another command may have had a folder of the same name."""
        whole = self.request
        same = (request.project, request.environment) == (whole.project, whole.environment)
        return same and request.command in self.commands


class AnswerPublisher:
    """Publishes the answers of one store. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._answers = Answers(store.folder, store.limit_bytes)
        self._divided: OrderedDict[str, _Divided] = OrderedDict()
        """By the folder of their objects."""
        self._lock = threading.Lock()
        self._asked: dict[m.Digest, frozenset[str]] = {}
        """Words that headers ask `__has_include` for, by the header's digest. Threads may work one out twice."""

    def divide(self, request: m.Request, parts: Parts) -> None:
        """Note that the parts of a command follow. The last one, its link, publishes the answer to the whole."""
        if not parts.folder or parts.reads_options:
            return
        with self._lock:
            self._divided[parts.folder] = _Divided(request, parts.commands)
            while len(self._divided) > _MOST_DIVIDED:
                self._divided.popitem(last=False)

    def shrink(self, outputs: CommandOutputs) -> None:
        """Free memory of a compile whose answer is published later. In a worker thread.

        The names in a folder of outputs are many, and another request never has the same ones.
        """
        used = outputs.build.inputs.lookup.used_by(outputs.build.plan.actions[0])
        compile = outputs.delivery.compile
        if used is None or is_part(compile.output) or any(map(is_part, compile.objects)):
            return  # the names of all parts matter
        build, snapshot = outputs.build, outputs.build.inputs.snapshot
        with contextlib.suppress(OSError):
            snapshot.keep_names(self._names(_Part(outputs, used, _NO_STAMPS)))
        tool = build.tool(build.plan.actions[0])
        for folder in build.inputs.lookup.folders:
            if not _is_system(snapshot, _folder(snapshot, folder), tool):
                for name in snapshot.listed(folder) or ():
                    snapshot.is_folder(f"{folder}/{name}")  # `_listings` asks what it was now

    def publish(self, outputs: CommandOutputs, tool: Stamps) -> None:
        """Publish the answer of a compile that was just built. In a worker thread.

        Args:
            tool: stamps of everything that the description of its tool depends on.
        """
        build, compile = outputs.build, outputs.delivery.compile
        used = build.inputs.lookup.used_by(build.plan.actions[0])
        if used is None or self._store.read_only:
            return
        if compile.native:
            return  # no stamp tells that the store has come to another machine
        if call_notes.are_wanted(build.request):
            return  # the folder for notes has another name the next time
        part = _Part(outputs, used, tool)
        if is_part(compile.output):
            self._hold(part)
            return
        linked = [path for path in compile.objects if is_part(path)]
        request, parts = build.request, [part]
        if linked:
            divided = self._take(request, linked)
            if divided is None:
                return
            # They may have ended in another order than the compiler's.
            compiles = [divided.parts[path] for path in sorted(divided.parts, key=part_number)]
            request, parts = divided.request, [*compiles, part]
        answer = self._answer(request, parts)
        if answer is not None:
            self._answers.publish(answer)

    def _hold(self, part: _Part) -> None:
        with self._lock:
            for folder, divided in self._divided.items():
                if part.compile.output.startswith(f"{folder}/") and divided.has(part.build.request):
                    divided.parts[part.compile.output] = part

    def _take(self, link: m.Request, objects: Sequence[str]) -> _Divided | None:
        """Return the command that has linked these objects; None if one of its compiles is not known."""
        with self._lock:
            folder = next((each for each in self._divided if objects[0].startswith(f"{each}/")), "")
            divided = self._divided.pop(folder, None)
        if divided is None or not divided.has(link) or divided.parts.keys() != {*objects}:
            return None
        return divided if len(divided.parts) == len(divided.commands) - 1 else None

    # ---------------------------------------------------------------- the answer

    def _answer(self, request: m.Request, parts: Sequence[_Part]) -> Answer | None:
        """The answer to the same command while its files are as they are; None where stamps cannot tell that.

        Args:
            parts: the last one makes the command's output.
        """
        store, outputs = self._store, parts[-1].outputs
        delivery, result, stamps = outputs.delivery, outputs.result, self._stamps_of(parts)
        if result is None or stamps is None:
            return None
        said = [
            part.outputs.delivery.said(store, part.outputs.result) if part.outputs.result else None for part in parts
        ]
        made = {output.name: output.digest for output in result.outputs}
        listed, *content = (store.get(digest) for digest in (made.pop(DEPENDENCIES), *made.values()))
        if listed is None or len(content) != 1 or content[0] is None:
            return None
        read = temporary_roots.read_lists(listed, delivery.roots)[0]
        upwards = read if b"/.." in listed else ()
        if any(map(_leads_through_link, (*upwards, *request.command, *request.environment.values()))):
            return None  # no stamp tells that the link leads elsewhere
        stdout, stderr = b"", b""
        for words in said:
            if words is None:
                return None
            stdout, stderr = stdout + words[0], stderr + words[1]
        depfile, rule = delivery.compile.depfile, delivery.rule(listed)
        answer = Answer(
            question=question_of(request),
            stamps=stamps,
            output=delivery.compile.output,
            object=delivery.ids.named(content[0]),
            depfile=depfile.path if depfile else "",
            rules=delivery.rules(listed) if rule is None else written(rule),
            mode=delivery.mode,
            stdout=stdout,
            stderr=stderr,
            key=result.key,
            saved_s=sum(part.outputs.result.timing.wall_s for part in parts if part.outputs.result),
        )
        if len(parts) > 1:
            return answer
        part = parts[0]
        folder = checkout_answers.folder_of(part.build, delivery, part.used, read, stamps, part.tool)
        return checkout_answers.for_any(answer, request, rule, folder) if folder else answer

    def _stamps_of(self, parts: Sequence[_Part]) -> Stamps | None:
        """Stamps of all that the parts have read and searched, other than each other's objects."""
        try:
            names = frozenset[str]().union(*map(self._names, parts))
            found = [stamps for part in parts for stamps in (_stamps_of(part, names), part.tool)]
        except OSError:
            return None
        known = [stamps for stamps in found if stamps is not None]
        return replace(reduce(Stamps.joined, known), names=names) if len(known) == len(found) else None

    def _names(self, part: _Part) -> frozenset[str]:
        """The names that matter in the folders of the build: those that an include could mean, since they are parts
        of paths that were read or searched, and those that `__has_include` asked for. Raises OSError."""
        build, action, snapshot = part.build, part.action, part.build.inputs.snapshot
        words = set(_words(part.used))
        beside = (os.path.dirname(path) for path in action.inputs if not is_part(path))
        for path in (*action.search, *build.tool(action).search, *beside):
            words.update(path.split("/"))
        words.update(build.inputs.lookup.precompiled_of(action).names())
        for path in (*part.used, *action.inputs):
            fact = snapshot.fact(path)
            if fact is not None and fact.has(Traits.HAS_INCLUDE):
                words.update(self._asked_words(snapshot.absolute(path), fact.digest))
        tool, folders = build.tool(action), build.inputs.lookup.folders
        own = [each for each in folders if not _is_system(snapshot, _folder(snapshot, each), tool)]
        return frozenset(words | _names_behind(snapshot, own, words))

    def _asked_words(self, path: str, digest: m.Digest) -> frozenset[str]:
        """Parts of the names that a file asks `__has_include` for. Raises OSError."""
        known = self._asked.get(digest)
        if known is None:
            content = read_regular(path)
            known = frozenset(part for name in asked_names(content) for part in name.split("/"))
            if len(self._asked) >= _MOST_ASKING:
                self._asked.clear()
            if blake3(content).hexdigest() != digest:
                raise OSError(f"{path} was changed just now")
            self._asked[digest] = known
        return known


def _stamps_of(part: _Part, names: frozenset[str]) -> Stamps | None:
    """Stamps of what one part depends on; None where one of them cannot be trusted. Raises OSError.

    Args:
        names: those that matter in the folders of the build.
    """
    build, action, snapshot = part.build, part.action, part.build.inputs.snapshot
    files, digests, bare, loose = [], [], [], []
    # The others are response files and precompiled headers.
    texts = {action.inputs[0], *part.used} if build.inputs.lookup.holds_for_bare(action) else set()
    movable = _movable(part, texts)
    twins = build.inputs.lookup.twins_of(action)
    texts = texts - twins
    taken = (path for path, _ in build.inputs.lookup.precompiled_of(action).present)
    for path in dict.fromkeys((*action.inputs, *part.used, *taken, *part.compile.read)):
        if is_part(path):
            continue
        fact = snapshot.fact(path)
        if fact is None:
            return None
        files.append((snapshot.absolute(path), fact.stamp))
        digests.append(_NO_DIGEST if path in twins else bytes.fromhex(fact.digest))
        form = bytes.fromhex(bare_of(snapshot, action, path)) if path in texts else b""
        bare.append(form[: len(_NO_DIGEST)] or _NO_DIGEST)
        loose.append((form[len(_NO_DIGEST) :] if path in movable else b"") or _NO_DIGEST)
    searched = build.inputs.lookup.folders
    listings = _listings(snapshot, searched, build.tool(action), names, build.started_ns)
    folders = [
        FolderStamp(path, stamp, listings.get(path))
        for path, stamp in ((_folder(snapshot, f), stamp) for f, stamp in searched.items())
        if not path.startswith(PARTS)
    ]
    stamps = trusted_stamps(files, folders, build.started_ns)
    if stamps is None:
        return None
    return replace(stamps, digests=b"".join(digests), bare=b"".join(bare), loose=b"".join(loose))


def _names_behind(snapshot: Snapshot, folders: Collection[str], names: Collection[str]) -> set[str]:
    """The names on the paths to which links with some names lead, and those that lie behind further links.

    Where nothing is at a link's end, no include finds it. The link's folder stays as it is when a file comes there.
    """
    found, last = set[str](), set(names)
    while last:
        led: list[str] = []
        for folder in folders:
            for name in last.intersection(snapshot.listed(folder) or ()):
                with contextlib.suppress(OSError):  # it is no link
                    led.append(os.readlink(os.path.join(snapshot.absolute(folder), name)))
        last = {part for path in led for part in path.split("/")}.difference(found, names)
        found |= last
    return found


def _leads_through_link(text: str) -> bool:
    """Whether a path in a text goes up from a link by `..`, and so to the folder above the place that it leads to."""
    if "/.." not in text:
        return False
    paths = (part[part.index("/") :] for part in re.split("[:,=]", text) if "/" in part)
    return any(
        os.path.islink(os.path.normpath(path[: match.start()])) for path in paths for match in _ABOVE.finditer(path)
    )


def _movable(part: _Part, texts: Collection[str]) -> frozenset[str]:
    """Those of a project's own texts whose tokens may stand in other lines."""
    action, inputs = part.action, part.build.inputs
    tool = part.build.tool(action)
    alike, absolute = installed_folders(tool), inputs.snapshot.absolute
    own = [path for path in part.used if path in texts and not absolute(path).startswith(alike)]
    return inputs.lookup.lines.movable(action, inputs.lookup.files.names_of(tool), own)


def _listings(
    snapshot: Snapshot, searched: Iterable[str], tool: Tool, names: frozenset[str], since_ns: int
) -> dict[str, frozenset[tuple[str, bool]]]:
    """Which of those names are in the searched folders, other than the system's. Raises OSError.

    A build may put files into any of them: other compiles their objects, and libtool its `.lo`.
    """
    found = {}
    for folder in searched:
        path, listed = _folder(snapshot, folder), snapshot.listed(folder)
        if listed is None or _is_system(snapshot, path, tool) or os.path.realpath(path) != path:
            continue
        now = listed_names(path, names)
        # Only as it was when the answer was found: files that came since are no part of it.
        if {name for name, _ in now} != names & listed:
            continue
        # A name may have become that of another file: a folder `vector` that compilers pass over, now a header.
        # The time of a folder says nothing of that: it changes with the folder's files.
        if snapshot.has_same_names(folder) or all(
            snapshot.was_folder(f"{folder}/{name}") if is_folder else is_old(f"{path}/{name}", since_ns)
            for name, is_folder in now
        ):
            found[path] = now
    return found


def _is_system(snapshot: Snapshot, path: str, tool: Tool) -> bool:
    """Whether a folder is the tool's or the system's, and not the project's."""
    return installed(f"{path}/", tool) and not f"{path}/".startswith(f"{snapshot.project}/")


@lru_cache(maxsize=32)  # the sources of a build share their headers
def _words(used: tuple[str, ...]) -> frozenset[str]:
    """The names on the paths of files, and those that a linker takes in place of a library's."""
    words = {part for path in used for part in path.split("/")}
    return frozenset(words.union(*(library_rivals(os.path.basename(path)) for path in used)))


def _folder(snapshot: Snapshot, folder: str) -> str:
    return snapshot.project if folder == "." else os.path.normpath(snapshot.absolute(folder))
