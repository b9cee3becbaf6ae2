"""The language server: errors that background builds find in any file of the project, and the resources of kernels.

Speaks the Language Server Protocol through pygls; builds through `watch_session`, and shows what `findings` gathers.
Completion and navigation come from clangd, which runs beside it (see `compdb`).
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterable, Mapping

from lsprotocol import types
from pygls import uris
from pygls.lsp.server import LanguageServer

from buildd import __version__
from buildd.artifacts.disassembly import Form, disassembled
from buildd.client.request import with_files
from buildd.client.watch_session import Saves
from buildd.editor.findings import Findings, kernel_lines, needs
from buildd.errors import BuilddError
from protocol import messages as m
from protocol.problem import in_one_line

REBUILD = "buildd.rebuild"
SHOW = {Form.SASS: "buildd.showSass", Form.PTX: "buildd.showPtx", Form.ISA: "buildd.showIsa"}
"""The argument of these commands is a kernel's name, as in the source."""
MOST_ROWS = 12
"""The most kernels of a hover; templates have hundreds."""
_SOURCE = "buildd"
_SEVERITIES = {
    m.Severity.ERROR: types.DiagnosticSeverity.Error,
    m.Severity.WARNING: types.DiagnosticSeverity.Warning,
    m.Severity.NOTE: types.DiagnosticSeverity.Information,
}
_WORD = re.compile(r"\w+")
_LINE_END = 1 << 16


class ProjectServer(LanguageServer):
    """A language server for one project."""

    def __init__(self, request: m.Request, environ: Mapping[str, str]) -> None:
        super().__init__("buildd", __version__)
        self.findings = Findings(os.path.realpath(request.project))
        self._saves = Saves(request, environ, self)
        self._thread = threading.Thread(target=self._run, name="saves", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shown: set[str] = set()
        self._environ = with_files(environ, request.project, request.file)
        self._noticed = ""
        self._folder = ""
        """Holds the disassembly that is shown; made with the first one."""

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
        except Exception as error:  # the edge: the editor goes on without builds
            self.note(f"background builds have stopped: {error}; restart the language server")

    def watching(self, body: m.Watching) -> None:
        return None

    def begin(self, build_id: m.BuildId, changed: m.Changed | None) -> None:
        self.findings.begin()

    def event(self, event: m.Event) -> None:
        match event.body:
            case m.Notice(severity=m.Severity.WARNING, text=text) if text != self._noticed:
                self._noticed = text  # every build may repeat it
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

    # ---------------------------------------------------------------- the editor, on the loop

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
        """Open a kernel's disassembly in the editor, as a new file.

        Returns: the file's URI; None if there is none, after a message that says why.
        """
        holders = self.findings.holders(name, form)
        if not holders:
            maker = "AMD" if form is Form.ISA else "NVIDIA"
            self.window_show_message(_message(f"no kernel {name!r} has been built for an {maker} GPU"))
            return None
        try:
            texts = [
                await asyncio.to_thread(disassembled, form, file, kernels, self._environ)
                for file, kernels in holders.items()
            ]
        except BuilddError as error:
            self.window_show_message(_message(in_one_line(error)))
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
        """The title of a kernel's lens: for each architecture the instance with the most registers."""
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
    """Serve one editor on standard input and output, until it disconnects."""
    server = ProjectServer(request, environ)

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
