"""`buildd watch --profile` with a fake measuring process: when libraries are measured, and the results."""

from __future__ import annotations

import os
import queue
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from buildd.profiling.gpus import Gpu
from buildd.profiling.trials import Trials
from codegen.errors import RequestError
from codegen.project.project_file import load_project
from codegen.tuning.own_problem import own_calls
from codegen.tuning.survey import Survey, check_watched
from protocol import messages as m
from tests.support.carry_out import request_for
from tests.support.cutlass import cutlass_in
from tests.support.developer import Developer
from tests.support.profiling_cases import A100, LISTED, MEASURE, PROJECT, case_of, smi, survey_of
from tests.support.toolkit import host_compiler
from tests.support.waiting import until
from tests.support.watcher import Session

DEADLINE_S = 30.0


class Bench:
    """Trials of one target, whose library is words for the fake measuring process."""

    def __init__(self, folder: Path, gpus: tuple[Gpu, ...] = (A100,), why: str = "") -> None:
        self.library = folder / "libg.so"
        self.answer: Survey | Exception = survey_of(case_of(0))
        self.told: queue.Queue[m.Measured | str] = queue.Queue()
        self.asked = 0
        self.trials = Trials(
            request_for(folder, environment={}),
            self._look,
            self._no_builder,
            self.told.put,
            find=lambda environ: (gpus, why),
            command=MEASURE,
            leases=str(folder / "leases"),
        )

    async def _look(self) -> Survey:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def _no_builder(self) -> Any:
        raise AssertionError("the command is given")

    def begin(self, words: str, *, again: bool = False, target: str = "g") -> None:
        self.library.write_text(words)
        self.trials.begin({target: str(self.library)}, self.told.put, again=again)

    def build(self, words: str, *, again: bool = False) -> m.Measured | str:
        """What is told of a good build with such a library."""
        self.begin(words, again=again)
        return self.told.get(timeout=DEADLINE_S)

    def settle(self) -> None:
        """All that was begun has ended."""
        assert self.trials._trial is not None
        self.trials._trial.exception(DEADLINE_S)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.trials.close()


def test_each_good_build_is_measured_beside_the_last(bench: Bench) -> None:
    first = bench.build("time 8")
    assert isinstance(first, m.Measured)
    assert (first.target, first.problem, first.gpu, first.outcome) == ("g", "64x64x64", A100.name, "measured")
    assert (first.time_us, first.before_us, first.error) == (8, 0, 1e-4)
    assert first.tflops == pytest.approx(2 * 64**3 / 8e-6 / 1e12)
    wrong = bench.build("wrong")
    assert isinstance(wrong, m.Measured) and (wrong.outcome, wrong.message) == ("wrong", "a reason")
    crashed = bench.build("crash")
    assert isinstance(crashed, m.Measured) and "illegal memory access" in crashed.message
    # A slow one is measured to its end, and compared with the last that was right.
    slow = bench.build("time 30")
    assert isinstance(slow, m.Measured) and (slow.outcome, slow.time_us, slow.before_us) == ("measured", 30, 8)


def test_the_same_library_is_not_measured_again_but_after_a_failure_or_for_another_problem(bench: Bench) -> None:
    bench.build("time 8")
    bench.begin("time 8")
    bench.settle()
    assert bench.told.empty() and bench.asked == 2
    again = bench.build("time 8", again=True)
    assert isinstance(again, m.Measured) and again.before_us == 8
    case = case_of(0)
    bench.answer = survey_of(type(case)(case.target, case.arch, "other", (128, 64, 64), case.spec, ()))
    other = bench.build("time 8")
    assert isinstance(other, m.Measured) and (other.problem, other.before_us) == ("128x64x64", 0)


def test_a_build_that_begins_ends_what_is_measured(bench: Bench, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    bench.begin(f"held {pipe}")
    with pipe.open() as running:
        bench.trials.drop()
        assert running.read() == "", "it ends when the process does that holds it"
    after = bench.build("time 8")
    assert isinstance(after, m.Measured) and after.before_us == 0 and bench.told.empty()


def test_what_cannot_be_measured_is_said_once(bench: Bench) -> None:
    bench.begin("time 8", target="other")
    assert bench.told.get(timeout=DEADLINE_S) == "g: no shared library was built, so there is nothing to measure"
    assert "does not answer" in str(bench.build("gpu"))
    bench.answer = RequestError("bad-gemm", "it leaves m open", next_step="name a size")
    assert bench.build("time 8") == "nothing is measured: it leaves m open (name a size)"
    bench.begin("time 9")
    bench.settle()
    assert bench.told.empty()
    case = case_of(0)
    bench.answer = survey_of(type(case)("g", "sm_90a", "p", (64, 64, 64), case.spec, ()))
    assert "none of its architectures runs on NVIDIA A100" in str(bench.build("time 8"))
    bench.answer = survey_of(case)
    assert isinstance(bench.build("time 9"), m.Measured)
    bench.answer = survey_of(case, devices=())
    assert "shows no GPU" in str(bench.build("time 10"))


def test_without_a_gpu_it_is_said_once_and_nothing_is_asked(tmp_path: Path) -> None:
    bench = Bench(tmp_path, (), "no driver")
    try:
        assert bench.build("time 8") == "no driver: nothing is measured"
        bench.begin("time 9")
        bench.settle()
        assert bench.told.empty() and not bench.asked
    finally:
        bench.trials.close()


WORKER = """
import json, sys
print("ready", flush=True)
sys.stdin.buffer.readline()
print(json.dumps({"outcome": "started"}), flush=True)
asked = 0
while True:
    words = b""
    while not words.endswith(b"\\0"):
        byte = sys.stdin.buffer.read(1)
        if not byte:
            sys.exit()
        words += byte
    call = json.loads(words[:-1])
    asked += 1
    print("ready", flush=True)
    sys.stdin.buffer.readline()
    with open(call["path"]) as stream:
        said = stream.read()
    answer = {"outcome": "wrong", "note": said} if said == "bad" else {"outcome": "measured", "time_us": float(said),
        "samples": asked, "error": call["tolerance"]}
    print(json.dumps(answer), flush=True)
"""


def test_configurations_that_changed_are_called_in_one_process(tmp_path: Path) -> None:
    table = {
        "kind": "triton",
        "source": "scale.py",
        "kernel": "scale",
        "signature": {"out": "*fp32", "n": "i32"},
        "constants": {"BLOCK": [64, 128]},
        "arch": ["sm_75", "sm_80", "sm_90"],
        "measure": {
            "sizes": {"n": 100},
            "arguments": {"out": {"shape": ["n"], "output": True}, "n": "n"},
            "grid": ["cdiv(n, BLOCK)"],
            "operations": "1000 * n",
            "reference": "ref.py:scale",
        },
    }
    bench = Bench(tmp_path)
    bench.trials._command = (sys.executable, "-c", WORKER)
    calls = own_calls(load_project(request_for(tmp_path, "t", specs={"t": table}, file="")).targets[0])
    bench.answer = survey_of(own=calls)
    codes = [tmp_path / "build" / call.path for call in calls if call.arch == "sm_80"]  # what an A100 runs
    try:
        missing = {str(bench.build("")), str(bench.told.get(timeout=DEADLINE_S))}
        assert all("No such file" in words for words in missing) and len(missing) == 2, "one for each configuration"
        (tmp_path / "ref.py").write_text("one")
        for code, text in zip(codes, ("8", "4"), strict=True):
            code.parent.mkdir(parents=True, exist_ok=True)
            code.write_text(text)
        first, second = bench.build(""), bench.told.get(timeout=DEADLINE_S)
        assert isinstance(first, m.Measured) and isinstance(second, m.Measured)
        assert (first.problem, first.time_us, first.before_us) == ("n=100 BLOCK=64", 8.0, 0.0)
        assert (second.problem, second.time_us, second.tflops) == ("n=100 BLOCK=128", 4.0, 1e-6 * 1e5 / 4)
        codes[1].write_text("bad")
        third = bench.build("")
        assert isinstance(third, m.Measured) and (third.problem, third.outcome) == ("n=100 BLOCK=128", "wrong")
        bench.settle()
        assert bench.told.empty(), "the other one is as it was"
        codes[1].write_text("2")
        fourth = bench.build("")
        assert isinstance(fourth, m.Measured) and (fourth.time_us, fourth.before_us) == (2.0, 4.0)
        (tmp_path / "ref.py").write_text("another")
        both = {bench.build(""), bench.told.get(timeout=DEADLINE_S)}
        assert {each.time_us for each in both if isinstance(each, m.Measured)} == {8.0, 2.0}
        bench.answer = survey_of(own=tuple(call for call in calls if call.arch == "sm_90"))
        assert "none of its architectures runs on" in str(bench.build(""))
    finally:
        bench.trials.close()


# ---------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("table", "said", "leads"),
    [
        ('kind = "cuda"\nsources = ["a.cu"]', 'supports kinds "gemm" and "conv2d"', "in [target.t.measure]"),
        ('kind = "hip"\nsources = ["a.cu"]', 'supports kinds "gemm" and "conv2d"', "or drop --profile"),
        (
            'kind = "cuda"\nsources = ["a.cu"]\nmeasure = { reference = "r.py:f", arguments = {} }',
            "symbol must name a function",
            "extern",
        ),
        ('kind = "model"\ninputs = {}\noutputs = []\nops = {}', "cannot be measured", "measures a model's GEMMs"),
        ('kind = "gemm"\ngrouped = true', "groups", "set the `tile` of this one"),
    ],
)
def test_what_a_watch_cannot_measure(table: str, said: str, leads: str, tmp_path: Path) -> None:
    (tmp_path / "buildd.toml").write_text(f"[target.t]\n{table}\n")
    with pytest.raises(RequestError) as caught:
        check_watched(request_for(tmp_path, "t"))
    assert said in caught.value.message and leads in caught.value.next_step and caught.value.file == "buildd.toml:1"
    # It is mended while the watch runs.
    (tmp_path / "buildd.toml").write_text(f"[target.t\n{table}\n")
    check_watched(request_for(tmp_path, "t"))


@pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
def test_it_is_refused_before_the_watch_begins(another_developer: Developer) -> None:
    status, words = another_developer.buildd("watch", "-C", str(another_developer.project), "--profile", "demo")
    assert status == 2 and 'supports kinds "gemm"' in words and "watching" not in words


@pytest.mark.cuda
@pytest.mark.skipif(not host_compiler(), reason="no gcc (Debian: apt install g++)")
def test_a_watch_without_a_gpu_says_so_once_and_goes_on(developer: Developer) -> None:
    with_smi(developer, "echo no driver; exit 9")
    developer.write("buildd.toml", PROJECT)
    developer.environ["CUTLASS_PATH"] = str(cutlass_in(developer.folder))
    session = Session(developer, "-C", str(developer.project), "--profile", "g")
    try:
        until(lambda: "nvidia-smi: no driver: nothing is measured" in session.text, "it is not said")
        developer.write("buildd.toml", PROJECT.replace("k = 512", "k = 256"))
        session.changed()
        assert session.round()["outcome"] == "built"
    finally:
        assert session.end() == 0
    assert session.text.count("nothing is measured") == 1


@pytest.mark.cuda
def test_a_watch_asks_the_gpu_with_the_program_that_it_has_built(developer: Developer) -> None:
    """A fake compiler's measuring program cannot be started; everything before that works."""
    developer.write("buildd.toml", PROJECT)
    developer.environ["CUTLASS_PATH"] = str(cutlass_in(developer.folder))
    with_smi(developer, LISTED.replace("9.0", "8.0"))
    for sizes, words in (((), "leaves m, n, k open"), (("--problem", "64x64x64"), "H200 does not answer")):
        session = Session(developer, "-C", str(developer.project), "--profile", "open", *sizes)
        try:
            until(lambda words=words, session=session: words in session.text, words)
        finally:
            assert session.end() == 0


def with_smi(developer: Developer, script: str) -> None:
    tools = developer.folder / "tools"
    tools.mkdir()
    developer.environ["PATH"] = f"{smi(tools, script)['PATH']}:{developer.environ['PATH']}"
