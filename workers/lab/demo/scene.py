"""The scene of the demo: a lab with fleetmend installed by Helm, its nodes, training pods, commands.

Owns starting and ending all of it, and the look at fleetmend's own pods. What runs of fleetmend runs
because the chart says so; arming and retiring are the operator's commands. Only the installation,
the training pods, the budgets over them and the NodePool are an administrator's, as in life.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from workers.lab.address import NAMESPACE as OWN_NAMESPACE
from workers.lab.address import LabAccount, LabAddress, LabNotRunning
from workers.lab.controlplane.api import LabApi
from workers.lab.controlplane.lab import start_lab, stop_lab
from workers.lab.controlplane.release import DEPLOYMENTS
from workers.lab.controlplane.settings import LabSettings, ReleaseSettings
from workers.lab.demo.cast import BOOT_TIME_S, ELASTIC, GPUS, JOBS, POD_GPUS, Job, own_cast
from workers.lab.karpenter.node_pools import UNVALIDATED, PoolShape, node_pool
from workers.lab.kubelet.client import FleetClient
from workers.lab.kubelet.pod_logs import find_pod_logs
from workers.lab.kubelet.spec import GPU_RESOURCE, POOL_LABEL, NodeSpec

CLUSTER: Final = "demo"
FLEETMEND: Final = ReleaseSettings(replicas=2)
NAMESPACE: Final = "default"
COMMAND_LIMIT_S: Final = 60.0
CLI: Final = (sys.executable, "-m", "workers.cli")
LOG_LINES: Final = 6


class SceneFailed(Exception):
    """Something of the scene did not come about; the message says what, and where to look."""


@dataclass(frozen=True)
class Scene:
    """A running scene."""

    address: LabAddress

    @property
    def api(self) -> LabApi:
        """An administrator's client, for one thread."""
        return LabApi(self.address)

    @property
    def fleet(self) -> FleetClient:
        """The simulated nodes."""
        return FleetClient(self.address.directory)

    def log_end(self, name: str) -> str:
        """The last lines of the newest log of a Deployment's pods, for messages."""
        found = find_pod_logs(self.address.directory, OWN_NAMESPACE, name)
        text = found[-1].text(LOG_LINES) if found else "(it has written nothing)"
        return "\n".join(line[:300] for line in text.splitlines())

    def refuse_dead(self, api: LabApi) -> None:
        """Raises: SceneFailed: a pod of watch or worker has ended by itself."""
        for name in DEPLOYMENTS:
            for pod in own_pods(api, name):
                statuses = (pod.get("status") or {}).get("containerStatuses") or []
                if any(status.get("restartCount") for status in statuses):
                    raise SceneFailed(
                        f"pod {pod['metadata']['name']} has ended and was started again; the end "
                        f"of its log:\n{self.log_end(pod['metadata']['name'])}"
                    )

    async def command(self, *arguments: str) -> str:
        """Run one `fleetmend` command as the operator; what it wrote.

        Raises:
            SceneFailed: it ended with another exit code than 0, or not in time.
        """
        process = await asyncio.create_subprocess_exec(
            *CLI,
            *arguments,
            env=self._environment(LabAccount.OPERATOR),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        words = f"fleetmend {' '.join(arguments)}"
        try:
            out, _ = await asyncio.wait_for(process.communicate(), COMMAND_LIMIT_S)
        except TimeoutError:
            process.kill()
            raise SceneFailed(f"{words}: no end within {COMMAND_LIMIT_S:g} s") from None
        if process.returncode != 0:
            text = out.decode(errors="replace")
            raise SceneFailed(f"{words}: exit code {process.returncode}: {text[-600:]}")
        return out.decode(errors="replace")

    def end(self) -> None:
        """End everything, and remove the lab's directory."""
        with suppress(LabNotRunning):
            stop_lab(self.address.directory)
        shutil.rmtree(self.address.directory, ignore_errors=True)

    def _environment(self, account: LabAccount) -> Mapping[str, str]:
        return {**os.environ, **self.address.environment(account)}


def start_scene(*, detached: bool) -> Scene:
    """A lab with fleetmend installed, the demo's nodes and training pods; nothing armed yet.

    Args:
        detached: True = it outlives this process.
    """
    directory = Path(tempfile.mkdtemp(prefix="fleetmend-demo-"))
    try:
        settings = LabSettings(cluster=CLUSTER, karpenter=True, release=FLEETMEND)
        address = start_lab(directory, settings, detached=detached)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)  # the error shows the end of the logs
        raise
    scene = Scene(address)
    try:
        _deploy_training(scene)
        _add_nodes(scene)
    except BaseException:
        scene.end()
        raise
    return scene


def _add_nodes(scene: Scene) -> None:
    specs = [
        NodeSpec(name=part.node, pool=part.pool, gpus=GPUS, boot_time_s=BOOT_TIME_S, agent="real")
        for part in own_cast()
    ]
    with scene.fleet as fleet:
        fleet.add_nodes(specs, await_agents=True)


def _deploy_training(scene: Scene) -> None:
    """The work, and the pool in which Karpenter buys a machine for it; what comes is validated."""
    api = scene.api
    pool = PoolShape(ELASTIC, agent="real", startup_taints=(UNVALIDATED,))
    try:
        api.apply(node_pool(pool))
        for name, job in JOBS.items():
            for manifest in training_manifests(name, job):
                api.apply(manifest)
    finally:
        api.close()


def training_manifests(pool: str, job: Job) -> list[dict[str, Any]]:
    """A Deployment whose pods hold GPUs of the pool, and the disruption budget over them."""
    name = f"{pool}-job"
    labels = {"app": name}
    container = {
        "name": "rank",
        "image": "trainer:demo",
        "resources": {"limits": {GPU_RESOURCE: str(POD_GPUS)}},
    }
    return [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"minAvailable": job.at_least, "selector": {"matchLabels": labels}},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "replicas": job.replicas,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"nodeSelector": {POOL_LABEL: pool}, "containers": [container]},
                },
            },
        },
    ]


def running_pods(api: LabApi, node: str = "") -> int:
    """How many training pods are Ready, everywhere or on one node."""
    listed = api.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")
    ready = [pod for pod in listed.get("items") or [] if _is_ready(pod)]
    return sum(1 for pod in ready if not node or pod["spec"].get("nodeName") == node)


def pods_wanted() -> int:
    """How many training pods there are to be."""
    return sum(job.replicas for job in JOBS.values())


def own_pods(api: LabApi, deployment: str) -> list[Any]:
    """The pods of one of fleetmend's Deployments."""
    component = deployment.removeprefix("fleetmend-")
    query = {"labelSelector": f"app.kubernetes.io/component={component}"}
    listed = api.request("GET", f"/api/v1/namespaces/{OWN_NAMESPACE}/pods", query=query)
    return list(listed.get("items") or [])


def node_count() -> int:
    """How many GPU nodes there are to be."""
    return len(own_cast()) + 1


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    is_leaving = bool((pod.get("metadata") or {}).get("deletionTimestamp"))
    return not is_leaving and any(
        c.get("type") == "Ready" and c.get("status") == "True" for c in conditions
    )
