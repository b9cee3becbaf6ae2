"""The variables of eformer's Ray executor under `buildd run`, with the real eformer on a real cluster."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ray_cluster import RayCluster
from tests.support.serving import short_folder
from tests.support.user import User

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not importlib.util.find_spec("eformer"), reason="no eformer"),
]

PROGRAM = """
import json, time
import ray
from eformer.executor.patch_tpus_ray import RayManager
from eformer.executor.ray import pool_manager
from eformer.executor.ray.resource_manager import RayResources

def slow():
    time.sleep(8)
    return "in time"

def there():
    return RayResources.separate_process_fn(lambda: 6 * 7, (), {})

try:
    call = RayResources.separate_process_fn(slow, (), {})
except RuntimeError as error:
    call = str(error)
ray.init(log_to_driver=False)
on_node = ray.get(ray.remote(there).remote())
print(json.dumps({
    "call": call,
    "scaling": [pool_manager.SCALE_POLL_S, pool_manager.SCALE_ADD_TIMEOUT_S],
    "ray": str(RayManager().ray_path),
    "cluster": ray.get_runtime_context().gcs_address,
    "on node": on_node,
}))
"""
VARIABLES = {
    "EFORMER_SUBPROCESS_TIMEOUT_S": "2",
    "EFORMER_SCALE_POLL_S": "7",
    "EFORMER_SCALE_ADD_TIMEOUT_S": "77",
    "RAY_EXECUTABLE_PATH": "/opt/another/ray",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    try:
        cluster.add("beta")
        yield cluster
    finally:
        cluster.close()


@pytest.mark.parametrize("place", ["nowhere", "shell", "buildd.toml", "config.toml"])
def test_they_act_wherever_they_are_set(cluster: RayCluster, place: str) -> None:
    with short_folder() as folder:
        user = User(folder, {"RAY_ADDRESS": cluster.address, "JAX_PLATFORMS": "cpu"})
        (user.folder / "program.py").write_text(PROGRAM)
        lines = "".join(f'{name} = "{value}"\n' for name, value in VARIABLES.items())
        if place == "shell":
            user.environ.update(VARIABLES)
        elif place != "nowhere":
            folders = {"buildd.toml": user.folder, "config.toml": Path(user.environ["HOME"]) / ".config/buildd"}
            folders[place].mkdir(parents=True, exist_ok=True)
            (folders[place] / place).write_text(f"[environment]\n{lines}")
        try:
            status, said = user.buildd("run", "--", sys.executable, "program.py", timeout_s=300)
            assert status == 0, said
            found = json.loads(next(line for line in said.splitlines() if line.startswith('{"call"')))
        finally:
            assert user.end() == []
    is_set = place != "nowhere"
    assert found["call"] == ("Process timed out" if is_set else "in time")
    assert found["scaling"] == ([7, 77] if is_set else [30, 604800])
    assert (found["ray"] == "/opt/another/ray") == is_set
    assert found["cluster"].endswith(f":{cluster.port}") and found["on node"] == 42
