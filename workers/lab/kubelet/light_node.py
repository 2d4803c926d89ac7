"""Light nodes: a Node object, a heartbeat and pods that are there at once; hundreds to a process.

Owns the light node and the herd, which watches Nodes and Pods once for all light nodes. They act
through the fleet's connections by impersonation, each as its own kubelet, so NodeRestriction holds
for them too. No processes, no tokens, no agent pod, no host root: the kubelet's identity writes the
conditions.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Coroutine
from typing import Any, Final

import structlog

from workers.lab.devices.devices import Devices
from workers.lab.faults.ailment import Ailment
from workers.lab.faults.fault import (
    AgentManners,
    BootPlan,
    Fault,
    NeedsFullNode,
    NoSuchGpu,
    NotKarpenters,
)
from workers.lab.kubelet.agent import AgentSight, NodeReporter, Published
from workers.lab.kubelet.api import (
    ApiClient,
    ApiError,
    Change,
    JsonObject,
    Seen,
    delete_node,
)
from workers.lab.kubelet.container import now
from workers.lab.kubelet.host_root import MachineIdentity, make_identity
from workers.lab.kubelet.lease import create_lease, renew_lease
from workers.lab.kubelet.light_pods import LightPods
from workers.lab.kubelet.node_object import (
    KubeletSight,
    is_reported_ready,
    new_node,
    node_status,
)
from workers.lab.kubelet.spec import KIND_LABEL, NodeKind, NodeSpec, NodeView, Power

STATUS_FACTOR: Final = 30
"""A light node writes its status this much less often than asked, as a kubelet does (10 s, 5 min)."""

RETRY_S: Final = 0.25

_log = structlog.get_logger(__name__)


class LightNode:
    """One light node."""

    is_full = False
    has_real_agent = False

    def __init__(self, spec: NodeSpec, identity: MachineIdentity, admin: ApiClient) -> None:
        self.spec = spec
        self.identity = identity
        self.plan = BootPlan()
        self.agent = AgentManners()
        self.ailments: dict[str, Ailment] = {}
        self.active: dict[str, Fault] = {}
        self.last_published: Published | None = None
        self.uid = ""
        self.is_kubelet_running = True
        self._admin = admin
        self._client = admin.as_user(f"system:node:{spec.name}", ("system:nodes",))
        self._boot_id = str(uuid.uuid4())
        self._node: JsonObject = {}
        self._reporter = self._make_reporter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pods = LightPods(self._client)

    @property
    def name(self) -> str:
        return self.spec.name

    async def start(self) -> None:
        """Register with healthy conditions; raises ApiError."""
        while True:
            try:
                await self._register()
            except ApiError as error:
                if not error.is_transient:
                    raise
                await asyncio.sleep(RETRY_S)
            else:
                break
        self._spawn(self._beat())
        self._spawn(self._keep_status())

    async def registered(self, deadline_s: float) -> None:
        """It is, once `start` has returned."""

    async def remove(self) -> None:
        self._pods.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def view(self) -> NodeView:
        return NodeView(
            name=self.name,
            kind=self.spec.kind,
            pool=self.spec.pool,
            power=Power.ON,
            boot_id=self._boot_id,
            boots=0,
            uid=self.uid,
            provider_id=self.identity.provider_id,
            gpus=self.spec.gpus,
            pods=self._pods.count,
            is_kubelet_running=self.is_kubelet_running,
            is_agent_running=True,
            faults=tuple(self.active),
            host_root="",
        )

    # What a fault may do (FaultyNode).

    @property
    def devices(self) -> Devices:
        raise NeedsFullNode(self.name, "devices")

    def gpu_uuid(self, index: int) -> str:
        if index >= len(self.identity.gpus):
            raise NoSuchGpu(self.name, index, len(self.identity.gpus))
        return self.identity.gpus[index].uuid

    async def publish(self) -> None:
        if not self.agent.is_silent:
            self.last_published = await self._reporter.write()

    async def stop_kubelet(self) -> None:
        self.is_kubelet_running = False
        self._pods.pause()

    async def restart_kubelet(self) -> None:
        self.is_kubelet_running = True
        await self._write_status()
        self._pods.resume()

    async def power_on(self) -> None:
        raise NeedsFullNode(self.name, "power switch")

    async def replace_machine(self, *, keeps_hardware: bool) -> None:
        if self.spec.is_adopted:
            raise NotKarpenters(self.name)
        self.uid, self._node = "", {}
        await delete_node(self._admin, self.name)
        if not keeps_hardware:
            fresh = self.spec.model_copy(update={"provider_id": None, "system_uuid": None})
            self.identity = make_identity(fresh)
            self.ailments.clear()
            self.active.clear()
            self.agent = AgentManners()
        self._boot_id = str(uuid.uuid4())
        self._reporter = self._make_reporter()
        await self._register()

    async def provider_reboot(self, boot_id: str) -> None:
        """The provider has booted the machine, which took no time; its pods run on."""
        self._boot_id = boot_id
        self._reporter = self._make_reporter()
        self._spawn(self._tell_boot())

    async def _tell_boot(self) -> None:
        await self._write_status()
        await self.publish()

    # What the herd saw.

    def hear_node(self, seen: Seen) -> None:
        """Its own object changed."""
        if seen.change in (Change.DELETED, Change.GONE):
            if seen.item["metadata"]["uid"] == self.uid:
                self.uid, self._node = "", {}
            return
        if self.uid and self.uid != seen.item["metadata"]["uid"]:
            # An event of the object before; the registration told the new UID already.
            return
        self.uid, self._node = seen.item["metadata"]["uid"], seen.item
        if self.is_kubelet_running and not is_reported_ready(seen.item):
            self._spawn(self._write_status())

    def hear_pod(self, seen: Seen) -> None:
        """A pod of this node changed."""
        self._pods.hear(seen)

    # Its loops.

    async def _register(self) -> None:
        """Two requests for a new node: hundreds are added at once."""
        if self.spec.is_adopted:
            await self._take_over()
            return
        body = new_node(self.spec, self._look(), now())
        report = self._reporter.compose()
        body["metadata"] |= report["metadata"]
        body["status"]["conditions"] += report["status"]["conditions"]
        try:
            node = await self._client.post("/api/v1/nodes", body)
        except ApiError as error:
            if error.status != 409:
                raise
            await self._take_over()
        else:
            self.uid, self._node = node["metadata"]["uid"], node
            await create_lease(self._client, self.name, self.uid)

    async def _take_over(self) -> None:
        """A Node object that is there already is this machine's from now on."""
        node = await self._client.get(f"/api/v1/nodes/{self.name}")
        self.uid, self._node = node["metadata"]["uid"], node
        await self._write_status()
        await self._reporter.write()
        await renew_lease(self._client, self.name, self.uid)
        # Those that were bound to it before the herd knew of it.
        query = {"fieldSelector": f"spec.nodeName={self.name}"}
        pods = await self._client.request("GET", "/api/v1/pods", params=query)
        for pod in pods.get("items") or []:
            self._pods.hear(Seen(Change.ADDED, pod))

    async def _beat(self) -> None:
        await asyncio.sleep(random.uniform(0, self.spec.lease_period_s))
        while True:
            if self.is_kubelet_running and self.uid:
                try:
                    await renew_lease(self._client, self.name, self.uid)
                except ApiError as error:
                    _log.warning("lease not renewed", node=self.name, error=str(error))
            await asyncio.sleep(self.spec.lease_period_s)

    async def _keep_status(self) -> None:
        refresh_s = self.spec.agent_refresh_s
        period_s = min(STATUS_FACTOR * self.spec.status_period_s, refresh_s)
        await asyncio.sleep(random.uniform(0, period_s))
        while True:
            try:
                if self.is_kubelet_running and self.uid:
                    await self._write_status()
                if self.uid and not self.agent.is_silent:
                    await self._reporter.write()
            except ApiError as error:
                _log.warning("status not written", node=self.name, error=str(error))
            await asyncio.sleep(period_s)

    async def _write_status(self) -> None:
        status = node_status(self.spec, self._look(), self._node, now())
        path = f"/api/v1/nodes/{self.name}/status"
        self._node = await self._client.patch(path, {"status": status})

    def _look(self) -> KubeletSight:
        return KubeletSight(self.identity, self._boot_id, self.spec.gpus, is_ready=True)

    def _make_reporter(self) -> NodeReporter:
        sight = AgentSight(
            node=self.name,
            boot_id=self._boot_id,
            ailments=self.ailments,
            manners=self.agent,
            refresh_s=self.spec.agent_refresh_s,
        )
        return NodeReporter(self._client, sight)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("light node task died", node=self.name, exc_info=task.exception())


class Herd:
    """All light nodes of a fleet, and the two watches that serve them."""

    def __init__(self, admin: ApiClient) -> None:
        self.nodes: dict[str, LightNode] = {}
        self._admin = admin
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Watch; called when the first light node is added, further calls do nothing."""
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._watch_nodes()),
                asyncio.create_task(self._watch_pods()),
            ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch_nodes(self) -> None:
        query = {"labelSelector": f"{KIND_LABEL}={NodeKind.LIGHT.value}"}
        async for seen in self._admin.reflect("/api/v1/nodes", query):
            if seen.change is not Change.SYNCED:
                node = self.nodes.get(seen.item["metadata"]["name"])
                if node is not None:
                    node.hear_node(seen)

    async def _watch_pods(self) -> None:
        # One watch of all bound pods: cheaper than a watch for each of hundreds of nodes.
        query = {"fieldSelector": "spec.nodeName!="}
        async for seen in self._admin.reflect("/api/v1/pods", query):
            if seen.change is not Change.SYNCED:
                node = self.nodes.get(seen.item["spec"].get("nodeName", ""))
                if node is not None:
                    node.hear_pod(seen)
