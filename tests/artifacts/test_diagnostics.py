"""Findings in real outputs of compilers (tests/data/diagnostics), in odd texts, and from the tools that are here.

Beside each recorded NAME.txt stands NAME.expected: one finding a line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buildd.artifacts.diagnostics import MOST, diagnose
from protocol.messages import Diagnostic, Severity
from tests.support.paths import DATA

RECORDED = DATA / "diagnostics"
NVCC = Path(sysconfig.get_path("purelib"), "nvidia", "cu13", "bin", "nvcc")


def shown(found: Diagnostic) -> str:
    place = f"{found.file}:{found.line}:{found.column}"
    return f"{found.severity.value} {place} [{found.code}] {found.message}"


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.glob("*.txt")))
def test_recorded_outputs(name: str) -> None:
    text = (RECORDED / f"{name}.txt").read_text()
    assert [shown(found) for found in diagnose(text)] == (RECORDED / f"{name}.expected").read_text().splitlines()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a b.cu(3): error #20-D: x is undefined", "error a b.cu:3:0 [20-D] x is undefined"),
        ('x.cu(1): catastrophic error: cannot open source file "y"', 'error x.cu:1:0 [] cannot open source file "y"'),
        (
            "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
            "error :0:0 [nvcc] 'cicc' died due to signal 9 (Kill signal)",
        ),
        ("nvcc warning : incompatible redefinition", "warning :0:0 [nvcc] incompatible redefinition"),
        ("ptxas fatal   : Unresolved extern function 'f'", "error :0:0 [ptxas] Unresolved extern function 'f'"),
        ("cc1plus: fatal error: a.cpp: No such file", "error :0:0 [cc1plus] a.cpp: No such file"),
        ("/usr/bin/ld.gold: error: cannot open x", "error :0:0 [] cannot open x"),
        ("collect2: error: ld returned 1 exit status", "error :0:0 [collect2] ld returned 1 exit status"),
        ("../a.h:7: warning: odd [-Werror=odd-thing]", "warning ../a.h:7:0 [odd-thing] odd"),
        ("a.h:7:1: error: odd [-Werror,-Wodd]", "error a.h:7:1 [odd] odd"),
        (
            "CMake Error at sub/CMakeLists.txt:2:\n  Parse error.\n\n  End of file reached.\n\n-- Incomplete",
            "error sub/CMakeLists.txt:2:0 [] Parse error.\nEnd of file reached.",
        ),
        ("CMake Warning (dev) at a (b)/x.cmake:7 (set):\n  Odd.\n", "warning a (b)/x.cmake:7:0 [] Odd."),
        ("a.c:1:1: internal compiler error: in f, at g.cc:3", "error a.c:1:1 [] in f, at g.cc:3"),
    ],
)
def test_single_lines(line: str, expected: str) -> None:
    assert [shown(found) for found in diagnose(line + "\n")] == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "In file included from a.h:1,",
        "ptxas info    : Used 8 registers",
        "make: *** [all] Error 1",
        "12 errors detected in the compilation",
        '  File "a.py", line 3',
        '  File "a.py", line 3\n    x = 1\n!!',
    ],
)
def test_what_is_no_finding(text: str) -> None:
    assert diagnose(text) == ()


def test_the_same_from_several_passes_is_told_once() -> None:
    line = "a.cu(3): warning #177-D: unused\n\n"
    assert len(diagnose(line * 4)) == 1


def test_too_many_drop_notes_first_then_warnings() -> None:
    warnings = "".join(f"a.c:{n}:1: warning: w\na.c:{n}:1: note: n\n" for n in range(1, 81))
    errors = "".join(f"b.c:{n}:1: error: e\n" for n in range(1, 61))
    found = diagnose(warnings + errors)
    assert len(found) == MOST
    assert [d.severity for d in found] == [Severity.WARNING] * 40 + [Severity.ERROR] * 60
    many = diagnose("".join(f"b.c:{n}:1: error: e\n" for n in range(1, 5000)))
    assert [d.line for d in many] == list(range(1, MOST + 1))


def test_a_long_line_is_cut() -> None:
    (found,) = diagnose("a.c:1:1: error: " + "x" * 1_000_000)
    assert len(found.message) < 5000


@given(
    st.text(st.sampled_from("a.:(0) ^\n\"'")),
    st.sampled_from(["a.cu(1): error: x\n", "a:1:2: note: ", '  File "a", line 1\n', ""]),
)
def test_any_text_is_survived(text: str, start: str) -> None:
    assert len(diagnose(start + text)) <= MOST


def compile_with(command: list[str], folder: Path, name: str, source: str) -> tuple[Diagnostic, ...]:
    (folder / name).write_text(source)
    environment = {"PATH": os.environ["PATH"], "HIP_PLATFORM": "amd", "LC_ALL": "C"}
    done = subprocess.run([*command, name], cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    return diagnose(done.stdout + done.stderr)


SOURCE = '#include "a.h"\n__global__ void k(int *p) {\n  p[0] = nothere + 1;\n}\n'


@pytest.mark.cuda
@pytest.mark.skipif(not NVCC.exists(), reason="nvcc is not installed")
def test_nvcc_that_is_here(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("// empty\n")
    (found,) = compile_with([str(NVCC), "-c", "-o", "a.o"], tmp_path, "a.cu", SOURCE)
    assert shown(found) == 'error a.cu:3:10 [] identifier "nothere" is undefined'
    (tmp_path / "a.h").unlink()
    (found,) = compile_with([str(NVCC), "-c", "-o", "a.o"], tmp_path, "a.cu", SOURCE)
    assert (found.severity, found.file, found.line) == (Severity.ERROR, "a.cu", 1)


@pytest.mark.hip
@pytest.mark.skipif(shutil.which("hipcc") is None, reason="hipcc is not installed")
def test_hipcc_that_is_here(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("#include <hip/hip_runtime.h>\n")
    command = ["hipcc", "--offload-arch=gfx90a", "-c", "-o", "a.o"]
    (found, *_) = compile_with(command, tmp_path, "a.hip", SOURCE)
    assert shown(found) == "error a.hip:3:10 [] use of undeclared identifier 'nothere'"
