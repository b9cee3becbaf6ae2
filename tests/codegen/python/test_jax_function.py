"""The jax kind: its plan without JAX, and what is refused before anything runs. `tests/jax` builds with a real JAX."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from codegen.errors import RequestError
from codegen.plan import Answer, Discovery, Plan, Probe
from codegen.python.jax_function import TRACER, WORKER
from protocol.messages import BuildId, Request, RequestId, spec_from
from tests.support.carry_out import plan_with

IDENTITY = {
    "jax": "0.99.0",
    "jaxlib": "0.99.1",
    "python": "3.11.7 cpython-311",
    "files": {"python": "/usr/bin/env", "jaxlib/_jax.so": "/usr/bin/env"},
    "plugins": {"jax_cuda13_plugin/a.so": "/usr/bin/env"},
}
GPU: dict[str, Any] = {"device": "cuda", "topology": "h100.topology"}


def request(folder: Path, *, environment: dict[str, str] | None = None, **changes: Any) -> Request:
    (folder / "net.py").write_text("")
    (folder / "h100.topology").write_text("{}")
    (folder / "h100.autotune").write_text("")
    table = {
        "kind": "jax",
        "source": "net.py",
        "function": "step",
        "inputs": [{"shape": [8, 16], "dtype": "bfloat16"}],
        **changes,
    }
    return Request(
        request_id=RequestId("r"),
        build_id=BuildId("b"),
        project=str(folder),
        file="",
        specs={"step": spec_from(table)},
        environment={"PATH": "/usr/bin:/bin", **(environment or {})},
        interpreter=sys.executable,
    )


def pretended(probe: Probe, **changes: Any) -> Answer:
    """What a machine with JAX would answer."""
    said = {"name": "NVIDIA Z100", "platform_version": "cuda 99"} if "gpu" in probe.argv[-1] else IDENTITY | changes
    return Answer(status=0, stdout=json.dumps(said), stderr="")


def test_one_action_lowers_and_one_compiles(tmp_path: Path) -> None:
    plan = plan_with(request(tmp_path, static={"layers": 3}, options={"xla_x": True}), pretended)
    trace, action = plan.actions
    assert (trace.name, trace.inputs, trace.traces) == ("step/step.lowered", ("net.py",), True)
    assert trace.uncacheable and trace.discovery is Discovery.REPORTED and not action.uncacheable
    assert (action.kind, action.inputs) == ("jax", ("build/step/step.lowered",))
    assert [artifact.path for artifact in plan.artifacts] == ["build/step/step.jax"]
    assert json.loads(trace.payload)["static"] == {"layers": 3}
    assert json.loads(action.payload)["options"] == {"xla_x": True}
    facts = dict(plan.tools[0].facts)
    assert facts["jaxlib"] == "0.99.1" and "flags:" in facts["processor"]
    roles = {file.role for tool in plan.tools for file in tool.files}
    assert {"worker", "trace worker", "jaxlib/_jax.so"} <= roles and "jax_cuda13_plugin/a.so" not in roles


def test_for_a_gpu_elsewhere_the_topology_is_traced_with_and_the_timings_are_compiled_with(tmp_path: Path) -> None:
    plan = plan_with(request(tmp_path, **GPU, autotune="h100.autotune"), pretended)
    trace, action = plan.actions
    assert trace.inputs == ("net.py", "h100.topology") and "h100.autotune" in action.inputs
    assert dict(action.environment)["JAX_PLATFORMS"] == "cpu" and trace.warm and action.warm
    facts = dict(plan.tools[0].facts)
    assert "processor" not in facts and "gpu" not in facts
    assert "jax_cuda13_plugin/a.so" in {file.role for file in plan.tools[0].files}
    (same,) = {msgspec.json.encode(plan_with(request(tmp_path, **GPU), pretended).actions[0]) for _ in range(2)}
    assert str(tmp_path).encode() not in same


def test_for_the_gpu_of_this_machine_the_timings_are_a_result(tmp_path: Path) -> None:
    plan = plan_with(request(tmp_path, device="cuda", environment={"CUDA_VISIBLE_DEVICES": "1"}), pretended)
    trace, action = plan.actions
    assert [artifact.name for artifact in plan.artifacts] == ["step.jax", "step.autotune"]
    assert dict(plan.tools[0].facts)["gpu"] == "NVIDIA Z100, cuda 99"
    environment = dict(action.environment)
    assert (environment["JAX_PLATFORMS"], environment["CUDA_VISIBLE_DEVICES"]) == ("cuda,cpu", "1")
    assert environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false" and not trace.warm and not action.warm


def test_what_changes_the_program_reaches_the_worker_and_folders_do_not(tmp_path: Path) -> None:
    given = {
        "XLA_FLAGS": "--xla_a=1",
        "JAX_ENABLE_X64": "1",
        "EASYDEL_AUTO": "0",
        "JAX_COMPILATION_CACHE_DIR": "/home/me",
        "JAX_PLATFORMS": "tpu",
        "ENABLE_DISTRIBUTED_INIT": "1",
    }
    seen = dict(plan_with(request(tmp_path, environment=given), pretended).actions[1].environment)
    assert {name: seen[name] for name in ("XLA_FLAGS", "JAX_ENABLE_X64", "EASYDEL_AUTO")} == {
        name: given[name] for name in ("XLA_FLAGS", "JAX_ENABLE_X64", "EASYDEL_AUTO")
    }
    assert "JAX_COMPILATION_CACHE_DIR" not in seen
    assert (seen["JAX_PLATFORMS"], seen["ENABLE_DISTRIBUTED_INIT"]) == ("cpu", "0")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "tpu"}, 'no device "tpu"'),
        ({"arch": ["sm_90"]}, "takes its GPU from"),
        ({"source": "net.txt"}, "must be a .py file"),
        ({"source": "absent.py"}, "does not exist"),
        ({"function": "a b"}, "not the name of a function"),
        ({"inputs": []}, "has no arguments"),
        ({"inputs": [{"shape": [-1]}]}, "below 0"),
        ({"inputs": [{"function": "f", "shape": [1]}]}, "a function and a shape"),
        ({"topology": "h100.topology"}, "topology is for a GPU"),
        ({"device": "cuda", "autotune": "h100.autotune"}, "GPU elsewhere"),
        ({**GPU, "topology": "absent.topology"}, "does not exist"),
        ({"keyword_inputs": {"n": {}}, "static": {"n": 1}}, "in static and in"),
        ({"options": {"xla_dump_to": "/tmp"}}, "cannot be set here"),
        ({**GPU, "options": {"xla_gpu_per_fusion_autotune_cache_dir": "/tmp"}}, "cannot be set here"),
    ],
)
def test_what_cannot_be_built_is_refused_with_a_next_step(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        plan_with(request(tmp_path, **changes), pretended)
    assert caught.value.next_step and "step" in caught.value.message


def test_without_a_plugin_no_gpu_is_compiled_for(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no plugin for GPUs") as caught:
        plan_with(request(tmp_path, **GPU), lambda probe: pretended(probe, plugins={}))
    assert caught.value.code == "compiler-not-found" and "0.99.1" in caught.value.next_step


def test_a_plugin_that_is_installed_later_is_seen(tmp_path: Path) -> None:
    asked: list[Probe] = []

    def noted(probe: Probe) -> Answer:
        asked.append(probe)
        return pretended(probe)

    for name in ("jaxlib-1", "jax_cuda13_plugin-1"):
        record = tmp_path / "site" / f"{name}.dist-info/RECORD"
        record.parent.mkdir(parents=True)
        record.write_text("")
        plan_with(request(tmp_path, environment={"PYTHONPATH": str(tmp_path / "site")}), noted)
        assert str(record) in asked[-1].files
    assert asked[0] != asked[-1]


def test_without_jax_or_without_a_gpu_the_next_step_is_told(tmp_path: Path) -> None:
    def without(probe: Probe) -> Answer:
        return Answer(status=1, stdout="", stderr="error: JAX cannot be imported by python: No module\n")

    with pytest.raises(RequestError, match="no JAX: JAX cannot be imported") as caught:
        plan_with(request(tmp_path), without)
    assert "pip install jax" in caught.value.next_step

    def blind(probe: Probe) -> Answer:
        return without(probe) if "gpu" in probe.argv[-1] else pretended(probe)

    with pytest.raises(RequestError, match="no GPU for device") as caught:
        plan_with(request(tmp_path, device="cuda"), blind)
    assert "buildd topology" in caught.value.next_step


def test_nothing_in_the_actions_names_the_checkout(tmp_path: Path) -> None:
    plans: list[Plan] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        plans.append(plan_with(request(tmp_path / name, **GPU), pretended))
    first, second = (msgspec.json.encode(made.actions) for made in plans)
    assert first == second and str(tmp_path).encode() not in first


@pytest.mark.parametrize("worker", [WORKER, TRACER], ids=lambda path: path.stem)
def test_the_workers_import_nothing_of_ours(worker: Path) -> None:
    lines = [line.strip() for line in worker.read_text(encoding="utf-8").splitlines()]
    assert not [line for line in lines if line.startswith(("from buildd", "from codegen", "import msgspec"))]
