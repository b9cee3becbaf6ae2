"""Stock torch.compile on the CPU under `buildd run`: its compiles are hits, and its numbers right.

Runs where torch is installed (`scripts/test-torch`).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.inductor_program import PROGRAM
from tests.support.user import User
from tests.support.waiting import until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]


GENERATED = """
import functools, os, signal, sys
import triton
from triton.backends.compiler import GPUTarget

# What Inductor writes for torch.exp on a GPU, but for what it says of this GPU.
SOURCE = '''
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={"x": 4096},
    filename=__file__,
    triton_meta={"signature": {"in_ptr0": "*fp32", "out_ptr0": "*fp32", "xnumel": "i32", "XBLOCK": "constexpr"},
        "device": DeviceProperties(type="cuda", index=0, multi_processor_count=132, cc=90, major=9,
            regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
            warp_size=32),
        "constants": {}, "enable_fp_fusion": True,
        "configs": [{(i,): [["tt.divisibility", 16]] for i in range(3)}]},
    inductor_meta={"grid_type": "Grid1D", "autotune_hints": set(), "kernel_name": "triton_poi_fused_exp_0",
        "mutated_arg_names": [], "backend_hash": "0", "assert_indirect_indexing": True, "max_autotune_pointwise": True},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused_exp_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 4096
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), None)
    tmp1 = triton_helpers.maximum(libdevice.exp(tmp0), tmp0)
    tl.store(out_ptr0 + (x0), tmp1, None)
'''

class Driver:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)
    def get_current_device(self):
        return 0

triton.runtime.driver.set_active(Driver())
hits = []
def told(**said):
    hits.append(said["cache_hit"])
    if len(sys.argv) > 1 and len(hits) == 1:
        os.kill(int(sys.argv[1]), signal.SIGKILL)
triton.knobs.compilation.listener = told
from torch._inductor.async_compile import _load_triton_kernel_from_source as load
from torch._inductor.runtime import compile_tasks, triton_helpers
triton_helpers.set_driver_to_gpu = lambda: None
# As one of Inductor's compile workers does.
compile_tasks._worker_compile_triton(functools.partial(load, "triton_poi_fused_exp_0", SOURCE), {}, {})
print(f"{len(hits)} kernels, {hits.count(False)} compiled")
"""


class Torch:
    """A program that compiles three graphs, with a cache of its own."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.caches = (user.folder / "inductor", user.folder / "tmp")

    def forget(self) -> None:
        """Empty all local caches: as on another machine."""
        for folder in self.caches:
            shutil.rmtree(folder, ignore_errors=True)

    def run(self, *arguments: str, through_us: bool = True) -> tuple[dict[str, object], str]:
        """What it found, and the line that `buildd run` ends with."""
        return self.end(self.start(*arguments, through_us=through_us))

    def start(self, *arguments: str, through_us: bool = True) -> subprocess.Popen[str]:
        self.caches[1].mkdir(exist_ok=True)
        ours = (sys.executable, "-P", "-m", "buildd", "run", "--") if through_us else ()
        return subprocess.Popen(
            [*ours, sys.executable, "-c", PROGRAM, *arguments],
            cwd=self.user.folder,
            # Its precompiled header is below the temporary folder.
            env={**self.user.environ, "TORCHINDUCTOR_CACHE_DIR": str(self.caches[0]), "TMPDIR": str(self.caches[1])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, process: subprocess.Popen[str]) -> tuple[dict[str, object], str]:
        output, errors = process.communicate()
        assert process.returncode == 0, errors[-3000:]
        last = next((line for line in reversed(errors.splitlines()) if re.match(r"buildd: \d+ hit", line)), "")
        return json.loads(output.splitlines()[-1]), last


@pytest.fixture(scope="module")
def torch(user: User) -> Torch:
    return Torch(user)


def counts(line: str) -> tuple[int, int]:
    match = re.match(r"buildd: (\d+) hits?, (\d+) miss(?:es)?", line)
    assert match, line
    return int(match[1]), int(match[2])


def test_what_was_compiled_once_is_found_where_all_local_caches_are_empty(torch: Torch) -> None:
    torch.forget()
    plain, _ = torch.run(through_us=False)
    torch.forget()
    cold, said = torch.run()
    hits, misses = counts(said)
    assert misses >= 4, "a probe, a precompiled header and three kernels"
    torch.forget()
    warm, said = torch.run()
    found, compiled = counts(said)
    assert 4 <= found <= misses + hits and compiled == 0, said
    assert plain["sums"] == cold["sums"] == warm["sums"]
    assert (warm["hits"], warm["missed"]) == (3, 0)
    assert ", 3 graphs from the store, " in said
    # Where each graph is damaged, Inductor compiles, and nobody hears of it.
    (graphs,) = {path.parent for path in torch.user.store.glob("inductor/*")}
    for number, path in enumerate(graphs.iterdir()):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] if number % 2 else content[:-9] + b"X" * 9)
    torch.forget()
    again, said = torch.run()
    assert (again["hits"], again["missed"]) == (0, 3) and again["sums"] == plain["sums"]
    assert counts(said)[1] == 0, said


def test_another_vector_width_never_finds_what_was_kept_for_this_one(torch: Torch) -> None:
    first, _ = torch.run()
    again, _ = torch.run()
    assert again["hits"] == 3 and again["sums"] == first["sums"]
    # Set within the program: the tag of `buildd run` knows nothing of it.
    narrow, _ = torch.run("ATEN_CPU_CAPABILITY=default")
    if narrow["width"] == first["width"]:
        pytest.skip("this processor has no other vector width")
    assert (narrow["hits"], narrow["missed"]) == (0, 3)
    once_more, _ = torch.run("ATEN_CPU_CAPABILITY=default")
    assert once_more["hits"] == 3


@pytest.mark.triton
def test_kernels_that_inductor_generates_are_recorded_and_compiled_elsewhere(triton_user: User) -> None:
    (triton_user.folder / "prog.py").write_text(GENERATED)
    triton_user.environ["TRITON_CACHE_DIR"] = str(triton_user.folder / "triton")
    # Of what is found in its cache Inductor tells nothing: while a program is recorded it begins with none.
    caches = triton_user.folder / "inductor"
    triton_user.environ["TORCHINDUCTOR_CACHE_DIR"] = str(caches)
    program = ("--", sys.executable, "prog.py")
    status, said = triton_user.buildd("run", "--record", "m", *program, timeout_s=600)
    assert status == 0 and not caches.exists() and "buildd: 0 kernels" not in said, said
    found = re.search(r"(\d+) kernels, \1 compiled", said)
    assert found and f"{found[1]} kernels recorded in m" in said, said
    manifest = (triton_user.folder / "m").read_bytes()
    assert str(triton_user.folder).encode() not in manifest and b"libdevice.10" not in manifest
    # Nothing of it is here: neither its store nor the file that Inductor has written.
    triton_user.environ["BUILDD_DIR"] = str(triton_user.folder / "other")
    status, said = triton_user.buildd("warm", "--manifest", "m", timeout_s=600)
    assert status == 0 and f"0 hits, {found[1]} compiled" in said and "another key" not in said, said
    assert "compiled torch.compile: triton_poi_fused_exp_0 for sm_90" in said, said
    shutil.rmtree(triton_user.folder / "triton", ignore_errors=True)
    status, said = triton_user.buildd("run", *program, timeout_s=600)
    assert status == 0 and f"{found[1]} kernels, 0 compiled" in said, said


ITSELF = """
from torch.utils import _triton
from torch._inductor import async_compile, compile_fx
# As its code generator does before it compiles anything: the version of the assembler is remembered from here on.
_triton.triton_hash_with_backend()
# As Inductor does where its workers are not up yet.
compile_tasks._set_triton_ptxas_path()
load("triton_poi_fused_exp_0", SOURCE).precompile(warm_cache_only=True)
"""


def torch_with_an_assembler(folder: Path) -> None:
    """A torch that brings a ptxas, as wheels for CUDA 13 do or did: this one by links, and Triton's newer ptxas."""
    real = {name: Path(find_spec(name).origin).parent for name in ("torch", "triton")}  # type: ignore[union-attr, arg-type]
    inside = ("torch", "torch/_inductor", "torch/_inductor/runtime")
    for place in inside:
        (folder / place).mkdir(parents=True)
    for place in (*inside, "torch/bin"):
        for path in (real["torch"].parent / place).glob("*"):
            here = folder / place / path.name
            if not here.exists() and path.name not in ("bin", "__pycache__"):
                here.parent.mkdir(exist_ok=True)
                here.symlink_to(path)
    # Either place: they differ by torch's version.
    for place in ("torch/bin", "torch/_inductor/bin"):
        (folder / place).mkdir(exist_ok=True)
        (folder / place / "ptxas").symlink_to(real["triton"] / "backends/nvidia/bin/ptxas-blackwell")


@pytest.mark.triton
def test_a_kernel_has_one_key_whichever_process_compiles_it(triton_user: User) -> None:
    folder = triton_user.folder
    torch_with_an_assembler(folder / "site")
    source = GENERATED.replace('"cuda", 90', '"cuda", 80').replace("cc=90, major=9", "cc=80, major=8")
    worker = "compile_tasks._worker_compile_triton("
    assert source.count(worker) == 1
    (folder / "worker.py").write_text(source)
    head, _, tail = source.partition("# As one of Inductor's")
    (folder / "itself.py").write_text(head + ITSELF + tail.partition("{}, {})\n")[2])
    triton_user.environ["PYTHONPATH"] = f"{folder / 'site'}:{triton_user.environ['PYTHONPATH']}"
    said = []
    for name in ("itself", "worker"):
        caches = {"TRITON_CACHE_DIR": str(folder / f"t-{name}"), "TORCHINDUCTOR_CACHE_DIR": str(folder / f"i-{name}")}
        triton_user.environ |= caches
        status, output = triton_user.buildd("run", "--", sys.executable, f"{name}.py", timeout_s=600)
        assert status == 0, output
        said.append(re.search(r"(\d+) kernels, (\d+) compiled", output))
    first, second = said
    assert first and second and first[1] == first[2] == second[1] and second[2] == "0", said


def test_a_daemon_that_is_killed_while_it_compiles_costs_no_program_its_numbers(torch: Torch) -> None:
    torch.forget()
    plain, _ = torch.run(through_us=False)
    torch.forget()
    status, said = torch.user.buildd("cache", "flush")
    assert status == 0, said
    process = torch.start()
    try:
        until(lambda: any("cc1plus" in each.command for each in torch.user.processes()), timeout_s=300)
        daemon = torch.user.daemon()
        assert daemon is not None
        daemon.kill()
    except BaseException:
        process.kill()
        raise
    found, _ = torch.end(process)
    assert found["sums"] == plain["sums"]


@pytest.mark.triton
def test_a_daemon_that_is_killed_between_kernels_costs_none(triton_user: User) -> None:
    (triton_user.folder / "prog.py").write_text(GENERATED)
    folder = triton_user.folder
    triton_user.environ |= {"TRITON_CACHE_DIR": str(folder / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "i")}
    status, said = triton_user.buildd("up")
    daemon = triton_user.daemon()
    assert status == 0 and daemon is not None, said
    program = ("--", sys.executable, "prog.py", str(daemon.pid))
    status, said = triton_user.buildd("run", *program, timeout_s=600)
    assert status == 0 and "kernels, " in said and not daemon.lives, said
