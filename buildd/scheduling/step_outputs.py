"""The files of one job's steps, which the steps exchange in the job's private folder, under bare names.

Knows which files a step needs, and how to make equivalence digests, bundles and fatbins from other files without a
tool. `step_results` finds stored results.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

from blake3 import blake3

from buildd.artifacts import entered_files, equivalence, fatbin, hip_symbol, moved_text, offload_bundle
from buildd.artifacts.line_free_text import read_part
from buildd.builds.active_build import ActiveBuild
from buildd.builds.command import output_path
from buildd.builds.outputs import Outputs
from buildd.builds.products import Product, Ran
from buildd.errors import StoreError
from buildd.keys.depfiles import Listing
from buildd.native.bare_text import bare_text_of
from buildd.store.store import Result
from codegen.compilers import checkout_roots
from codegen.compilers.temporary_roots import Roots
from codegen.plan import BARE, Action
from codegen.reach import read_regular
from codegen.steps import line_info
from codegen.steps.expansion import barely, fatbin_apart, frame_of, maker
from codegen.steps.module_ids import NAMED, NO_IDS
from codegen.steps.nvcc_commands import Role
from codegen.steps.step_kinds import CHECKED, StepKind
from protocol import messages as m


class StepOutputs(Outputs[ActiveBuild]):
    """Files of steps, in one folder: some steps find each other's files by a bare name.

    Args:
        outer: the build of the job's request; files that no step makes are where it has them.
        folder: the job's private folder.
        silent: see `Steps`.
    """

    def __init__(self, outer: ActiveBuild, folder: str, *, silent: bool) -> None:
        self._named: set[str] = set()
        """Moving roots whose folder stands in a preprocessed text; device code does not show it any more."""
        self._searched: set[str] = set()
        """Names of the preprocessing steps whose text was searched for that: those that ran."""
        self.recalled: set[str] = set()
        """Files that are not here: only their digests are known."""
        self.ids = NO_IDS
        """The ids of the module. The steps run with the shared one."""
        self._hides_id = False
        """Whether an object of HIP has a symbol that is named after its module, and the name was not found."""
        self._in_device_code: bool | None = None
        """Whether the shared id stands in PTX, and so in what is packed in the object."""
        self._outer = outer
        self._folder = folder
        self._silent = silent
        self._shown: dict[str, dict[bytes, bool] | None] = {}
        """Preprocessed text -> its files, and whether each may show a line there; None where that is not known."""
        self._wanted: set[str] = set()
        """Files that another step or the job reads."""
        self._entered: dict[str, Listing] = {}
        """Name of a preprocessing step -> the files that its text enters."""
        self._lock = threading.Lock()

    @property
    def outer_roots(self) -> Roots:
        """The folders of the whole compile that may be others in the next build."""
        return self._outer.outputs.roots

    def prepare(self) -> None:
        plan = self.build.plan
        self._wanted = {path for action in plan.actions for path in action.inputs}
        self._wanted.update(output.path for output in maker(plan).outputs if output.name != BARE)
        self._wanted.add(fatbin_apart(plan))
        for file in plan.files:
            Path(self._place_of(file.path)).write_bytes(file.content)
            self.build.made(file.path, Product(m.Digest(blake3(file.content).hexdigest()), len(file.content), False))

    def place(self, path: str, digest: m.Digest, *, executable: bool) -> bool:
        return True  # `where` fetches it once a step that runs reads it

    def place_made(self, path: str, made: Path, product: Product) -> None:
        if path in self._wanted:
            place = self._place_of(path)
            try:
                os.link(made, place)
            except OSError:  # it is there from a run whose inputs changed, or the file system has no links
                shutil.copyfile(made, f"{place}.new")
                os.replace(f"{place}.new", place)
        self.recalled.discard(path)

    def where(self, path: str) -> str:
        if path.endswith(NAMED):
            return self._named_image(path.removesuffix(NAMED))
        product = self.build.products.get(path)
        if product is None:
            return self._outer.outputs.where(path)
        place = self._place_of(path)
        with self._lock:
            if not os.path.exists(place) and not self.build.store.restore(product.digest, Path(place)):
                raise StoreError("the result of a step is no longer there", file=place, next_step="build again")
        return place

    def _named_image(self, path: str) -> str:
        """The place of a copy with the module's own id; the file itself where it does not contain the id."""
        place = self.where(path)
        content = Path(place).read_bytes()
        named = self.ids.named(content)
        if named == content:
            return place
        copy = Path(self._folder, "named", os.path.basename(place))
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(named)
        return str(copy)

    def placed(self, action: Action, ran: Ran) -> None:
        """Compare what a bundler made with what `compose` would make."""
        way = self._way_of(action)
        if way is not None and not offload_bundle.is_proven(way) and not (ran.exit.stdout or ran.exit.stderr):
            offload_bundle.prove(way, self._parts_of(action), Path(self._place_of(action.outputs[0].path)).read_bytes())

    def finish(
        self, action: Action, private: str, read: tuple[str, ...], listing: Listing | None = None
    ) -> Mapping[str, bytes]:
        """Make the equivalence digests: of files apart from what may not matter, and of the fatbin in an object."""
        made = {}
        native = bare_text_of(self.build.store.folder)
        roots, lookup = self.outer_roots, self.build.inputs.lookup
        unseen: Roots = ()
        if action.kind == StepKind.PREPROCESS.value and (roots or self._outer.outputs.lists):
            text = Path(output_path(private, action, action.outputs[0].name)).read_bytes()
            shown = checkout_roots.names_in_text(text, roots, preprocessed=True)
            self._named |= shown
            self._searched.add(action.name)
            # clang, which hipcc's steps run, shows the paths of line markers elsewhere.
            if not self._outer.plan.actions[0].discovery.is_clang:
                unseen = tuple(root for root in roots if root[0] not in shown)
            if self._outer.outputs.lists:
                self._entered[action.name] = entered_files.entered(text, native.entering(text))
        if action.kind == StepKind.CICC.value and _is_mapped(action):
            made_by = Path(output_path(private, action, Role.MADE.value))
            made_by.write_bytes(line_info.mapped(made_by.read_bytes(), roots))
        files = {f"{output.path}.{BARE}": output_path(private, action, output.name) for output in action.outputs}
        for output in action.outputs:
            if output.name == CHECKED:
                made[CHECKED] = b""
            elif output.name == BARE:
                if action.kind == StepKind.HOST.value:
                    content = self.build.products[frame_of(action)].digest.encode()
                else:
                    key = (
                        lookup.first_level(barely(action), self.build.tool(action))[0]
                        if action.kind == StepKind.CUDAFE.value
                        else None
                    )
                    text = Path(files[output.path]).read_bytes()
                    kind, reads = StepKind(action.kind), partial(native.line_free, otherwise=read_part)
                    differs = (
                        self._silent
                        and kind is StepKind.PREPROCESS
                        and equivalence.differs_from_source(text, partial(self._is_macro, action, read))
                    )
                    alike = partial(equivalence.of_text, kind, made_of=key, differs=differs, reads=reads)
                    moved = moved_text.named(text, unseen)
                    content = alike(moved)
                    if kind is StepKind.PREPROCESS and equivalence.is_without_lines(content):
                        self._shown[output.path] = native.shown_lines(text)
                    elif moved is not text:
                        content = alike(text)
                made[BARE] = content
        return made

    @property
    def differs(self) -> bool:
        """Whether clang may make something else of a text than of the source, also of one that was found."""
        return any(product.digest == equivalence.DIFFERING for product in list(self.build.products.values()))

    def _is_macro(self, action: Action, read: tuple[str, ...], name: bytes) -> bool:
        """Whether a name may have been a macro in the files that a preprocessor read, or among its words."""
        definition = re.compile(rb"\bdefine[ \t\\\r\n]+" + re.escape(name) + rb"\b")
        words = (word for word in action.argv if isinstance(word, str))
        if any(word.removeprefix("-D").partition("=")[0] == os.fsdecode(name) for word in words):
            return True
        lookup = self.build.inputs.lookup
        try:
            contents = (read_regular(lookup.snapshot.absolute(lookup.normal(path))) for path in (*action.inputs, *read))
            return any(map(definition.search, contents))
        except OSError:
            return True

    @property
    def all_searched(self) -> bool:
        """Whether the text of every pass was searched for the roots. Of a pass that was found only the text's digest is
        there."""
        passes = {action.name for action in self.build.plan.actions if action.kind == StepKind.PREPROCESS.value}
        return passes <= self._searched

    def listing(self) -> Listing | None:
        """The files that nvcc's depfile lists; None where a text is not known, or nobody asks."""
        makers = [action.name for action in self.build.plan.actions if action.kind == StepKind.PREPROCESS.value]
        if not all(name in self._entered for name in makers) or not makers:
            return None
        return entered_files.together(self._entered[name] for name in makers)

    def silent_files(self) -> frozenset[str]:
        """The files that show no line in any preprocessed text, as the texts spell them."""
        makers = [action for action in self.build.plan.actions if action.kind == StepKind.PREPROCESS.value]
        texts = [files for files in self._shown.values() if files is not None]
        if self._silent or len(texts) != len(makers):
            return frozenset()
        shown = {name for files in texts for name, shows in files.items() if shows}
        named = {name for files in texts for name in files} - shown
        return frozenset(os.fsdecode(name) for name in named if b"\\" not in name)

    def named_by(self, action: Action, private: str, said: bytes) -> Collection[str]:
        """The folders that a front end wrote somewhere else than into a line marker."""
        roots = checkout_roots.moving(self.outer_roots)
        if not roots or action.kind not in (StepKind.CUDAFE.value, StepKind.CICC.value):
            return ()
        paths = [output_path(private, action, output.name) for output in action.outputs if output.name != BARE]
        found = checkout_roots.names_held(said, roots)
        return found.union(
            *(checkout_roots.names_in_text(Path(path).read_bytes(), roots, preprocessed=True) for path in paths)
        )

    def named_in(self, made: Path) -> set[str]:
        """Moving roots whose folder stands in a text or in device code. There the module's id stands for the source's;
        in the rest of the object, each checkout gets its own."""
        roots = self._outer.outputs.roots
        checkouts = checkout_roots.checkouts(roots)
        action = self._outer.plan.actions[0]
        naming = checkout_roots.naming(action, os.path.join(self._outer.project, action.inputs[0]), roots)
        makers = [action for action in self.build.plan.actions if action.kind == StepKind.CICC.value]
        for action in filter(_is_mapped, makers):
            # The path in other words is not mapped.
            text = Path(self.where(next(o.path for o in action.outputs if o.name == Role.MADE.value))).read_bytes()
            self._named |= checkout_roots.names_in(text, roots)
        if self._has_id_inside() or self._hides_id:
            self._named |= naming
            self._outer.outputs.holds_id = bool(naming)
        if checkouts and makers:
            # Device code is packed in the object, but not in what cicc writes.
            texts = [self.where(o.path) for action in makers for o in action.outputs if o.name == Role.MADE.value]
            for text in (Path(path).read_bytes() for path in (*texts, str(made))):
                self._named |= checkout_roots.names_in(text, checkouts)
        return self._named

    def _has_id_inside(self) -> bool:
        """Whether device code contains the shared id, which is looked for once, before anything has its own id."""
        if self._in_device_code is None:
            makers = [action for action in self.build.plan.actions if action.kind == StepKind.CICC.value]
            made = [o.path for action in makers for o in action.outputs if o.name == Role.MADE.value]
            self._in_device_code = self.ids.differ and any(
                self.ids.shared in Path(self.where(path)).read_bytes() for path in made
            )
        return self._in_device_code

    def compose(self, index: int) -> bool:
        """Make a step's output without its program where the output is known (`offload_bundle`). It is not stored."""
        action = self.build.plan.actions[index]
        way = self._way_of(action)
        if way is None or not offload_bundle.is_proven(way):
            return False
        bundle = offload_bundle.composed(way, self._parts_of(action))
        if bundle is None:
            return False
        Path(self._place_of(action.outputs[0].path)).write_bytes(bundle)
        for output, content in zip(
            action.outputs, (bundle, equivalence.of_text(StepKind.BUNDLE, bundle, None)), strict=True
        ):
            digest = m.Digest(blake3(content).hexdigest())
            self.build.made(output.path, Product(digest, len(content), output.executable))
        return True

    def _way_of(self, action: Action) -> offload_bundle.Way | None:
        return offload_bundle.way_of(action, self.build.inputs.lookup.tool_digest(self.build.tool(action)))

    def _parts_of(self, action: Action) -> list[bytes]:
        return [Path(self.where(path)).read_bytes() for path in action.inputs]

    def join(self) -> bool:
        """Put the fatbin into the object that was compiled beside it; False where that cannot be done."""
        text, host = fatbin_apart(self.build.plan), self.build.plan.actions[-1]
        if text:
            if self.build.products[f"{text}.{BARE}"].digest != self.build.products[f"{frame_of(host)}.{BARE}"].digest:
                return False
            if not self._exchange(host, Path(self.where(host.outputs[0].path)).read_bytes(), text):
                return False
        made = maker(self.build.plan).outputs[0].path
        if self._has_id_inside():
            # Only this checkout can use it. Any other object gets its own id when it is delivered.
            self._replace(made, self.ids.named(Path(self.where(made)).read_bytes()))
        elif self.ids.unit and self.ids.differ:
            self._show_id(made)
        return True

    def _show_id(self, made: str) -> None:
        """Name the symbol of an object of HIP after the module's shared id itself: clang takes a digest of it."""
        content = Path(self.where(made)).read_bytes()
        shown = hip_symbol.shown(content, self.ids)
        self._hides_id = shown is None
        if shown is not None and shown != content:
            self._replace(made, shown)

    def put_fatbin(self, action: Action, result: Result) -> bool:
        """Put today's fatbin into an object that was found; False where that cannot be done."""
        if fatbin_apart(self.build.plan):
            return True  # at the end: `join`
        digests = {output.name: output.digest for output in result.outputs}
        text = frame_of(action)
        if self.build.store.get(digests[BARE]) == self.build.products[text].digest.encode():
            return True
        made = self.build.store.get(digests[action.outputs[0].name])
        return made is not None and self._exchange(action, made, text)

    def _exchange(self, host: Action, made: bytes, text: str) -> bool:
        path = host.outputs[0].path
        data = fatbin.data(Path(self.where(text)).read_bytes())
        whole = fatbin.exchanged(made, data) if data is not None else None
        if whole is not None:
            self._replace(path, whole)
        return whole is not None

    def _replace(self, path: str, content: bytes) -> None:
        aside = Path(f"{self._place_of(path)}.new")
        aside.write_bytes(content)
        aside.replace(self._place_of(path))
        self.build.made(path, Product(m.Digest(blake3(content).hexdigest()), len(content), False))

    def _place_of(self, path: str) -> str:
        return f"{self._folder}/{os.path.basename(path)}"


def _is_mapped(action: Action) -> bool:
    return any(name == line_info.VARIABLE for name, _ in action.environment)
