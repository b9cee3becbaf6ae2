"""Look-ups: an action -> its stored result, or the reasons why there is none.

Knows keys, stamps and the store; starts nothing and delivers nothing. One `Lookup` belongs to one request: it holds
that request's snapshot, so an answer is true for a moment at or after the request came in. `filing`
knows how a run that follows a miss is filed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from blake3 import blake3

from buildd.files.snapshot import Snapshot
from buildd.keys import action_key, changed_inputs, checkout_paths, fitting_list, precompiled, questions, survey_memory
from buildd.keys.file_names import Names
from buildd.keys.fitting_list import FittingList
from buildd.keys.request_files import RequestFiles, input_folders
from buildd.keys.request_lines import RequestLines
from buildd.keys.text_digests import Stands, key_digest, stands
from buildd.keys.told_walk import told
from buildd.store.notebook import Notebook
from buildd.store.result_rows import LINK, PRESENT
from buildd.store.store import InputSet, Result, Store
from codegen.compilers.checkout_roots import without_environments
from codegen.compilers.environment_roots import TOOLKIT
from codegen.plan import Action, Discovery, Kept, TextUse, Tool
from protocol.messages import Digest

_MOST_COMPARED = 8
"""Results with the same command that a miss is compared with, to name what differs from the nearest one."""
NEVER_STORED = "never stored: "
"""Beginning of the reason of an action that is never answered from the store."""


@dataclass(frozen=True, slots=True)
class Found:
    """A hit."""

    first: Digest
    result: Result


@dataclass(frozen=True, slots=True)
class Missing:
    """A miss, with the reasons in words."""

    first: Digest
    components: bytes
    reasons: tuple[str, ...]
    inputs: tuple[tuple[str, Digest | None], ...] = ()
    """The declared inputs at that time: the run must read exactly these."""
    elsewhere: str = ""
    """A checkout's folder that a result of the same content is bound to."""


class Lookup:
    """Look-ups of one request.

    Args:
        store: where results are.
        snapshot: the request's view of the file system.
        recache: the user asked that every action misses.
        surveys: surveys that other requests have made.
        beside: look-ups with the same view of the file system; lists of files that were compared there are known here.
    """

    def __init__(
        self,
        store: Store,
        snapshot: Snapshot,
        *,
        recache: bool = False,
        surveys: survey_memory.Memory | None = None,
        beside: Lookup | None = None,
    ) -> None:
        self.store = store
        self.snapshot = snapshot
        self.files = RequestFiles(snapshot, surveys)
        self.lines = RequestLines(store, snapshot)
        self.folders = self.files.folders
        self.normal = self.files.normal
        self._recache = recache
        self._tools: dict[int, tuple[Tool, Digest]] = {}
        # By identity: the store gives one list object to all input sets that share it, which a FittingList keeps.
        self._fits: dict[tuple[int, int, TextUse], FittingList] = {} if beside is None else beside._fits
        self._unchanged: dict[tuple[int, int], tuple[tuple[str, int], ...]] = {}
        self._places = precompiled.Places(snapshot, self.folders)
        self._precompiled: dict[str, precompiled.Candidates] = {}
        self._candidates_of: dict[object, precompiled.Candidates] = {}
        self._elsewhere: dict[str, str] = {}
        """Name of an action that missed -> a folder for which a result of the same content holds."""
        self.reached: dict[str, str] = {}
        """Answers of `reach_of` so far."""

    def used_by(self, action: Action) -> tuple[str, ...] | None:
        """The discovered inputs of an action.

        None where this request neither found nor filed the action, but joined another request's run of it.
        """
        return self.files.discovered.get(action.name, () if action.discovery is Discovery.NONE else None)

    @property
    def discovered(self) -> Mapping[str, tuple[str, ...]]:
        """Name of an action -> its discovered inputs, as far as they are known."""
        return self.files.discovered

    def around(self, action: Action, tool: Tool, used: Sequence[str]) -> tuple[str, ...]:
        """The folders in which a run now could find another file in place of one of `used`."""
        return tuple(folder for folder, _ in self.files.survey(used, action, tool).folders)

    def take_over(self, discovered: Mapping[str, tuple[str, ...]], folders: Mapping[str, int]) -> None:
        """Take over what another request has found about actions that have not changed since.

        Args:
            discovered: name of each of those actions -> its discovered inputs.
            folders: the stamps of the folders that they depend on.
        """
        self.files.discovered.update(discovered)
        self.files.folders.update(folders)

    def last_used(self, action: Action, tool: Tool) -> tuple[str, ...]:
        """The discovered inputs of an action that was looked up; of one that missed or waits, those of its last
        result."""
        used = self.files.discovered.get(action.name)
        if used is not None or action.discovery is Discovery.NONE:
            return used or ()
        noted = self.store.recall_action(self.name_key(action))
        if noted is None:
            return ()
        names = self.files.names_of(tool)
        known = self.store.input_sets(action_key.encoded_digest(noted))[:1]
        files = (names.path(name) for input_set in known for name, _ in input_set.files)
        return tuple(path for path in files if not questions.is_question(path))

    def twins_of(self, action: Action) -> frozenset[str]:
        """Those inputs of an action, which was found or filed, whose times and inodes count (`once_only`)."""
        return self.files.twins.get(action.name, frozenset())

    def holds_for_bare(self, action: Action) -> bool:
        """Whether the action's result, which was found or filed, holds for any texts with the same bare forms."""
        return action.name in self.files.bare

    def note_hit(self, action: Action, tool: Tool, first: Digest, notebook: Notebook) -> None:
        """Note the components of a hit, if those of another result are noted, or none: the next miss is explained by
        what the action used last, which need not be what it ran last.

        Args:
            first: the digest of the components.
        """
        name = self.name_key(action)
        noted = notebook.components_of(name) or self.store.recall_action(name)
        if noted is None or action_key.encoded_digest(noted) != first:
            notebook.note_components(name, action_key.encode(self.first_level(action, tool)[1]))

    def precompiled_of(self, action: Action) -> precompiled.Candidates:
        """The precompiled headers that the action could have read in place of headers."""
        return self._precompiled.get(action.name, precompiled.Candidates())

    def first_level(self, action: Action, tool: Tool) -> tuple[Digest, list[action_key.Component]]:
        """The key of everything that is known before the action runs, and its components."""
        names = self.files.names_of(tool)
        components = list(
            action_key.action_components(
                action,
                self.tool_digest(tool),
                partial(key_digest, self.snapshot, action),
                name_of=lambda path: names.name(path) if names.root(path) else path,
                project=self.snapshot.project,
                roots=tool.roots,
            )
        )
        toolkit = dict(tool.roots).get(TOOLKIT, "")
        for number, folder in enumerate((*action.search, *tool.search)):
            if self.files.leads_to(folder):
                # Files found there are named by their real place: only this component changes with the link.
                name = names.name(self.files.searched(folder))
                if not (toolkit and name == f"{{{TOOLKIT}}}{folder.removeprefix(toolkit)}"):
                    components.append((f"search folder {number}", name))
                self.files.folders[folder] = self.snapshot.folder_stamp(folder)
        found = self._precompiled[action.name] = self._candidates(action, tool)
        components += [(f"precompiled header {names.name(path)}", digest or "") for path, digest in found.present]
        components += [(f"header beside a precompiled one {names.name(path)}", "") for path in found.headers]
        return action_key.digest(components), components

    def _candidates(self, action: Action, tool: Tool) -> precompiled.Candidates:
        """Precompiled headers for a source and a search, computed once: each step of a compile asks several times."""
        asked = (
            (*action.inputs[:1], "", *precompiled.forced(action, tool)),
            action.discovery,
            action.search,
            tool.search,
        )
        found = self._candidates_of.get(asked)
        if found is None:
            found = precompiled.candidates(action, tool, self._places)
            if not (action.inputs and self.snapshot.is_aside(action.inputs[0])):
                self._candidates_of[asked] = found
        return found

    def tool_digest(self, tool: Tool) -> Digest:
        """Digest of a tool's closure, computed once a request."""
        known = self._tools.get(id(tool))
        if known is None:
            components = list(action_key.tool_components(tool, self._tool_file))
            known = (tool, action_key.digest(components))
            self._tools[id(tool)] = known
            self.store.remember_tool(known[1], action_key.encode(components))
        return known[1]

    def _tool_file(self, path: str) -> Digest | None:
        fact = self.snapshot.fact(path)
        return None if fact is None else fact.digest

    def look(self, action: Action, tool: Tool, *, explain: bool = True) -> Found | Missing:
        """Look one action up. Its declared inputs must exist, or have been produced, by now.

        Args:
            explain: compare a miss with the components that the action had last time.
        """
        first, components = self.first_level(action, tool)
        why = self._search(first, components, action, tool, explain=explain)
        if isinstance(why, Found):
            return why
        return self._missing(first, components if explain else [], action, why)

    def fitting(self, action: Action, tool: Tool, first: Digest, known: InputSet) -> InputSet | None:
        """An input set from elsewhere, with the stamps of this machine's folders, if it matches the files as they are
        now.

        For look-ups that nothing else uses: what was looked at counts as found here, whether it fits or not.
        """
        stamped = [known]
        differs = self._differs(first, known, action, tool, self.files.names_of(tool), stamped.append)
        return None if differs else stamped[-1]

    def missing(self, action: Action, tool: Tool, reason: str) -> Missing:
        """A miss for a reason that the caller gives."""
        return self._missing(*self.first_level(action, tool), action, (reason,))

    def _missing(
        self, first: Digest, components: list[action_key.Component], action: Action, why: tuple[str, ...]
    ) -> Missing:
        self.files.bare.discard(action.name)
        self.files.discovered.pop(action.name, None)  # they belong to a result that did not fit
        inputs = tuple((path, self.snapshot.digest(path)) for path in action.inputs)
        found = self._elsewhere.get(action.name, "")
        return Missing(first, action_key.encode(components) if components else b"", why, inputs, found)

    def _search(
        self, first: Digest, components: list[action_key.Component], action: Action, tool: Tool, *, explain: bool
    ) -> Found | tuple[str, ...]:
        if action.uncacheable:
            return (f"{NEVER_STORED}{action.uncacheable}",)
        if action.kept is Kept.NOTHING:
            return ("made again each time it is needed",)
        if self._recache:
            return ("asked to run again",)
        why: list[tuple[InputSet, str]] = []
        names, stamped = self.files.names_of(tool), self.files.later(partial(self.store.update_folders, first))
        for known in self.store.input_sets(first):
            reason = self._differs(first, known, action, tool, names, stamped)
            if not reason:
                result = self.store.result(known.key)
                if result is not None:
                    self.lines.hit(action, known)
                    return Found(first, result)
                reason = "its result was evicted"
            elif explain and (other := _other_checkout(known, tool)) and action.name not in self._elsewhere:
                loose = replace(known, roots=())
                if not self._differs(first, loose, action, tool, names):
                    self._elsewhere[action.name] = other
            why.append((known, reason))
        if not why:
            return self._why_unknown(action, tool, components) if explain else ()
        if explain and len(why) > 1:
            # The newest result need not be the one that was used last.
            why = sorted(why[:_MOST_COMPARED], key=lambda each: self._distance(each[0], action, tool, names))
        (nearest, reason) = why[0]
        return changed_inputs.reasons(reason, self.snapshot, action, nearest, names) if explain else (reason,)

    def _distance(self, known: InputSet, action: Action, tool: Tool, names: Names) -> int:
        """How far an input set is from the files as they are now: how many of its files differ, and one more if its
        folders are others."""
        folders = dict(tool.roots)
        moved = any(folders.get(name) != folder for name, folder in known.roots)
        files = ((names.path(name), digest) for name, digest in known.files if not questions.is_question(name))
        return moved + sum(stands(self.snapshot, action, *each) is not Stands.YES for each in files)

    def _differs(
        self,
        first: Digest,
        known: InputSet,
        action: Action,
        tool: Tool,
        names: Names,
        stamped: Callable[[InputSet], object] | None = None,
    ) -> str:
        """Why an input set does not match the files as they are now; empty where it does.

        Args:
            stamped: gets the input set where its folders have new stamps.
        """
        folders = dict(tool.roots)
        for name, folder in known.roots:
            if folders.get(name) != folder:
                now = f", which is now {folders[name]}" if name in folders else ""
                return f"folder {folder}: the result may contain its path{now}"
        snapshot = self.snapshot
        list_of = (id(names), id(known.files), action.text)
        fits = self._fits.get(list_of)
        if fits is None or not snapshot.made_none_of(fits.members):
            compared = fitting_list.compare(snapshot, action, known, names)
            if isinstance(compared, str):
                return compared
            fits = self._fits[list_of] = compared
        if fits.moved and not self.lines.is_blind(action, known, names, fits.paths, fits.moved):
            return f"input {fits.moved[0]}: lines moved"
        beside = checkout_paths.beside(snapshot, action, tool, fits.paths).difference(name for name, _ in known.roots)
        if beside:
            return f"folder {folders[min(beside)]}: the flags replace it in the path of an input that is outside of it"
        paths = self.files.discovered[action.name] = fits.paths
        if fits.bare:
            self.files.bare.add(action.name)
        self.files.ask(fits.asked)
        self.files.twins[action.name] = fits.twins
        folders_of = (id(names), id(known.folders))
        if folders_of in self._unchanged:
            return ""
        links = [
            (names.path(n), names.path(to)) for n, stamp in known.folders if stamp == LINK for n, to in [n.split("\0")]
        ]
        for folder, to in links:
            if self.files.searched(folder) != to:
                return f"folder {folder}: its link led to {to}"
            self.files.folders[folder] = snapshot.folder_stamp(folder)
        watched = [(names.path(n), stamp) for n, stamp in known.folders if stamp not in (PRESENT, LINK)]
        if survey_memory.unchanged(snapshot, watched):
            self.files.folders.update(watched)
            self._unchanged[folders_of] = known.folders
            return ""
        present = tuple(sorted(n for n, stamp in known.folders if stamp == PRESENT))
        survey = self.files.survey(paths, action, tool)
        now_present = [names.name(path) for path in survey.present]
        if new := [name for name in now_present if name not in present]:
            return f"input {names.path(new[0])}: appeared where the search finds it first"
        if lost := [name for name in present if name not in now_present]:
            return f"input {names.path(lost[0])}: no longer there"
        # The changes in those folders do not matter: remember their new stamps.
        self.files.folders.update(survey.folders)
        if stamped is not None:
            stamped(replace(known, folders=input_folders(survey, names, links)))
        return ""

    def _why_unknown(self, action: Action, tool: Tool, components: list[action_key.Component]) -> tuple[str, ...]:
        before = self.store.recall_action(self.name_key(action))
        if before is None:
            return ("never built before",)
        first, roots = action.argv[0] if action.argv else "", dict(tool.roots)
        program = first if isinstance(first, str) else os.path.normpath(roots.get(first.name, "") + first.suffix)
        walks = self._with_tools(action_key.decode(before)), self._with_tools(components)
        if walks[0] == walks[1]:
            return ("its entry is no longer in the store",)
        reasons = action_key.difference(*told(*walks, tool.roots, self.snapshot.project), program)
        # The same words may stand for other places: as after a `buildd run` in another folder of the checkout.
        return reasons or ("command: the folders that its paths count from are others than last time",)

    def _with_tools(self, components: list[action_key.Component]) -> list[action_key.Component]:
        """The components, each tool's digest replaced by the tool's own components, so that a change names its file."""
        out = []
        for name, value in components:
            inner = self.store.recall_action(Digest(value)) if name.startswith("tool ") else None
            out.extend(action_key.decode(inner) if inner else [(name, value)])
        return out

    def name_key(self, action: Action) -> Digest:
        """The key under which an action's last components are remembered: its name in this project."""
        return Digest(blake3(f"{self.snapshot.project}\0{action.name}".encode(errors="surrogateescape")).hexdigest())


def _other_checkout(known: InputSet, tool: Tool) -> str:
    """The folder of another checkout that a result is bound to; empty if it is bound to none, or to an environment
    alone, whose path no option maps."""
    folders = dict(tool.roots)
    others = (folder for name, folder in without_environments(known.roots) if folders.get(name) != folder)
    return min(others, key=len, default="")
