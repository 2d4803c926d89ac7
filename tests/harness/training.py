"""Training in a pool of Karpenter: pods that take a whole node each, and are made anew when one goes.

Owns one ReplicaSet of a test, and conditions that a detector of somebody else would set on a Node.
Does not wait for what fleetmend does with them.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from activities.kube import paths
from activities.kube.client import JsonObject, PatchKind, Selector
from activities.kube.errors import NotFound
from tests.harness.cluster import Cluster
from tests.harness.karpenter import NAMESPACE
from tests.harness.nodes import TestNodes
from tests.harness.waiting import wait_until
from workers.lab.karpenter.instance_types import GPUS
from workers.lab.karpenter.node_pools import NODE_POOL_LABEL
from workers.lab.kubelet.spec import GPU_RESOURCE

WORK_LIMIT_S = 90.0
REPLICA_SETS = paths.collection_path("apps/v1", "replicasets", namespace=NAMESPACE)


@dataclass
class Training:
    """A ReplicaSet of pods, each of which takes a whole node of the pool."""

    cluster: Cluster
    pool: str

    def start(self, count: int) -> None:
        container = {
            "name": "train",
            "image": "train:lab",
            "resources": {"limits": {GPU_RESOURCE: str(GPUS)}},
        }
        labels = {"training": self.pool}
        body: JsonObject = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": self.pool},
            "spec": {
                "replicas": count,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "nodeSelector": {NODE_POOL_LABEL: self.pool},
                        "terminationGracePeriodSeconds": 1,
                        "automountServiceAccountToken": False,
                        "containers": [container],
                    },
                },
            },
        }
        self.cluster.kube.create(REPLICA_SETS, body)
        self.until_running(count)

    def scale(self, count: int) -> None:
        path = paths.object_path(REPLICA_SETS, self.pool)
        self.cluster.kube.patch(path, {"spec": {"replicas": count}}, kind=PatchKind.MERGE)

    def places(self) -> list[str]:
        """Names of the nodes on which a pod runs."""
        selector = Selector(label=f"training={self.pool}")
        pods = self.cluster.kube.list(paths.pods(NAMESPACE), selector=selector).items
        return sorted(
            str(pod["spec"]["nodeName"])
            for pod in pods
            if pod.get("status", {}).get("phase") == "Running"
            and not pod["metadata"].get("deletionTimestamp")
        )

    def until_running(self, count: int) -> list[str]:
        def places() -> list[str]:
            found = self.places()
            return found if len(found) == count else []

        return wait_until(places, WORK_LIMIT_S, f"{count} pods of {self.pool} run", saw=self.places)

    def end(self) -> None:
        try:
            self.scale(0)
            wait_until(lambda: not self.places(), WORK_LIMIT_S, "no pod of it runs any more")
            self.cluster.kube.delete(paths.object_path(REPLICA_SETS, self.pool), uid=None)
        except NotFound:
            return


def set_condition(cluster: Cluster, node: str, kind: str, status: str) -> None:
    """A condition as a detector of somebody else sets it."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {
        "type": kind,
        "status": status,
        "reason": "Test",
        "message": "set by a test",
        "lastTransitionTime": now,
        "lastHeartbeatTime": now,
    }
    body: JsonObject = {"status": {"conditions": [condition]}}
    cluster.kube.patch(paths.node_status(node), body, kind=PatchKind.STRATEGIC)


def settle(machines: TestNodes, cluster: Cluster, node: str) -> None:
    """Returns when the node is well and its machine's baseline is recorded."""
    machines.until_healthy(node)
    wait_until(lambda: cluster.has_baseline(node), WORK_LIMIT_S, f"{node} has a baseline")
