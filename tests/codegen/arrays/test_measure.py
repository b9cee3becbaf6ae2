"""measure.cu itself, on a device that is the host: what is right, what is wrong, and in which layout."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from codegen.gemm.gemm import MEASURE
from tests.support.carry_out import plan_for, request_for
from tests.support.cuda_on_host import on_the_host
from tests.support.paths import FAKES


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """measure.cu, compiled by nvcc and linked with a runtime that is none."""
    folder = tmp_path_factory.mktemp("measure")
    return on_the_host(folder, Path(MEASURE).read_bytes())


def measured(program: Path, folder: Path, *, best_us: str = "0", **macros: Any) -> tuple[str, dict[str, Any]]:
    given = {"TYPE": "_Float16", "A_ROW": 1, "B_ROW": 0, "BIAS": 0, "TANH": 0, "FAULT": 0, **macros}
    library = folder / "libgemm.so"
    flags = [f"-D{name}={value}" for name, value in given.items()]
    command = ["gcc", "-O2", "-msse2", "-shared", "-fPIC", *flags, "-o", library, FAKES / "fake-gemm.c", "-lm"]
    subprocess.run(command, check=True)
    output, tolerance = {"_Float16": ("fp16", "2e-3"), "float": ("fp32", "1e-4")}[str(given["TYPE"])]
    dtype = {2: "fp8_e5m2", 3: "fp8_e4m3"}.get(given.get("FP8", 0), output)
    layout = f"{'r' if given['A_ROW'] else 'c'}{'r' if given['B_ROW'] else 'c'}r"
    epilogue = {(0, 0): "none", (1, 0): "bias_relu", (1, 1): "bias_tanh"}[given["BIAS"], given["TANH"]]
    rows = "3x24" if "BATCHED" in given else "24"
    arguments = [str(library), "gemm", rows, "40", "32", dtype, output, layout, epilogue, tolerance]
    done = subprocess.run([program, *arguments], input=best_us, capture_output=True, text=True, timeout=60)
    lines = [line for line in done.stdout.splitlines() if line]
    assert lines[0] == "ready"
    found: dict[str, Any] = json.loads(lines[1]) if lines[1:] else {"outcome": f"signal {-done.returncode}"}
    return found["outcome"], found


@pytest.mark.cuda
@pytest.mark.slow
def test_what_is_right_is_timed_in_every_layout(program: Path, tmp_path: Path) -> None:
    for macros in (
        {},
        {"B_ROW": 1},
        {"A_ROW": 0},
        {"BIAS": 1},
        {"TYPE": "float"},
        {"TYPE": "float", "BIAS": 1},
        {"BIAS": 1, "TANH": 1},
        {"FP8": 3, "BIAS": 1},
        {"FP8": 2, "TYPE": "float"},
        {"BATCHED": 1, "BIAS": 1},
        {"BATCHED": 1, "A_ROW": 0, "B_ROW": 1},
    ):
        outcome, found = measured(program, tmp_path, **macros)
        assert outcome == "measured", (macros, found)
        assert found["time_us"] > 0 and found["samples"] >= 20 and found["error"] < 2e-3
        assert found["workspace_bytes"] == (3 * 96 if "BATCHED" in macros else 96)
    assert measured(program, tmp_path, best_us="0.0001")[0] == "hopeless"


@pytest.mark.cuda
@pytest.mark.slow
def test_what_is_wrong_is_said(program: Path, tmp_path: Path) -> None:
    assert measured(program, tmp_path, FAULT=1)[1] == {"outcome": "refused", "note": "cutlass::Status 4"}
    assert measured(program, tmp_path, FAULT=2)[0] == "signal 6"
    outcome, found = measured(program, tmp_path, FAULT=3)
    assert (outcome, found["note"]) == ("wrong", "element 23, 39 is no number")
    for batched in ({"BATCHED": 1}, {}):
        outcome, found = measured(program, tmp_path, FAULT=4, **batched)
        assert outcome == "wrong" and "largest relative error" in found["note"]
    # The right numbers for another layout.
    library = tmp_path / "libgemm.so"
    arguments = [str(library), "gemm", "24", "40", "32", "fp16", "fp16", "rrr", "none", "2e-3"]
    done = subprocess.run([program, *arguments], input="0", capture_output=True, text=True, timeout=60)
    assert '"wrong"' in done.stdout
    done = subprocess.run([program, *arguments], input="", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "ready\n"), "nobody waits for it"


@pytest.mark.cuda
@pytest.mark.slow
def test_one_after_another_until_one_does_not_work(program: Path, tmp_path: Path) -> None:
    right, wrong = tmp_path / "with a space\tand a tab", tmp_path / "wrong"
    for folder, fault in ((right, 0), (wrong, 4)):
        folder.mkdir()
        measured(program, folder, FAULT=fault)

    def question(folder: Path, n: int) -> str:
        words = (folder / "libgemm.so", "gemm", 24, n, 32, "fp16", "fp16", "rcr", "none", "2e-3")
        return "".join(f"{word}\0" for word in words)

    asked = f"\n{question(right, 40)}0\n{question(right, 8)}0.0001\n{question(wrong, 40)}0\n{question(right, 40)}0\n"
    done = subprocess.run([program], input=asked, capture_output=True, text=True, timeout=60)
    said = [line for line in done.stdout.splitlines() if line]
    outcomes = [line if line == "ready" else json.loads(line)["outcome"] for line in said]
    assert outcomes == ["ready", "started", "ready", "measured", "ready", "hopeless", "ready", "wrong"]
    assert done.returncode == 1
    started = 'ready\n{"outcome": "started"}\n'
    done = subprocess.run([program], input=f"\n{question(right, 40)[:-9]}", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, started), "half a question is none"
    done = subprocess.run([program], input="", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "ready\n"), "nobody waits for it"


@pytest.mark.cuda
@pytest.mark.slow
def test_rivals_are_timed_in_turns_with_it(program: Path, tmp_path: Path) -> None:
    libraries = [tmp_path / name for name in ("first", "second", "third")]
    for folder in libraries:
        folder.mkdir()
        measured(program, folder)
    first, *rivals = (str(folder / "libgemm.so") for folder in libraries)
    words = [first, "gemm", "24", "40", "32", "fp16", "fp16", "rcr", "none", "2e-3,2"]
    words += [word for rival in rivals for word in (rival, "gemm")]
    alone = [first, "gemm", "24", "40", "32", "fp16", "fp16", "rcr", "none", "2e-3"]
    asked = "\n" + "".join("".join(f"{word}\0" for word in some) + "0\n" for some in (words, alone))
    done = subprocess.run([program], input=asked, capture_output=True, text=True, timeout=60)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line and line != "ready"][1:]
    assert [len(answer.get("rivals_us", ())) for answer in answers] == [2, 0] and answers[0]["time_us"] > 0
    assert all(time_us > 0 for time_us in answers[0]["rivals_us"])
    done = subprocess.run([program, *words], input="0", capture_output=True, text=True, timeout=60)
    assert len(json.loads(done.stdout.splitlines()[-1])["rivals_us"]) == 2


@pytest.mark.cuda
@pytest.mark.slow
def test_memory_is_kept_for_the_next_one(program: Path, tmp_path: Path) -> None:
    measured(program, tmp_path)

    def blocks(times: int) -> int:
        words = (tmp_path / "libgemm.so", "gemm", 24, 40, 32, "fp16", "fp16", "rcr", "none", "2e-3")
        asked = "\n" + f"{''.join(f'{word}' + chr(0) for word in words)}0\n" * times
        told = {"FAKE_CUDART_TELLS": "1"}
        done = subprocess.run([program], input=asked, env=told, capture_output=True, text=True, timeout=60)
        assert done.stdout.count('"measured"') == times
        return done.stderr.count("cudaMalloc")

    assert blocks(1) == 1, "all operands are in one block"
    assert blocks(3) == 1


@pytest.mark.cuda
@pytest.mark.slow
def test_convolutions_are_checked_and_timed(program: Path, tmp_path: Path) -> None:
    library = tmp_path / "libconv.so"

    def outcome(
        *flags: str, x: str = "3x9x11x16", numbers: str = "2,1,1,0,1,2", epilogue: str = "none"
    ) -> dict[str, Any]:
        source = FAKES / "fake-conv.c"
        command = ["gcc", "-O2", "-msse2", "-shared", "-fPIC", *flags, "-o", library, source, "-lm"]
        subprocess.run(command, check=True)
        words = [str(library), "conv", x, "24", "3x2", "fp16", "fp16", f"conv2d:{numbers}", epilogue, "2e-3"]
        done = subprocess.run([program, *words], input="0", capture_output=True, text=True, timeout=60)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    for flags, epilogue in ((("-DFAULT=0",), "none"), (("-DFAULT=0", "-DBIAS"), "bias_relu")):
        found = outcome(*flags, epilogue=epilogue)
        assert found["outcome"] == "measured" and found["workspace_bytes"] == 0 < found["time_us"], found
        assert found["error"] < 2e-3
    assert outcome("-DFAULT=4")["outcome"] == "wrong"
    assert outcome("-DFAULT=0", numbers="1,1,1,0,1,2") == {"outcome": "refused", "note": "cutlass::Status 4"}
    assert outcome("-DFAULT=0", x="24")["note"] == "measure was called with sizes of no convolution"


GROUPS = """\
int gemm_run(const void *, const void *, const void *, void *, int, int, int, float, float, void *, void *);
unsigned long g_workspace_bytes(int groups) { return 76ul * groups; }
int g_run(const void *const *a, const void *const *b, const void *const *c, void *const *d, const int *sizes,
          int groups, float alpha, float beta, void *workspace, void *stream) {
  if (groups != 4 || sizes[0] != 3 || sizes[6] != 0) return -4;
  for (int i = 0; i < groups; i++) {
    const int *size = sizes + 3 * i;
    int status = gemm_run(a[i], b[i], c[i], d[i], size[0], size[1], size[2], alpha, beta, workspace, stream);
    if (status) return status;
  }
  return 0;
}
"""


@pytest.mark.cuda
@pytest.mark.slow
def test_the_standalone_test_of_a_grouped_gemm_makes_several_problems_of_one(tmp_path: Path) -> None:
    spec = {"kind": "gemm", "arch": ["sm_80"], "grouped": True, "epilogue": "bias_relu", "m": 24, "n": 40, "k": 32}
    environment = {"PATH": "/usr/bin:/bin", "AIT_ENABLE_STANDALONE": "1"}
    plan = plan_for(request_for(tmp_path, file="", specs={"g": spec}, environment=environment))
    (source,) = (file.content for file in plan.files if file.path.endswith("g_test.cu"))
    (tmp_path / "groups.c").write_text(GROUPS)
    flags = ["-DTYPE=_Float16", "-DA_ROW=1", "-DB_ROW=0", "-DBIAS=1", "-DTANH=0"]
    for fault, outcome in ((0, "measured"), (4, "wrong")):
        gemm = tmp_path / "gemm.o"
        command = ["gcc", "-O2", "-msse2", "-c", *flags, f"-DFAULT={fault}", "-o", gemm, FAKES / "fake-gemm.c"]
        subprocess.run(command, check=True)
        program = on_the_host(tmp_path, source, gemm, tmp_path / "groups.c")
        done = subprocess.run([program], capture_output=True, text=True, timeout=60)
        assert json.loads(done.stdout)["outcome"] == outcome, done
