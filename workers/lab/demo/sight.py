"""What an onlooker sees of the demo's nodes: the API server's state, as `kubectl get` shows it.

Owns reading Nodes and machine records into one value per node. Used for the live table and for the
verdict. Judges nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workers.lab.controlplane.api import LabApi
from workers.lab.controlplane.errors import ApiRequestFailed

MARKER = "fleetmend.io/episode"


@dataclass(frozen=True)
class Seen:
    """One node now; "" = nothing is recorded."""

    node: str
    pool: str
    is_ready: bool
    is_cordoned: bool
    episode: str
    handed_over: str
    phase: str
    fault: str
    outcome: str
    is_held: bool
    held_reason: str
    has_baseline: bool

    @property
    def has_marker(self) -> bool:
        """True if fleetmend's marker stands on the Node."""
        return bool(self.episode or self.handed_over)


def look(api: LabApi) -> dict[str, Seen]:
    """Every node, by name."""
    nodes = _items(api, "/api/v1/nodes")
    machines = _items(api, "/apis/fleetmend.io/v1alpha1/gpumachines")
    found = (_seen(node, _machine(node, machines)) for node in nodes)
    return {seen.node: seen for seen in found}


def _machine(node: Mapping[str, Any], machines: list[Any]) -> Mapping[str, Any]:
    """The status of the node's machine record, {} = it has none.

    A Node that Karpenter made has two, if it was noticed before its kubelet said which machine it is.
    """
    uid, info = node["metadata"]["uid"], (node.get("status") or {}).get("nodeInfo") or {}
    own = [m for m in machines if ((m.get("spec") or {}).get("node") or {}).get("uid") == uid]
    machine_id = str(info.get("systemUUID", "")).lower()
    own.sort(key=lambda machine: bool(machine["metadata"]["name"] == machine_id))
    return dict(own[-1].get("status") or {}) if own else {}


def gone(node: str, pool: str, phase: str, outcome: str) -> Seen:
    """A node that is away, as its history leaves it."""
    return Seen(
        node=node,
        pool=pool,
        is_ready=False,
        is_cordoned=False,
        episode="",
        handed_over="",
        phase=phase,
        fault="",
        outcome=outcome,
        is_held=False,
        held_reason="",
        has_baseline=False,
    )


def _items(api: LabApi, path: str) -> list[Any]:
    try:
        return list(api.request("GET", path).get("items") or [])
    except ApiRequestFailed as error:
        if error.status in (429, 500, 503, 504):
            return []  # busy for a moment: the next look tells
        raise


def _seen(node: Mapping[str, Any], status: Mapping[str, Any]) -> Seen:
    meta, spec = node["metadata"], node.get("spec") or {}
    marker = _marker(meta)
    return Seen(
        node=str(meta["name"]),
        pool=str((meta.get("labels") or {}).get("fleetmend.io/pool", "")),
        is_ready=_is_ready(node),
        is_cordoned=spec.get("unschedulable") is True,
        episode=str(marker.get("episode") or ""),
        handed_over=str(marker.get("handed-over") or ""),
        phase=str(status.get("phase") or ""),
        fault=str(status.get("fault") or ""),
        outcome=str(status.get("outcome") or ""),
        is_held=status.get("held") is True,
        held_reason=str(status.get("heldReason") or ""),
        has_baseline=bool(status.get("baseline")),
    )


def _marker(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    text = (meta.get("annotations") or {}).get(MARKER)
    if not text:
        return {}
    try:
        marker = json.loads(text)
    except ValueError:
        return {"episode": "unreadable"}
    return marker if isinstance(marker, dict) else {"episode": "unreadable"}


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
