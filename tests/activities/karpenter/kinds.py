"""Karpenter's kinds without Karpenter: NodeClaims and NodePools that no controller acts on.

Owns two permissive CRDs in the session's lab, and a test's hands on their objects. With the real
controllers (and the real schemas) the same activities run in tests/scenarios.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from activities.kube import paths
from activities.kube.client import JsonObject, PatchKind
from activities.kube.errors import ApiError, Conflict, NotFound
from tests.harness.cluster import Cluster
from tests.harness.waiting import wait_until
from workflows.contracts.kube import Owner
from workflows.model.remediation.marks import KARPENTER_NODEPOOL_LABEL
from workflows.model.remediation.replacement import ClaimRef

SERVED_S = 30.0
CRDS = paths.collection_path("apiextensions.k8s.io/v1", "customresourcedefinitions")
POOLS = paths.collection_path(paths.KARPENTER_GROUP, "nodepools")
HOLD = "example.com/hold"


def install_kinds(cluster: Cluster) -> None:
    """Serves both kinds; may be called again."""
    for kind, plural in (("NodeClaim", "nodeclaims"), ("NodePool", "nodepools")):
        with suppress(Conflict):
            cluster.kube.create(CRDS, _crd(kind, plural))
    wait_until(lambda: _is_served(cluster), SERVED_S, "NodeClaims and NodePools are served")


def _is_served(cluster: Cluster) -> bool:
    try:
        cluster.kube.list(paths.node_claims())
        cluster.kube.list(POOLS)
    except ApiError:
        return False
    return True


def _crd(kind: str, plural: str) -> JsonObject:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.karpenter.sh"},
        "spec": {
            "group": "karpenter.sh",
            "scope": "Cluster",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [version],
        },
    }


@dataclass
class Claims:
    """One test's NodeClaims and NodePool."""

    cluster: Cluster
    pool: str
    made: list[str] = field(default_factory=list)

    def add(self, name: str, **changes: Any) -> ClaimRef:
        """A NodeClaim, as far as `changes` (status, metadata) say."""
        metadata = {
            "name": name,
            "labels": {KARPENTER_NODEPOOL_LABEL: self.pool},
            **changes.get("metadata", {}),
        }
        body = {"apiVersion": paths.KARPENTER_GROUP, "kind": "NodeClaim", "metadata": metadata}
        made = self.cluster.kube.create(paths.node_claims(), body)
        self.made.append(name)
        self.set_status(name, changes.get("status", {}))
        return ClaimRef(name, str(made["metadata"]["uid"]))

    def add_for(self, owner: Owner, **changes: Any) -> ClaimRef:
        """The NodeClaim of a bare Node."""
        status = {
            "providerID": self.cluster.node(owner.node.name).provider_id,
            "nodeName": owner.node.name,
            "capacity": {"nvidia.com/gpu": "8"},
            "conditions": [
                {"type": kind, "status": "True"}
                for kind in ("Launched", "Registered", "Initialized")
            ],
            **changes.pop("status", {}),
        }
        return self.add(f"c-{owner.node.name}", status=status, **changes)

    def set_status(self, name: str, status: JsonObject) -> None:
        path = paths.object_path(paths.node_claims(), name, subresource="status")
        self.cluster.kube.patch(path, {"status": status}, kind=PatchKind.MERGE)

    def patch(self, name: str, body: JsonObject) -> None:
        self.cluster.kube.patch(paths.node_claim(name), body, kind=PatchKind.MERGE)

    def read(self, name: str) -> JsonObject | None:
        """The NodeClaim now; None = gone."""
        try:
            return self.cluster.kube.get(paths.node_claim(name))
        except NotFound:
            return None

    def make_pool(self, **spec: Any) -> None:
        body = {
            "apiVersion": paths.KARPENTER_GROUP,
            "kind": "NodePool",
            "metadata": {"name": self.pool},
            "spec": spec,
        }
        self.cluster.kube.create(POOLS, body)

    def remove_all(self) -> None:
        for name in self.made:
            with suppress(NotFound):
                self.patch(name, {"metadata": {"finalizers": None}})
                self.cluster.kube.delete(paths.node_claim(name), uid=None)
        with suppress(NotFound):
            self.cluster.kube.delete(paths.node_pool(self.pool), uid=None)
