"""Finds stored results of one job's steps: also by their bare actions, or with digests in place of files.

Knows when a result that was filed without line numbers may be used, and when a step must not be stored. `step_outputs`
passes the steps' files on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import msgspec

from buildd.artifacts import equivalence
from buildd.artifacts.line_free_text import names_lines
from buildd.artifacts.moved_text import is_named
from buildd.builds.active_build import StoredResults
from buildd.builds.products import recalled
from buildd.errors import StoreError
from buildd.files.traits import Traits
from buildd.keys.lookup import Found, Missing
from buildd.processes.launch import Exit
from buildd.scheduling.step_outputs import StepOutputs
from buildd.scheduling.step_report import StepReport
from buildd.store.store import Result
from codegen.plan import BARE, Action, Kept
from codegen.steps.expansion import barely
from codegen.steps.step_kinds import StepKind


class StepResults(StoredResults):
    """Results of steps.

    Args:
        exact: no text is taken for another one with other line numbers.
        remade: files of which only the digests are kept are made again.
    """

    def __init__(self, outputs: StepOutputs, report: StepReport, *, exact: bool, remade: bool) -> None:
        self.lacking = False
        """A step that has to run reads a file of which only the digest is known."""
        self._outputs = outputs
        self._report = report
        self._exact = exact
        self._remade = remade
        self._moved: set[str] = set()
        """Files that were made of a text with other line numbers."""
        self._bare: dict[int, Missing] = {}
        """Misses of the steps whose result may be filed without line numbers."""
        self._embeds = False
        """A file that a step read embeds another one below the preprocessor."""
        self._examined: set[int] = set()
        """The steps whose files were looked through for that."""
        self._scanned: set[str] = set()
        """Those files, as they were spelled."""
        self._lock = threading.Lock()

    def look(self, index: int) -> Found | Missing:
        build = self.build
        self._refuse_embedding(index)
        action = build.plan.actions[index]
        if self._remade and action.kept is Kept.DIGESTS:
            build.misses[index] = build.inputs.lookup.missing(action, build.tool(action), "its files are needed")
            return build.misses[index]
        answer = self._look_bare(index) or super().look(index)
        if isinstance(answer, Missing) and not self._outputs.recalled.isdisjoint(action.inputs):
            self.lacking = True
            raise StoreError("the store has only the digest of a file that this step reads", next_step="build again")
        return answer

    def _refuse_embedding(self, index: int) -> None:
        """Keep a step from being stored once a file is known to embed another one: the assembler will read a file that
        no depfile names."""
        build = self.build
        with self._lock:
            # A copy: the event loop tells of other steps meanwhile.
            for made in {*self._report.reads.copy()} - self._examined:
                self._examined.add(made)
                # A depfile does not list the source itself.
                read = {*build.plan.actions[made].inputs, *(self._report.reads[made] or ())} - self._scanned
                self._scanned |= read
                self._embeds = self._embeds or self._embedding(read)
            action = build.plan.actions[index]
            if self._embeds and action.kept is not Kept.NOTHING and not action.uncacheable:
                actions = list(build.plan.actions)
                actions[index] = msgspec.structs.replace(action, uncacheable="a source embeds another file")
                build.plan = msgspec.structs.replace(build.plan, actions=tuple(actions))

    def _embedding(self, read: Iterable[str]) -> bool:
        snapshot, lookup = self.build.inputs.snapshot, self.build.inputs.lookup
        names = (lookup.normal(spelled) for spelled in read)
        facts = (snapshot.fact(name) for name in names if not snapshot.is_aside(name))
        return any(fact is not None and Traits.EMBED in fact.traits for fact in facts)

    def take(self, action: Action, result: Result) -> bool:
        if action.kept is not Kept.DIGESTS:
            return super().take(action, result)
        record = self.build.store.get(result.outputs[0].digest)
        if record is None:
            return False
        self.build.store.touch((result.key,))
        for output, product in zip(action.outputs, recalled(record), strict=True):
            self.build.made(output.path, product)
            self._outputs.recalled.add(output.path)
        return True

    def _look_bare(self, index: int) -> Found | None:
        """A result of files with equal equivalence digests, which holds where the tool names no line."""
        build = self.build
        action = build.plan.actions[index]
        made = (build.products[f"{path}.{BARE}"].digest for path in action.equivalents)
        if not action.equivalents or not {equivalence.NO_EQUIVALENCE, equivalence.DIFFERING}.isdisjoint(made):
            return None
        bare, tool, lookup = barely(action), build.tool(action), build.inputs.lookup
        answer = lookup.look(bare, tool, explain=False)
        if isinstance(answer, Found):
            if (
                self._is_lineless(answer.result)
                and not self._exact
                and self.take(bare, answer.result)
                and (action.kind != StepKind.HOST.value or self._outputs.put_fatbin(action, answer.result))
            ):
                self._moved.update(output.path for output in action.outputs)
                return answer
            answer = lookup.missing(bare, tool, "it names lines, or is not there")
        self._bare[index] = answer
        return None

    def _is_lineless(self, result: Result) -> bool:
        """Whether the tool's messages are at hand and name no line."""
        said = [self.build.store.get(digest) for digest in (result.stdout, result.stderr) if digest]
        return not any(text is None or names_lines(text) for text in said)

    def asked_as(self, index: int) -> tuple[Action, Missing]:
        if index in self._bare and not self._exact:
            return barely(self.build.plan.actions[index]), self._bare[index]
        return super().asked_as(index)

    def filed_as(self, index: int, exit: Exit) -> tuple[Action, Missing]:
        action, said = self.build.plan.actions[index], exit.stdout + exit.stderr
        is_of_place = names_lines(said) or is_named(said, self._outputs.outer_roots)
        if action.kind == StepKind.HOST.value and is_of_place:
            # gcc reads the lines that it shows from the source itself. Its comments are not in the step's key.
            return msgspec.structs.replace(action, uncacheable="its messages quote the source"), self.build.misses[
                index
            ]
        if index in self._bare and not is_of_place:
            return barely(action), self._bare[index]
        return super().filed_as(index, exit)

    @property
    def outdated(self) -> bool:
        """Whether something was said with line numbers of another text than today's."""
        report = self._report
        return any(
            self._moved.intersection(action.equivalents)
            and (index in report.failures or any(map(names_lines, report.said.get(index, ()))))
            for index, action in enumerate(self.build.plan.actions)
        )
