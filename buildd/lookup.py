"""An action -> its stored result, or the reasons why there is none. And the way back: what a run is filed under.

Knows keys, stamps and the store; starts nothing and delivers nothing. One `Lookup` belongs to one request: it holds
that request's snapshot, so an answer is true for a moment at or after the request came in.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from blake3 import blake3

from buildd import keys, precompiled, shadow
from buildd.files import Fact, Snapshot, appeared_since
from buildd.names import Names, names_below
from buildd.results import LINK, PRESENT
from buildd.store import InputSet, Result, Store
from buildd.traits import Traits
from codegen.plan import MAPPED, Action, Discovery, Kept, Tool
from protocol.messages import Digest


@dataclass(frozen=True, slots=True)
class Found:
    """A hit."""

    first: Digest
    result: Result


@dataclass(frozen=True, slots=True)
class Missing:
    """A miss with the reasons, in words."""

    first: Digest
    components: bytes
    reasons: tuple[str, ...]
    inputs: tuple[tuple[str, Digest | None], ...] = ()
    """The declared inputs as they were: a run must have read just these."""


@dataclass(frozen=True, slots=True)
class Filing:
    """What a finished run is stored under, or why it is not stored."""

    input_set: InputSet | None
    unstored: str = ""
    stale: tuple[str, ...] = ()
    """Inputs that changed while the tool ran."""


@dataclass(frozen=True, slots=True)
class _Fits:
    """A list of files that are as it says, in this request's view of the file system."""

    files: tuple[tuple[str, Digest], ...]
    paths: tuple[str, ...]
    members: frozenset[str]


class Lookup:
    """Look-ups of one request.

    Args:
        store: where results are.
        snapshot: the request's view of the file system.
        recache: every action misses, as the user asked.
        surveys: answers of other requests.
    """

    def __init__(
        self, store: Store, snapshot: Snapshot, *, recache: bool = False, surveys: shadow.Memory | None = None
    ) -> None:
        self.store = store
        self.snapshot = snapshot
        self._recache = recache
        self._memory = surveys
        self._tools: dict[int, tuple[Tool, Digest]] = {}
        self._names: dict[int, Names] = {}
        self._real: dict[str, str] = {}
        self._normals: dict[str, str] = {}
        self._leads: dict[str, str] = {}
        self._spelled_in: dict[str, str] = {}
        # By identity: the store hands the same list out for all input sets that have it, and here it is held.
        self._fits: dict[tuple[int, int], _Fits] = {}
        self._unchanged: dict[tuple[int, int], tuple[tuple[str, int], ...]] = {}
        self._surveyors: dict[tuple[tuple[str, ...], tuple[str, ...]], shadow.Surveyor] = {}
        self.folders: dict[str, int] = {}
        """Stamps of all folders that an answer stood on."""
        self._discovered: dict[str, tuple[str, ...]] = {}
        self._places = precompiled.Places(snapshot, self.folders)
        self._precompiled: dict[str, precompiled.Candidates] = {}
        self._candidates_of: dict[object, precompiled.Candidates] = {}

    def used_by(self, action: Action) -> tuple[str, ...] | None:
        """The discovered inputs of an action; None where they are not known here: it was neither found nor filed, but
        another request's run of it was joined."""
        return self._discovered.get(action.name, () if action.discovery is Discovery.NONE else None)

    @property
    def discovered(self) -> Mapping[str, tuple[str, ...]]:
        """What `used_by` says, by an action's name."""
        return self._discovered

    def around(self, action: Action, tool: Tool, used: Sequence[str]) -> tuple[str, ...]:
        """The folders in which another file would be found in place of one of these, as a run reads them now."""
        return tuple(folder for folder, _ in self._survey(used, action, tool).folders)

    def take_over(self, discovered: Mapping[str, tuple[str, ...]], folders: Mapping[str, int]) -> None:
        """Take what another request has found of actions that stand as they did.

        Args:
            discovered: the discovered inputs of those, by name.
            folders: as `folders`.
        """
        self._discovered.update(discovered)
        self.folders.update(folders)

    def precompiled_of(self, action: Action) -> precompiled.Candidates:
        """What the action could have taken in place of a header."""
        return self._precompiled.get(action.name, precompiled.Candidates())

    # -- before

    def first_level(self, action: Action, tool: Tool) -> tuple[Digest, list[keys.Component]]:
        """The key of all that is known before the action runs, and what it was made of."""
        names = self._names_of(tool)
        components = list(
            keys.action_components(
                action,
                self.tool_digest(tool),
                self.snapshot.digest,
                name_of=lambda path: names.name(path) if names.root(path) else path,
                project=self.snapshot.project,
                roots=tool.roots,
            )
        )
        for number, folder in enumerate((*action.search, *tool.search)):
            if self._leads_to(folder):
                # What is found there has its own name: nothing else tells that the link means another folder now.
                components.append((f"search folder {number}", names.name(self._searched(folder))))
                self.folders[folder] = self.snapshot.folder_stamp(folder)
        found = self._precompiled[action.name] = self._candidates(action, tool)
        components += [(f"precompiled header {names.name(path)}", digest or "") for path, digest in found.present]
        components += [(f"header beside a precompiled one {names.name(path)}", "") for path in found.headers]
        return keys.digest(components), components

    def _candidates(self, action: Action, tool: Tool) -> precompiled.Candidates:
        """Worked out once for one source and search: the steps of a compile ask the same, several times each."""
        asked = (*action.inputs[:1], "", *precompiled.forced(action)), action.discovery, action.search, tool.search
        found = self._candidates_of.get(asked)
        if found is None:
            found = precompiled.candidates(action, tool.search, self._places)
            if not (action.inputs and self.snapshot.is_aside(action.inputs[0])):
                self._candidates_of[asked] = found
        return found

    def tool_digest(self, tool: Tool) -> Digest:
        """Digest of a tool's closure, worked out once a request."""
        known = self._tools.get(id(tool))
        if known is None:
            components = list(keys.tool_components(tool, self._tool_file))
            known = (tool, keys.digest(components))
            self._tools[id(tool)] = known
            self.store.remember_action(known[1], keys.encode(components))
        return known[1]

    def _tool_file(self, path: str) -> Digest | None:
        fact = self.snapshot.fact(path)
        return None if fact is None else fact.digest

    def look(self, action: Action, tool: Tool, *, explain: bool = True) -> Found | Missing:
        """Look one action up. Its declared inputs must be there (or produced) by now.

        Args:
            explain: compare a miss with what the action was made of last time.
        """
        first, components = self.first_level(action, tool)
        why = self._search(first, components, action, tool, explain=explain)
        if isinstance(why, Found):
            return why
        return self._missing(first, components if explain else [], action, why)

    def missing(self, action: Action, tool: Tool, reason: str) -> Missing:
        """A miss for a reason that the caller found out."""
        return self._missing(*self.first_level(action, tool), action, (reason,))

    def _missing(
        self, first: Digest, components: list[keys.Component], action: Action, why: tuple[str, ...]
    ) -> Missing:
        self._discovered.pop(action.name, None)  # of a result that did not fit
        inputs = tuple((path, self.snapshot.digest(path)) for path in action.inputs)
        return Missing(first, keys.encode(components) if components else b"", why, inputs)

    def _search(
        self, first: Digest, components: list[keys.Component], action: Action, tool: Tool, *, explain: bool
    ) -> Found | tuple[str, ...]:
        if action.uncacheable:
            return (f"never stored: {action.uncacheable}",)
        if action.kept is Kept.NOTHING:
            return ("made again whenever it is needed",)
        if self._recache:
            return ("asked to run again",)
        why: list[str] = []
        names = self._names_of(tool)
        for known in self.store.input_sets(first):
            reason = self._differs(first, known, action, tool, names)
            if not reason:
                result = self.store.result(known.key)
                if result is not None:
                    return Found(first, result)
                reason = "its result was evicted"
            why.append(reason)
        return tuple(why[:1]) or (self._why_unknown(action, components) if explain else ())

    def _differs(self, first: Digest, known: InputSet, action: Action, tool: Tool, names: Names) -> str:
        """Why an input set does not fit the files of now; empty where it does."""
        folders = dict(tool.roots)
        for name, folder in known.roots:
            if folders.get(name) != folder:
                return f"folder of {name}: {folder} -> {folders.get(name)} (a used file mentions __FILE__)"
        snapshot = self.snapshot
        list_of = (id(names), id(known.files))
        fits = self._fits.get(list_of)
        if fits is None or not snapshot.made_none_of(fits.members):
            paths = tuple(names.path(name) for name, _ in known.files)
            for path, (_, digest) in zip(paths, known.files, strict=True):
                now = snapshot.digest(path)
                if now != digest:
                    return f"input {path}: {'no longer there' if now is None else 'content changed'}"
            fits = self._fits[list_of] = _Fits(known.files, paths, frozenset(paths))
        paths = self._discovered[action.name] = fits.paths
        folders_of = (id(names), id(known.folders))
        if folders_of in self._unchanged:
            return ""
        links = [
            (names.path(n), names.path(to)) for n, stamp in known.folders if stamp == LINK for n, to in [n.split("\0")]
        ]
        for folder, to in links:
            if self._searched(folder) != to:
                return f"folder {folder}: it was {to}"
            self.folders[folder] = snapshot.folder_stamp(folder)
        watched = [(names.path(n), stamp) for n, stamp in known.folders if stamp not in (PRESENT, LINK)]
        if shadow.unchanged(snapshot, watched):
            self.folders.update(watched)
            self._unchanged[folders_of] = known.folders
            return ""
        present = tuple(sorted(n for n, stamp in known.folders if stamp == PRESENT))
        survey = self._survey(paths, action, tool)
        now_present = [names.name(path) for path in survey.present]
        if new := [name for name in now_present if name not in present]:
            return f"input {names.path(new[0])}: appeared where the search finds it first"
        if gone := [name for name in present if name not in now_present]:
            return f"input {names.path(gone[0])}: no longer there"
        # Nothing that matters changed in those folders: remember their new stamps.
        self.folders.update(survey.folders)
        self.store.update_folders(first, replace(known, folders=_folders_of(survey, names, links)))
        return ""

    def _why_unknown(self, action: Action, components: list[keys.Component]) -> tuple[str, ...]:
        before = self.store.recall_action(self.name_key(action))
        if before is None:
            return ("never built before",)
        reasons = keys.difference(self._with_tools(keys.decode(before)), self._with_tools(components))
        return reasons or ("its entry is no longer in the store",)

    def _with_tools(self, components: list[keys.Component]) -> list[keys.Component]:
        """A walk with each tool's digest replaced by the tool's own components, so that a change names the file."""
        out = []
        for name, value in components:
            inner = self.store.recall_action(Digest(value)) if name.startswith("tool ") else None
            out.extend(keys.decode(inner) if inner else [(name, value)])
        return out

    def name_key(self, action: Action) -> Digest:
        """What an action's last components are remembered under: its name in this project."""
        return Digest(blake3(f"{self.snapshot.project}\0{action.name}".encode(errors="surrogateescape")).hexdigest())

    # -- after

    def file_run(
        self,
        action: Action,
        tool: Tool,
        missing: Missing,
        read: Iterable[str] | None,
        private: tuple[str, ...],
        started_ns: int,
        named: Collection[str] = (),
    ) -> Filing:
        """What a run that just ended is filed under.

        Args:
            action: what ran.
            tool: its tool.
            missing: what the look-up before the run said.
            read: the files that it said it read, as it spelled them; None where it said nothing.
            private: folders of the job's own files; what lies below is no input.
            started_ns: when the run began, by the file system's clock.
            named: roots whose folder stands in the result.
        """
        if action.uncacheable:
            return Filing(None, action.uncacheable)
        snapshot = self.snapshot
        moved: dict[str, bool] = {}
        stale = [
            path
            for path, digest in missing.inputs
            if snapshot.digest(path) != digest or not snapshot.untouched(path, path, started_ns, moved)
        ]
        if stale:
            return Filing(None, stale=tuple(stale))
        if read is None and action.discovery.value != "none":
            return Filing(None, "the tool did not say which files it read")
        used, stale = self._used(action, read or (), private, started_ns, moved)
        if stale:
            return Filing(None, stale=tuple(stale))
        names = self._names_of(tool)
        taken = self.precompiled_of(action)
        stale = [path for path in taken.absent if os.path.lexists(snapshot.absolute(path))]
        stale += [path for path, _ in taken.present if not snapshot.untouched(path, path, started_ns, moved)]
        if stale:
            return Filing(None, stale=tuple(stale))
        if taken.computed:
            return Filing(None, "what it includes first is computed")
        for path, digest in taken.present:
            if digest is None or not precompiled.is_known(self.store, digest):
                return Filing(None, f"{path} was not made through buildd, or is a folder of precompiled headers")
        # Nobody can tell what the macros of one mention.
        sensitive = {name for name, _ in tool.roots if taken.present and not name.startswith(MAPPED)}.union(named)
        for path in (*action.inputs, *used):
            fact = None if snapshot.is_produced(path) else snapshot.fact(path)
            if fact is None or fact.traits is Traits.NONE:
                continue
            reason = self._unsound(path, fact, action)
            if reason:
                return Filing(None, reason)
            if fact.traits & (Traits.PATHS | Traits.ASSERT):
                root = names.root(path)
                sensitive.update(() if root.startswith(MAPPED) else (root,))
        survey = self._survey(used, action, tool)
        # What the search would have found, or __has_include was answered by, may not have been so when the tool asked.
        unsure = [path for path in survey.present if appeared_since(snapshot.absolute(path), started_ns, moved)]
        unsure += [folder for folder in survey.asked if not snapshot.listed_since(folder, started_ns)]
        if unsure:
            return Filing(None, stale=tuple(unsure))
        self._discovered[action.name] = tuple(used)
        self.folders.update(survey.folders)
        links = self._links(action, tool, read or ())
        self.folders.update((folder, snapshot.folder_stamp(folder)) for folder, _ in links)
        files = sorted((names.name(path), snapshot.digest(path) or Digest(keys.MISSING)) for path in used)
        bound = tuple((name, folder) for name, folder in tool.roots if name in sensitive)
        return Filing(
            InputSet(
                files=tuple(files),
                folders=_folders_of(survey, names, links),
                roots=bound,
                key=keys.result_digest(missing.first, files, bound),
            )
        )

    def foresee(self, action: Action, tool: Tool) -> None:
        """Look at the searched folders before a run, so that what changes in them meanwhile is told apart."""
        for folder in (*action.search, *tool.search):
            self.snapshot.listing(self._searched(folder))

    def _used(
        self, action: Action, read: Iterable[str], private: tuple[str, ...], started_ns: int, moved: dict[str, bool]
    ) -> tuple[list[str], list[str]]:
        """Discovered files that are not declared, and those of them that changed since the run began."""
        normals, untouched, absolute = self._normals, self.snapshot.untouched, self.snapshot.absolute
        declared = set(action.inputs)
        used: dict[str, str] = {}
        mine = tuple(os.path.realpath(folder) + "/" for folder in private if folder)
        for spelled in read:
            path = normals.get(spelled) or self.normal(spelled)
            if path in used or path in declared or absolute(path).startswith(mine):
                continue
            used[path] = spelled
        self.snapshot.see(used)
        # One that is gone was there when it was read.
        stale = [path for path, spelled in used.items() if not untouched(path, spelled, started_ns, moved)]
        return list(used), stale

    def _unsound(self, path: str, fact: Fact, action: Action) -> str:
        """Why a used file makes the result one that cannot be looked up; empty where it does not."""
        if Traits.TIME in fact.traits and not any(n == "SOURCE_DATE_EPOCH" for n, _ in action.environment):
            return f"{path} mentions __DATE__ or __TIME__ (set SOURCE_DATE_EPOCH to have it stored)"
        if Traits.TIMESTAMP in fact.traits:
            return f"{path} mentions __TIMESTAMP__"
        if Traits.EMBED in fact.traits:
            return f"{path} embeds another file (.incbin, .include or #embed)"
        if Traits.HAS_INCLUDE in fact.traits and not os.path.isabs(path):
            try:
                with open(self.snapshot.absolute(path), "rb") as file:
                    text = file.read()
                if blake3(text).hexdigest() != fact.digest:
                    return f"{path} was changed just now"
                if shadow.asks_computed(text):
                    return f"{path} asks __has_include for a computed name"
            except OSError:
                return f"{path} cannot be read"
        return ""

    def _links(self, action: Action, tool: Tool, read: Iterable[str]) -> list[tuple[str, str]]:
        """Folders that files were read in, and the ones that links led to from there; but for what is found in a search
        folder without one more link, whose own is in the key."""
        led = [(folder.rstrip("/"), to) for folder in (*action.search, *tool.search) if (to := self._leads_to(folder))]
        found = []
        for folder in dict.fromkeys(map(self._folder_of, read)):
            to = self._leads_to(folder)
            if to and not any(_under(folder, top) and to == real + folder[len(top) :] for top, real in led):
                found.append((folder, self._searched(folder)))
        return found

    # -- names

    def _names_of(self, tool: Tool) -> Names:
        known = self._names.get(id(tool))
        if known is None:
            roots = sorted(((name, os.path.realpath(folder)) for name, folder in tool.roots), key=lambda r: -len(r[1]))
            known = self._names[id(tool)] = names_below(tuple(roots))
        return known

    def normal(self, spelled: str) -> str:
        """One name for a file however it was spelled: links to folders resolved, relative below the project."""
        known = self._normals.get(spelled)
        if known is None:
            known = self._normals[spelled] = self._normalised(spelled)
        return known

    def _normalised(self, spelled: str) -> str:
        if not spelled.startswith("/"):
            return os.path.normpath(spelled) if ".." not in spelled and "/." not in spelled[:-1] else spelled
        folder, name = os.path.split(spelled)
        real = self._real.get(folder)
        if real is None:
            real = self._real[folder] = os.path.realpath(folder)
        path = f"{real}/{name}" if real != "/" else f"/{name}"
        prefix = self.snapshot.project + "/"
        return path[len(prefix) :] if path.startswith(prefix) else path

    def _survey(self, used: Sequence[str], action: Action, tool: Tool) -> shadow.Surroundings:
        includers = [path for path in action.inputs if not self.snapshot.is_aside(path)]
        where = (action.search, tool.search)
        surveyor = self._surveyors.get(where)
        if surveyor is None:
            search, own = ([self._searched(folder) for folder in several] for several in where)
            surveyor = self._surveyors[where] = shadow.Surveyor(self.snapshot, search, own, self._memory)
        return surveyor.survey(sorted(used), includers)

    def _folder_of(self, spelled: str) -> str:
        known = self._spelled_in.get(spelled)
        if known is None:
            known = self._spelled_in[spelled] = os.path.dirname(spelled)
        return known

    def _leads_to(self, folder: str) -> str:
        """Where an absolute folder really is, if that is elsewhere; else empty."""
        known = self._leads.get(folder)
        if known is None:
            real = os.path.normpath(self.snapshot.absolute(self._searched(folder))) if folder.startswith("/") else ""
            known = self._leads[folder] = real if real != os.path.normpath(folder) else ""
        return known

    def _searched(self, folder: str) -> str:
        return self.normal(f"{folder}/x")[:-2] or "." if folder not in (".", "") else "."


def _under(folder: str, top: str) -> bool:
    return folder == top or folder.startswith(f"{top}/")


def _folders_of(
    survey: shadow.Surroundings, names: Names, links: Iterable[tuple[str, str]]
) -> tuple[tuple[str, int], ...]:
    return (
        *((names.name(folder), stamp) for folder, stamp in survey.folders),
        *((names.name(path), PRESENT) for path in survey.present),
        *((f"{names.name(folder)}\0{names.name(to)}", LINK) for folder, to in links),
    )
