"""The example for KubeRay: its manifests' commands, run as the operator builds them, in pods made of namespaces."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kuberay import Manifests
from tests.support.node_network import needs_root
from tests.support.pods import Pod, Pods
from tests.support.spread_builds import SOURCES, places, write_sources
from tests.support.waiting import until

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not shutil.which("g++"), reason="needs g++"),
    pytest.mark.timeout(400),
]
HEAD, WORKERS, BUILD = "buildd-head", ["buildd-compile-worker-a", "buildd-compile-worker-b"], "buildd-build"
PROBE = "import urllib.request as web; print(web.urlopen('http://127.0.0.1:52365/api/healthz', timeout=5).status)"
SERVED_BY = (
    "aiohttp",
    "aiohttp_cors",
    "opencensus",
    "opentelemetry.sdk",
    "prometheus_client",
    "pydantic",
    "smart_open",
)
"""What `ray[default]` adds, without which no probe is answered."""
STARTED = "Ray runtime started"

# The fields of KubeRay 1.5.1 and 1.7.0 (helm-chart/kuberay-operator/crds/ray.io_rayclusters.yaml) that we know of.
CLUSTER_FIELDS = {"rayVersion", "authOptions", "enableInTreeAutoscaling", "headGroupSpec", "workerGroupSpecs"}
HEAD_FIELDS = {"rayStartParams", "template"}
WORKER_FIELDS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
# Kubernetes' own, of a pod and of a container.
POD_FIELDS = {"containers", "volumes", "restartPolicy"}
CONTAINER_FIELDS = {
    *("name", "image", "command", "args", "workingDir", "env", "envFrom", "resources", "volumeMounts"),
}


def _has(module: str) -> bool:
    parent = module.rpartition(".")[0]
    return (not parent or _has(parent)) and importlib.util.find_spec(module) is not None


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Manifests:
    folder = tmp_path_factory.mktemp("volumes")
    volumes = {name: folder / name for name in ("buildd-project", "buildd-store")}
    for folder in volumes.values():
        folder.mkdir()
    return Manifests.read(volumes, secrets.token_urlsafe(32))


@pytest.fixture(scope="module")
def pods(manifests: Manifests) -> Iterator[Pods]:
    """The cluster's pods: a head and two workers, which have started."""
    needs_root()
    made = Pods()
    try:
        made.hosts = dict.fromkeys((manifests.service, manifests.full_service), made.address(HEAD))
        _start(made, manifests.head(HEAD))
        # The operator has workers wait for the head.
        _start(made, *map(manifests.worker, WORKERS))
        yield made
    finally:
        made.close()


def test_the_manifests_have_the_fields_that_the_operator_knows(manifests: Manifests) -> None:
    cluster = manifests.one("RayCluster")
    spec = cluster["spec"]
    assert cluster["apiVersion"] == "ray.io/v1" and set(spec) <= CLUSTER_FIELDS
    assert spec["authOptions"] == {"mode": "token"}, "the operator makes the token"
    assert tuple(map(int, spec["rayVersion"].split("."))) >= (2, 60, 0), "with a token the operator wants a version"
    head, (workers,) = spec["headGroupSpec"], spec["workerGroupSpecs"]
    assert set(head) <= HEAD_FIELDS and set(workers) <= WORKER_FIELDS
    assert 0 <= workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    for group in (head, workers):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values()), "the CRD has a map of texts"
    job = manifests.one("Job")
    assert job["apiVersion"] == "batch/v1" and set(job["spec"]) <= {"backoffLimit", "template"}
    templates = [each["template"]["spec"] for each in (head, workers, job["spec"])]
    for template in templates:
        assert set(template) <= POD_FIELDS
        (container,) = template["containers"]
        assert set(container) <= CONTAINER_FIELDS
        assert set(container["resources"]) == {"requests", "limits"}
        assert _mount(template, "buildd-project") == "/mnt/project", "the project has the same path everywhere"
    assert len({template["containers"][0]["image"] for template in templates}) == 1
    claims = {each["metadata"]["name"]: each for each in manifests.objects if each["kind"] == "PersistentVolumeClaim"}
    assert set(claims) == set(manifests.volumes)
    assert claims["buildd-project"]["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_operator_starts_a_head_without_cpus_and_workers_with_their_limits(manifests: Manifests) -> None:
    head, worker = manifests.head(HEAD).command[-1], manifests.worker(WORKERS[0]).command[-1]
    assert "ray start --head" in head and "--num-cpus=0" in head and "--block" in head
    assert f"--memory={32 << 30}" in worker and "--num-cpus=16" in worker
    assert "--address=buildd-head-svc.default.svc.cluster.local:6379" in worker
    assert manifests.build(BUILD).environ["RAY_ADDRESS"] == f"{manifests.service}:6379"


@pytest.mark.skipif(not all(map(_has, SERVED_BY)), reason="no ray[default], which a pod's image has")
def test_the_operators_probes_are_answered_without_a_token(pods: Pods) -> None:
    for name in (HEAD, *WORKERS):
        until(lambda name=name: pods.python(name, PROBE).strip() == "200", f"{name} is ready")


def test_the_jobs_command_builds_on_all_pods(manifests: Manifests, pods: Pods, tmp_path: Path) -> None:
    project, alone = manifests.volumes["buildd-project"], tmp_path / "alone"
    alone.mkdir()
    for folder in (project, alone):
        write_sources(folder)
    build = manifests.build(BUILD)

    stranger = dataclasses.replace(
        build,
        name="stranger",
        command=["bash", "-c", 'timeout 60 ray start --address="$RAY_ADDRESS" --num-cpus=0'],
        environ={name: value for name, value in build.environ.items() if not name.startswith("RAY_AUTH_")},
    )
    assert pods.run(stranger) != 0, "a client without the token is refused"
    assert "AuthenticationError" in pods.said("stranger") and STARTED not in pods.said("stranger")

    status = pods.run(build, 300.0)
    said = pods.said(BUILD)
    assert status == 0, said
    assert f"{SOURCES} misses" in said and all(name in said for name in WORKERS), said
    ran = places({**os.environ, "BUILDD_DIR": str(manifests.volumes["buildd-store"])})
    assert len(ran) == SOURCES and set(ran) == {"buildd", *WORKERS}, (
        "compiles ran in the build's pod and in both workers"
    )

    subprocess.run(["make", "-sj2"], cwd=alone, check=True)
    for name in (*(f"f{number}.o" for number in range(SOURCES)), "lib.a"):
        assert (project / name).read_bytes() == (alone / name).read_bytes(), f"{name} is as without a cluster"


def _start(pods: Pods, *nodes: Pod) -> None:
    """Start nodes of the cluster, and wait until they belong to it."""
    running = [(each.name, pods.start(each)) for each in nodes]
    for name, process in running:
        until(lambda name=name, process=process: STARTED in pods.said(name) or process.poll() is not None, name, 120.0)
        assert process.poll() is None, pods.said(name)


def _mount(template: dict[str, Any], claim: str) -> str:
    (volume,) = (
        each["name"] for each in template["volumes"] if each.get("persistentVolumeClaim", {}).get("claimName") == claim
    )
    (place,) = (each["mountPath"] for each in template["containers"][0]["volumeMounts"] if each["name"] == volume)
    return str(place)
