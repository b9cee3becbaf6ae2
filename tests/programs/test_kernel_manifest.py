"""Triton kernels recorded while a program runs, compiled again without a GPU, and then found by the program."""

from __future__ import annotations

import ast
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buildd.commands import warm, warm_kernels
from buildd.commands.warm_kernels import shared
from buildd.programs import recording, recording_file
from buildd.programs.kernel_manifest import ManifestLine, line_of
from buildd.programs.recording_file import RecordingError
from buildd.shims.framework_environment import HOOKS
from codegen.errors import RequestError
from codegen.plan import Answer as ProbeAnswer
from codegen.plan import Plan
from codegen.python.triton_recorded import REPLAY
from codegen.workers.script_slice import needed
from protocol.messages import BuildId, Request, RequestId, spec_from
from tests.support.carry_out import plan_with
from tests.support.triton_program import PROGRAM, lay_out
from tests.support.user import User


def text_of(**changed: object) -> bytes:
    line = {
        "module": "__main__",
        "file": "prog.py",
        "name": "add",
        "search": ["."],
        "hash": "0" * 64,
        "triton": "3.9.0",
        "python": "3.11",
        "variables": {},
        "specialization": {"z": 1, "a": [2], "target": {"backend": "cuda", "arch": 90, "warp_size": 32}},
    }
    return json.dumps(line | changed).encode()


# ---------------------------------------------------------------- the file


def test_a_manifest_is_the_same_in_whatever_order_kernels_came(tmp_path: Path) -> None:
    texts = [text_of(name=name, hash=hash_) for name in ("b", "a") for hash_ in ("2", "1")]
    one, other = tmp_path / "one", tmp_path / "other"
    recording_file.write(one, set(texts))
    recording_file.write(other, set(reversed(texts)))
    assert one.read_bytes() == other.read_bytes()
    assert [(line.kernel.name, line.kernel.hash) for line in recording_file.read(one).kernels] == [
        ("a", "1"),
        ("a", "2"),
        ("b", "1"),
        ("b", "2"),
    ]
    assert sorted(tmp_path.iterdir()) == [one, other]
    # The order of arguments is in there: it has to stay.
    assert (
        bytes(recording_file.read(one).kernels[0].kernel.specialization)
        == json.dumps({"z": 1, "a": [2], "target": {"backend": "cuda", "arch": 90, "warp_size": 32}}).encode()
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not a recording"),
        (b'{"buildd": "other", "version": 1}\n', "'other', version 1"),
        (b'{"buildd": "triton-kernels", "version": 2}\n', "version 2"),
        (b"\x7fELF\n", "not a recording"),
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(RecordingError, match=says):
        recording_file.read(tmp_path / "m")


def test_an_empty_recording_proves_nothing(tmp_path: Path) -> None:
    recording_file.write(tmp_path / "m", ())
    with pytest.raises(RequestError, match="neither compiler calls nor Triton kernels"):
        warm.run(["--prove", "--manifest", str(tmp_path / "m")])


@pytest.mark.parametrize(
    "text",
    [
        text_of()[:-1],
        b"{}",
        text_of(file="/etc/x.py"),
        text_of(search=["../.."]),
        text_of(file=""),
        text_of(interpreter="../python"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: bytes) -> None:
    recording_file.write(tmp_path / "m", {text_of()})
    with open(tmp_path / "m", "ab") as file:
        file.write(text + b"\n")
    with pytest.raises(RecordingError) as caught:
        recording_file.read(tmp_path / "m")
    assert caught.value.file == f"{tmp_path / 'm'}:3" and caught.value.next_step


def test_lines_of_all_processes_are_gathered_and_torn_ones_are_not(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_bytes(text_of() + b"\n" + text_of(name="b")[:40])
    (tmp_path / "2.jsonl").write_bytes(text_of() + b'\n{"problem": "c: too odd"}\n' + text_of(name="b") + b"\n")
    found = recording.gather(tmp_path)
    assert (found.kernels, found.problems) == ({text_of(), text_of(name="b")}, ["c: too odd"])


# ---------------------------------------------------------------- part of a script


SCRIPT = """
import triton
import triton.language as tl
import numpy as np
from helper import twice as doubled, other

BLOCK = 64
UNUSED = train()
SIZE: int = BLOCK * 2
try:
    import fast
    launch()
except ImportError:
    fast = None
if __name__ == "__main__":
    LIMIT = 3
    main()

def scaled(x):
    return doubled(x) * SIZE

@triton.jit
def add(x, n: tl.constexpr = LIMIT):
    y = [z for z in x]
    return scaled(x) if fast else n

def main():
    add(1)

main()
"""


def test_of_a_script_only_what_a_kernel_needs_is_carried_out() -> None:
    text = ast.unparse(ast.Module(needed(ast.parse(SCRIPT).body, "add"), []))
    for part in ("import triton", "twice as doubled", "BLOCK = 64", "SIZE: int", "import fast", "LIMIT = 3", "def add"):
        assert part in text, part
    for part in ("numpy", "train", "launch", "main()", "UNUSED"):
        assert part not in text, part


def test_a_name_of_a_kernel_s_own_is_none_of_the_script() -> None:
    script = """\
import triton
for size in (512, 1024):
    a, c = values(size), values(size)
    add[(1,)](a, c)
@triton.jit
def add(x, c, SIZE=LIMIT):
    a = x + OTHER
    return [a for c in x]
LIMIT = OTHER = 3
"""
    text = ast.unparse(ast.Module(needed(ast.parse(script).body, "add"), []))
    assert "LIMIT = OTHER = 3" in text and "import triton" in text and "values" not in text


def test_lines_stay_where_they_are() -> None:
    # Triton's key holds the line that a kernel begins in.
    whole = {node.name: node.lineno for node in ast.parse(SCRIPT).body if isinstance(node, ast.FunctionDef)}
    for statement in needed(ast.parse(SCRIPT).body, "add"):
        if isinstance(statement, ast.FunctionDef):
            assert statement.lineno == whole[statement.name]


# ---------------------------------------------------------------- whose Python


def python_of(folder: Path, version: str, *packages: str) -> Path:
    """A program that answers like a Python of a given version with some packages."""
    folder.mkdir(parents=True)
    path = folder / "python"
    path.write_text(f"#!/bin/sh\necho {version} {' '.join(packages)}\n")
    path.chmod(0o755)
    return path


def test_the_program_s_own_python_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "src"
    own = python_of(root / "venv" / "bin", "3.11", "triton")
    found = python_of(tmp_path / "bin", "3.11", "triton", "torch")
    monkeypatch.setenv("PATH", str(found.parent))
    plain, generated = line_of(text_of()), line_of(text_of(text="import triton\n", file="", module="m"))
    inside = line_of(text_of(interpreter="venv/bin/python"))
    assert warm_kernels.interpreter_of("", [inside], root) == str(own)
    assert warm_kernels.interpreter_of("", [plain], root) == str(found)
    # The folder's own has no torch.
    both = [msgspec.structs.replace(inside.kernel, text="x")]
    assert warm_kernels.interpreter_of("", [replace(inside, kernel=both[0]), generated], root) == str(found)
    # No Python there is like this one: ours will say so.
    assert warm_kernels.interpreter_of("", [line_of(text_of(python="2.7"))], root) == sys.executable
    assert warm_kernels.interpreter_of("python", [inside], root) == str(found)


# ---------------------------------------------------------------- processes that answer, die, hang


def kernels(*names: str, **changed: object) -> list[ManifestLine]:
    return [line_of(text_of(name=name, **changed)) for name in names]


def test_kernels_of_one_kind_share_a_process_and_others_do_not() -> None:
    mixed = [*kernels("a", "b", "c"), *kernels("d", variables={"X": "1"}), *kernels("e", file="other.py")]

    def names(cpus: int) -> list[list[str]]:
        return sorted([line.kernel.name for line in share] for share in shared(mixed, cpus).values())

    assert names(1) == names(3) == [["a", "b", "c"], ["d"], ["e"]]
    assert names(4) == [["a", "c"], ["b"], ["d"], ["e"]]
    assert names(64) == [["a"], ["b"], ["c"], ["d"], ["e"]]
    assert shared([], 2) == {}
    others = [*kernels("a"), *kernels("b", tools={}), *kernels("c", tools={"TRITON_PTXAS_PATH": "1"})]
    assert len(shared(others, 1)) == 3


IDENTITY = {"triton": "9.9", "python": "3.11", "backends": [], "files": {"triton/core.py": __file__}}


def planned(folder: Path, **changes: Any) -> Plan:
    table = {
        "kind": "recorded",
        "kernels": ["{1}", "{2}"],
        "variables": {"TRITON_F32_DEFAULT": "ieee"},
        "hooks": HOOKS,
        "asked_by": "r",
    }
    wanted = Request(
        request_id=RequestId("r"),
        build_id=BuildId("b"),
        project=str(folder),
        file="",
        specs={"kernels.1": spec_from(table)},
        environment={"PATH": "/usr/bin:/bin", "PYTHONPATH": "/lib", "HOME": "/home/me", "TRITON_CACHE_DIR": "/private"},
        interpreter=sys.executable,
        store="/store",
    )
    return plan_with(
        msgspec.structs.replace(wanted, **changes),
        lambda probe: ProbeAnswer(status=0, stdout=json.dumps(IDENTITY), stderr=""),
    )


def test_kernels_of_one_process_are_one_action_that_is_never_answered_from_the_store(tmp_path: Path) -> None:
    (action,) = planned(tmp_path).actions
    assert action.uncacheable and action.warm and not action.outputs and action.payload == b"{1}\n{2}"
    assert action.argv[2:] == ("compile", "r")
    found = dict(action.environment)
    assert found["BUILDD_DIR"] == "/store" and found["HOME"] == "/home/me" and found["TRITON_F32_DEFAULT"] == "ieee"
    assert found["PYTHONPATH"].split(":")[1:] == ["/lib"] and os.path.isfile(f"{HOOKS}/sitecustomize.py")
    assert "TRITON_CACHE_DIR" not in found and "BUILDD_RECACHE" not in found
    (again,) = planned(tmp_path, recache=True).actions
    assert dict(again.environment)["BUILDD_RECACHE"] == "1"


def test_nobody_writes_them_into_a_project_file(tmp_path: Path) -> None:
    (tmp_path / "buildd.toml").write_text('[target.x]\nkind = "recorded"\nkernels = []\n')
    with pytest.raises(RequestError, match="unknown kind 'recorded'"):
        planned(tmp_path, file="buildd.toml", specs={})


def answers(folder: Path, triton: str, lines: list[ManifestLine], timeout_s: float = 600.0) -> list[dict[str, object]]:
    """The worker's answers with a fake file as the installed Triton."""
    (folder / "triton.py").write_text(triton)
    code = (
        f"import sys; sys.path.insert(0, {str(REPLAY.parent)!r}); import replay_worker as w; w.TIMEOUT_S = {timeout_s}"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"{code}; sys.path[0] = {str(folder)!r}; w.main(['compile', ''])"],
        input=b"\n".join(line.text for line in lines),
        cwd=folder,
        env={"TMPDIR": str(folder)},
        capture_output=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


DIES_ONCE = """
import os, signal
print("no answer")
if not os.path.exists("died"):
    open("died", "w").close()
    {how}
"""


@pytest.mark.parametrize(
    ("how", "story"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "its process ended with SIGSEGV"),
        ("os._exit(3)", "its process ended with status 3"),
        ("os._exit(0)", "its process ended with status 0"),
    ],
)
def test_a_process_that_dies_takes_one_kernel_with_it(tmp_path: Path, how: str, story: str) -> None:
    first, *others = answers(tmp_path, DIES_ONCE.format(how=how), kernels("a", "b", "c"))
    assert first == {"problem": story, "died": True}
    assert len(others) == 2 and all(str(other["problem"]).startswith("no Triton: ") for other in others)


def test_a_process_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    starts = "import os, subprocess, time\nopen('aside', 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\n"
    starts += "os.replace('aside', 'pid')\ntime.sleep(600)\n"
    timeout_s = 0.5
    while not (tmp_path / "pid").exists():  # a busy machine may need longer until it hangs
        (answer,) = answers(tmp_path, starts, kernels("a"), timeout_s)
        assert answer == {"problem": "it exceeded the time limit and was stopped", "died": True}
        timeout_s *= 3
    assert gone(int((tmp_path / "pid").read_text()))


def gone(pid: int) -> bool:
    """Wait for the end of a process that is not a child of this one."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 60)[0])
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------- Triton itself; only the driver is a shim


@pytest.mark.triton
def test_what_was_recorded_is_compiled_without_a_gpu_and_the_program_compiles_nothing(
    triton_user: User,
) -> None:
    first = lay_out(triton_user, "first")
    ran = first / "ran"
    program = ("--", sys.executable, "prog.py")
    # Whether a daemon can be had makes no difference to what is recorded.
    triton_user.environ["BUILDD_DISABLE"] = "1"
    status, said = triton_user.buildd("run", "--record", "kernels.jsonl", *program, str(ran))
    assert status == 0 and "2 kernels, 2 compiled" in said and "2 kernels recorded in kernels.jsonl" in said, said
    del triton_user.environ["BUILDD_DISABLE"]
    status, said = triton_user.buildd("warm", "--prove", *program, str(ran))
    assert status == 86 and "not warm: 1 compile would run:\n  Triton kernel: add" in said, said
    assert "NotCompiledError" in said
    manifest = (first / "kernels.jsonl").read_bytes()
    assert str(triton_user.folder.parent).encode() not in manifest and b"libdevice" not in manifest

    triton_user.folder = first.parent
    second = lay_out(triton_user, "second")
    (second / "kernels.jsonl").write_bytes(manifest)
    status, said = triton_user.buildd("warm", "--manifest", "kernels.jsonl")
    assert status == 0 and "2 kernels: 0 hits, 2 compiled" in said and "another key" not in said, said
    assert not (second / "ran").exists() and not (second / "triton").exists()
    by, deadline_s = second / "lib/helper.py.by", time.monotonic() + 100
    assert by.read_text() == "one of its own"
    while by.read_text() != "a warm process":
        assert time.monotonic() < deadline_s
        status, said = triton_user.buildd("warm", "--manifest", "kernels.jsonl")
        assert status == 0 and "2 kernels: 2 hits, 0 compiled" in said, said
    triton_user.environ["BUILDD_RECACHE"] = "1"
    status, said = triton_user.buildd("warm", "--manifest", "kernels.jsonl")
    assert status == 0 and "2 kernels: 0 hits, 2 compiled" in said and "another key" not in said, said
    del triton_user.environ["BUILDD_RECACHE"]
    status, said = triton_user.buildd("warm", "--prove", *program, str(second / "ran"))
    assert status == 0 and said.endswith("buildd: warm: the command compiled nothing\n"), said
    status, said = triton_user.buildd("run", "--record", "again.jsonl", *program, str(second / "ran"))
    assert status == 0 and "2 kernels, 0 compiled" in said, said
    assert (second / "again.jsonl").read_bytes() == manifest


@pytest.mark.triton
@pytest.mark.slow
def test_what_keeps_a_kernel_from_being_warmed_is_said(triton_user: User) -> None:
    folder = lay_out(triton_user, "first")
    status, said = triton_user.buildd("run", "--record", "m", "--", sys.executable, "prog.py", str(folder / "ran"))
    assert status == 0, said
    triton_user.environ["BUILDD_DIR"] = str(folder / "other")
    status, said = triton_user.buildd("warm", "--manifest", "m", "--prove")
    assert status == 1 and "not warm: 2 of 2 kernels would be compiled" in said, said
    # A line above a kernel is in Triton's key: said, and not wrong.
    (folder / "prog.py").write_text("# new\n" + PROGRAM)
    status, said = triton_user.buildd("warm", "--manifest", "m")
    assert status == 0 and "2 kernels have another key" in said and "sources have changed" in said, said
    status, said = triton_user.buildd("warm", "--manifest", "m", "--prove")
    assert status == 0 and "warm: nothing would be compiled, 2 hits" in said, said
    for text, problem in (
        (PROGRAM.replace("add_kernel", "sum_kernel"), "the kernel add_kernel no longer exists"),
        (
            "import nothing_such\n" + PROGRAM.replace("import triton\n", "import nothing_such as triton\n"),
            "nothing_such",
        ),
        (PROGRAM.replace("one_more(twice(", "nowhere(twice("), "nowhere"),
    ):
        (folder / "prog.py").write_text(text)
        status, said = triton_user.buildd("warm", "--manifest", "m", "-j", "1")
        assert status == 1 and problem in said and "failed prog.py: add_kernel for sm_90" in said, said
    (folder / "prog.py").write_text(PROGRAM)
    (folder / "lib" / "helper.py").write_text("import os\nprint('noise')\nos._exit(7)\n")
    status, said = triton_user.buildd("warm", "--manifest", "m", "-j", "1")
    assert status == 1 and "its process ended with status 7" in said and "2 failed" in said, said


@pytest.mark.triton
@pytest.mark.slow
def test_a_program_is_as_without_us_whatever_cannot_be_recorded(triton_user: User) -> None:
    odd = PROGRAM.replace("BLOCK: tl.constexpr)", "BLOCK: tl.constexpr, odd: tl.constexpr)")
    odd = odd.replace("Tensor(), 1000)", "Tensor(), 1000, odd=b'x')")
    folder = lay_out(triton_user, "odd", odd)
    status, said = triton_user.buildd("run", "--record", "m", "--", sys.executable, "prog.py", str(folder / "ran"))
    assert status == 0 and "2 kernels, 2 compiled" in said and "nothing recorded in m" in said, said
    assert "not recorded: __main__.add_kernel: one of its constants cannot be recorded" in said
    (folder / "prog.py").write_text(PROGRAM)
    triton_user.environ["USE_IR_LOC"] = "ttir"
    status, said = triton_user.buildd("run", "--record", "m", "--", sys.executable, "prog.py", str(folder / "ran"))
    assert status == 0 and "not recorded: __main__.add_kernel: USE_IR_LOC is set" in said, said


def test_wrong_usage_is_told(triton_user: User) -> None:
    (triton_user.folder / "m").write_text("no manifest")
    for arguments, says in (
        (("warm", "--manifest", "m"), "this file is not a recording"),
        (("warm", "--manifest", "nowhere"), "cannot be read"),
        (("warm", "--manifest", "m", "target"), "the file names what is compiled"),
        (("warm", "--python", "x"), "--python works only with --manifest"),
        (("run", "--record"), "expected one argument"),
    ):
        status, said = triton_user.buildd(*arguments)
        assert status == 2 and says in said, said
    status, said = triton_user.buildd("run", "--record", "nowhere/m", "--", "true")
    assert status == 3 and "the recording cannot be written there" in said, said
