"""The language server, asked by a real client over standard input and output."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pygls", reason="no pygls (pip install buildd[ide])")

from lsprotocol import types
from pygls import uris
from pygls.lsp.client import LanguageClient

from buildd.artifacts.disassembly import Form
from buildd.editor.findings import Findings, base_name, kernel_lines, needs
from protocol import messages as m
from tests.support.developer import Developer, end_developer, make_developer
from tests.support.paths import ROOT
from tests.support.toolkit import host_compiler, make_toolkit
from tests.support.waiting import DEADLINE_S


class Editor:
    """An editor that shows one project."""

    def __init__(self, developer: Developer, project: Path) -> None:
        self.client = LanguageClient("editor", "1")
        self.developer, self.project = developer, project
        self.found: dict[str, list[types.Diagnostic]] = {}
        self._news = asyncio.Event()

        @self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(params: types.PublishDiagnosticsParams) -> None:
            self.found[uris.to_fs_path(params.uri) or ""] = list(params.diagnostics)
            self._news.set()

        @self.client.feature(types.WORKSPACE_CODE_LENS_REFRESH)
        def refresh(params: None) -> None:
            self.builds += 1
            self._news.set()

        @self.client.feature(types.WINDOW_SHOW_DOCUMENT)
        def show(params: types.ShowDocumentParams) -> types.ShowDocumentResult:
            self.shown.append(Path(uris.to_fs_path(params.uri) or "").read_text())
            self._news.set()
            return types.ShowDocumentResult(success=True)

        @self.client.feature(types.WINDOW_SHOW_MESSAGE)
        def message(params: types.ShowMessageParams) -> None:
            self.messages.append(params.message)
            self._news.set()

        self.builds = 0
        self.shown: list[str] = []
        self.messages: list[str] = []

    async def __aenter__(self) -> Editor:
        await self.client.start_io(
            sys.executable, "-P", "-m", "buildd", "lsp", "-C", str(self.project), env=self.developer.environ
        )
        lens = types.CodeLensWorkspaceClientCapabilities(refresh_support=True)
        await self.client.initialize_async(
            types.InitializeParams(
                capabilities=types.ClientCapabilities(
                    workspace=types.WorkspaceClientCapabilities(code_lens=lens),
                    window=types.WindowClientCapabilities(show_document=types.ShowDocumentClientCapabilities(True)),
                ),
                process_id=os.getpid(),
                root_uri=uris.from_fs_path(str(self.project)),
            )
        )
        self.client.initialized(types.InitializedParams())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.client.shutdown_async(None)
        self.client.exit(None)
        await self.client.stop()

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not what():
                self._news.clear()
                await self._news.wait()

    def open(self, path: str) -> str:
        """Show a file; its URI."""
        uri = uris.from_fs_path(str(self.project / path)) or ""
        text = (self.project / path).read_text()
        self.client.text_document_did_open(
            types.DidOpenTextDocumentParams(types.TextDocumentItem(uri, "cuda-cpp", 1, text))
        )
        return uri


@pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
def test_findings_of_a_file_that_is_not_open_come_and_go(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("toolkit") / "cuda"
    make_toolkit(folder)
    developer = make_developer(folder)

    async def go() -> None:
        async with Editor(developer, developer.project) as editor:
            await editor.until(lambda: editor.builds > 0)
            assert not any(editor.found.values())
            developer.write("src/b.cu", "//! fail\n")
            broken = str(developer.project / "src" / "b.cu")
            await editor.until(lambda: bool(editor.found.get(broken)))
            (finding,) = editor.found[broken]
            assert finding.message == "asked for" and finding.range.start.line == 0
            assert finding.severity is types.DiagnosticSeverity.Error
            developer.write("src/b.cu", "mended\n")
            await editor.until(lambda: not editor.found[broken])
            before = editor.builds
            await editor.client.workspace_execute_command_async(types.ExecuteCommandParams("buildd.rebuild"))
            await editor.until(lambda: editor.builds > before)

    try:
        asyncio.run(go())
    finally:
        end_developer(developer)


@pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
def test_it_ends_as_its_editor_asks_and_without_a_word(developer: Developer) -> None:
    messages = (
        {"id": 1, "method": "initialize", "params": {"processId": None, "rootUri": None, "capabilities": {}}},
        {"id": 2, "method": "shutdown"},
        {"method": "exit"},
    )
    bodies = [json.dumps({"jsonrpc": "2.0", **message}).encode() for message in messages]
    said = subprocess.run(
        [sys.executable, "-P", "-m", "buildd", "lsp", "-C", str(developer.project)],
        env=developer.environ,
        input=b"".join(b"Content-Length: %d\r\n\r\n%s" % (len(body), body) for body in bodies),
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert said.returncode == 0 and said.stderr == b"" and b'"id": 2' in said.stdout.replace(b'"id":2', b'"id": 2')


@pytest.mark.cuda
def test_a_kernels_needs_on_hover_and_above_it(tmp_path: Path) -> None:
    developer = make_developer(tmp_path / "none")
    del developer.environ["CUDA_HOME"]
    project = developer.folder / "quickstart"
    shutil.copytree(ROOT / "examples" / "quickstart", project, ignore=shutil.ignore_patterns("build"))
    text = (project / "buildd.toml").read_text()
    (project / "buildd.toml").write_text(text.partition("[target.")[0] + "\n" + TARGET)

    async def go() -> None:
        async with Editor(developer, project) as editor:
            uri = editor.open("src/saxpy.cu")
            await editor.until(lambda: editor.builds > 0)
            source = (project / "src" / "saxpy.cu").read_text()
            ((line, name),) = kernel_lines(source)
            lenses = await editor.client.text_document_code_lens_async(
                types.CodeLensParams(types.TextDocumentIdentifier(uri))
            )
            assert lenses is not None and len(lenses) == 3
            assert lenses[0].range.start.line == line and lenses[0].command is not None
            assert "sm_80" in lenses[0].command.title and "registers" in lenses[0].command.title
            column = source.splitlines()[line].find(name)
            where = types.Position(line, column + 1) if column >= 0 else types.Position(line + 1, 1)
            hover = await editor.client.text_document_hover_async(
                types.HoverParams(types.TextDocumentIdentifier(uri), where)
            )
            assert hover is not None and isinstance(hover.contents, types.MarkupContent)
            assert name in hover.contents.value and "registers" in hover.contents.value
            (ptx,) = (lens.command for lens in lenses if lens.command is not None and lens.command.title == "PTX")
            asked = types.ExecuteCommandParams(ptx.command, ptx.arguments)
            uri = await editor.client.workspace_execute_command_async(asked)
            await editor.until(lambda: bool(editor.shown))
            assert str(uri).endswith(f"{name}.ptx") and ".entry" in editor.shown[0] and name in editor.shown[0]
            asked = types.ExecuteCommandParams("buildd.showSass", ["nobody"])
            assert await editor.client.workspace_execute_command_async(asked) is None
            await editor.until(lambda: bool(editor.messages))
            assert "no kernel 'nobody' has been built for an NVIDIA GPU" in editor.messages[0]

    try:
        asyncio.run(go())
    finally:
        end_developer(developer)


TARGET = """
[target.saxpy]
kind = "cuda"
sources = ["src/saxpy.cu"]
arch = ["sm_80"]
"""


def test_a_functions_own_name() -> None:
    assert base_name("saxpy(int, float)") == "saxpy"
    assert base_name("void ns::kernel<5, float (*)(int), (Kind)2>(float*)") == "kernel"
    assert base_name("(anonymous namespace)::k(int)") in ("k", "")


def test_where_kernels_are_defined() -> None:
    text = (
        "int x;\ntemplate <int N>\n__global__ void __launch_bounds__(128, 2)\nk(float *p) {}\n__global__ void l() {}\n"
    )
    assert kernel_lines(text) == [(2, "k"), (4, "l")]


def test_what_a_kernel_needs_in_words() -> None:
    now = m.Kernel(name="k", arch="sm_80", registers=30, shared_bytes=256, spill_store_bytes=4, spill_load_bytes=4)
    before = m.Kernel(name="k", arch="sm_80", registers=28, shared_bytes=256)
    assert needs(now) == "30 registers, 100% occupancy, 256 B shared, 8 B spilled"
    assert needs(now, before).endswith("(was 28 registers)")


def project_of(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    return str(folder)


def test_findings_of_an_action_are_replaced_by_its_next_end(tmp_path: Path) -> None:
    findings = Findings(project_of(tmp_path, "src/a.cu"))
    job = m.JobId(1)
    findings.begin()
    findings.take(m.Started(job_id=job, action="a", command=""))
    findings.take(m.LogLine(job_id=job, stream="stderr", text="src/a.cu(3): warning #177-D: never used"))
    findings.take(m.Finished(job_id=job, action="a", timing=m.Timing()))
    assert [d.line for d in findings.by_file()[f"{tmp_path}/src/a.cu"]] == [3]
    findings.begin()
    findings.take(m.CacheHit(job_id=m.JobId(0), action="a", reason=""))
    assert findings.by_file() == {}


def test_findings_of_what_is_there_no_more_go(tmp_path: Path) -> None:
    def kernel(name: str) -> m.Kernel:
        return m.Kernel(name=name, arch="sm_80", registers=10)

    def build(findings: Findings, *bodies: m.EventBody, actions: int) -> None:
        findings.begin()
        for body in (m.Planned(targets=("t",), actions=actions), *bodies, m.Done(outcome=m.Outcome.BUILT)):
            findings.take(body)

    def hit(action: str) -> m.CacheHit:
        return m.CacheHit(job_id=m.JobId(0), action=action, reason="", kernels=(kernel(action),))

    findings, job = Findings(project_of(tmp_path, "b.cu")), m.JobId(1)
    so = m.Artifact(target="t", name="t.so", path="t.so", digest=m.Digest(""), size_bytes=1)
    build(findings, hit("t/a"), hit("t/b"), so, actions=2)
    findings.begin()
    error = m.Diagnostic(file="b.cu", line=1, severity=m.Severity.ERROR, message="broken")
    said = m.Failed(job_id=job, action="t/b", kind=m.FailureKind.COMPILE_ERROR, message="", diagnostics=(error,))
    findings.take(said)
    findings.take(m.Done(outcome=m.Outcome.FAILED))
    assert list(findings.by_file()) == [f"{tmp_path}/b.cu"] and findings.of_function("t/b")
    build(findings, so, actions=2)
    assert findings.by_file() == {} and findings.of_function("t/a"), "it stands as it did, and is not told of"
    build(findings, hit("t/a"), actions=1)
    assert (
        not findings.of_function("t/b") and not findings.holders("t/a", Form.SASS) and list(findings.names) == ["t/a"]
    )


def warned(findings: Findings, line: int, outcome: m.Outcome) -> None:
    """A build that runs action t/a, which warns of a line."""
    job = m.JobId(1)
    findings.take(m.Started(job_id=job, action="t/a", command=""))
    findings.take(m.LogLine(job_id=job, stream="stderr", text=f"a.cu({line}): warning #177-D: never used"))
    if outcome is not m.Outcome.CANCELLED:
        findings.take(m.Finished(job_id=job, action="t/a", timing=m.Timing()))
        findings.take(m.Done(outcome=outcome))


def lines_of(findings: Findings) -> list[int]:
    return [each.line for several in findings.by_file().values() for each in several]


def test_warnings_of_what_stands_as_it_did_before_them_go(tmp_path: Path) -> None:
    """A save brought a warning, its build failed, and the save was taken back: the next build reports no warning."""
    findings = Findings(project_of(tmp_path, "a.cu"))
    findings.begin()
    warned(findings, 3, m.Outcome.FAILED)
    assert lines_of(findings) == [3]
    findings.begin()
    findings.take(m.Planned(targets=("t",), actions=2))
    findings.take(m.Done(outcome=m.Outcome.BUILT))
    assert lines_of(findings) == []


def test_warnings_stay_where_what_was_told_of_them_may_be_lost(tmp_path: Path) -> None:
    findings = Findings(project_of(tmp_path, "a.cu"))
    findings.begin()
    warned(findings, 3, m.Outcome.BUILT)
    findings.begin()
    findings.take(m.Lagged(first=1, last=9))
    findings.take(m.Done(outcome=m.Outcome.BUILT))
    assert lines_of(findings) == [3]


def test_warnings_of_a_run_whose_input_changed_are_those_of_the_next_one(tmp_path: Path) -> None:
    findings = Findings(project_of(tmp_path, "a.cu"))
    findings.begin()
    warned(findings, 3, m.Outcome.CANCELLED)
    warned(findings, 4, m.Outcome.BUILT)
    assert lines_of(findings) == [4]


def test_findings_of_a_file_that_was_removed_go_though_the_build_still_fails(tmp_path: Path) -> None:
    findings = Findings(project_of(tmp_path, "a.cu"))
    findings.begin()
    warned(findings, 3, m.Outcome.FAILED)
    (tmp_path / "a.cu").unlink()
    findings.begin()
    findings.take(m.Done(outcome=m.Outcome.FAILED))
    assert lines_of(findings) == []
