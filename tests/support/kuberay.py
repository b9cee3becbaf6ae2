"""The manifests of examples/kuberay, and the pods that KubeRay's operator and Kubernetes make of them.

Source: KubeRay 1.7.0 (ray-operator/controllers/ray/common/pod.go). What it adds for the autoscaler, for TLS and for
faults of the head is left out: the manifests ask for none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT
from tests.support.pods import Pod

FOLDER = ROOT / "examples" / "kuberay"
NAMESPACE = "default"
PORT = 6379
_SUFFIXES = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "": 1}
_WITH_A_VALUE = ("include-dashboard", "include-log-monitor", "log-color")
"""The options of `ray start` that take "true" and "false"; the operator gives others alone, or leaves them out."""

Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Manifests:
    """All objects of the example.

    Args:
        volumes: folders for the claims, by their names.
        token: what the operator would make.
    """

    objects: list[Tree]
    volumes: Mapping[str, Path]
    token: str

    @classmethod
    def read(cls, volumes: Mapping[str, Path], token: str) -> Manifests:
        import yaml  # environments that are older than this test lack it

        files = (FOLDER / "raycluster.yaml", FOLDER / "build.yaml")
        return cls([each for path in files for each in yaml.safe_load_all(path.read_text())], volumes, token)

    def one(self, kind: str) -> Tree:
        (found,) = (each for each in self.objects if each["kind"] == kind)
        return found

    @property
    def service(self) -> str:
        """The name under which the operator makes the head's address known."""
        return f"{self.one('RayCluster')['metadata']['name']}-head-svc"

    @property
    def full_service(self) -> str:
        return f"{self.service}.{NAMESPACE}.svc.cluster.local"

    def head(self, name: str) -> Pod:
        group = self.one("RayCluster")["spec"]["headGroupSpec"]
        options = {"dashboard-host": "0.0.0.0", **group["rayStartParams"]}
        return self._node(name, group, "ray start --head", options, "127.0.0.1")

    def worker(self, name: str) -> Pod:
        (group,) = self.one("RayCluster")["spec"]["workerGroupSpecs"]
        options = {"address": f"{self.full_service}:{PORT}", **group["rayStartParams"]}
        return self._node(name, group, "ray start", options, self.full_service)

    def build(self, name: str) -> Pod:
        spec = self.one("Job")["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        command = [*container["command"], *container["args"]]
        return Pod(
            name, command, self._environ(container), self._folders(spec, container), container.get("workingDir", "/")
        )

    def _node(self, name: str, group: Tree, start: str, options: dict[str, str], head: str) -> Pod:
        spec = group["template"]["spec"]
        container = spec["containers"][0]
        limits = container["resources"]["limits"]
        options.setdefault("num-cpus", str(_quantity(limits["cpu"])))
        options.setdefault("memory", str(_quantity(limits["memory"])))
        options.setdefault("metrics-export-port", "8080")
        options.setdefault("dashboard-agent-listen-port", "52365")
        options["block"] = "true"
        command = f"ulimit -n ${{RAY_START_ULIMIT_OPEN_FILES:-65536}}; {start} {_words(options)}"
        cluster = self.one("RayCluster")["metadata"]["name"]
        environ = {
            "RAY_CLUSTER_NAME": cluster,
            "RAY_CLUSTER_NAMESPACE": NAMESPACE,
            "RAY_CLOUD_INSTANCE_ID": name,
            "RAY_NODE_TYPE_NAME": group.get("groupName", "headgroup"),
            "RAY_PORT": str(PORT),
            "RAY_ADDRESS": f"{head}:{PORT}",
            "RAY_USAGE_STATS_KUBERAY_IN_USE": "1",
            "RAY_USAGE_STATS_ENABLED": "0",  # ours: tests report nothing
            "RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE": "1",
        }
        if head == self.full_service:
            environ |= {"FQ_RAY_IP": head, "RAY_IP": self.service}
        if self.one("RayCluster")["spec"].get("authOptions", {}).get("mode") == "token":
            environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}
        folders = self._folders(spec, container)
        folders.setdefault("/dev/shm", None)
        # As in a pod, the user's own variables come first.
        return Pod(name, ["/bin/bash", "-c", "--", command], {**environ, **self._environ(container)}, folders)

    def _environ(self, container: Tree) -> dict[str, str]:
        found: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            name = source["configMapRef"]["name"]
            (known,) = (e for e in self.objects if e["kind"] == "ConfigMap" and e["metadata"]["name"] == name)
            found |= known["data"]
        for variable in container.get("env", ()):
            if "value" in variable:
                found[variable["name"]] = variable["value"]
                continue
            secret = variable["valueFrom"]["secretKeyRef"]
            # The operator's Secret has the cluster's name.
            assert secret == {"name": self.one("RayCluster")["metadata"]["name"], "key": "auth_token"}
            found[variable["name"]] = self.token
        return found

    def _folders(self, spec: Tree, container: Tree) -> dict[str, Path | None]:
        volumes = {each["name"]: each for each in spec.get("volumes", ())}
        found: dict[str, Path | None] = {}
        for mount in container.get("volumeMounts", ()):
            volume = volumes[mount["name"]]
            claim = volume.get("persistentVolumeClaim")
            found[mount["mountPath"]] = self.volumes[claim["claimName"]] if claim else None
        return found


def _words(options: Mapping[str, str]) -> str:
    words = []
    for name, value in sorted(options.items()):
        if value.lower() not in ("true", "false") or name in _WITH_A_VALUE:
            words.append(f"--{name}={value}")
        elif value.lower() == "true":
            words.append(f"--{name}")
    return " ".join(words)


def _quantity(text: str) -> int:
    """A whole number of CPUs or bytes, as Kubernetes writes it."""
    suffix = next(each for each in _SUFFIXES if text.endswith(each))
    return int(text.removesuffix(suffix)) * _SUFFIXES[suffix]
