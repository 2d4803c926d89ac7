"""The kubelet of a full node: registration, Lease, status, and a worker for each pod.

Owns the loops that speak to the API server with the node's identity. The machine below it
(`full_node`) starts and stops it and owns what runs. As a real kubelet it registers at its start
only: a Node object deleted under it stays gone until the next start. One that Karpenter made is
taken over as it is, and waited for if it isn't there.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from workers.lab.kubelet.api import ApiClient, ApiError, Change, JsonObject, Seen
from workers.lab.kubelet.container import now
from workers.lab.kubelet.lease import create_lease, renew_lease
from workers.lab.kubelet.node_object import (
    KubeletSight,
    is_reported_ready,
    new_node,
    node_status,
)
from workers.lab.kubelet.pod_worker import PodHost, PodWorker
from workers.lab.kubelet.spec import NodeSpec

RETRY_S: Final = 0.25
INVALID: Final = (400, 422)
"""Refusals of what was asked, as opposed to refusals of the moment or of the asker."""

_log = structlog.get_logger(__name__)


@dataclass
class Kubelet:
    """One start of a kubelet, until `stop`.

    `look` gives what it sees of the machine at that moment.
    """

    spec: NodeSpec
    client: ApiClient
    pods: PodHost
    look: Callable[[], KubeletSight]
    registered: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """Registered, or refused for what the specification says."""
    refusal: str = ""
    _node: JsonObject = field(default_factory=dict)
    _workers: dict[str, PodWorker] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _touched: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def node_uid(self) -> str:
        """UID of the Node object; '' when there is none (any more)."""
        return str(self._node.get("metadata", {}).get("uid", ""))

    def start(self) -> None:
        self._spawn(self._run())

    async def stop(self) -> None:
        """No request leaves after this; what the pods run goes on."""
        tasks, self._tasks = list(self._tasks), set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def touch(self) -> None:
        """Something the status tells has changed: write it now."""
        self._touched.set()

    async def write_status(self) -> None:
        """One status, now.

        Raises:
            ApiError: not written.
        """
        status = node_status(self.spec, self.look(), self._node, now())
        self._node = await self.client.patch(f"{self._path}/status", {"status": status})

    @property
    def _path(self) -> str:
        return f"/api/v1/nodes/{self.spec.name}"

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("kubelet task died", node=self.spec.name, exc_info=task.exception())

    async def _run(self) -> None:
        await self._register()
        self._spawn(self._renew_lease())
        self._spawn(self._keep_status())
        self._spawn(self._watch_node())
        self._spawn(self._watch_pods())

    async def _register(self) -> None:
        while True:
            try:
                await self._register_once()
            except ApiError as error:
                _log.warning("node not registered", node=self.spec.name, error=str(error))
                if error.status in INVALID:
                    self.refusal = str(error)
                    self.answered.set()
                await asyncio.sleep(RETRY_S)
            else:
                self.refusal = ""
                self.registered.set()
                self.answered.set()
                return

    async def _register_once(self) -> None:
        try:
            self._node = await self.client.get(self._path)
        except ApiError as error:
            if error.status != 404 or self.spec.is_adopted:
                raise
            body = new_node(self.spec, self.look(), now())
            self._node = await self.client.post("/api/v1/nodes", body)
            await create_lease(self.client, self.spec.name, self.node_uid)
        else:
            await self.write_status()
            await renew_lease(self.client, self.spec.name, self.node_uid)

    async def _renew_lease(self) -> None:
        # Nodes added together must not renew together.
        await asyncio.sleep(random.uniform(0, self.spec.lease_period_s))
        while True:
            wait_s = self.spec.lease_period_s
            if self.node_uid:
                try:
                    await renew_lease(self.client, self.spec.name, self.node_uid)
                except ApiError as error:
                    _log.warning("lease not renewed", node=self.spec.name, error=str(error))
                    wait_s = min(wait_s, RETRY_S)
            await asyncio.sleep(wait_s)

    async def _keep_status(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self.spec.status_period_s):
                    await self._touched.wait()
            except TimeoutError:
                pass
            self._touched.clear()
            if not self.node_uid:
                continue
            try:
                await self.write_status()
            except ApiError as error:
                _log.warning("status not written", node=self.spec.name, error=str(error))
                if error.is_transient:
                    await asyncio.sleep(RETRY_S)
                    self.touch()

    async def _watch_node(self) -> None:
        """Answer to what others do to the Node: Ready taken away, the object deleted."""
        query = {"fieldSelector": f"metadata.name={self.spec.name}"}
        async for seen in self.client.reflect("/api/v1/nodes", query):
            if seen.change is Change.SYNCED:
                continue
            if seen.change in (Change.DELETED, Change.GONE):
                if seen.item["metadata"]["uid"] == self.node_uid:
                    self._node = {}
                continue
            if self._is_old(seen.item):
                continue
            self._node = seen.item
            if self.look().is_ready and not is_reported_ready(seen.item):
                self.touch()

    def _is_old(self, node: JsonObject) -> bool:
        """Whether an answer to our own write told more than this event does."""
        mine, other = self._node.get("metadata", {}), node["metadata"]
        is_same = mine.get("uid") == other["uid"]
        return is_same and int(other["resourceVersion"]) < int(mine["resourceVersion"])

    async def _watch_pods(self) -> None:
        query = {"fieldSelector": f"spec.nodeName={self.spec.name}"}
        async for seen in self.client.reflect("/api/v1/pods", query):
            if seen.change is Change.SYNCED:
                self._drop_strangers()
            else:
                self._hear(seen)

    def _hear(self, seen: Seen) -> None:
        uid = seen.item["metadata"]["uid"]
        worker = self._workers.get(uid)
        if seen.change in (Change.DELETED, Change.GONE):
            if worker is not None:
                worker.abandon()
                del self._workers[uid]
        elif worker is not None:
            worker.observe(seen.item)
        else:
            worker = PodWorker(self.pods, seen.item)
            self._workers[uid] = worker
            # It stays known until the pod is gone: an event that was under way when the worker
            # ended must not start the pod again.
            self._spawn(worker.run())

    def _drop_strangers(self) -> None:
        """Sandboxes whose pods were deleted while no kubelet looked."""
        for uid, sandbox in list(self.pods.runtime.sandboxes.items()):
            if uid not in self._workers:
                for container in sandbox.running():
                    container.kill()
                del self.pods.runtime.sandboxes[uid]
