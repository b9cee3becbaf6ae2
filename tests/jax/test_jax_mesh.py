"""Kind jax over a mesh of several devices, with the real JAX: processors of this machine, and GPUs that it lacks.

Runs where jax is installed (`scripts/test-jax`).
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.jax_project import Project
from tests.support.user import User

pytestmark = [pytest.mark.jax, pytest.mark.timeout(300)]
needs_plugin = pytest.mark.skipif(
    not any(importlib.util.find_spec(f"jax_cuda{n}_plugin") for n in (12, 13)),
    reason="no jax-cuda13-plugin and jax-cuda13-pjrt (they need no GPU)",
)

NET = """
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

def parameters():
    return {"up": jnp.full((16, 32), 0.02), "down": jnp.full((32, 16), 0.03)}

def shardings(mesh):
    split = {"up": P(None, "model"), "down": P("model", None)}
    return (split, None), (split, None)

def step(parameters, x):
    def loss(p):
        h = jax.lax.with_sharding_constraint(jnp.tanh(x @ p["up"]), P("data", "model"))
        return ((h @ p["down"] - x) ** 2).mean()
    value, slopes = jax.value_and_grad(loss)(parameters)
    return jax.tree.map(lambda w, g: w - 0.1 * g, parameters, slopes), [value, x * 2]

def mapped(x):
    return jax.shard_map(lambda part: jax.lax.psum(part.sum(0), "data"), in_specs=P("data"), out_specs=P())(x)

def wrong(mesh):
    return [P("data")]
"""

USE = """
import json, sys
import jax
jax.config.update("jax_num_cpu_devices", 4)
import jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import net
from buildd.loader import load_jax

step = load_jax("build/step/step.jax")
x = jnp.linspace(-1, 1, 128).reshape(8, 16)
mesh = step.mesh
native = jax.jit(net.step)
ours, theirs = net.parameters(), net.parameters()
for _ in range(3):
    ours, (mine, twice) = step(ours, x)
with jax.set_mesh(mesh):
    for _ in range(3):
        theirs, (other, _) = native(theirs, x)
near = jax.tree.all(jax.tree.map(lambda a, b: bool(np.allclose(a, b, atol=1e-6)), (ours, mine), (theirs, other)))
given = step(net.parameters(), x)[0]
step(given, x)
backwards = load_jax("build/step/step.jax", devices=jax.devices()[::-1])
said = []
elsewhere = jax.device_put(x, NamedSharding(mesh, P(None, "model")))
for wrong in (elsewhere, jax.device_put(x, jax.devices()[1])):
    try:
        step(net.parameters(), wrong)
    except ValueError as error:
        said.append(str(error))
print(json.dumps({
    "near": near,
    "mesh": dict(mesh.shape),
    "up": str(ours["up"].sharding.spec), "parts": len(ours["up"].addressable_shards),
    "part": ours["up"].addressable_shards[0].data.shape,
    "twice": twice.shape, "same": bool((twice == 2 * x).all()),
    "backwards": bool((backwards(net.parameters(), x)[1][1] == 2 * x).all()),
    "given away": given["up"].is_deleted(),
    "said": said,
}))
"""

INPUTS = [{"function": "parameters", "donate": True}, {"shape": [8, 16], "sharding": ["data"]}]
TARGET: dict[str, Any] = {
    "inputs": INPUTS,
    "static": {},
    "mesh": {"data": 2, "model": 2},
    "shardings": "shardings",
}


@pytest.fixture
def project(kept_user: User) -> Iterator[Project]:
    made = Project(kept_user, "mesh", NET)
    made.target(**TARGET)
    yield made


def test_a_step_over_four_devices_computes_what_jax_computes(project: Project) -> None:
    status, said = project.build()
    assert status == 0, said
    done = project.python(USE)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["near"] and found["same"] and found["backwards"] and found["given away"]
    assert (found["mesh"], found["parts"], found["part"]) == ({"data": 2, "model": 2}, 4, [16, 16])
    assert "'model'" in found["up"] and found["twice"] == [8, 16]
    first, second = found["said"]
    assert first.startswith("step: argument 2 is on ") and "data=2, model=2, and the function runs on " in first
    assert "of data=2, model=2" in second


def test_a_program_with_too_few_devices_is_told_so(project: Project) -> None:
    assert project.build()[0] == 0
    done = project.python("from buildd.loader import load_jax; load_jax('build/step/step.jax')")
    assert (
        "was compiled for 4 devices (data=2, model=2), and there are 1 here: build it with another `mesh`, or set"
        " jax_num_cpu_devices to 4 before JAX starts" in done.stderr
    )


def test_the_order_of_the_axes_and_the_sizes_count(project: Project) -> None:
    assert project.build("--recache")[0] == 0
    assert "hit step/step.jax" in built(project, TARGET)
    for mesh in ({"model": 2, "data": 2}, {"data": 4, "model": 1}, {"data": 1, "model": 1}):
        said = built(project, {**TARGET, "mesh": mesh})
        assert "hit step/step.jax" not in said
        assert project.described()["mesh"] == [list(pair) for pair in mesh.items()]


def built(project: Project, table: dict[str, Any]) -> str:
    project.target(**table)
    status, said = project.build()
    assert status == 0, said
    return said


def test_shard_map_takes_the_mesh_of_the_target(project: Project) -> None:
    table = {"function": "mapped", "inputs": [{"shape": [8, 3], "sharding": ["data"]}], "static": {}}
    built(project, {**table, "mesh": {"data": 4}})
    done = project.python(
        "import jax, numpy; jax.config.update('jax_num_cpu_devices', 4)\nfrom buildd.loader import load_jax\n"
        "print(load_jax('build/step/step.jax')(numpy.ones((8, 3), 'float32')).tolist())"
    )
    assert done.stdout == "[8.0, 8.0, 8.0]\n", done.stderr[-2000:]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shardings": "wrong"}, "wrong.. has to return .in_shardings, out_shardings."),
        ({"shardings": "absent"}, "there is no absent"),
        ({"mesh": {}, "shardings": ""}, 'split over "data", and the mesh has none'),
        ({"mesh": {"data": 0, "model": 2}}, 'axis "data" of the mesh has 0 devices'),
        ({"mesh": {"data": 3, "model": 2}}, "cannot be traced: .*divi(sible|de)"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(project: Project, changes: dict[str, Any], message: str) -> None:
    project.target(**{**TARGET, **changes})
    status, said = project.build()
    assert status and re.search(message, said, re.DOTALL), said


@needs_plugin
def test_four_gpus_that_this_machine_lacks(project: Project) -> None:
    said = built(project, {**TARGET, "device": "cuda", "topology": "h100.txtpb"})
    assert "warning: compiled untuned (" in said
    found = project.described()
    assert (found["device_kind"], found["mesh"]) == ("NVIDIA H100 80GB HBM3", [["data", 2], ["model", 2]])
    assert len(found["splits"]) == len(found["results"]) == 4
    call = "from buildd.loader import load_jax; load_jax('build/step/step.jax', untuned=True)"
    assert "JAX has no such device here" in project.python(call).stderr
