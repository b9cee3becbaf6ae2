"""The language server: what background builds find in every file of the project, open or not, and what kernels need.

Speaks the Language Server Protocol through pygls; builds through `commands.saves`. Knows no compiler: findings come as
`Diagnostic`s, kernels as `Kernel`s. Completion and navigation are clangd's, which runs beside it (see `compdb`).
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from lsprotocol import types
from pygls import uris
from pygls.lsp.server import LanguageServer

from buildd import __version__
from buildd.commands.saves import Saves
from buildd.diagnostics import diagnose
from buildd.disassembly import Form, disassembled
from buildd.errors import BuilddError, in_words
from buildd.kernels import moved, standing
from buildd.ui.rounds import demangled
from protocol import messages as m

REBUILD = "buildd.rebuild"
SHOW = {Form.SASS: "buildd.showSass", Form.PTX: "buildd.showPtx", Form.ISA: "buildd.showIsa"}
"""Their argument is a kernel's name, as the source has it."""
MOST_ROWS = 12
"""Kernels of a hover; templates have hundreds."""
_SOURCE = "buildd"
_SEVERITIES = {
    m.Severity.ERROR: types.DiagnosticSeverity.Error,
    m.Severity.WARNING: types.DiagnosticSeverity.Warning,
    m.Severity.NOTE: types.DiagnosticSeverity.Information,
}
_KERNEL = re.compile(r"__global__\b")
_ATTRIBUTE = re.compile(r"__launch_bounds__\s*\([^)]*\)|__cluster_dims__\s*\([^)]*\)|__\w+__")
_NAME = re.compile(r"(\w+)\s*\(")
_WORD = re.compile(r"\w+")
_LINE_END = 1 << 16


@dataclass(slots=True)
class Findings:
    """What the builds have found so far. Fed on one thread, read on another: whole dicts are put in place."""

    project: str
    diagnostics: dict[str, tuple[m.Diagnostic, ...]] = field(default_factory=dict)
    """Of each action, as it ended last."""
    kernels: dict[str, tuple[m.Kernel, ...]] = field(default_factory=dict)
    """Of each action, as the last good build has them."""
    before: dict[tuple[str, str], m.Kernel] = field(default_factory=dict)
    """Kernels that needed something else in the build before: by mangled name and architecture."""
    names: dict[str, str] = field(default_factory=dict)
    """Mangled -> as people write it."""
    files: dict[str, str] = field(default_factory=dict)
    """Target -> what was built of it first, absolute."""
    _lines: dict[str, list[str]] = field(default_factory=dict)
    """What the tools of the build under way said, by action."""
    _jobs: dict[m.JobId, str] = field(default_factory=dict)
    _new: dict[str, tuple[m.Kernel, ...]] = field(default_factory=dict)
    _hit: str = ""
    _told: dict[str, str] = field(default_factory=dict)
    """The same of what the build under way has told."""
    _planned: int = 0
    """Actions of its plan, where it has one."""
    _has_all: bool = True
    """No event of it was lost."""

    def begin(self) -> None:
        self._lines, self._jobs, self._new, self._hit, self._told, self._planned = {}, {}, {}, "", {}, 0
        self._has_all = True

    def take(self, body: m.EventBody) -> bool:
        """Take in what happened; whether that was the end."""
        match body:
            case m.Planned(actions=actions):
                self._planned = actions
            case m.Lagged():
                self._has_all = False
            case m.Started(job_id=job, action=action):
                self._jobs[job] = action
                self._lines.pop(action, None)  # it runs again: an input changed under it
            case m.CacheHit(action=action, kernels=kernels):
                self._hit = action
                self._new[action] = kernels
                self.diagnostics = {**self.diagnostics, action: ()}
            case m.LogLine(job_id=job, text=text):
                action = self._jobs.get(job, self._hit)
                self._lines.setdefault(action, []).append(text)
                if job not in self._jobs:
                    self.diagnostics = {**self.diagnostics, action: diagnose("\n".join(self._lines[action]))}
            case m.Finished(action=action, kernels=kernels):
                self._new[action] = kernels
                found = diagnose("\n".join(self._lines.get(action, [])))
                self.diagnostics = {**self.diagnostics, action: found}
            case m.Failed(action=action, diagnostics=found):
                self.diagnostics = {**self.diagnostics, action: found}
            case m.Artifact(target=target, path=path):
                # The later ones are what else it has, such as a test.
                self._told.setdefault(target, os.path.join(self.project, path))
            case m.Done(outcome=outcome):
                if outcome is m.Outcome.BUILT:
                    self._learn()
                return True
            case _:
                pass
        return False

    def _learn(self) -> None:
        old = {(k.name, k.arch): k for kernels in self.kernels.values() for k in kernels}
        self.kernels = standing(self.kernels, self._new, self._planned)
        self.files = self._told
        # What it told nothing of stands as it did and has nothing to say, or is there no more.
        self.diagnostics = {
            action: found
            for action, found in self.diagnostics.items()
            if action in self._new or not (self._has_all or any(each.severity is m.Severity.ERROR for each in found))
        }
        now = {(k.name, k.arch): k for kernels in self.kernels.values() for k in kernels}
        moves = {(one.name, one.arch): one for one, other in moved(old.values(), now.values()) if one and other}
        if moves or not self.before:
            self.before = moves
        known = {name: self.names[name] for name, _ in now if name in self.names}
        missing = [name for name, _ in now if name not in known]
        self.names = {**known, **dict(zip(missing, demangled(missing), strict=True))}

    def by_file(self) -> dict[str, list[m.Diagnostic]]:
        """Findings by absolute path, but for files that were removed; those without a file are at the project file."""
        found: dict[str, list[m.Diagnostic]] = {}
        for several in self.diagnostics.values():
            for diagnostic in several:
                path = os.path.normpath(os.path.join(self.project, diagnostic.file or "buildd.toml"))
                if diagnostic.file and not os.path.exists(path):
                    continue
                if diagnostic not in found.setdefault(path, []):
                    found[path].append(diagnostic)
        return found

    def of_function(self, name: str) -> list[m.Kernel]:
        """The kernels of a function or function template."""
        kernels = [kernel for several in self.kernels.values() for kernel in several]
        return [kernel for kernel in kernels if base_name(self.names.get(kernel.name, kernel.name)) == name]

    def holders(self, name: str, form: Form) -> dict[str, list[str]]:
        """The files in which kernels of a function are that can be shown so -> their mangled names."""
        found: dict[str, list[str]] = {}
        wanted = {kernel.name for kernel in self.of_function(name) if form.suits(kernel)}
        for action, kernels in self.kernels.items():
            file = self.files.get(action.partition("/")[0])
            names = dict.fromkeys(kernel.name for kernel in kernels if kernel.name in wanted)
            if file is not None and names:
                found.setdefault(file, []).extend(names)
        return found


@cache
def base_name(signature: str) -> str:
    """The function's own name in "void ns::kernel<int, (Kind)2>(float*)"."""
    depth = 0
    plain: list[str] = []
    for character in signature.removeprefix("void "):
        depth += character == "<"
        if not depth:
            if character == "(" and plain:
                break
            plain.append(character)
        depth -= character == ">"
    return "".join(plain).rpartition("::")[2].strip()


def needs(kernel: m.Kernel, before: m.Kernel | None = None) -> str:
    """What a kernel needs, in one line: "30 registers, 256 B shared, 8 B spilled (was 28 registers)"."""

    def words(one: m.Kernel) -> list[str]:
        spilled = max(one.spill_store_bytes, 0) + max(one.spill_load_bytes, 0)
        found = [f"{one.registers} registers"] if one.registers >= 0 else []
        found += [f"{one.scalar_registers} scalar"] if one.scalar_registers >= 0 else []
        found += [f"{one.shared_bytes} B shared"] if one.shared_bytes > 0 else []
        found += [f"{one.stack_bytes} B stack"] if one.stack_bytes > 0 else []
        found += [f"{one.spilled_registers} spilled"] if one.spilled_registers > 0 else []
        return found + ([f"{spilled} B spilled"] if spilled else [])

    now = words(kernel)
    was = [word for word in words(before) if word not in now] if before is not None else []
    return ", ".join(now) + (f" (was {', '.join(was)})" if was else "")


def kernel_lines(text: str) -> list[tuple[int, str]]:
    """Where kernels are defined in a text: line from 0, and name."""
    found = []
    for match in _KERNEL.finditer(text):
        rest = _ATTRIBUTE.sub(" ", text[match.end() : match.end() + 2000])
        name = _NAME.search(rest)
        if name is not None:
            found.append((text.count("\n", 0, match.start()), name[1]))
    return found


class Server(LanguageServer):
    """A language server for one project."""

    def __init__(self, request: m.Request, environ: Mapping[str, str]) -> None:
        super().__init__("buildd", __version__)
        self.findings = Findings(os.path.realpath(request.project))
        self._saves = Saves(request, environ, self)
        self._thread = threading.Thread(target=self._run, name="saves", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shown: set[str] = set()
        self._environ = environ
        self._noticed = ""
        self._folder = ""
        """Of the files that are shown; made when there is one."""

    # ---------------------------------------------------------------- builds, on their thread

    def begin_builds(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def end_builds(self) -> None:
        if self._thread.is_alive():
            self._saves.stop()
            self._thread.join(5.0)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def build_again(self) -> None:
        self._saves.build_again()

    def _run(self) -> None:
        try:
            self._saves.run()
        except Exception as error:  # the edge: the editor goes on, and is told
            self.note(f"no builds any more: {error}")

    def watching(self, body: m.Watching) -> None:
        return None

    def begin(self, build_id: m.BuildId, changed: m.Changed | None) -> None:
        self.findings.begin()

    def event(self, event: m.Event) -> None:
        match event.body:
            case m.Notice(severity=m.Severity.WARNING, text=text) if text != self._noticed:
                self._noticed = text  # each build may have it again
                self.note(text)
            case _:
                pass
        if self.findings.take(event.body) and self._loop is not None:
            assert isinstance(event.body, m.Done)
            if event.body.outcome in (m.Outcome.REFUSED, m.Outcome.DAEMON_ERROR):
                self.note(event.body.message)
            self._loop.call_soon_threadsafe(self._publish)

    def note(self, words: str) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.window_show_message, _message(words))

    # ---------------------------------------------------------------- what the editor sees, on the loop

    def _publish(self) -> None:
        found = self.findings.by_file()
        for path in self._shown - found.keys():
            self._publish_file(path, [])
        for path, diagnostics in found.items():
            self._publish_file(path, diagnostics)
        self._shown = set(found)
        workspace = self.client_capabilities.workspace
        if workspace is not None and workspace.code_lens is not None and workspace.code_lens.refresh_support:
            self.workspace_code_lens_refresh(None)

    def _publish_file(self, path: str, diagnostics: Iterable[m.Diagnostic]) -> None:
        uri = uris.from_fs_path(path)
        if uri is not None:
            shown = [_diagnostic(diagnostic) for diagnostic in diagnostics]
            self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, shown))

    def hover(self, uri: str, position: types.Position) -> types.Hover | None:
        lines = self.workspace.get_text_document(uri).lines
        if position.line >= len(lines):
            return None
        words = (match for match in _WORD.finditer(lines[position.line]))
        word = next((w for w in words if w.start() <= position.character <= w.end()), None)
        kernels = self.findings.of_function(word[0]) if word is not None else []
        if not kernels:
            return None
        names, before = self.findings.names, self.findings.before
        rows = [
            f"- `{names.get(k.name, k.name)}` **{k.arch}**: {needs(k, before.get((k.name, k.arch)))}"
            for k in kernels[:MOST_ROWS]
        ]
        if len(kernels) > MOST_ROWS:
            rows.append(f"- and {len(kernels) - MOST_ROWS} more")
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, "\n".join(rows)))

    def lenses(self, uri: str) -> list[types.CodeLens]:
        found = []
        for line, name in kernel_lines(self.workspace.get_text_document(uri).source):
            title = self._lens(name)
            if title:
                place = types.Range(types.Position(line, 0), types.Position(line, 0))
                found.append(types.CodeLens(place, types.Command(title, REBUILD)))
                forms = (form for form in Form if self.findings.holders(name, form))
                found += [types.CodeLens(place, types.Command(f.name, SHOW[f], arguments=[name])) for f in forms]
        return found

    async def show(self, form: Form, name: str) -> str | None:
        """Have the editor open a kernel's code, in a file of its own.

        Returns: the file's URI; None where there is none, and then the user was told why.
        """
        holders = self.findings.holders(name, form)
        if not holders:
            whose = "AMD's" if form is Form.ISA else "NVIDIA's"
            self.window_show_message(_message(f"no built kernel of {whose} is called {name!r}"))
            return None
        try:
            texts = [
                await asyncio.to_thread(disassembled, form, file, kernels, self._environ)
                for file, kernels in holders.items()
            ]
        except BuilddError as error:
            self.window_show_message(_message(in_words(error)))
            return None
        self._folder = self._folder or tempfile.mkdtemp(prefix="buildd-lsp-")
        path = os.path.join(self._folder, f"{re.sub(r'[^0-9A-Za-z_]', '_', name)}.{form.name.lower()}")
        with open(path, "w", encoding="utf-8") as out:
            out.write("\n".join(texts))
        uri = uris.from_fs_path(path) or ""
        window = self.client_capabilities.window
        if window is not None and window.show_document is not None and window.show_document.support:
            self.window_show_document(types.ShowDocumentParams(uri, take_focus=True))
        else:
            self.window_show_message(types.ShowMessageParams(types.MessageType.Info, f"buildd: {path}"))
        return uri

    def _lens(self, name: str) -> str:
        """Of each architecture the instance that needs the most registers."""
        most: dict[str, m.Kernel] = {}
        for kernel in self.findings.of_function(name):
            if kernel.arch not in most or most[kernel.arch].registers < kernel.registers:
                most[kernel.arch] = kernel
        before = self.findings.before
        return " | ".join(f"{arch}: {needs(k, before.get((k.name, arch)))}" for arch, k in sorted(most.items()))


def _message(words: str) -> types.ShowMessageParams:
    return types.ShowMessageParams(types.MessageType.Warning, f"buildd: {words}")


def _diagnostic(diagnostic: m.Diagnostic) -> types.Diagnostic:
    line = max(diagnostic.line - 1, 0)
    start = max(diagnostic.column - 1, 0)
    end = start + 1 if diagnostic.column else _LINE_END
    return types.Diagnostic(
        range=types.Range(types.Position(line, start), types.Position(line, end)),
        message=diagnostic.message,
        severity=_SEVERITIES[diagnostic.severity],
        source=_SOURCE,
        code=diagnostic.code or None,
    )


def serve(request: m.Request, environ: Mapping[str, str]) -> None:
    """Serve one editor on standard input and output, until it says goodbye."""
    server = Server(request, environ)

    @server.feature(types.INITIALIZED)
    def initialized(params: types.InitializedParams) -> None:
        server.begin_builds()

    @server.feature(types.SHUTDOWN)
    def shutdown(params: None) -> None:
        server.end_builds()

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(params: types.HoverParams) -> types.Hover | None:
        return server.hover(params.text_document.uri, params.position)

    @server.feature(types.TEXT_DOCUMENT_CODE_LENS)
    def lenses(params: types.CodeLensParams) -> list[types.CodeLens]:
        return server.lenses(params.text_document.uri)

    @server.command(REBUILD)
    def rebuild(*arguments: object) -> None:
        server.build_again()

    @server.command(SHOW[Form.SASS])
    async def show_sass(name: str) -> str | None:
        return await server.show(Form.SASS, name)

    @server.command(SHOW[Form.PTX])
    async def show_ptx(name: str) -> str | None:
        return await server.show(Form.PTX, name)

    @server.command(SHOW[Form.ISA])
    async def show_isa(name: str) -> str | None:
        return await server.show(Form.ISA, name)

    try:
        server.start_io()
    finally:
        server.end_builds()
