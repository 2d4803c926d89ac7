"""The Node object as a kubelet writes it.

Pure: owns the shape of registration and status. Both kinds of nodes use it; `kubelet` and
`light_node` decide when to send what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from workers.lab.faults.ailment import seconds
from workers.lab.kubelet.api import JsonObject
from workers.lab.kubelet.host_root import MachineIdentity
from workers.lab.kubelet.spec import (
    AGENT_LABEL,
    GPU_RESOURCE,
    KIND_LABEL,
    MACHINE_RESOURCES,
    POOL_LABEL,
    NodeSpec,
)

KUBELET_VERSION: Final = "v1.36.3"


@dataclass(frozen=True)
class KubeletSight:
    """What a kubelet knows of its machine when it writes a status."""

    identity: MachineIdentity
    boot_id: str
    gpus: int
    is_ready: bool


def new_node(spec: NodeSpec, sight: KubeletSight, at: datetime) -> JsonObject:
    """The object that a kubelet registers."""
    labels = {
        "kubernetes.io/hostname": spec.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": f"lab.{spec.gpus}gpu",
        "topology.kubernetes.io/zone": "lab-a",
        **({POOL_LABEL: spec.pool} if spec.pool else {}),
        KIND_LABEL: spec.kind.value,
        **({AGENT_LABEL: spec.agent} if spec.has_agent else {}),
        **spec.labels,
    }
    node_spec: JsonObject = {"providerID": sight.identity.provider_id}
    if spec.taints:
        node_spec["taints"] = [taint.model_dump(mode="json") for taint in spec.taints]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": spec.name, "labels": labels},
        "spec": node_spec,
        "status": node_status(spec, sight, {}, at),
    }


def node_status(
    spec: NodeSpec, sight: KubeletSight, standing: Mapping[str, Any], at: datetime
) -> JsonObject:
    """The status of a heartbeat; as a strategic-merge patch it leaves foreign conditions alone.

    Args:
        spec: of the node.
        sight: what the kubelet knows.
        standing: the Node as last seen, for the transition times; empty at registration.
        at: now.
    """
    resources = dict(MACHINE_RESOURCES)
    if spec.gpus:
        resources[GPU_RESOURCE] = str(sight.gpus)
    return {
        "capacity": resources,
        "allocatable": resources,
        "conditions": _conditions(standing, at, is_ready=sight.is_ready),
        "addresses": [
            {"type": "InternalIP", "address": "127.0.0.1"},
            {"type": "Hostname", "address": spec.name},
        ],
        "nodeInfo": {
            "machineID": sight.identity.machine_id,
            "systemUUID": sight.identity.system_uuid,
            "bootID": sight.boot_id,
            "kernelVersion": "6.8.0-lab",
            "osImage": "fleetmend lab",
            "containerRuntimeVersion": "lab://1.0.0",
            "kubeletVersion": KUBELET_VERSION,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
    }


def is_reported_ready(node: JsonObject) -> bool:
    """Whether the API server has Ready=True for it."""
    return any(
        c["type"] == "Ready" and c["status"] == "True"
        for c in node.get("status", {}).get("conditions") or []
    )


def _conditions(standing: Mapping[str, Any], at: datetime, *, is_ready: bool) -> list[JsonObject]:
    before = {c["type"]: c for c in standing.get("status", {}).get("conditions") or []}
    rows = [
        _condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        _condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        _condition("PIDPressure", "False", "KubeletHasSufficientPID"),
        _condition("Ready", "True", "KubeletReady")
        if is_ready
        else _condition("Ready", "False", "KubeletNotReady"),
    ]
    for row in rows:
        old = before.get(row["type"], {})
        is_same = old.get("status") == row["status"]
        row["lastHeartbeatTime"] = seconds(at)
        row["lastTransitionTime"] = old.get("lastTransitionTime") if is_same else seconds(at)
    return rows


def _condition(type_: str, status: str, reason: str) -> JsonObject:
    return {"type": type_, "status": status, "reason": reason, "message": "the lab says so"}
