"""Playing the kubelets of nodes that Karpenter made.

Owns the watch of those Nodes: one that appears gets a stand-in, one that goes takes it away, and a
boot id that Karpenter's provider announces becomes a boot of the machine. Plays the cloud's
controller, too, for claims that went before they were registered. The fleet makes, keeps and ends
the stand-ins; what they do is `full_node`'s and `light_node`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

import structlog
from pydantic import ValidationError

from workers.lab.faults.ailment import seconds
from workers.lab.kubelet.api import (
    MERGE,
    ApiClient,
    ApiError,
    Change,
    JsonObject,
    Seen,
    delete_node,
)
from workers.lab.kubelet.container import now
from workers.lab.kubelet.spec import (
    AGENT_LABEL,
    GPU_RESOURCE,
    KARPENTER_PROVIDER,
    KIND_LABEL,
    MACHINE_LABEL,
    POOL_LABEL,
    Machine,
    NodeKind,
    NodeSpec,
)

ANNOUNCED_BOOT: Final = "kwok-"
"""How boot ids begin that Karpenter's kwok provider writes in place of a reboot (1.15.0)."""
NODE_POOL_LABEL: Final = "karpenter.sh/nodepool"
NODE_CLAIMS: Final = "/apis/karpenter.sh/v1/nodeclaims"

_log = structlog.get_logger(__name__)


class Adopters(Protocol):
    """What the adoption asks of the fleet."""

    async def adopt(self, spec: NodeSpec) -> None:
        """Play this node from now on."""

    async def expect_back(self, name: str) -> None:
        """Karpenter is taking the node away."""

    async def abandon(self, name: str) -> None:
        """Its Node is gone: the machine is switched off for good."""

    async def announce_boot(self, name: str, boot_id: str) -> None:
        """The provider has rebooted the machine."""


class Adoption:
    """The watch; `run` never ends by itself."""

    def __init__(self, admin: ApiClient, fleet: Adopters) -> None:
        self._admin = admin
        self._fleet = fleet
        self._uids: dict[str, str] = {}
        self._boot_ids: dict[str, set[str]] = {}

    async def run(self) -> None:
        """Follow Karpenter's Nodes and NodeClaims for ever."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._follow_nodes())
            both.create_task(self._follow_claims())

    async def _follow_claims(self) -> None:
        """A claim that goes before its registration leaves a Node without a machine behind it.

        In life the machine ends, and then the cloud's controller deletes the Node; Karpenter itself
        deletes only the Nodes of registered claims, before the claim goes.
        """
        async for seen in self._admin.reflect(NODE_CLAIMS, {}):
            provider_id = str(seen.item.get("status", {}).get("providerID", ""))
            name = provider_id.removeprefix(KARPENTER_PROVIDER)
            if name not in self._uids:
                continue
            if seen.change in (Change.DELETED, Change.GONE):
                await self._end(name)
            elif seen.item["metadata"].get("deletionTimestamp"):
                await self._fleet.expect_back(name)

    async def _end(self, name: str) -> None:
        try:
            await delete_node(self._admin, name)
        except ApiError as error:
            _log.warning("node of a gone claim not deleted", node=name, error=str(error))

    async def _follow_nodes(self) -> None:
        query = {"labelSelector": NODE_POOL_LABEL}
        async for seen in self._admin.reflect("/api/v1/nodes", query):
            if seen.change is not Change.SYNCED and _is_karpenters(seen.item):
                await self._hear(seen)

    async def _hear(self, seen: Seen) -> None:
        name, uid = seen.item["metadata"]["name"], seen.item["metadata"]["uid"]
        if seen.change in (Change.DELETED, Change.GONE):
            if self._uids.get(name) == uid:
                del self._uids[name], self._boot_ids[name]
                await self._fleet.abandon(name)
            return
        boot_id = seen.item.get("status", {}).get("nodeInfo", {}).get("bootID", "")
        if self._uids.get(name) != uid:
            await self._adopt(name, uid, seen.item)
            self._boot_ids.setdefault(name, set()).add(boot_id)
        elif boot_id.startswith(ANNOUNCED_BOOT) and boot_id not in self._boot_ids[name]:
            # Each once: a status that was under way may show an old one again.
            self._boot_ids[name].add(boot_id)
            await self._fleet.announce_boot(name, boot_id)

    async def _adopt(self, name: str, uid: str, node: JsonObject) -> None:
        if name in self._uids:
            await self._fleet.abandon(name)
        try:
            spec = spec_of(node)
        except ValidationError as error:
            _log.error("node can't be played", node=name, error=str(error)[:500])
            return
        self._uids[name] = uid
        try:
            await self._say_not_ready(name)
            await self._label(node, spec)
        except ApiError as error:
            _log.warning("adopted node not prepared", node=name, error=str(error))
        await self._fleet.adopt(spec)
        _log.info("adopted", node=name, kind=spec.kind.value, pool=spec.pool)

    async def _say_not_ready(self, name: str) -> None:
        """At once: the provider promises GPUs on a Node without conditions, and pods would come.

        In life the kubelet makes the Node, and its GPUs are there when their plugin is.
        """
        at = seconds(now())
        ready = {
            "type": "Ready",
            "status": "False",
            "reason": "KubeletNotReady",
            "message": "the machine boots",
            "lastHeartbeatTime": at,
            "lastTransitionTime": at,
        }
        none = {GPU_RESOURCE: "0"}
        status: JsonObject = {"conditions": [ready], "capacity": none, "allocatable": none}
        await self._admin.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    async def _label(self, node: JsonObject, spec: NodeSpec) -> None:
        """The labels by which agents and the herd find a node, if the NodePool gave none."""
        wanted = {KIND_LABEL: spec.kind.value}
        if spec.kind is NodeKind.FULL:
            wanted[AGENT_LABEL] = spec.agent
        labels = node["metadata"].get("labels") or {}
        missing = {key: value for key, value in wanted.items() if labels.get(key) != value}
        if missing:
            path = f"/api/v1/nodes/{spec.name}"
            await self._admin.patch(path, {"metadata": {"labels": missing}}, content_type=MERGE)


def spec_of(node: JsonObject) -> NodeSpec:
    """The machine that a Node of Karpenter's asks for.

    Raises:
        ValidationError: it asks for what the lab can't play.
    """
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    # Not its capacity: of a static pool's node that is empty.
    promised: Mapping[str, str] = node.get("status", {}).get("allocatable") or {}
    return NodeSpec.model_validate(
        {
            "name": node["metadata"]["name"],
            "pool": labels.get(POOL_LABEL, "default"),
            "kind": labels.get(KIND_LABEL, NodeKind.FULL.value),
            "agent": labels.get(AGENT_LABEL, "stand-in"),
            "machine": labels.get(MACHINE_LABEL, Machine.NEW.value),
            "gpus": int(promised.get(GPU_RESOURCE, "0")),
            "provider_id": node["spec"]["providerID"],
        }
    )


def _is_karpenters(node: JsonObject) -> bool:
    return str(node["spec"].get("providerID", "")).startswith(KARPENTER_PROVIDER)
