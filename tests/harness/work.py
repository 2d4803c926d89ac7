"""Work on nodes: pods that a drain has to move, and budgets that stand in its way.

Owns the creation of timer pods bound to a node and of PodDisruptionBudgets, in the namespace
`default`. Does not wait for what fleetmend does with them.
"""

from contextlib import suppress
from dataclasses import dataclass, field

from activities.kube import paths
from activities.kube.client import JsonObject
from activities.kube.errors import Conflict, NotFound
from tests.harness.cluster import Cluster
from tests.harness.waiting import wait_until

NAMESPACE = "default"
POD_LIMIT_S = 30.0
BUDGETS = paths.collection_path("policy/v1", "poddisruptionbudgets", namespace=NAMESPACE)


@dataclass
class Work:
    """Pods and budgets of one test, each name with its UID."""

    cluster: Cluster
    pods: dict[str, str] = field(default_factory=dict)
    budgets: dict[str, str] = field(default_factory=dict)

    def pod(self, name: str, node: str, *, gpus: int = 1, stops_in_s: float = 0) -> str:
        """A pod that runs on `node` until it is deleted; returns when it runs."""
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "labels": {"work": name},
                "annotations": {"lab.fleetmend.io/termination-seconds": str(stops_in_s)},
            },
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": max(1, int(stops_in_s) + 1),
                "containers": [
                    {
                        "name": "work",
                        "image": "train:1",
                        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
                    }
                ],
            },
        }
        created = self.cluster.kube.create(paths.pods(NAMESPACE), body)
        self.pods[name] = created["metadata"]["uid"]
        wait_until(lambda: self.phase(name) == "Running", POD_LIMIT_S, f"pod {name} runs")
        return name

    def phase(self, name: str) -> str:
        """The pod's phase; "" = it is gone."""
        try:
            found = self.cluster.kube.get(paths.pod(NAMESPACE, name))
        except NotFound:
            return ""
        return str((found.get("status") or {}).get("phase", ""))

    def block(self, pod: str) -> str:
        """A budget that lets nobody evict the pod."""
        body: JsonObject = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": pod},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"work": pod}}},
        }
        created = self.cluster.kube.create(BUDGETS, body)
        self.budgets[pod] = created["metadata"]["uid"]
        path = paths.object_path(BUDGETS, pod)
        wait_until(
            lambda: "observedGeneration" in (self.cluster.kube.get(path).get("status") or {}),
            POD_LIMIT_S,
            f"the budget of {pod} is in force",
        )
        return pod

    def unblock(self, pod: str) -> None:
        """Takes the budget away."""
        uid = self.budgets.pop(pod)
        self.cluster.kube.delete(paths.object_path(BUDGETS, pod), uid=uid)

    def end(self) -> None:
        """Takes everything away."""
        for budget in list(self.budgets):
            self.unblock(budget)
        for pod, uid in self.pods.items():
            with suppress(NotFound, Conflict):
                self.cluster.kube.delete(paths.pod(NAMESPACE, pod), uid=uid, grace_s=0)
