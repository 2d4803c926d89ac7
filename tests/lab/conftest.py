"""Pods of a test on a simulated node, as raw objects on the real API server."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from activities.kube import paths
from activities.kube.errors import Conflict, NotFound
from tests.harness.cluster import Cluster
from tests.harness.nodes import TestNodes
from tests.harness.waiting import wait_until
from workers.lab.kubelet.host_root import BootRecord, read_boot_log

LIMIT_S = 30.0
IMAGE = "fleetmend:lab"
NAMESPACE = "default"


@dataclass
class Pods:
    """Pods pinned to nodes; those left over are deleted at the end of the test."""

    cluster: Cluster
    unique: Callable[[str], str]
    made: list[tuple[str, str]] = field(default_factory=list)

    def run(self, node: str, code: str, **spec: Any) -> str:
        """A pod of the fleetmend image that runs Python code; its name."""
        container = {"name": "main", "image": IMAGE, "command": ["python", "-c", code]}
        return self.make(node, container, **spec)

    def timer(self, node: str, annotations: dict[str, str] | None = None, **spec: Any) -> str:
        """A pod of an image that the lab can't run; its name."""
        container = {"name": "main", "image": "busybox"}
        return self.make(node, container, annotations=annotations or {}, **spec)

    def make(
        self,
        node: str,
        container: dict[str, Any],
        *,
        annotations: dict[str, str] | None = None,
        namespace: str = NAMESPACE,
        **spec: Any,
    ) -> str:
        """A pod with one container on a node, without the scheduler; its name."""
        name = self.unique(f"p{len(self.made)}")
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {
                "nodeName": node,
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "tolerations": [{"operator": "Exists"}],
                "containers": [container],
                **spec,
            },
        }
        self.cluster.kube.create(paths.pods(namespace), body)
        self.made.append((namespace, name))
        return name

    def get(self, name: str, namespace: str = NAMESPACE) -> Any:
        """The pod now, None = gone."""
        try:
            return self.cluster.kube.get(paths.pod(namespace, name))
        except NotFound:
            return None

    def delete(self, name: str, *, grace_s: int | None = None) -> None:
        """As kubectl does."""
        self.cluster.kube.delete(paths.pod(NAMESPACE, name), uid=None, grace_s=grace_s)

    def until_phase(self, name: str, *phases: str, namespace: str = NAMESPACE) -> Any:
        """The pod, once it is in one of the phases."""
        wait_until(
            lambda: phase_of(self.get(name, namespace)) in phases,
            LIMIT_S,
            f"pod {name} is {' or '.join(phases)}",
            saw=lambda: (self.get(name, namespace) or {}).get("status"),
        )
        return self.get(name, namespace)

    def until_gone(self, name: str) -> None:
        """Returns when the object is away."""
        wait_until(lambda: self.get(name) is None, LIMIT_S, f"pod {name} is gone")

    def remove_all(self) -> None:
        for namespace, name in self.made:
            with suppress(NotFound, Conflict):
                self.cluster.kube.delete(paths.pod(namespace, name), uid=None, grace_s=0)


def phase_of(pod: Any) -> str:
    """Phase of a pod, '' = gone."""
    return "" if pod is None else str(pod.get("status", {}).get("phase", ""))


def ended(pod: Any) -> Any:
    """The terminated state of the pod's only container."""
    return pod["status"]["containerStatuses"][0]["state"]["terminated"]


def boot_log(nodes: TestNodes, node: str) -> list[BootRecord]:
    """The witness of a node's boots."""
    return read_boot_log(Path(nodes.view(node).host_root))


@pytest.fixture
def pods(cluster: Cluster, unique: Callable[[str], str]) -> Iterator[Pods]:
    """Pods for one test; all go with it."""
    own = Pods(cluster, unique)
    yield own
    own.remove_all()
