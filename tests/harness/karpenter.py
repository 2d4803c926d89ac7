"""Karpenter's objects as a test's own hands: pools, claims, and pods that make it buy nodes.

Owns the NodePools and pods of one test (or module) and takes them away with their nodes. Does not
act through fleetmend, and does not start a lab: the lab's settings need `karpenter=True`.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from activities.kube import paths
from activities.kube.client import JsonObject, Selector
from activities.kube.errors import Conflict, NotFound
from activities.kube.paths import ObjectPath
from tests.harness.cluster import Cluster
from tests.harness.waiting import wait_until
from workers.lab.karpenter.instance_types import GPUS
from workers.lab.karpenter.node_pools import (
    NODE_POOL_LABEL,
    REGISTERED_LABEL,
    PoolShape,
    node_pool,
)
from workers.lab.kubelet.spec import GPU_RESOURCE

NAMESPACE = "default"
NODE_LIMIT_S = 60.0
"""For two nodes from pending pods to Ready: 12 s on idle cores."""
NODE_EACH_S = 20.0
"""On a busy machine each further node costs so much more."""
POOLS = paths.collection_path("karpenter.sh/v1", "nodepools")
CLAIMS = paths.collection_path("karpenter.sh/v1", "nodeclaims")


@dataclass
class KarpenterHands:
    """What one test has asked of Karpenter."""

    cluster: Cluster
    pools: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)

    def pool(self, shape: PoolShape) -> str:
        """A new NodePool; its name."""
        self.cluster.kube.create(POOLS, node_pool(shape))
        self.pools.append(shape.name)
        return shape.name

    def pods(self, pool: str, count: int = 1, **spec: Any) -> list[str]:
        """Pending pods, each asking for all GPUs of a node of the pool; their names."""
        return [self._pod(pool, spec) for _ in range(count)]

    def claims(self, pool: str) -> list[JsonObject]:
        """The pool's NodeClaims now."""
        selector = Selector(label=f"{NODE_POOL_LABEL}={pool}")
        return self.cluster.kube.list(CLAIMS, selector=selector).items

    def claim_of(self, node: str) -> JsonObject | None:
        """The NodeClaim of a Node, by its provider id; None = there is none."""
        provider_id = self.cluster.node(node).provider_id
        for claim in self.cluster.kube.list(CLAIMS).items:
            if claim.get("status", {}).get("providerID") == provider_id:
                return claim
        return None

    def nodes(self, pool: str) -> list[str]:
        """Names of the pool's Nodes now."""
        selector = Selector(label=f"{NODE_POOL_LABEL}={pool}")
        found = self.cluster.kube.list(paths.nodes(), selector=selector).items
        return [str(item["metadata"]["name"]) for item in found]

    def ready_nodes(self, pool: str) -> list[str]:
        """Names of the pool's Nodes that are registered and Ready with all their GPUs."""
        ready = []
        for name in self.nodes(pool):
            with suppress(NotFound):
                node = self.cluster.node(name)
                is_registered = node.labels.get(REGISTERED_LABEL) == "true"
                if is_registered and node.ready and sum(node.gpus.values()) == GPUS:
                    ready.append(name)
        return ready

    def until_ready(self, pool: str, count: int) -> list[str]:
        """The pool's nodes, once so many are Ready with their GPUs."""

        def ready() -> list[str]:
            found = self.ready_nodes(pool)
            return found if len(found) == count else []

        return wait_until(
            ready,
            max(NODE_LIMIT_S, NODE_EACH_S * count),
            f"pool {pool} has {count} ready nodes",
            saw=lambda: (self.nodes(pool), [claim.get("status") for claim in self.claims(pool)]),
        )

    def pod(self, name: str) -> JsonObject | None:
        """A pod now; None = gone."""
        try:
            return self.cluster.kube.get(paths.pod(NAMESPACE, name))
        except NotFound:
            return None

    def until_running(self, names: list[str]) -> dict[str, str]:
        """Node by pod, once all pods are Running."""

        def running() -> dict[str, str]:
            pods = {name: self.pod(name) for name in names}
            nodes = {
                name: str(pod["spec"]["nodeName"])
                for name, pod in pods.items()
                if pod is not None and _phase(pod) == "Running"
            }
            return nodes if len(nodes) == len(names) else {}

        return wait_until(
            running,
            NODE_LIMIT_S,
            f"pods {', '.join(names)} are Running",
            saw=lambda: [(self.pod(name) or {}).get("status") for name in names],
        )

    def delete_claim(self, claim: JsonObject) -> None:
        """As `kubectl delete nodeclaim`, but only this very one."""
        self.cluster.kube.delete(_claim_path(claim), uid=str(claim["metadata"]["uid"]))

    def until_gone(self, node: str) -> None:
        """Returns when the Node object is away."""
        wait_until(lambda: not self._exists(node), NODE_LIMIT_S, f"Node {node} is gone")

    def condition(self, claim: JsonObject, kind: str) -> str:
        """Status of a condition of a NodeClaim as it is now; '' = absent, or the claim is gone."""
        try:
            now = self.cluster.kube.get(_claim_path(claim))
        except NotFound:
            return ""
        conditions = now.get("status", {}).get("conditions") or []
        return next((str(c["status"]) for c in conditions if c["type"] == kind), "")

    def remove_all(self) -> None:
        """Take pods, pools and claims away; their nodes follow some 6 s later by themselves."""
        for name in self.made:
            with suppress(NotFound, Conflict):
                self.cluster.kube.delete(paths.pod(NAMESPACE, name), uid=None, grace_s=0)
        for pool in self.pools:
            with suppress(NotFound):
                self.cluster.kube.delete(paths.object_path(POOLS, pool), uid=None)
        for pool in self.pools:
            for claim in self.claims(pool):
                with suppress(NotFound, Conflict):
                    self.delete_claim(claim)
        self.pools.clear()
        self.made.clear()

    def _pod(self, pool: str, spec: dict[str, Any]) -> str:
        name = f"{pool}-{len(self.made)}"
        container = {
            "name": "train",
            "image": "train:lab",
            "resources": {"limits": {GPU_RESOURCE: str(GPUS)}},
        }
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeSelector": {NODE_POOL_LABEL: pool},
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": False,
                "containers": [container],
                **spec,
            },
        }
        self.cluster.kube.create(paths.pods(NAMESPACE), body)
        self.made.append(name)
        return name

    def _exists(self, node: str) -> bool:
        try:
            self.cluster.node(node)
        except NotFound:
            return False
        return True


@contextmanager
def karpenter_hands(cluster: Cluster) -> Iterator[KarpenterHands]:
    """Pools, pods and nodes that go with the block."""
    hands = KarpenterHands(cluster)
    try:
        yield hands
    finally:
        hands.remove_all()


def _claim_path(claim: JsonObject) -> ObjectPath:
    return paths.object_path(CLAIMS, str(claim["metadata"]["name"]))


def _phase(pod: JsonObject | None) -> str:
    return "" if pod is None else str(pod.get("status", {}).get("phase", ""))
