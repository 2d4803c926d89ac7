"""What a full node starts for a container, by its image.

Owns the choice between a process, the agent stand-in and a timer, and the preparation of a pod's
volumes and places. Called by the pod's worker through `PodHost.start`; the node owns the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from workers.lab.devices.devices import KMSG_VARIABLE, Devices
from workers.lab.kubelet.addresses import PodAddresses
from workers.lab.kubelet.agent import AGENT_IMAGE, AgentContainer, AgentSight
from workers.lab.kubelet.api import ApiClient, JsonObject
from workers.lab.kubelet.container import BadContainer, Container, Sandbox
from workers.lab.kubelet.environment import PodPlace
from workers.lab.kubelet.host_root import HostRoot
from workers.lab.kubelet.images import ImageMissing, Releases, release_of
from workers.lab.kubelet.launch_plan import LaunchPlan, plan_launch
from workers.lab.kubelet.pod_fields import PodFields
from workers.lab.kubelet.process import ProcessContainer
from workers.lab.kubelet.sources import read_sources, sources_of_environment
from workers.lab.kubelet.timer import TimerContainer, TimerPlan, read_timer_plan
from workers.lab.kubelet.token import request_token, wanted_token, write_kubeconfig
from workers.lab.kubelet.volumes import ACCOUNT_MOUNT, PodVolumes, VolumeGround


@dataclass(frozen=True)
class Cluster:
    """The API server as the nodes of a fleet reach it."""

    url: str
    ca_file: Path
    tokens: ApiClient
    """Carries no identity of its own: for clients made `with_token`."""
    admin: ApiClient
    """Plays the cloud's controller, which deletes Node objects."""
    releases: Releases
    addresses: PodAddresses


PODS_LOGS: Final = "var/log/pods"
"""Below a host root, as on a node."""
AGENT_LABELS: Final = {
    "app.kubernetes.io/name": "fleetmend",
    "app.kubernetes.io/component": "agent",
}
"""What the chart's DaemonSet puts on the real agent's pods."""


class AgentMissing(Exception):
    """No agent runs on the node, so nobody can report its fault."""

    def __init__(self, node: str) -> None:
        super().__init__(
            f"no agent pod runs on node {node}: look at `kubectl -n fleetmend describe ds`; "
            "their ServiceAccount fleetmend-agent comes with deploy/chart"
        )


class NeedsStandIn(Exception):
    """The fault only changes what the agent's stand-in says, and the node has the real agent."""

    def __init__(self, node: str) -> None:
        super().__init__(
            f"node {node} runs the real agent, which says what its devices show: inject a fault of "
            "a device (xid-79, ...), or add the node with the stand-in (--agent stand-in)"
        )


@dataclass
class Launcher:
    """Starts containers on one machine and knows its agent."""

    node: str
    client: ApiClient
    """The node's own identity: it asks for the pods' tokens."""
    cluster: Cluster
    host: HostRoot
    look: Callable[[], AgentSight]
    devices: Devices
    _agent: AgentContainer | ProcessContainer | None = None
    _agent_started: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, pod: JsonObject, container: JsonObject, sandbox: Sandbox) -> Container:
        """Start one container.

        Raises:
            BadContainer: the specification asks for what the lab cannot do, or is not there.
            ApiError: the API server gave no token, ConfigMap or Secret.
        """
        image = container["image"]
        if release_of(image) is not None:
            place = await self._prepare(pod, container, sandbox)
            process = await self._launch(plan_launch(pod, container, place))
            if is_agent(pod):
                self._know_agent(process)
            return process
        if image == AGENT_IMAGE:
            return await self._start_agent(pod)
        if container["name"] in sandbox.inits:
            # What the lab cannot run has no work to do before the others.
            return TimerContainer(TimerPlan(duration_s=0))
        annotations = pod["metadata"].get("annotations") or {}
        try:
            return TimerContainer(read_timer_plan(annotations))
        except ValueError as error:
            raise BadContainer(str(error)) from error

    async def refresh(self, pod: JsonObject, sandbox: Sandbox) -> None:
        """Bring the files of the pod's volumes up to date, if it has any that change.

        Raises:
            BadContainer, ApiError: as `start`; the files stay as they are.
        """
        volumes = self._volumes(pod, sandbox)
        if volumes.changes:
            await volumes.refresh()

    async def _launch(self, plan: LaunchPlan) -> ProcessContainer:
        """The process, with a kernel log of its own, as each opening of the device is one."""
        named = plan.environment.get(KMSG_VARIABLE)
        if named is None:
            return await ProcessContainer.launch(plan)
        kmsg = Path(named)
        self.devices.kmsg.offer(kmsg)
        try:
            process = await ProcessContainer.launch(plan)
        except BadContainer:
            self.devices.kmsg.withdraw(kmsg)
            raise
        process.done.add_done_callback(lambda _: self.devices.kmsg.withdraw(kmsg))
        return process

    @property
    def agent(self) -> AgentContainer | ProcessContainer | None:
        """The running agent, real or stand-in."""
        is_over = self._agent is None or self._agent.done.done()
        return None if is_over else self._agent

    async def await_agent(self, deadline_s: float) -> AgentContainer | ProcessContainer:
        """The running agent.

        Raises:
            AgentMissing: none by the deadline.
        """
        end = asyncio.get_running_loop().time() + deadline_s
        while True:
            agent = self.agent
            if agent is not None:
                return agent
            self._agent_started.clear()
            try:
                async with asyncio.timeout_at(end):
                    await self._agent_started.wait()
            except TimeoutError as error:
                raise AgentMissing(self.node) from error

    async def _start_agent(self, pod: JsonObject) -> AgentContainer:
        wanted = wanted_token(pod)
        if wanted is None:
            raise BadContainer("the agent's pod has no token: set automountServiceAccountToken")
        token = await request_token(self.client, pod, wanted)
        stand_in = AgentContainer(self.cluster.tokens.with_token(token.text), self.look())
        self._know_agent(stand_in)
        return stand_in

    def _know_agent(self, agent: AgentContainer | ProcessContainer) -> None:
        self._agent = agent
        self._agent_started.set()

    async def _prepare(self, pod: JsonObject, container: JsonObject, sandbox: Sandbox) -> PodPlace:
        """The container's image, volumes and sources on this machine."""
        try:
            release = self.cluster.releases.find(release_of(container["image"]) or "")
        except ImageMissing as error:
            raise BadContainer(str(error), "ErrImagePull") from error
        namespace = pod["metadata"]["namespace"]
        volumes = self._volumes(pod, sandbox)
        await volumes.refresh()
        mounts = volumes.mounts(container)
        account = next((mount.place for mount in mounts if mount.path == ACCOUNT_MOUNT), None)
        kubeconfig = None
        if account is not None:
            path = sandbox.folder / "kubeconfig"
            kubeconfig = write_kubeconfig(path, account, self.cluster.url)
        address = urlsplit(self.cluster.url)
        log_name = f"{namespace}_{pod['metadata']['name']}_{sandbox.uid}"
        return PodPlace(
            folder=sandbox.folder,
            log_folder=self.host.path / PODS_LOGS / log_name,
            host_root=self.host.path,
            programs=self.host.programs,
            devices=self.devices.environment(),
            node_name=self.node,
            api_host=address.hostname or "127.0.0.1",
            api_port=str(address.port or 443),
            service_account=account,
            kubeconfig=kubeconfig,
            ip=sandbox.ip,
            release=release,
            mounts=mounts,
            contents=await read_sources(self.client, namespace, sources_of_environment(container)),
        )

    def _volumes(self, pod: JsonObject, sandbox: Sandbox) -> PodVolumes:
        """The pod's, which are kept with it."""
        if sandbox.volumes is None:
            fields = PodFields(pod, self.node, sandbox.ip)
            ground = VolumeGround(self.client, self.cluster.ca_file, self.host.path, fields)
            sandbox.volumes = PodVolumes(sandbox.folder, ground)
        return sandbox.volumes


def is_agent(pod: JsonObject) -> bool:
    """True if the pod is the real agent's."""
    labels = pod["metadata"].get("labels") or {}
    return AGENT_LABELS.items() <= labels.items()
