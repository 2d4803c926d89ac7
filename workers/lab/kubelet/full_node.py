"""A full node: a simulated machine with a host root, a kubelet, pods that run, and reboots.

Owns the machine: its power, its boots, its GPUs, what ails it, and the starting of containers on it.
Its kubelet (`kubelet`) speaks to the API server; faults act on it through the `FaultyNode` protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import structlog

from workers.lab.devices.build import ensure_programs
from workers.lab.devices.devices import Board, Devices
from workers.lab.faults.ailment import Ailment
from workers.lab.faults.fault import AgentManners, BootPlan, Fault, NoSuchGpu, NotKarpenters
from workers.lab.kubelet.agent import AgentContainer, AgentSight, Published
from workers.lab.kubelet.api import ApiClient, ApiError, delete_node
from workers.lab.kubelet.container import ContainerRuntime
from workers.lab.kubelet.host_root import (
    REBOOT_FIFO,
    BootEvent,
    Gpu,
    HostRoot,
    MachineIdentity,
    make_identity,
)
from workers.lab.kubelet.kubelet import Kubelet
from workers.lab.kubelet.launcher import PODS_LOGS, Cluster, Launcher, NeedsStandIn
from workers.lab.kubelet.node_object import KubeletSight
from workers.lab.kubelet.pod_worker import PodHost
from workers.lab.kubelet.process import ProcessContainer
from workers.lab.kubelet.spec import NodeSpec, NodeView, Power

AGENT_DEADLINE_S: Final = 20.0
"""How long a fault waits for the node's agent; in a new lab the DaemonSet's pod takes seconds."""
PUBLISH_RETRY_S: Final = 0.25
FLAP_S: Final = 0.3
"""How long Ready stays False when a pretended reboot lets it flap."""

_log = structlog.get_logger(__name__)


class NodeRefused(Exception):
    """The API server takes no such Node."""

    def __init__(self, node: str, refusal: str) -> None:
        super().__init__(
            f"node {node} is refused by the API server ({refusal}): remove it and add it corrected"
        )


class FullNode:
    """One machine. Made by the fleet; lives until `remove` or the end of the process."""

    is_full = True

    def __init__(
        self,
        spec: NodeSpec,
        identity: MachineIdentity,
        *,
        client: ApiClient,
        cluster: Cluster,
        folder: Path,
    ) -> None:
        self.spec = spec
        self.identity = identity
        self.plan = BootPlan()
        self.agent = AgentManners()
        self.ailments: dict[str, Ailment] = {}
        self.active: dict[str, Fault] = {}
        self.last_published: Published | None = None
        self.power = Power.OFF
        self._client = client
        self._cluster = cluster
        self.devices = Devices(folder, model=spec.model)
        self._host = HostRoot(folder, spec.model)
        self._runtime = ContainerRuntime()
        self._launcher = Launcher(
            spec.name, client, cluster, self._host, self._agent_sight, self.devices
        )
        self._boots = 0
        self._gpus: tuple[Gpu, ...] = ()
        self._is_plugin_up = False
        self._is_ready = False
        self._is_kubelet_dead = False
        self._is_going_down = False
        self._announced_boot_id = ""
        self._kubelet: Kubelet | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._power_task: asyncio.Task[None] | None = None
        self._fifo = -1

    @property
    def name(self) -> str:
        return self.spec.name

    async def start(self) -> None:
        """First boot, at once; the kubelet registers on its own (`registered`)."""
        is_known = bool(self._host.boot_id)
        self._runtime.has_forgotten = is_known
        self._host.install(self.identity)
        await self._install_devices()
        # Read and write, so that the FIFO never reports its end and writers never block.
        self._fifo = os.open(self._host.path / REBOOT_FIFO, os.O_RDWR | os.O_NONBLOCK)
        asyncio.get_running_loop().add_reader(self._fifo, self._read_fifo)
        event = BootEvent.BOOT if is_known else BootEvent.FIRST
        self._come_up(event, "the lab's fleet started it", is_first=True)

    async def registered(self, deadline_s: float) -> None:
        """Wait for the Node object.

        Raises:
            TimeoutError: not registered by then.
            NodeRefused: the API server finds the specification invalid.
        """
        kubelet = self._kubelet
        if kubelet is None:
            return
        async with asyncio.timeout(deadline_s):
            await kubelet.answered.wait()
        if kubelet.refusal:
            raise NodeRefused(self.name, kubelet.refusal)

    async def remove(self) -> None:
        """The machine is switched off for good; the host root with its boot log stays."""
        if self._fifo >= 0:
            asyncio.get_running_loop().remove_reader(self._fifo)
            os.close(self._fifo)
        tasks, self._tasks = list(self._tasks), set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._go_dark()
        self.devices.close()
        self.power = Power.OFF
        await self._client.close()

    def view(self) -> NodeView:
        kubelet = self._kubelet
        return NodeView(
            name=self.name,
            kind=self.spec.kind,
            pool=self.spec.pool,
            power=self.power,
            boot_id=self._host.boot_id,
            boots=self._boots,
            uid="" if kubelet is None else kubelet.node_uid,
            provider_id=self.identity.provider_id,
            gpus=len(self._gpus),
            pods=len(self._runtime.sandboxes),
            is_kubelet_running=kubelet is not None,
            is_agent_running=self._launcher.agent is not None,
            agent=self.spec.agent,
            faults=tuple(self.active),
            host_root=str(self._host.path),
        )

    # What a fault may do (FaultyNode).

    @property
    def has_real_agent(self) -> bool:
        return self.spec.agent == "real"

    def gpu_uuid(self, index: int) -> str:
        if index >= len(self.identity.gpus):
            raise NoSuchGpu(self.name, index, len(self.identity.gpus))
        return self.identity.gpus[index].uuid

    async def publish(self) -> None:
        if self.agent.is_silent or self.power is not Power.ON:
            return
        end = asyncio.get_running_loop().time() + AGENT_DEADLINE_S
        while True:
            agent = await self.await_agent(AGENT_DEADLINE_S)
            if not isinstance(agent, AgentContainer):
                raise NeedsStandIn(self.name)
            try:
                self.last_published = await agent.reporter.write()
            except ApiError as error:
                if not error.is_transient or asyncio.get_running_loop().time() > end:
                    raise
                await asyncio.sleep(PUBLISH_RETRY_S)
            else:
                return

    async def await_agent(self, deadline_s: float) -> AgentContainer | ProcessContainer:
        """The running agent; raises AgentMissing after the deadline."""
        return await self._launcher.await_agent(deadline_s)

    async def stop_kubelet(self) -> None:
        self._is_kubelet_dead = True
        await self._halt_kubelet()

    async def restart_kubelet(self) -> None:
        self._is_kubelet_dead = False
        if self.power is Power.ON and self._kubelet is None:
            self._start_kubelet()

    async def power_on(self) -> None:
        if self.power is Power.HUNG:
            self.power = Power.BOOTING
            self._set_power_task(self._boot(BootEvent.BOOT, "powered on after it had hung"))

    async def replace_machine(self, *, keeps_hardware: bool) -> None:
        if self.spec.is_adopted:
            raise NotKarpenters(self.name)
        if self._power_task is not None:
            self._power_task.cancel()
        self.power = Power.BOOTING
        await self._go_dark()
        await delete_node(self._cluster.admin, self.name)
        event, why = BootEvent.BOOT, "the cloud stopped and started it: a new Node object"
        if not keeps_hardware:
            fresh = self.spec.model_copy(update={"provider_id": None, "system_uuid": None})
            self.identity = make_identity(fresh)
            self._host.install(self.identity)
            await self._install_devices()
            self._runtime.wipe()
            self.ailments.clear()
            self.plan = BootPlan()
            self.agent = AgentManners()
            self._is_kubelet_dead = False
            self.active.clear()
            event, why = BootEvent.NEW_MACHINE, "the cloud put another machine in its place"
        self._set_power_task(self._boot(event, why))

    # Reboots.

    def ask_reboot(self, why: str) -> None:
        """Somebody asked the machine to reboot; it does what its boot plan says."""
        if self.plan.lies:
            self._host.log(BootEvent.IGNORED, f"reboot-lies: {why}")
            if self.plan.flaps_ready and self._kubelet is not None:
                self._spawn(self._flap(self._kubelet))
        elif self.power is not Power.ON or self._is_going_down:
            self._host.log(BootEvent.IGNORED, f"the machine goes down or is {self.power}: {why}")
        else:
            self._is_going_down = True
            self._set_power_task(self._reboot(why))

    async def provider_reboot(self, boot_id: str) -> None:
        """The provider has announced a boot by its id: the machine boots, and has that id then."""
        if not self.plan.lies:
            self._announced_boot_id = boot_id
        self.ask_reboot(f"Karpenter's provider announced boot {boot_id}")

    def _read_fifo(self) -> None:
        try:
            text = os.read(self._fifo, 65_536).decode("utf-8", "replace")
        except BlockingIOError:
            return
        for line in text.splitlines():
            self.ask_reboot(line[:300])

    async def _reboot(self, why: str) -> None:
        await asyncio.sleep(self.spec.shutdown_s)
        self.power = Power.BOOTING
        await self._go_dark()
        if self.plan.hangs:
            self.power = Power.HUNG
            self._is_going_down = False
            self._host.log(BootEvent.HUNG, why)
            return
        await self._boot(BootEvent.BOOT, why)

    async def _boot(self, event: BootEvent, why: str) -> None:
        planned = self.plan.boot_time_s
        await asyncio.sleep(self.spec.boot_time_s if planned is None else planned)
        self._come_up(event, why, is_first=False)

    async def _go_dark(self) -> None:
        """All at once, as when the power goes: no last status, no grace."""
        await self._halt_kubelet()
        self._runtime.lose_power()
        self._is_plugin_up = False

    def _come_up(self, event: BootEvent, why: str, *, is_first: bool) -> None:
        for key, fault in list(self.active.items()):
            if not fault.survives_boot(self):
                del self.active[key]
        if "kubelet-dead" not in self.active:
            self._is_kubelet_dead = False
        missing = self.plan.missing_gpus
        self._gpus = tuple(gpu for gpu in self.identity.gpus if gpu.index not in missing)
        announced, self._announced_boot_id = self._announced_boot_id, ""
        self._host.boot(event, why, self._gpus, boot_id=announced)
        self.devices.boot(_boards(self._gpus))
        for fault in self.active.values():
            fault.booted(self)
        self._boots += not is_first
        self.power = Power.ON
        self._is_going_down = False
        # A new machine has no earlier Ready that could flap.
        self._is_ready = is_first or self.spec.not_ready_after_boot_s == 0
        if not self._is_kubelet_dead:
            self._start_kubelet()

    async def _install_devices(self) -> None:
        programs = await asyncio.to_thread(ensure_programs)
        await asyncio.to_thread(self.devices.install, programs, _boards(self.identity.gpus))
        self.devices.open(asyncio.get_running_loop())

    async def _settle(self, kubelet: Kubelet) -> None:
        """What comes a moment after the kubelet: readiness, then the device plugin's GPUs."""
        await kubelet.registered.wait()
        if not self._is_ready:
            await asyncio.sleep(self.spec.not_ready_after_boot_s)
            if self._kubelet is not kubelet:
                return
            self._is_ready = True
            kubelet.touch()
        if not self._is_plugin_up:
            await asyncio.sleep(self.spec.device_plugin_s)
            if self._kubelet is not kubelet:
                return
            self._is_plugin_up = True
            kubelet.touch()

    async def _flap(self, kubelet: Kubelet) -> None:
        self._is_ready = False
        with contextlib.suppress(ApiError):
            await kubelet.write_status()
        await asyncio.sleep(FLAP_S)
        if self._kubelet is kubelet:
            self._is_ready = True
            kubelet.touch()

    # The kubelet and what it starts.

    def _start_kubelet(self) -> None:
        pods = PodHost(
            client=self._client,
            runtime=self._runtime,
            pods_folder=self._host.path / "var/lib/kubelet/pods",
            logs_folder=self._host.path / PODS_LOGS,
            gpus_allocatable=lambda: len(self._gpus) if self._is_plugin_up else 0,
            next_ip=self._cluster.addresses.next,
            start=self._launcher.start,
            refresh=self._launcher.refresh,
        )
        self._kubelet = Kubelet(self.spec, self._client, pods, self._look)
        self._kubelet.start()
        self._spawn(self._settle(self._kubelet))

    async def _halt_kubelet(self) -> None:
        kubelet, self._kubelet = self._kubelet, None
        if kubelet is not None:
            await kubelet.stop()

    def _look(self) -> KubeletSight:
        gpus = len(self._gpus) if self._is_plugin_up else 0
        return KubeletSight(self.identity, self._host.boot_id, gpus, self._is_ready)

    def _agent_sight(self) -> AgentSight:
        return AgentSight(
            node=self.name,
            boot_id=self._host.boot_id,
            ailments=self.ailments,
            manners=self.agent,
            refresh_s=self.spec.agent_refresh_s,
        )

    def _set_power_task(self, work: Coroutine[Any, Any, None]) -> None:
        """A machine goes down or up once at a time: the newer event wins."""
        if self._power_task is not None:
            self._power_task.cancel()
        self._power_task = self._spawn(work)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("node task died", node=self.name, exc_info=task.exception())


def _boards(gpus: tuple[Gpu, ...]) -> tuple[Board, ...]:
    return tuple(Board(gpu.index, gpu.uuid, gpu.bus_id) for gpu in gpus)
