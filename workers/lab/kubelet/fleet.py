"""The fleet: all simulated nodes of one lab, and what can be asked of it.

Owns the nodes' coming and going, the record from which a restarted fleet finds them again, and the
life of injected faults. The socket (`server`) asks; nodes do the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import structlog
import yaml
from pydantic import TypeAdapter

from workers.lab.address import NAMESPACE, LabAddress, write_atomically
from workers.lab.controlplane.pki import node_certificate
from workers.lab.faults.fault import Fault, NeedsFullNode
from workers.lab.faults.registry import make_fault
from workers.lab.kubelet.addresses import PodAddresses
from workers.lab.kubelet.adoption import Adoption
from workers.lab.kubelet.api import (
    ApiClient,
    ApiError,
    ClientCertificate,
    JsonObject,
    delete_node,
)
from workers.lab.kubelet.commands import MAX_NODES, AddNodes
from workers.lab.kubelet.full_node import FullNode
from workers.lab.kubelet.host_root import MachineIdentity, make_identity
from workers.lab.kubelet.images import Releases
from workers.lab.kubelet.launcher import Cluster
from workers.lab.kubelet.light_node import Herd, LightNode
from workers.lab.kubelet.spec import Machine, NodeKind, NodeSpec, NodeView, Receipt

ADMIN_CONNECTIONS: Final = 48
"""Shared by all light nodes; the API server's answer takes milliseconds."""
TOKEN_CONNECTIONS: Final = 48
RETRY_S: Final = 0.5
MANIFESTS: Final = Path(__file__).parent / "manifests"
RESUME_DEADLINE_S: Final = 60.0

Node = FullNode | LightNode

_log = structlog.get_logger(__name__)
_RECORD: Final = TypeAdapter(list[tuple[NodeSpec, MachineIdentity]])


class BadRequest(Exception):
    """The request cannot be met; the message says what to do instead."""


class Fleet:
    """All nodes. Made by `open`, ended by `close`."""

    def __init__(self, address: LabAddress, cluster: Cluster) -> None:
        self._address = address
        self._cluster = cluster
        self._herd = Herd(cluster.admin)
        self._nodes: dict[str, Node] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._known: dict[str, MachineIdentity] = {}
        """Of adopted nodes that an earlier process played, by provider id."""
        self._given_back: dict[str, list[MachineIdentity]] = {}
        """Machines of nodes that Karpenter took away, by pool, the oldest first."""
        self._starts: dict[str, asyncio.Task[None]] = {}
        """Of adopted nodes, by name."""
        self._leaving: set[str] = set()
        """Adopted nodes that Karpenter is taking away."""
        self._came_back = asyncio.Event()

    @classmethod
    async def open(cls, address: LabAddress, *, adopts: bool = False) -> Fleet:
        """The fleet of this lab, with the nodes that an earlier process of it had.

        Args:
            address: of the lab.
            adopts: whether it plays the nodes that Karpenter makes, too.
        """
        admin = _admin(address)
        url, ca_file = address.api_url, address.ca_file
        cluster = Cluster(
            url=url,
            ca_file=ca_file,
            tokens=ApiClient.connect(url, ca_file, connections=TOKEN_CONNECTIONS),
            admin=ApiClient.connect(url, ca_file, identity=admin, connections=ADMIN_CONNECTIONS),
            releases=Releases(address.paths.images),
            addresses=PodAddresses.claim(),
        )
        fleet = cls(address, cluster)
        fleet._spawn(fleet._install_stand_in(_stand_in()))
        resumed = fleet._spawn(fleet._resume())
        if adopts:
            fleet._spawn(fleet._adopt_after(resumed))
        return fleet

    async def close(self) -> None:
        """Everything that runs is ended; Node objects stay, as those of machines without power."""
        for task in list(self._tasks):
            task.cancel()
        await self._herd.stop()
        await asyncio.gather(*(node.remove() for node in self._nodes.values()))
        await self._cluster.tokens.close()
        await self._cluster.admin.close()
        self._cluster.addresses.close()

    def views(self) -> list[NodeView]:
        return [node.view() for node in self._nodes.values()]

    async def add(self, request: AddNodes) -> list[NodeView]:
        """Add nodes and wait until they are there.

        Raises:
            BadRequest: a name is taken or given twice, there are too many, or time ran out.
        """
        names = [spec.name for spec in request.specs]
        for name in names:
            if name in self._nodes or names.count(name) > 1:
                raise BadRequest(f"node {name} is there already: choose another name or remove it")
        if len(self._nodes) + len(names) > MAX_NODES:
            raise BadRequest(f"a fleet holds at most {MAX_NODES} nodes: start a second lab")
        nodes = [self._make(spec, make_identity(spec)) for spec in request.specs]
        self._nodes |= {node.name: node for node in nodes}
        self._save()
        try:
            async with asyncio.timeout(request.deadline_s):
                await self._start(nodes, request.deadline_s)
                if request.await_agents:
                    await asyncio.gather(
                        *(
                            node.await_agent(request.deadline_s)
                            for node in nodes
                            if isinstance(node, FullNode) and node.spec.has_agent
                        )
                    )
        except TimeoutError as error:
            raise BadRequest(
                f"{len(nodes)} nodes were added but not all registered within "
                f"{request.deadline_s:g} s: look at `fleetmend lab status` and the fleet's log"
            ) from error
        return [node.view() for node in nodes]

    async def remove(self, names: Iterable[str]) -> None:
        """Switch off and delete the Node objects.

        Raises:
            BadRequest: there is no such node, or it is Karpenter's to remove.
        """
        nodes = [self._find(name) for name in names]
        for node in nodes:
            if node.spec.is_adopted:
                raise BadRequest(f"node {node.name} was made by Karpenter: delete its NodeClaim")
        for node in nodes:
            self._nodes.pop(node.name, None)
            self._herd.nodes.pop(node.name, None)
        self._save()
        await asyncio.gather(*(self._remove(node) for node in nodes))

    async def inject(self, name: str, fault_name: str, options: Mapping[str, str]) -> Receipt:
        """Make the fault so; what it wrote is in the receipt.

        Raises:
            BadRequest: the node doesn't exist, or has the fault already.
            BadFault: no such fault or option.
        """
        node = self._find(name)
        fault = make_fault(fault_name, options)
        if fault.needs_full and not node.is_full:
            raise NeedsFullNode(name, "host root and reboots of its own")
        if fault.key in node.active:
            raise BadRequest(f"node {name} has {fault.key} already: clear it first")
        node.last_published = None
        said_before = _last_record_at(node)
        if not fault.is_event:
            node.active[fault.key] = fault
        try:
            await fault.inject(node)
        except BaseException:
            # Half a fault is none.
            node.active.pop(fault.key, None)
            node.ailments.pop(fault.key, None)
            raise
        if fault.for_s is not None:
            self._spawn(self._expire(node, fault))
        said = _last_record_at(node)
        receipt = _receipt(node, fault_name)
        return receipt.model_copy(update={"written_at": said if said != said_before else None})

    async def clear(self, name: str, fault_name: str) -> Receipt:
        """End every active fault of that name on the node.

        Raises:
            BadRequest: there is none.
        """
        node = self._find(name)
        faults = [fault for fault in node.active.values() if fault.name == fault_name]
        if not faults:
            active = ", ".join(node.active) or "none"
            raise BadRequest(f"node {name} has no active fault {fault_name}; active: {active}")
        node.last_published = None
        for fault in faults:
            node.active.pop(fault.key, None)
            await fault.clear(node)
        return _receipt(node, fault_name, tuple(fault.key for fault in faults))

    async def reboot(self, name: str, why: str) -> None:
        """Ask the machine itself.

        Raises:
            NeedsFullNode: a light node has nothing to boot.
        """
        node = self._find(name)
        if not isinstance(node, FullNode):
            raise NeedsFullNode(name, "machine that could boot")
        node.ask_reboot(why)

    # What the adoption asks.

    async def adopt(self, spec: NodeSpec) -> None:
        """Play a node that Karpenter has made, as soon as there is a machine for it."""
        # Not awaited: others wait behind it.
        self._starts[spec.name] = self._spawn(self._bring_up(spec))

    async def _bring_up(self, spec: NodeSpec) -> None:
        identity = self._known.pop(spec.provider_id or "", None)
        node = self._make(spec, identity or await self._machine_for(spec))
        self._nodes[node.name] = node
        self._save()
        await node.start()

    async def expect_back(self, name: str) -> None:
        """Karpenter is taking a node away; its machine will be given back."""
        self._leaving.add(name)

    async def abandon(self, name: str) -> None:
        """The Node of an adopted machine is gone."""
        start = self._starts.pop(name)
        start.cancel()
        await asyncio.wait([start])
        node = self._nodes.pop(name, None)
        self._herd.nodes.pop(name, None)
        if node is not None:
            self._save()
            await node.remove()
            self._given_back.setdefault(node.spec.pool, []).append(node.identity)
        self._leaving.discard(name)
        self._came_back.set()

    async def announce_boot(self, name: str, boot_id: str) -> None:
        """Karpenter's provider has rebooted an adopted machine."""
        node = self._nodes.get(name)
        if node is not None:
            await node.provider_reboot(boot_id)

    async def _machine_for(self, spec: NodeSpec) -> MachineIdentity:
        fresh = make_identity(spec)
        if spec.machine is Machine.NEW:
            return fresh
        given_back = self._given_back.setdefault(spec.pool, [])
        # Karpenter buys the successor while the old node is still drained.
        while not given_back and self._is_leaving(spec.pool):
            self._came_back.clear()
            await self._came_back.wait()
        if not given_back:
            return fresh
        # The same board and cards; what the cloud and the installation give is new.
        old = given_back.pop(0)
        return replace(fresh, system_uuid=old.system_uuid, gpus=old.gpus)

    def _is_leaving(self, pool: str) -> bool:
        nodes = (self._nodes.get(name) for name in self._leaving)
        return any(node is not None and node.spec.pool == pool for node in nodes)

    async def _adopt_after(self, resumed: asyncio.Task[None]) -> None:
        await asyncio.wait([resumed])
        await Adoption(self._cluster.admin, self).run()

    async def _remove(self, node: Node) -> None:
        await node.remove()
        await delete_node(self._cluster.admin, node.name)

    def _find(self, name: str) -> Node:
        node = self._nodes.get(name)
        if node is None:
            known = ", ".join(list(self._nodes)[:20]) or "none"
            raise BadRequest(f"no simulated node {name[:80]!r}; there are: {known}")
        return node

    def _make(self, spec: NodeSpec, identity: MachineIdentity) -> Node:
        if spec.kind is NodeKind.LIGHT:
            node = LightNode(spec, identity, self._cluster.admin)
            self._herd.nodes[spec.name] = node
            self._herd.start()
            return node
        client = self._adopted_client(spec) if spec.is_adopted else self._own_client(spec)
        folder = self._address.paths.nodes / spec.name
        return FullNode(spec, identity, client=client, cluster=self._cluster, folder=folder)

    def _own_client(self, spec: NodeSpec) -> ApiClient:
        certificate, key = node_certificate(self._address.directory, spec.name)
        return ApiClient.connect(
            self._address.api_url,
            self._address.ca_file,
            identity=ClientCertificate(certificate, key),
        )

    def _adopted_client(self, spec: NodeSpec) -> ApiClient:
        """By impersonation: Karpenter's names are longer than a certificate's subject may be."""
        admin = _admin(self._address)
        own = ApiClient.connect(self._address.api_url, self._address.ca_file, identity=admin)
        return own.as_user(f"system:node:{spec.name}", ("system:nodes",))

    async def _start(self, nodes: list[Node], deadline_s: float) -> None:
        await asyncio.gather(*(node.start() for node in nodes))
        await asyncio.gather(*(node.registered(deadline_s) for node in nodes))

    async def _expire(self, node: Node, fault: Fault) -> None:
        """A fault with `for=` clears itself, unless it was cleared before."""
        assert fault.for_s is not None, "asked for only then"
        await asyncio.sleep(fault.for_s)
        if node.active.get(fault.key) is fault:
            del node.active[fault.key]
            await fault.clear(node)

    async def _install_stand_in(self, daemon_set: JsonObject) -> None:
        """The stand-in agent's DaemonSet, unless it is there; the real one's is the chart's."""
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
        while True:
            try:
                await self._cluster.admin.post(path, daemon_set)
            except ApiError as error:
                if error.status == 409:
                    return
                # Also 404: the namespace comes with the installation.
                _log.info("agent's DaemonSet not yet installed", error=str(error))
                await asyncio.sleep(RETRY_S)
            else:
                return

    def _record(self) -> Path:
        return self._address.directory / "fleet.json"

    def _save(self) -> None:
        rows = [(node.spec, node.identity) for node in self._nodes.values()]
        write_atomically(self._record(), _RECORD.dump_json(rows).decode())

    async def _resume(self) -> None:
        try:
            rows = _RECORD.validate_json(self._record().read_bytes())
        except FileNotFoundError:
            return
        # Adopted ones are found by their Nodes, if those are still there.
        self._known = {i.provider_id: i for spec, i in rows if spec.is_adopted}
        nodes = [self._make(spec, identity) for spec, identity in rows if not spec.is_adopted]
        self._nodes |= {node.name: node for node in nodes}
        await self._start(nodes, RESUME_DEADLINE_S)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("fleet task died", exc_info=task.exception())


def _admin(address: LabAddress) -> ClientCertificate:
    pki = address.paths.pki
    return ClientCertificate(pki / "admin.crt", pki / "admin.key")


def _stand_in() -> JsonObject:
    """The DaemonSet of the agent's stand-in."""
    text = (MANIFESTS / "agent_stand_in.yaml").read_text(encoding="utf-8")
    return cast("JsonObject", yaml.safe_load(text))


def _last_record_at(node: Node) -> float | None:
    return node.devices.kmsg.written_at if isinstance(node, FullNode) else None


def _receipt(node: Node, fault: str, cleared: tuple[str, ...] = ()) -> Receipt:
    published = node.last_published
    if published is None:
        return Receipt(node=node.name, fault=fault, cleared=cleared)
    return Receipt(
        node=node.name,
        fault=fault,
        sent_at=published.sent_at,
        patched_at=published.patched_at,
        resource_version=published.resource_version,
        cleared=cleared,
    )
