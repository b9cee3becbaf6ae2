"""Kind jax with models and kernels as people write them: Flax's train steps (linen, nnx) and Pallas.

Runs where jax is installed (`scripts/test-jax`); tests of Flax need flax and optax there.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator

import pytest

from tests.support.jax_models import LINEN, NNX, PALLAS
from tests.support.jax_project import Project
from tests.support.user import User

pytestmark = [pytest.mark.jax, pytest.mark.timeout(300)]
needs_plugin = pytest.mark.skipif(
    not any(importlib.util.find_spec(f"jax_cuda{n}_plugin") for n in (12, 13)),
    reason="no jax-cuda13-plugin and jax-cuda13-pjrt (they need no GPU)",
)
needs_flax = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("flax", "optax"))), reason="no flax and optax in this Python"
)

TRAIN = """
import json
import jax, jax.numpy as jnp
import net
from buildd.loader import load_jax
step = load_jax("build/step/step.jax")
x, y = jnp.linspace(-1, 1, 128).reshape(16, 8), jnp.linspace(0, 1, 64).reshape(16, 4)
native = jax.jit(net.step)
ours, theirs, losses = net.state(), net.state(), []
for _ in range(5):
    ours, mine = step(ours, x, y)
    theirs, other = native(theirs, x, y)
    losses.append((float(mine), float(other)))
print(json.dumps({"losses": losses, "kind": type(ours) is type(net.state())}))
"""


@pytest.fixture
def project(kept_user: User) -> Iterator[Project]:
    yield Project(kept_user, "models", PALLAS)


@needs_flax
@pytest.mark.parametrize("code", [LINEN, NNX], ids=["linen", "nnx"])
def test_a_train_step_of_flax_trains_as_in_jax(project: Project, code: str) -> None:
    if project.python("from flax import linen, nnx").returncode:
        pytest.skip("this flax does not work with this jax")
    project.write(code)
    inputs = [{"function": "state", "donate": True}, {"shape": [16, 8]}, {"shape": [16, 4]}]
    project.target(inputs=inputs, static={})
    status, said = project.build()
    assert status == 0, said
    done = project.python(TRAIN)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["kind"] and all(mine == other for mine, other in found["losses"])
    assert found["losses"][-1][0] < found["losses"][0][0]
    # A comment compiles nothing.
    project.write("# a comment\n" + code)
    assert "hit step/step.jax" in project.build()[1]


def test_a_kernel_of_pallas_runs_interpreted(project: Project) -> None:
    project.target(function="interpreted", inputs=[{"shape": [1024]}] * 2, static={})
    status, said = project.build()
    assert status == 0, said
    done = project.python(
        "import numpy; from buildd.loader import load_jax\n"
        "x = numpy.arange(1024, dtype='float32')\n"
        "print(bool((load_jax('build/step/step.jax')(x, x) == 3 * x).all()))"
    )
    assert done.stdout == "True\n", done.stderr[-3000:]


def test_a_kernel_of_pallas_for_gpus_is_refused_for_a_processor(project: Project) -> None:
    project.target(function="compiled", inputs=[{"shape": [1024]}] * 2, static={})
    status, said = project.build()
    assert status == 1 and "cannot be traced: " in said and "interpret" in said, said


@needs_plugin
def test_a_kernel_of_pallas_is_compiled_for_a_gpu_that_is_not_here(project: Project) -> None:
    table = {"inputs": [{"shape": [1024]}] * 2, "static": {}, "device": "cuda", "topology": "h100.txtpb"}
    project.target(function="compiled", **table)
    status, said = project.build()
    assert status == 0 and "warning" not in said, said
    assert project.described()["tuned"] is True
    # The kernel's code is in the key.
    project.write(PALLAS.replace("* 2", "* 3"))
    assert "hit step/step.jax" not in project.build()[1]
