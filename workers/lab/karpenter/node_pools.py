"""NodePools of the lab's Karpenter: elastic, static, reserved, with and without a limit.

Owns the shape of the manifests, for tests, the demo and people alike. Pure: whoever applies them has
an API client of its own. The labels say how the stand-in kubelets play the nodes.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from workers.lab.karpenter.instance_types import GPU_INSTANCE_TYPE, GPUS, Capacity
from workers.lab.kubelet.spec import (
    AGENT_LABEL,
    GPU_RESOURCE,
    KIND_LABEL,
    MACHINE_LABEL,
    POOL_LABEL,
    Machine,
    NodeKind,
    NodeTaint,
)

NODE_POOLS: Final = "/apis/karpenter.sh/v1/nodepools"
NODE_CLAIMS: Final = "/apis/karpenter.sh/v1/nodeclaims"
NODE_CLASS: Final = "lab"
NODE_CLASS_GROUP: Final = "karpenter.kwok.sh"
NODE_POOL_LABEL: Final = "karpenter.sh/nodepool"
UNVALIDATED: Final = NodeTaint(key="fleetmend.io/unvalidated")
"""The startup taint of a pool whose new nodes are to pass fleetmend's gate first."""


@dataclass(frozen=True)
class PoolShape:
    """One NodePool."""

    name: str
    """Of the NodePool, and of fleetmend's pool."""
    kind: NodeKind = NodeKind.FULL
    agent: str = "stand-in"
    """Of full nodes: "real" or "stand-in"."""
    replicas: int | None = None
    """A static pool of so many nodes; None = elastic, as pending pods ask for."""
    most_nodes: int | None = None
    """The pool's limit; None = none."""
    capacity: Capacity = Capacity.ON_DEMAND
    startup_taints: tuple[NodeTaint, ...] = ()
    taints: tuple[NodeTaint, ...] = ()
    consolidate_after: str = "Never"
    """When an empty node is removed: "0s", "30s" ...; a static pool has no such thing."""
    termination_grace: str | None = None
    """After which a drain is forced; None = never."""
    machine: Machine = Machine.NEW
    """Whether a new node may be a machine that the pool gave back, with the same cards."""
    labels: dict[str, str] = field(default_factory=dict)
    """More labels of the nodes."""


def node_class() -> dict[str, Any]:
    """The one KWOKNodeClass of a lab; it is installed with Karpenter."""
    return {
        "apiVersion": f"{NODE_CLASS_GROUP}/v1alpha1",
        "kind": "KWOKNodeClass",
        "metadata": {"name": NODE_CLASS},
        "spec": {},
    }


def node_pool(shape: PoolShape) -> dict[str, Any]:
    """The manifest of a NodePool."""
    spec: dict[str, Any] = {"template": _template(shape)}
    if shape.replicas is None:
        spec["disruption"] = {
            "consolidationPolicy": "WhenEmpty",
            "consolidateAfter": shape.consolidate_after,
        }
        if shape.most_nodes is not None:
            spec["limits"] = {GPU_RESOURCE: str(shape.most_nodes * GPUS)}
    else:
        spec["replicas"] = shape.replicas
        if shape.most_nodes is not None:
            spec["limits"] = {"nodes": str(shape.most_nodes)}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": shape.name},
        "spec": spec,
    }


def _template(shape: PoolShape) -> dict[str, Any]:
    labels = {POOL_LABEL: shape.name, KIND_LABEL: shape.kind.value}
    if shape.machine is not Machine.NEW:
        labels[MACHINE_LABEL] = shape.machine.value
    if shape.kind is NodeKind.FULL:
        labels[AGENT_LABEL] = shape.agent
    spec: dict[str, Any] = {
        "nodeClassRef": {"group": NODE_CLASS_GROUP, "kind": "KWOKNodeClass", "name": NODE_CLASS},
        "expireAfter": "Never",
        "requirements": [
            # Without the instance type a static pool fails to launch, and stalls all others.
            _is_in("node.kubernetes.io/instance-type", GPU_INSTANCE_TYPE),
            _is_in("karpenter.sh/capacity-type", shape.capacity.value),
        ],
    }
    if shape.startup_taints:
        spec["startupTaints"] = [_taint(taint) for taint in shape.startup_taints]
    if shape.taints:
        spec["taints"] = [_taint(taint) for taint in shape.taints]
    if shape.termination_grace is not None:
        spec["terminationGracePeriod"] = shape.termination_grace
    return {"metadata": {"labels": {**labels, **shape.labels}}, "spec": spec}


def _taint(taint: NodeTaint) -> dict[str, str]:
    """A value that is empty must be left out: the schema of a NodePool refuses it."""
    return {key: text for key, text in taint.model_dump(mode="json").items() if text}


def _is_in(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": [value]}
