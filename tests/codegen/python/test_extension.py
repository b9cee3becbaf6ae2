"""The extension kind without torch: whose flag is whose, what is linked and what is refused; and one that is built."""

from __future__ import annotations

import ctypes
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from codegen.compiled.recipe import Argument
from codegen.errors import RequestError
from codegen.plan import Action, Answer, Plan, Probe, Ref
from codegen.python.extension import WORKER
from protocol.messages import BuildId, Request, RequestId, spec_from
from tests.support.carry_out import carry_out_all, plan_with, run_probe
from tests.support.places import FROM_EACH_PLACE, with_set

CXX = [
    "-DTORCH_EXTENSION_NAME=BUILDD_MODULE",
    "-isystem",
    "TORCH/include",
    "-isystem",
    "/py/include",
    "-fPIC",
    "-std=c++20",
]
CUDA = [
    *CXX[:3],
    *("-isystem", "/BUILDD_CUDA/include", "--expt-relaxed-constexpr", "-gencode=arch=compute_80,code=sm_80"),
    *("--compiler-options", "-fPIC", "-std=c++20"),
]
LINK = ["-shared", "-LTORCH/lib", "-lc10", "-ltorch_cpu", "-ltorch_python"]
MIXED_LINK = [*LINK[:3], "-lc10_cuda", *LINK[3:], "-L/BUILDD_CUDA/lib64", "-lcudart"]
_answers: dict[Probe, Answer] = {}


@pytest.fixture(autouse=True)
def compiler() -> None:
    if not shutil.which("c++"):
        pytest.skip("no c++")


class Machine:
    """A project, and what the worker would say of a torch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.torch = folder / "torch"
        (self.torch / "include").mkdir(parents=True)
        (self.torch / "lib").mkdir()
        (folder / "a.cpp").write_text('#include <number.h>\nextern "C" int number() { return NUMBER; }\n')
        (folder / "b.cu").write_text("__global__ void kernel(int *to) { *to = 1; }\n")
        (self.torch / "include" / "number.h").write_text("#define NUMBER 42\n")
        plain = {"cxx": CXX, "cuda": [], "link": LINK}
        self.identity: dict[str, Any] = {
            "torch": "9.9 git abc",
            "cuda": "",
            "hip": "",
            "folder": str(self.torch),
            "headers": "/py/include",
            "suffix": ".cpython-399-x86_64-linux-gnu.so",
            "limited": "0x030A0000",
            "libraries": ["libc10.so"],
            "plain": plain,
            "mixed": {"cxx": [*CXX, "-isystem", "/BUILDD_CUDA/include"], "cuda": CUDA, "link": MIXED_LINK},
        }

    def plan(
        self,
        *,
        environment: dict[str, str] | None = None,
        sets: tuple[str, dict[str, str]] | None = None,
        **changes: Any,
    ) -> Plan:
        """Args: sets: a place, and what is set there."""
        table = {"kind": "extension", "sources": ["a.cpp"], **changes}
        request = Request(
            request_id=RequestId("r"),
            build_id=BuildId("b"),
            project=str(self.folder),
            file="",
            specs={"ops": spec_from(table)},
            environment={"PATH": "/usr/bin:/bin", **(environment or {})},
            interpreter=sys.executable,
        )
        if sets is not None:
            request = with_set(request, sets[0], **sets[1])
        return plan_with(request, self.answer)

    def answer(self, probe: Probe) -> Answer:
        if probe.argv[1:] == (str(WORKER), "--identify"):
            said = json.dumps(self.identity).replace("TORCH/", f"{self.torch}/")
            return Answer(status=0, stdout=said, stderr="")
        if probe not in _answers:
            _answers[probe] = run_probe(probe)
        return _answers[probe]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def words(action: Action) -> list[str]:
    """An action's arguments, those that are relative to something as {name}."""

    def word(argument: Argument) -> str:
        if not isinstance(argument, Ref):
            return argument
        return f"{argument.prefix}{{{argument.name or argument.place.value}}}{argument.suffix}"

    return [word(argument) for argument in action.argv]


def test_flags_are_torchs_and_libraries_too(machine: Machine) -> None:
    (machine.folder / "inc").mkdir()
    made = machine.plan(include=["inc"], define=["X=1"], flags=["-O1"], libraries=["m"])
    compiled, linked = made.actions
    # The user's folders are searched before torch's, the user's flags come last.
    assert words(compiled) == [
        *(
            "{c++}/c++",
            "-c",
            "-Iinc",
            "-isystem{torch}/include",
            "-isystem{python headers}",
            "-DTORCH_EXTENSION_NAME=ops",
        ),
        *("-fPIC", "-std=c++20", "-DX=1", "-O1", "-o", "{object}", "a.cpp"),
    ]
    assert words(linked)[-6:] == [
        "{build/ops/obj/a.cpp.o}",
        "-L{torch}/lib",
        "-lc10",
        "-ltorch_cpu",
        "-ltorch_python",
        "-lm",
    ]
    assert [output.path for output in linked.outputs] == ["build/ops/ops.cpython-399-x86_64-linux-gnu.so"]
    assert f"{machine.torch}/include" in compiled.search and "inc" in compiled.search


def test_no_folder_of_this_machine_is_in_an_action(tmp_path: Path) -> None:
    plans = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        actions = Machine(tmp_path / name).plan().actions
        plans.append([(words(action), action.environment, action.payload) for action in actions])
    assert plans[0] == plans[1] and str(tmp_path) not in str(plans[0])


def test_a_module_in_a_package_and_for_every_python(machine: Machine) -> None:
    compiled, linked = machine.plan(module="pack._C", py_limited_api=True).actions
    assert "-DTORCH_EXTENSION_NAME=_C" in words(compiled) and "-DPy_LIMITED_API=0x030A0000" in words(compiled)
    assert "-ltorch_python" not in words(linked) and "-ltorch_cpu" in words(linked)
    assert linked.outputs[0].path == "build/ops/pack/_C.abi3.so"


@pytest.mark.cuda
@FROM_EACH_PLACE
def test_cuda_sources_go_through_nvcc_in_its_steps(machine: Machine, place: str) -> None:
    cuda = shutil.which("nvcc") or str(next(Path(sys.prefix).rglob("nvidia/cu13/bin/nvcc")))
    environment = {"CUDA_HOME": str(Path(cuda).parents[1])}
    sets = (place, {"TORCH_CUDA_ARCH_LIST": "8.0;9.0a+PTX"})

    def made(**changes: Any) -> Plan:
        return machine.plan(sources=["a.cpp", "b.cu"], environment=environment, sets=sets, **changes)

    found = made()
    device, host, linked = found.actions
    assert (host.kind, device.kind, device.inputs) == ("c++", "nvcc", ("b.cu",)) and device.steps
    said = words(device)
    assert [word for word in said if "gencode" in word] == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90a,code=[sm_90a,compute_90a]",
    ]
    assert "-isystem={torch}/include" in said and said.count("-std=c++20") == 1 and "--compiler-options" not in said
    assert "-isystem{cuda}/include" in words(host), "gcc does not know the toolkit's headers by itself"
    assert "-lc10_cuda" not in words(linked) and "CPU" in found.notices[0]
    assert "-std=c++20" not in words(made(cuda_flags=["-std=c++17"]).actions[0])
    # The target's own word counts more than the variable's.
    assert "code=[sm_86,compute_86]" in str(words(made(arch=["sm_86"]).actions[0]))
    machine.identity |= {"cuda": "13.0", "libraries": ["libc10.so", "libc10_cuda.so"]}
    linked = made().actions[-1]
    assert "-lc10_cuda" in words(linked) and any("cudart" in word for word in words(linked))
    assert "-lcudart_static" not in words(linked), "torch brings its own"


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"module": "a.1b"}, "bad-project", "not a valid module name"),
        ({"flags": ["-o", "x"]}, "bad-flag", '"-o" does not belong'),
        ({"cuda_flags": ["-gencode=arch=compute_80,code=sm_80"]}, "bad-flag", "does not belong"),
        ({"sources": ["none.cpp"]}, "missing-source", "none.cpp"),
    ],
)
def test_what_is_wrong_is_said(machine: Machine, changes: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as found:
        machine.plan(**changes)
    assert found.value.code == code and found.value.next_step


def test_a_torch_that_it_is_not_for_is_said(machine: Machine) -> None:
    machine.identity["hip"] = "6.4"
    with pytest.raises(RequestError, match=r"ROCm 6\.4"):
        machine.plan()
    machine.identity |= {"hip": "", "limited": ""}
    with pytest.raises(RequestError, match="does not support py_limited_api"):
        machine.plan(py_limited_api=True)


class WithoutPackages(Machine):
    def answer(self, probe: Probe) -> Answer:
        # -S: no packages at all.
        return run_probe(Probe(argv=(probe.argv[0], "-S", *probe.argv[1:])))


def test_a_python_without_torch_is_told(tmp_path: Path) -> None:
    machine = WithoutPackages(tmp_path)
    with pytest.raises(RequestError, match="no torch: torch cannot be imported by") as found:
        machine.plan()
    assert found.value.code == "compiler-not-found" and "pip install torch" in found.value.next_step


def test_it_is_built(machine: Machine) -> None:
    machine.identity["plain"]["link"] = ["-shared", "-LTORCH/lib"]
    made = machine.plan()
    (machine.folder / "scratch").mkdir()
    ran = carry_out_all(made, machine.folder, machine.folder / "scratch")
    assert [one.status for one in ran] == [0, 0], ran
    assert "number.h" in ran[0].depfile
    library = machine.folder / made.artifacts[0].path
    assert ctypes.CDLL(str(library)).number() == 42
