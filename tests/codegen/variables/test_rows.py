"""Every row of the table: a variable that acts changes a plan, one that is passed on reaches the tool and its key, and
the others change nothing. A test for each, through the shell and through buildd.toml."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import pytest

from buildd.keys.action_key import action_components, digest
from codegen.errors import RequestError
from codegen.plan import Action, Output, Plan
from codegen.variables.environment import all_variables, select, tool_environment
from codegen.variables.settings import settings_of
from codegen.variables.tests_of import test_of as name_of_test
from codegen.variables.variable import SetIn, ToolFamily, Use, Variable
from protocol.messages import Digest
from tests.support.carry_out import plan_for, request_for
from tests.support.paths import ROOT
from tests.support.user import User

CUDA = '[target.t]\nkind = "cuda"\nsources = ["k.cu"]\narch = ["sm_80"]\n'
HIP = '[target.t]\nkind = "hip"\nsources = ["k.hip"]\narch = ["gfx90a"]\n'
GEMM = '[target.t]\nkind = "gemm"\narch = ["sm_90a"]\n'
SIZED = GEMM + "m = 256\nn = 256\nk = 256\nprofile = true\n"
MODEL = """
[target.t]
kind = "model"
arch = ["sm_80"]
outputs = ["y", "z"]
inputs = { x = { shape = [64, 64] } }
[target.t.ops.y]
kind = "rowwise"
inputs = ["x"]
op = "softmax"
[target.t.ops.z]
kind = "elementwise"
inputs = ["x"]
expression = "x * 2"
"""


@dataclass(frozen=True)
class Case:
    """How a plan shows that a variable acts: with `value`, the plan of `project` is another one.

    `value` may be a function that makes what a path names. `beside` holds variables that are set in any case. `shows`
    is a word of the commands that `value` adds. `fails`: with `value` there is no plan.
    """

    project: str
    value: str | Callable[[Path], str]
    beside: Mapping[str, str] | None = None
    shows: str = ""
    fails: bool = False


def toolkit(folder: Path) -> str:
    """A folder through which the real nvcc is found."""
    nvcc = real("nvcc", "nvidia/cu13/bin/nvcc")
    (folder / "cuda/bin").mkdir(parents=True)
    (folder / "cuda/bin/nvcc").write_text(f'#!/bin/sh\nexec {nvcc} "$@"\n')
    (folder / "cuda/bin/nvcc").chmod(0o755)
    return str(folder / "cuda")


def compiler(folder: Path) -> str:
    return f"{toolkit(folder)}/bin/nvcc"


def rocm(folder: Path) -> str:
    hipcc = shutil.which("hipcc")
    if hipcc is None:
        pytest.skip("no hipcc")
    (folder / "rocm/bin").mkdir(parents=True)
    (folder / "rocm/bin/hipcc").write_text(f'#!/bin/sh\nexec {hipcc} "$@"\n')
    (folder / "rocm/bin/hipcc").chmod(0o755)
    return str(folder / "rocm")


def hip(folder: Path) -> str:
    """As `rocm`; Debian's hipcc works only where the variable does not name a folder."""
    place = rocm(folder)
    text = (folder / "rocm/bin/hipcc").read_text()
    (folder / "rocm/bin/hipcc").write_text(text.replace("exec", "unset HIP_PATH\nexec"))
    return place


def cutlass(folder: Path) -> str:
    (folder / "cutlass").symlink_to(real("cutlass", "cutlass_library/source"))
    return str(folder / "cutlass")


def real(what: str, path: str) -> str:
    found = next((place for site in sys.path if os.path.exists(place := os.path.join(site, path))), "")
    if not found:
        pytest.skip(f"no {what}")
    return found


PLANS = {
    "AIT_RECOMPILE": Case(CUDA, "1"),
    "AIT_NDEBUG": Case(CUDA, "1", shows="-DNDEBUG"),
    "AIT_COMPILER_OPT": Case(CUDA, "-O1", shows="-O1"),
    "AIT_USE_CMAKE_COMPILATION": Case(CUDA, "1"),
    "AIT_ENABLE_STANDALONE": Case(GEMM, "1"),
    "AIT_ENABLE_PTXAS_INFO": Case(CUDA, "1", shows="--ptxas-options=--warn-on-spills"),
    "AIT_CUDA_DEBUG_LEVEL": Case(CUDA, "1", shows="-lineinfo"),
    "AIT_ENABLE_CUDA_SOURCE_NAVIGATION_FIX": Case(GEMM, "1"),
    "AIT_USE_FAST_MATH": Case(CUDA, "1", shows="--use_fast_math"),
    "AIT_NVCC_CCBIN": Case(CUDA, "/usr/bin/g++", shows="-ccbin"),
    "AIT_ENABLE_CUDA_LTO": Case(CUDA, "1", shows="-gencode=arch=compute_80,code=lto_80"),
    "AIT_USE_TANH_FOR_SIGMOID": Case(CUDA, "1", shows="-DAIT_USE_TANH_FOR_SIGMOID=1"),
    "CUTLASS_DEBUG_TRACE_LEVEL": Case(CUDA, "2", shows="-DCUTLASS_DEBUG_TRACE_LEVEL=2"),
    "AIT_BUILD_DOCS": Case(
        CUDA.replace('arch = ["sm_80"]', ""), "1", shows="-gencode=arch=compute_80,code=[sm_80,compute_80]"
    ),
    "AIT_MULTISTREAM_MODE": Case(MODEL, "1"),
    "AIT_MULTISTREAM_EXTRA_STREAMS": Case(MODEL, "0", {"AIT_MULTISTREAM_MODE": "1"}),
    "AIT_MULTISTREAM_MAX_MEM_PARALLEL_OPS": Case(MODEL, "1", {"AIT_MULTISTREAM_MODE": "1"}),
    "DISABLE_PROFILER_CODEGEN": Case(SIZED, "1"),
    "FORCE_PROFILE": Case(SIZED, "1", {"DISABLE_PROFILER_CODEGEN": "1"}),
    "AIT_FORCE_PROFILER_CACHE": Case(GEMM, "1", fails=True),
    "CI_FLAG": Case(GEMM, "CIRCLECI"),
    "TRICK_CI_ENV": Case(GEMM, "1", {"CI_FLAG": "CIRCLECI"}),
    "BUILDD_SPLIT_KERNELS": Case(GEMM, "0"),
    "CUTLASS_PATH": Case(GEMM, cutlass),
    "CUDA_HOME": Case(CUDA, toolkit),
    "CUDA_PATH": Case(CUDA, toolkit),
    "CUDACXX": Case(CUDA, compiler),
    "NVCC_CCBIN": Case(CUDA, "/usr/bin/g++"),
    "ROCM_PATH": Case(HIP, rocm),
    "ROCM_HOME": Case(HIP, rocm),
    "HIP_PATH": Case(HIP, hip),
}


def rows(use: Use) -> list[str]:
    return [row.name for row in all_variables() if row.use is use]


def row_of(name: str) -> Variable:
    return next(row for row in all_variables() if row.name == name)


def set_of(name: str) -> str:
    """A variable of a row: a star stands for an ending."""
    return name.replace("*", "ANYTHING")


# ---------------------------------------------------------------- every row


def test_every_row_names_a_test_that_is_there_and_sees_it() -> None:
    for row in all_variables():
        named = name_of_test(row)
        file, _, test = named.partition("::")
        function = test.partition("[")[0]
        if file == "tests/codegen/variables/test_rows.py":
            assert function in globals(), named
            if row.use is Use.ACTS:
                assert row.name in PLANS, f"{row.name} acts, and no test sees it"
            continue
        assert row.use is Use.ACTS, f"{row.name} does not act, but {named} is said to see it"
        seen = functions_of(file)
        assert function in seen, f"{named} is not there"
        places = {SetIn.ANYWHERE: ("buildd.toml", "config.toml", "FROM_EACH_PLACE"), SetIn.START: ("config.toml",)}
        if row.set_in is not SetIn.SHELL:
            from_files = any(place in seen[function] for place in places[row.set_in])
            assert from_files, f"{named} sets {row.name} through the shell alone"
        text = (ROOT / file).read_text().replace("{TAG:", "TORCH_COMPILE_CACHE_KEY_TAG")
        assert row.name.removesuffix("*") in text, f"{file} does not name {row.name}"


@cache
def functions_of(file: str) -> Mapping[str, str]:
    """Each function's name -> its text with its decorators."""
    tree = ast.parse((ROOT / file).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name: ast.unparse(node) for node in ast.walk(tree) if isinstance(node, kinds)}


def test_an_effect_is_none_for_exactly_the_rows_without_one() -> None:
    for row in all_variables():
        assert row.effect.startswith("none: ") == (row.use is Use.NONE), row.name
        assert not (row.use is Use.PASSED_ON and row.set_in is not SetIn.ANYWHERE), row.name


# ---------------------------------------------------------------- rows that act


@pytest.mark.cuda
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_changes_with_it(tmp_path: Path, name: str) -> None:
    case = PLANS[name]
    value = case.value if isinstance(case.value, str) else case.value(tmp_path)
    beside = case.beside or {}
    without = planned(tmp_path / "p", case.project, {}, beside)
    shell = planned(tmp_path / "p", case.project, {}, {**beside, name: value})
    file = planned(tmp_path / "p", case.project, {name: value}, beside)
    assert isinstance(shell, Plan) is not case.fails, shell
    # Tools that receive the variable do not show that buildd acts on it.
    assert received_none(shell, name) != received_none(without, name), f"{name}={value} changes nothing"
    assert not case.shows or (case.shows in words(shell) and case.shows not in words(without)), words(shell)
    assert file == shell, f"{name} in buildd.toml acts in another way"


def received_none(plan: object, name: str) -> object:
    """A plan whose actions do not receive a variable."""
    if not isinstance(plan, Plan):
        return plan
    actions = []
    for action in plan.actions:
        kept = tuple((key, value) for key, value in action.environment if key != name)
        actions.append(msgspec.structs.replace(action, environment=kept))
    return msgspec.structs.replace(plan, actions=tuple(actions))


def words(plan: object) -> set[object]:
    """The words of all commands of a plan."""
    return {word for action in plan.actions for word in action.argv} if isinstance(plan, Plan) else set()


def planned(folder: Path, project: str, table: Mapping[str, str], environment: Mapping[str, str]) -> object:
    """A plan without what it says of where values come from, or why there is none."""
    folder.mkdir(exist_ok=True)
    for source in ("k.cu", "k.hip"):
        (folder / source).write_text("__global__ void k() {}\n")
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in table.items())
    (folder / "buildd.toml").write_text(f"{project}\n[environment]\n{lines}")
    path = os.environ.get("PATH", os.defpath)
    request = request_for(
        folder, file="buildd.toml", environment={"PATH": path, "HOME": str(folder), **environment}, store=str(folder)
    )
    try:
        plan: Plan = plan_for(request)
    except RequestError as error:
        return error.code, error.message
    return msgspec.structs.replace(plan, notices=())


# ---------------------------------------------------------------- rows that are passed on


@pytest.mark.parametrize("name", rows(Use.PASSED_ON))
@pytest.mark.parametrize("place", ["shell", "buildd.toml"])
def test_a_tool_receives_it_and_the_key_has_it(tmp_path: Path, name: str, place: str) -> None:
    variable, families = set_of(name), row_of(name).families
    assert families
    environ = {"HOME": str(tmp_path)}
    (tmp_path / "buildd.toml").write_text(f'[environment]\n{variable} = "/some value"\n' if place != "shell" else "")
    if place == "shell":
        environ = select({**environ, variable: "/some value", "UNKNOWN_TO_BUILDD": "x"})
        assert "UNKNOWN_TO_BUILDD" not in environ
    merged = settings_of(request_for(tmp_path, file="buildd.toml", environment=environ)).merged()
    plain = {key: value for key, value in merged.items() if key != variable}
    for family in ToolFamily:
        received = dict(tool_environment(merged, family))
        assert (received.get(variable) == "/some value") == (family in families), family
        if family in families:
            assert key_with(merged, family) != key_with(plain, family), family


def key_with(environment: Mapping[str, str], family: ToolFamily) -> Digest:
    action = Action(
        name="a",
        kind="k",
        tool="t",
        argv=("tool",),
        environment=tool_environment(environment, family),
        outputs=(Output(name="o", path="o"),),
    )
    return digest(action_components(action, Digest(""), lambda path: None, project="/p"))


# ---------------------------------------------------------------- rows without effect

WRITTEN = {
    "TORCH_WARM_POOL": "a job of kind torch sets it for itself",
    "TORCHINDUCTOR_COMPILE_THREADS": "a job of kind torch sets it for itself",
    "JAX_PLATFORMS": "a job of kind jax sets it for itself",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "a job of kind jax sets it for itself",
    "ENABLE_DISTRIBUTED_INIT": "a job of kind jax sets it for itself",
    "TORCHINDUCTOR_CACHE_DIR": "jobs set it; a job that compiles through the daemon keeps the caller's",
    "TRITON_CACHE_DIR": "jobs set it; a job that compiles through the daemon keeps the caller's",
    "TRITON_HOME": "jobs set it; a job that compiles through the daemon keeps the caller's",
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE": "`buildd redis` prints it",
    "TORCHINDUCTOR_REDIS_URL": "`buildd redis` prints it",
    "TRITON_KERNEL_OVERRIDE": "`buildd run --record` refuses it",
    "LLVM_PASS_PLUGIN_PATH": "`buildd run --record` refuses it",
    "TMPDIR": "each job gets its own",
    "TORCH_LOGS": "no trace is kept for a user who wants to see one",
    "TORCH_COMPILE_DEBUG": "no trace is kept for a user who wants to see one",
    "CC": "`buildd-cc`, and a note of a job's compilers, have this name",
    "DEBUG": "the name of a log level",
    "CUDA_DEVICE_ORDER": "a measuring process gets a value of its own",
    "DEPENDENCIES_OUTPUT": "a compile under `buildd run` that writes it is not cached",
    "CC_PRINT_HEADERS_FILE": "a compile under `buildd run` that writes it is not cached",
    "PYTHONHASHSEED": "the generator of CUTLASS runs with a value of its own",
    "SUNPRO_DEPENDENCIES": "a compile under `buildd run` that writes it is not cached",
    "ROCR_VISIBLE_DEVICES": "a compile on a node of a cluster sees no GPU",
    "CC_PRINT_*": "a compile under `buildd run` that writes it is not cached",
}
"""Names that stand in the code although the variable has no effect on targets, and why."""


@cache
def code() -> str:
    places = (path for room in ("buildd", "codegen", "protocol") for path in (ROOT / room).rglob("*.py"))
    return "\n".join(path.read_text() for path in places if "catalog" not in path.parts)


@pytest.mark.parametrize("name", rows(Use.NONE))
def test_it_has_no_effect_here(name: str) -> None:
    variable = set_of(name)
    for family in ToolFamily:
        assert variable not in dict(tool_environment({variable: "1"}, family)), family
    if name not in WRITTEN and not name.endswith("*"):
        assert not re.search(rf"[\"']{re.escape(name)}[\"']", code()), f"code names {name}, and its row says: none"


def test_a_program_below_a_run_has_the_variables_without_effect_as_the_user_set_them(tmp_path: Path) -> None:
    names = [set_of(name) for name in rows(Use.NONE) if name not in ("TMPDIR", "TMP", "TEMP", "PYTHONHASHSEED")]
    user = User(tmp_path, dict.fromkeys(names, "1"))
    try:
        script = f"import os; print([name for name in {names!r} if os.environ.get(name) != '1'])"
        status, said = user.buildd("run", "--quiet", "--", sys.executable, "-c", script)
        assert (status, said.strip().splitlines()[-1]) == (0, "[]"), said
    finally:
        assert user.end() == []


def test_env_names_the_test_of_every_row(tmp_path: Path) -> None:
    program = "import sys; from buildd.commands.env import run; sys.exit(run(['--all', '--json']))"
    environ = {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environ, capture_output=True, check=True)
    entries = json.loads(done.stdout)
    assert len(entries) == len(all_variables())
    assert all(entry["test"].startswith("tests/") and entry["use"] and entry["set_in"] for entry in entries)
