"""Why Triton compiled a kernel, and Inductor a graph: what differs from the last times, in words."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from buildd.commands.explain_kernels import noted
from buildd.hooks import inductor_why, triton_record, triton_why
from buildd.hooks.triton_why import Noter, name_of, reasons
from buildd.store import shared_kernels
from tests.support.triton_program import lay_out
from tests.support.user import User

FACTS: dict[str, Any] = {
    "kernel": "add",
    "file": "prog.py",
    "target": "cuda 90",
    "triton": "3.9.0",
    "installation": "aa",
    "tool": "ptxas 12.9 90",
    "line": 10,
    "source": ["1", "2", "3"],
    "first": 1,
    "uses": "bb",
    "signature": {"x": "*fp32", "n": "i32"},
    "hints": {"x": "16"},
    "constants": {"BLOCK": "64"},
    "options": {"num_warps": "4"},
    "libraries": "cc",
    "variables": {},
}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"triton": "4.0"}, ["Triton: 3.9.0 before, 4.0 now"]),
        ({"installation": "zz"}, ["Triton 3.9.0 is another build, or its files changed"]),
        ({"tool": "ptxas 13 90"}, ["its assembler: ptxas 12.9 90 before, ptxas 13 90 now"]),
        ({"target": "cuda 80", "tool": "80", "options": {}}, ["target: cuda 90 before, cuda 80 now"]),
        ({"line": 11, "uses": "zz"}, ["it moved from line 10 to line 11: lines above it were added or removed"]),
        ({"source": ["1", "x", "3"], "uses": "zz"}, ["its source: line 12 changed"]),
        ({"source": ["1", "2", "3", "4"], "uses": "zz"}, ["its source: line 14 changed"]),
        ({"uses": "zz"}, ["a function that it calls, or a constant that it reads, changed"]),
        ({"signature": {"x": "*fp16", "n": "i32"}}, ["argument x: *fp32 before, *fp16 now"]),
        ({"hints": {}}, ["argument x: specialised as 16 before, unset now"]),
        ({"constants": {"BLOCK": "128"}}, ["constant BLOCK: 64 before, 128 now"]),
        ({"options": {"num_warps": "8"}}, ["option num_warps: 4 before, 8 now"]),
        ({"variables": {"X": "1"}}, ["variable X: unset before, 1 now"]),
        ({"libraries": "zz"}, ["a library that it is linked with (libdevice, ocml) changed"]),
    ],
)
def test_each_part_of_a_key_has_its_words(changed: dict[str, Any], said: list[str]) -> None:
    far = FACTS | {"triton": "1", "line": 1, "variables": {"A": "1"}, "kernel": "add"}
    assert reasons(FACTS | changed, [FACTS]) == said
    assert reasons(FACTS | changed, [far, FACTS, far]) == said, "the most alike is compared with"


def test_a_first_time_and_a_lost_entry_are_told() -> None:
    assert reasons(FACTS, []) == ["no kernel of this name was compiled here before"]
    assert "the store no longer has it" in reasons(FACTS, [FACTS])[0]


class Options:
    def __init__(self, **values: object) -> None:
        self.__dict__.update(values)

    def hash(self) -> str:
        return "cc"


def a_source(block: int) -> SimpleNamespace:
    function = SimpleNamespace(
        params=[SimpleNamespace(name="x"), SimpleNamespace(name="BLOCK")],
        src="def add(x, BLOCK):\n    pass\n",
        raw_src=["@jit\n", "def add(x, BLOCK):\n", "    pass\n"],
        starting_line_number=3,
        cache_key="bb",
        fn=a_source,
    )
    return SimpleNamespace(
        fn=function, signature={"x": "*fp32", "BLOCK": "constexpr"}, attrs={(0,): [], (1,): []}, constants={(1,): block}
    )


@pytest.mark.triton
def test_notes_are_kept_bounded_and_flushed(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    noter = Noter(str(store), "aa")
    backend = SimpleNamespace(target=SimpleNamespace(backend="cuda", arch=90), hash=lambda: "ptxas")
    for block in range(40):
        noter.asked(f"key {block}", a_source(block), backend, Options(num_warps=4, extern_libs=()), {})
        noter.compiled(name_of(f"key {block}"))
        noter.compiled(name_of(f"key {block}"))  # once
        noter.compiled("NOBODYASKED")
    found = noted(store)
    assert [one.reasons for one in found[:2]] == [
        ["no kernel of this name was compiled here before"],
        ["constant BLOCK: 0 before, 1 now"],
    ]
    assert len(found) == 40 and found[0].kernel == "test_triton_why.py:3: a_source"
    (place,) = (path for path in (store / triton_why.FOLDER).iterdir() if len(path.name) == 32)
    assert len(triton_why.read(str(place))) == triton_why._KEPT
    for damage in (b"", b"[1, {}]", b'{"a": 1}', place.read_bytes()[:-3]):
        place.write_bytes(damage)
        noter.asked("key", a_source(7), backend, Options(extern_libs=()), {})
        noter.compiled(name_of("key"))
        assert noted(store)[-1].reasons == ["no kernel of this name was compiled here before"]
    log = store / triton_why.FOLDER / triton_why.LOG
    log.write_bytes(log.read_bytes() * 100)
    before = log.stat().st_size
    noter.asked("key", a_source(8), backend, Options(extern_libs=()), {})
    noter.compiled(name_of("key"))
    assert log.stat().st_size < before and noted(store)[-1].reasons == ["constant BLOCK: 7 before, 8 now"]
    shared_kernels.trim(store, 0)
    assert place.exists()
    shared_kernels.clear(store)
    assert noted(store) == [] and not place.exists()


def test_a_kernel_whose_key_is_made_another_way_is_told_all_the_same(tmp_path: Path) -> None:
    noter = Noter(str(tmp_path), "aa")
    noter.asked("key", SimpleNamespace(name="add"), None, None, {})
    noter.compiled(name_of("key"))
    (told,) = noted(tmp_path)
    assert told.kernel == "add" and told.reasons[0].startswith("the reason is not known: AttributeError")
    line = json.loads((tmp_path / triton_why.FOLDER / triton_why.LOG).read_text())
    assert line["key"] == name_of("key")


def test_what_fails_beside_a_program_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "buildd.triton")
    with triton_why.careful("not told"):
        raise RuntimeError("another Triton")
    assert caplog.messages == ["not told: RuntimeError('another Triton')"]


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    noter = Noter(str(tmp_path / "nowhere"), "aa")
    noter.asked("key", a_source(1), None, None, {})
    noter.compiled(name_of("key"))
    assert not (tmp_path / "nowhere").exists()


def test_that_nothing_is_recorded_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    jit = SimpleNamespace(serialize_specialization_data=None)
    recorder = triton_record.Recorder(jit, str(tmp_path / "gone"), str(tmp_path))
    for number in range(3):
        recorder.problem(f"kernel {number}")
    (said,) = caplog.messages
    assert "cannot be recorded" in said and "No such file" in said and said.endswith("kernel 0")


# ---------------------------------------------------------------- Inductor's graphs


LINES = [
    "[abc] gm: <graph>\nmany lines",
    "[i0] example_inputs[0]: TensorMetadata(dtype=torch.float32, shape=torch.Size([2, 3]), stride=(3, 1), device=cpu)",
    "[tag] cache_key_tag: buildd-cpu-11-any",
    "[o1] inductor_config[max_autotune]: False",
    "[o2] inductor_config[cpp.simdlen]: None",
    "[th] cpp_runtime_thread_count: 2",
    "[v] torch_version: " + "x" * 200,
    "no line of theirs",
]


@pytest.mark.parametrize(
    ("number", "line", "said"),
    [
        (0, "[xyz] gm: other", ["the graph: other operations, constants or attributes: changed"]),
        (
            1,
            LINES[1].replace("[2, 3]", "[4, 3]").replace("i0", "i9"),
            ["input 0: float32 [2, 3] before, float32 [4, 3] now"],
        ),
        (1, LINES[1].replace("(3, 1)", "(1, 2)").replace("i0", "i9"), ["input 0: changed"]),
        (3, "[o9] inductor_config[max_autotune]: True", ["option max_autotune: False before, True now"]),
        (3, "no line", ["option max_autotune: gone now"]),
        (6, "[w] torch_version: " + "y" * 200, ["torch, or a file of it: changed"]),
    ],
)
def test_each_part_of_a_graphs_key_has_its_words(number: int, line: str, said: list[str]) -> None:
    changed = [*LINES[:number], line, *LINES[number + 1 :]]
    facts = inductor_why.facts_of(LINES)
    far = inductor_why.facts_of(["[0] gm: far", "[1] torch_version: old"])
    assert inductor_why.reasons(inductor_why.facts_of(changed), [far, facts, far], "a.py") == said


def test_a_backward_graph_is_compared_with_backward_graphs() -> None:
    forward, backward = (inductor_why.facts_of([*LINES, f"[{n}] is_backward: {n}"]) for n in (False, True))
    assert inductor_why.reasons(backward, [forward], "a.py") == ["no backward graph of a.py was compiled here before"]
    other = inductor_why.facts_of([*LINES, "[True] is_backward: True", "[x] inductor_config[x]: 1"])
    assert inductor_why.reasons(other, [backward, forward], "a.py") == ["option x: new"]


def test_a_programs_graph_is_compared_with_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, program in enumerate(("a.py", "b.py", "a.py")):
        monkeypatch.setattr("sys.argv", [f"/w/{program}"])
        facts = inductor_why.facts_of([*LINES, f"[{number}] inductor_config[x]: {number}"])
        inductor_why.note(f"k{number}", facts, triton_why, str(tmp_path))
    assert [(one.kernel, one.reasons) for one in noted(tmp_path)] == [
        ("torch graph (forward) of a.py", ["no forward graph of a.py was compiled here before"]),
        ("torch graph (forward) of b.py", ["no forward graph of b.py was compiled here before"]),
        ("torch graph (forward) of a.py", ["option x: 0 before, 2 now"]),
    ]


def test_a_graph_is_noted_once_and_the_last_ones_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["a.py"])
    store = tmp_path / "store"
    facts = inductor_why.facts_of(LINES)
    inductor_why.note("k", facts, triton_why, str(store))
    assert not store.exists()
    store.mkdir()
    for number in range(12):
        more = inductor_why.facts_of([*LINES, f"[{number}] inductor_config[x]: {number}"])
        inductor_why.note(f"k{number}", more, triton_why, str(store))
    inductor_why.note("k11", more, triton_why, str(store))
    found = noted(store)
    assert [one.reasons for one in found[:2]] == [
        ["no forward graph of a.py was compiled here before"],
        ["option x: 0 before, 1 now"],
    ]
    assert len(found) == 13 and found[-1].reasons[0].startswith("it was compiled before")
    place = store / triton_why.FOLDER / inductor_why.PLACE
    for damage in (b"", b'[1, {"key": "k"}]', b"{}"):
        place.write_bytes(damage)
        inductor_why.note("k99", facts, triton_why, str(store))
        assert noted(store)[-1].reasons == ["no forward graph of a.py was compiled here before"]


def test_a_functions_address_is_no_difference() -> None:
    there, here = (
        inductor_why.facts_of([*LINES, f"[f] fx_kwargs[get_decomp_fn]: <function table at 0x7f{number}>"])
        for number in range(2)
    )
    assert there == here and there["fx_kwargs[get_decomp_fn]"] == ["f", "<function table>"]


def test_a_graph_is_noted_when_its_compile_has_ended(tmp_path: Path) -> None:
    saved = []

    class FxGraphCache:
        _save_graph = staticmethod(lambda key, graph: saved.append((key, graph)))

    codecache = SimpleNamespace(compiled_fx_graph_hash=lambda key: (key, LINES), FxGraphCache=FxGraphCache)
    inductor_why.begin(codecache, triton_why, str(tmp_path))
    assert codecache.compiled_fx_graph_hash("hit or interrupted") == ("hit or interrupted", LINES)
    assert noted(tmp_path) == []
    codecache.compiled_fx_graph_hash("compiled")
    codecache.FxGraphCache._save_graph("compiled", "graph")
    (one,) = noted(tmp_path)
    assert one.kernel.startswith("torch graph (forward) of ") and saved == [("compiled", "graph")]


# ---------------------------------------------------------------- a program


@pytest.mark.triton
@pytest.mark.slow
def test_a_program_is_told_why_it_compiled_again(triton_user: User) -> None:
    folder = lay_out(triton_user, "one")
    program = ("run", "--quiet", "--", sys.executable, "prog.py", os.devnull)
    assert "2 compiled" in triton_user.buildd(*program)[1]
    status, said = triton_user.buildd("explain", "--kernels")
    assert (
        status == 0 and "add_kernel for cuda 90" in said and "no kernel of this name was compiled here before" in said
    )
    source = folder / "prog.py"
    for change, expected in (
        (lambda text: "# new\n" + text, "lines above it were added or removed"),
        (lambda text: text.replace("x + 1", "x + 2"), "a function that it calls"),
        (lambda text: text.replace("mask=at < n)", "mask=at<n)", 1), "its source: line"),
        (lambda text: text.replace("num_warps=8", "num_warps=2"), "option num_warps: 8 before, 2 now"),
    ):
        source.write_text(change(source.read_text()))
        status, said = triton_user.buildd(*program)
        assert status == 0 and "0 compiled" not in said, said
        status, said = triton_user.buildd("explain", "--kernels", "add_kernel")
        assert expected in said.splitlines()[0], said
    said = triton_user.buildd("explain", "--kernels", "nothing")[1]
    assert said.startswith("no kernel whose name contains nothing") and "compiled: " in said and "add_kernel" in said
    status, said = triton_user.buildd("explain", "--kernels", "--json")
    assert status == 0 and len(noted(Path(triton_user.environ["BUILDD_DIR"]))) == len(said.splitlines())
