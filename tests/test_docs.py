"""The documents say what is there: TOML that is planned, commands and files that exist, every key and module named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buildd.cli import COMMANDS, HIDDEN, main
from buildd.diagnostics import diagnose
from codegen.gemm_spec import kernel_for
from codegen.project import _HIDDEN, _TABLES, load_project
from codegen.target import KINDS, GemmTarget, TritonTarget
from codegen.triton_kernel import goal_of
from protocol.messages import BuildId, Request, RequestId

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    (
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "protocol").glob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    )
)
README = (ROOT / "README.md").read_text(encoding="utf-8")
PACKAGES = ("protocol", "codegen", "buildd")
# At the start of a code span or of a line of a code block.
_COMMAND = re.compile(r"(?:`|^\$ |^    |bin/|^)buildd ([a-z][a-z-]*)", re.MULTILINE)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def a_request(folder: Path, *targets: str) -> Request:
    return Request(request_id=RequestId("r"), build_id=BuildId("b"), project=str(folder), targets=targets)


@pytest.mark.parametrize("number", range(len(blocks(README, "toml"))))
def test_the_readmes_project_files_are_read(number: int, tmp_path: Path) -> None:
    text = blocks(README, "toml")[number]
    (tmp_path / "buildd.toml").write_text(text, encoding="utf-8")
    wanted = tomllib.loads(text)["target"]
    project = load_project(a_request(tmp_path, *wanted))
    assert {target.name for target in project.targets} == set(wanted)
    for target in project.targets:
        for arch in target.arch:
            if isinstance(target, GemmTarget):
                assert kernel_for(target, arch).arch == arch
            elif isinstance(target, TritonTarget):
                assert goal_of(arch).name == arch


@pytest.mark.cuda
def test_the_readmes_first_project_builds(tmp_path: Path) -> None:
    # But for the toolkit's folder and the host compiler, which are not on every machine.
    text = re.sub(r"^(cuda|host_compiler) = .*\n", "", blocks(README, "toml")[0], flags=re.MULTILINE)
    files = {
        "buildd.toml": text,
        "src/a.cu": 'extern "C" int ops() { return TILE; }\n',
        "src/util/deep/b.cpp": "int helper() { return 1; }\n",
        "tools/main.cu": 'extern "C" int ops();\nint main() { return ops() == 128 ? 0 : 1; }\n',
    }
    for name, content in files.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "buildd", "build", "--no-daemon"],
        cwd=tmp_path / "project",
        env={**os.environ, "BUILDD_DIR": str(tmp_path / "store")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert subprocess.run([tmp_path / "project/build/tool/tool"], cwd="/", timeout=60).returncode == 0


def test_the_readme_shows_every_kind() -> None:
    tables = [table for text in blocks(README, "toml") for table in tomllib.loads(text)["target"].values()]
    assert {table["kind"] for table in tables} == set(KINDS)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("buildd.toml")), ids=lambda path: path.parent.name)
def test_the_examples_are_read_and_their_files_are_there(path: Path) -> None:
    for target in load_project(a_request(path.parent)).targets:
        for name in (*getattr(target, "sources", ()), *getattr(target, "include", ()), getattr(target, "source", "")):
            assert (path.parent / name).exists(), name


def test_every_key_stands_in_the_project_files_document() -> None:
    text = (ROOT / "docs" / "project-file.md").read_text(encoding="utf-8")
    named = {key for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}
    fields = {field.name for kind in KINDS.values() for field in msgspec.structs.fields(kind)}
    keys = (fields - set(_HIDDEN)) | {key for table in _TABLES.values() for key in table} | {"kind"}
    assert named == keys


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_are_named_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    code = [*re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL), *re.findall(r"`[^`\n]+`", text)]
    code += re.findall(r"^    .+$", text, re.MULTILINE)
    for name in _COMMAND.findall("\n".join(code)):
        assert name in COMMANDS or name in HIDDEN, f"buildd {name}"


def test_the_readme_names_every_command_and_the_help_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    table = README.split("## Commands", 1)[1].split("\n## ", 1)[0]
    for name in COMMANDS:
        assert f"`buildd {name}" in table, name
        assert re.search(rf"^  {name} ", text, re.MULTILINE), name


@pytest.mark.parametrize("command", ["build", "warm", "log", "doctor", "cache"])
def test_options_that_the_readme_names_are_understood(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = re.findall(rf"^\| `buildd {command}.*$", README, re.MULTILINE)
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    words = re.findall(r"`(--?[a-z-]+)", row) if command != "cache" else re.findall(r"`([a-z]+)`", row)
    assert words
    for word in words:
        assert re.search(rf"(?<![\w-]){word}(?![\w-])", text), word


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


def test_sections_of_the_protocol_that_the_readme_names_are_those() -> None:
    text = (ROOT / "protocol" / "SPEC.md").read_text(encoding="utf-8")
    numbered = dict(re.findall(r"^## (\d+)\. (.+)$", text, re.MULTILINE))
    named = re.findall(r"SPEC\.md\),\s+section (\d+)", README)
    assert {numbered[number] for number in named} == {"TCP", "Events"}


def test_the_architecture_names_every_module_and_no_other() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([\w./]+)` \|", text, re.MULTILINE))
    there = {
        str(path.relative_to(ROOT)).removesuffix(".py")
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not path.name.startswith("__")
    }
    assert named == there


def test_scripts_that_the_documents_name_are_there_and_run() -> None:
    for path in DOCUMENTS:
        for name in re.findall(r"\b(scripts/[\w-]+|\.ci/run)\b(?!/)", path.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{path.name}: {name}"
    for name in ("quickstart", "setup", "test", "lint"):
        assert (ROOT / "scripts" / name).stat().st_mode & 0o111, name


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
    assert not re.search(background["endsPattern"], "watching 1 file in 2 folders, building")
