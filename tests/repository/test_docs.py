"""The documents say what is there: TOML that is planned, commands and files that exist, every key and module named."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buildd.artifacts.diagnostics import diagnose
from buildd.cli import COMMANDS, HIDDEN, main
from codegen.compilers.command_parser import Reason
from codegen.gemm.spec import kernel_for
from codegen.project.kinds import KINDS
from codegen.project.measured_call import CallArgument, MeasuredCall
from codegen.project.project_file import _TABLES, load_project
from codegen.project.target import GemmTarget, TritonTarget
from codegen.project.target_table import INTERNAL_FIELDS
from codegen.python.triton_kernel import goal_of
from codegen.variables.environment import all_variables
from protocol.messages import BuildId, Request, RequestId
from tests.support.own_programs import lend_programs
from tests.support.paths import ROOT

DOCUMENTS = sorted(
    (
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "protocol").glob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    )
)
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = ROOT / "docs"
COMMAND_TABLE = (DOCS / "commands.md").read_text(encoding="utf-8")
PROJECT_FILE = (DOCS / "project-file.md").read_text(encoding="utf-8")
# At the start of a code span or of a line of a code block.
_COMMAND = re.compile(r"(?:`|^\$ |^    |bin/|^)buildd ([a-z][a-z-]*)", re.MULTILINE)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def a_request(folder: Path, *targets: str) -> Request:
    return Request(request_id=RequestId("r"), build_id=BuildId("b"), project=str(folder), targets=targets)


PROJECTS = [
    pytest.param(text, id=f"{path.relative_to(ROOT)}-{number}")
    for path in DOCUMENTS
    for number, text in enumerate(blocks(path.read_text(encoding="utf-8"), "toml"))
]


@pytest.mark.parametrize("text", PROJECTS)
def test_project_files_in_the_documents_are_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "buildd.toml").write_text(text, encoding="utf-8")
    wanted = tomllib.loads(text)["target"]
    project = load_project(a_request(tmp_path, *wanted))
    assert {target.name for target in project.targets} == set(wanted)
    for target in project.targets:
        for arch in target.arch:
            if isinstance(target, GemmTarget):
                assert kernel_for(target, arch).arch == arch
            elif isinstance(target, TritonTarget) and arch != "native":
                assert goal_of(arch).name == arch


@pytest.mark.parametrize(
    ("document", "program"),
    [
        pytest.param("docs/project-file.md", "build/tool/tool", marks=pytest.mark.cuda),
        pytest.param("README.md", "", marks=pytest.mark.cuda),
        pytest.param("docs/getting-started.md", "", marks=pytest.mark.cuda),
        pytest.param("docs/targets/cuda.md", "build/tool/tool", marks=pytest.mark.cuda),
        pytest.param("docs/targets/hip.md", "", marks=pytest.mark.hip),
    ],
)
def test_the_first_project_of_a_document_builds(document: str, program: str, tmp_path: Path) -> None:
    # But for the toolkit's folder and the host compiler, which are not on every machine.
    text = blocks((ROOT / document).read_text(encoding="utf-8"), "toml")[0]
    text = re.sub(r"^(cuda|host_compiler) = .*\n", "", text, flags=re.MULTILINE)
    one = "TILE" if "TILE" in text else "128"
    files = {
        "buildd.toml": text,
        "src/a.cu": f'extern "C" int ops() {{ return {one}; }}\n',
        "src/util/deep/b.cpp": "int helper() { return 1; }\n",
        "include/ops.h": "",
        "src/saxpy.cu": "__global__ void saxpy(float *x) { *x = 2 * *x; }\n",
        "src/saxpy.hip": "#include <hip/hip_runtime.h>\n__global__ void saxpy(float *x) { *x = 2 * *x; }\n",
        "tools/main.cu": 'extern "C" int ops();\nint main() { return ops() == 128 ? 0 : 1; }\n',
    }
    for name, content in files.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    lend_programs(tmp_path / "store")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "buildd", "build", "--no-daemon"],
        cwd=tmp_path / "project",
        env={**os.environ, "BUILDD_DIR": str(tmp_path / "store")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if program:
        assert subprocess.run([tmp_path / "project" / program], cwd="/", timeout=60).returncode == 0


PAGES = {kind: f"{kind}.md" for kind in KINDS} | dict.fromkeys(("rowwise", "elementwise"), "arrays.md")
"""Kind -> its page below docs/targets."""


def test_every_kind_has_a_page_with_an_example() -> None:
    assert {path.name for path in (DOCS / "targets").iterdir()} == set(PAGES.values())
    for kind, page in PAGES.items():
        text = (DOCS / "targets" / page).read_text(encoding="utf-8")
        tables = [table for text in blocks(text, "toml") for table in tomllib.loads(text)["target"].values()]
        assert kind in {table["kind"] for table in tables}, kind


def test_the_tests_that_the_page_on_security_names_are_there() -> None:
    text = (DOCS / "security.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)`:((?:\s+`test_\w+`,?)+)", text)
    assert len(named) > 10
    assert text.count("`test_") == sum(names.count("`test_") for _, names in named), "each stands behind its file"
    for path, names in named:
        source = (ROOT / path).read_text(encoding="utf-8")
        for name in re.findall(r"test_\w+", names):
            assert f"def {name}(" in source, name


def test_the_readme_is_short() -> None:
    lines = README.splitlines()
    assert len(lines) <= 180
    assert max(map(len, lines)) <= 120


def test_the_page_of_variables_is_as_its_script_writes_it() -> None:
    written = subprocess.run(
        [sys.executable, ROOT / "scripts" / "docs-environment", "--print"], capture_output=True, text=True, timeout=60
    )
    assert written.returncode == 0, written.stderr
    page = (DOCS / "environment.md").read_text(encoding="utf-8")
    assert written.stdout == page, "run scripts/docs-environment"
    assert all(f"| `{variable.name}` |" in page for variable in all_variables())


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the manual page is written by Python 3.11's argparse")
def test_the_manual_page_is_that_of_the_parsers() -> None:
    written = subprocess.run(
        [sys.executable, ROOT / "scripts" / "docs-manual", "--print"], capture_output=True, text=True, timeout=60
    )
    assert written.stdout == (DOCS / "man/buildd.1").read_text(encoding="utf-8"), "run scripts/docs-manual"
    for name in COMMANDS:
        assert f"\n.SS {name.replace('-', chr(92) + '-')}\n" in written.stdout
    assert written.stderr == ""


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("buildd.toml")), ids=lambda path: path.parent.name)
def test_the_examples_are_read_and_their_files_are_there(path: Path) -> None:
    for target in load_project(a_request(path.parent)).targets:
        for name in (*getattr(target, "sources", ()), *getattr(target, "include", ()), getattr(target, "source", "")):
            assert (path.parent / name).exists(), name


def keys_in(text: str) -> set[str]:
    return {key for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}


def test_every_key_stands_in_the_project_files_document() -> None:
    fields = {field.name for kind in KINDS.values() for field in msgspec.structs.fields(kind)}
    fields |= {field.name for table in (MeasuredCall, CallArgument) for field in msgspec.structs.fields(table)}
    keys = (fields - set(INTERNAL_FIELDS)) | {key for table in _TABLES.values() for key in table} | {"kind"}
    assert keys_in(PROJECT_FILE) == keys


def test_every_key_stands_in_the_section_of_its_kind() -> None:
    (row,) = re.findall(r"^\| `kind` \|.*$", PROJECT_FILE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == {"kind", *KINDS}
    common, *sections = re.split(r"^### ", PROJECT_FILE.split("## [target.NAME]", 1)[1], flags=re.MULTILINE)
    named: dict[str, set[str]] = {}
    (measure,) = (section for section in sections if section.startswith("Table measure"))
    sections.remove(measure)
    inner = {field.name for table in (MeasuredCall, CallArgument) for field in msgspec.structs.fields(table)}
    assert keys_in(measure) == inner
    for section in sections:
        kinds = set(re.findall(r"\w+", section.splitlines()[0])) & set(KINDS)
        assert kinds, section.splitlines()[0]
        named |= {kind: keys_in(section) for kind in kinds}
    for kind, struct in KINDS.items():
        keys = {field.name for field in msgspec.structs.fields(struct)} - set(INTERNAL_FIELDS)
        assert keys <= named[kind] | keys_in(common), kind
    # A section of one kind has no other's keys.
    for section in sections:
        kinds = set(re.findall(r"\w+", section.splitlines()[0])) & set(KINDS)
        keys = {field.name for kind in kinds for field in msgspec.structs.fields(KINDS[kind])}
        assert keys_in(section) <= keys, section.splitlines()[0]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_are_named_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    code = [*re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL), *re.findall(r"`[^`\n]+`", text)]
    code += re.findall(r"^    .+$", text, re.MULTILINE)
    for name in _COMMAND.findall("\n".join(code)):
        assert name in COMMANDS or name in HIDDEN, f"buildd {name}"


def test_the_table_names_every_command_and_the_help_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name in COMMANDS:
        assert re.search(rf"^\| `buildd {name}\b[^|]*\|", COMMAND_TABLE, re.MULTILINE), name
        assert re.search(rf"^  {name} ", text, re.MULTILINE), name


@pytest.mark.parametrize("command", COMMANDS)
def test_options_in_the_table_of_commands_are_understood(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = re.findall(rf"^\| `buildd {command}(?![\w-]).*$", COMMAND_TABLE, re.MULTILINE)
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    words = re.findall(r"`(--?[a-z-]+)", row) if command != "cache" else re.findall(r"`([a-z]+)`", row)
    assert words or command not in ("build", "warm", "log", "doctor", "cache", "watch", "run", "explain", "profile")
    for word in words:
        assert re.search(rf"(?<![\w-]){word}(?![\w-])", text), word


_CALL = re.compile(r"(?:^|[\s`(])buildd ((?:cache )?[a-z][a-z-]*)([^`\n#;|&]*)", re.MULTILINE)
"""A command and its arguments, in code; `buildd run` ends where its own command begins."""


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_options_of_commands_in_code_are_understood(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = path.read_text(encoding="utf-8")
    code = [
        *blocks(text, "(?:console)?"),
        *re.findall(r"`[^`\n]+`", text),
        *re.findall(r"^    .+$", text, re.MULTILINE),
    ]
    for command, arguments in _CALL.findall("\n".join(code)):
        words = [word.partition("=")[0] for word in arguments.partition("-- ")[0].split()]
        options = [word for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word)]
        if options and command.split()[0] in COMMANDS:
            assert main([*command.split(), "--help"]) == 0, command
            known = capsys.readouterr().out
            for option in options:
                assert re.search(rf"(?<![\w-]){option}(?![\w-])", known), f"buildd {command} {option}"


def test_every_reason_to_pass_a_call_through_is_explained() -> None:
    text = (DOCS / "existing-builds.md").read_text(encoding="utf-8")
    table = text.split("| reason | the command |\n|---|---|\n", 1)[1].split("\n\n", 1)[0]
    named = [name for row in table.splitlines() for name in row.split("|")[1].strip().split(", ")]
    assert sorted(named) == sorted(reason.value for reason in Reason)


def test_no_document_installs_buildd_from_an_index() -> None:
    # There is none that has it: the command would fail, or install something else.
    for path in DOCUMENTS:
        assert not re.search(r"pip install[^`\n]*[\s\"']buildd\b", path.read_text(encoding="utf-8")), path.name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_sections_of_the_protocol_that_the_documents_name_are_those() -> None:
    text = (ROOT / "protocol" / "SPEC.md").read_text(encoding="utf-8")
    numbered = dict(re.findall(r"^## (\d+)\. (.+)$", text, re.MULTILINE))
    texts = "".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    named = re.findall(r"SPEC\.md\),\s+section (\d+)", texts)
    assert {numbered[number] for number in named} == {"TCP", "Events"}


def test_scripts_that_the_documents_name_are_there_and_run() -> None:
    for path in DOCUMENTS:
        for name in re.findall(r"\b(scripts/[\w/-]*\w|\.ci/run)\b", path.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{path.name}: {name}"
    for name in ("quickstart", "setup", "test", "lint", "docs-environment"):
        assert (ROOT / "scripts" / name).stat().st_mode & 0o111, name


def test_every_figure_has_a_script_that_takes_its_arguments() -> None:
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    table = text.split("<!-- figures: begin", 1)[1].split("<!-- figures: end", 1)[0]
    rows = [row.split("|") for row in re.findall(r"^\|(?! what |---)(.*)\|$", table, re.MULTILINE)]
    assert len(rows) > 40
    for row in rows:
        assert len(row) == 4 and all((row[0].strip(), row[2].strip(), row[3].strip())), row
        script, *arguments = re.sub(r"[`,]", " ", row[2]).split()
        source = (ROOT / script).read_text(encoding="utf-8")
        libraries = [*(ROOT / script).parent.glob("*.py")]
        for word in arguments:
            if not word.isdigit():
                known = [source, *(path.read_text(encoding="utf-8") for path in libraries)]
                parts = [word] if word.startswith("--") else re.findall(r"[a-z]+", word)
                assert any(part in one for one in known for part in parts), f"{script} {word}"


def test_figures_in_the_readme_are_in_the_table() -> None:
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    bullets = re.findall(r"^- \*\*.*\n(?:  .*\n)*", README, re.MULTILINE)
    assert len(bullets) == 4
    for bullet in bullets:
        (command,) = re.findall(r"\(`(scripts/[^`]+)`\)", bullet)
        rows = "".join(row for row in text.splitlines() if f"`{command}`" in row)
        for number in re.findall(r"\d+(?:[.,]\d+)*", re.sub(r"\(`[^`]+`\)", "", bullet)):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", rows), f"{command}: {number}"


def test_vscodes_problem_matchers_find_what_a_watch_says() -> None:
    (task,) = json.loads((ROOT / "examples" / "vscode" / "tasks.json").read_text())["tasks"]
    nvcc, gcc = task["problemMatcher"]
    recorded = (ROOT / "docs" / "recordings" / "watch.txt").read_text()

    def found(matcher: dict[str, Any], text: str) -> list[tuple[str, ...]]:
        pattern = matcher["pattern"]
        names = [name for name in ("file", "line", "column", "severity", "message") if name in pattern]
        matches = (re.search(pattern["regexp"], line) for line in text.splitlines())
        return [tuple(match[pattern[name]] for name in names) for match in matches if match is not None]

    assert found(nvcc, recorded) == [("src/saxpy.cu", "2", "error", 'identifier "blockDimm" is undefined')]
    assert found(gcc, recorded) == []
    data = ROOT / "tests" / "data" / "diagnostics"
    for matcher, name in ((nvcc, "nvcc-errors"), (nvcc, "nvcc-warnings"), (gcc, "gcc-template"), (gcc, "hipcc-errors")):
        told = [(f.file, str(f.line)) for f in diagnose((data / f"{name}.txt").read_text()) if f.line]
        assert told and {one[:2] for one in found(matcher, (data / f"{name}.txt").read_text())} == set(told), name
    background = nvcc["background"]
    rounds = recorded.split("---- ")[1:]
    for number, text in enumerate(rounds):
        begins = [line for line in text.splitlines() if re.search(background["beginsPattern"], line)]
        ends = [line for line in text.splitlines() if re.search(background["endsPattern"], line)]
        assert ends == [text.rstrip().splitlines()[-1]] and len(begins) == (number > 0)
    assert not re.search(background["endsPattern"], "watching, building")


DESIGN = [ROOT / "docs" / "architecture.md", *sorted((ROOT / "docs" / "design").glob("*.md"))]


@pytest.mark.parametrize("path", DESIGN, ids=lambda path: path.name)
def test_modules_that_the_design_names_are_there(path: Path) -> None:
    """Names such as `keys.action_key` and `codegen.reach`."""
    for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", path.read_text(encoding="utf-8")):
        if name.endswith((".c", ".py", ".toml", ".db")):
            continue
        parts = name.split(".")
        places = [ROOT.joinpath(*package, *parts) for package in ((), ("buildd",), ("codegen",))]
        assert any(place.is_dir() or place.with_suffix(".py").is_file() for place in places), name


def test_every_page_is_in_the_menu_of_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sphinx refuses a page that no table of contents has; it is not installed here."""
    application = types.ModuleType("sphinx.application")
    application.Sphinx = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sphinx", types.ModuleType("sphinx"))
    monkeypatch.setitem(sys.modules, "sphinx.application", application)
    settings = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    listed = {
        os.path.normpath(os.path.join("/docs", page)) for pages in settings["CONTENTS"].values() for page in pages
    }
    assert len(listed) == sum(map(len, settings["CONTENTS"].values())), "a page stands in the menu twice"
    pages = {f"/{path.relative_to(ROOT).with_suffix('')}" for path in (ROOT / "docs").rglob("*.md")}
    assert pages - {"/docs/index"} == {page for page in listed if page.startswith("/docs/")}
    assert {f"{page}.md" for page in listed if not (ROOT / f"{page[1:]}.md").exists()} == set()
