"""The scene of the demo: a lab, its nodes, training pods, fleetmend's processes, and commands.

Owns starting and ending all of it. Watch and worker run as programs under their own ServiceAccounts
and end with the lab's supervisor; arming and retiring are the operator's commands. Only the training
pods and the budget over them are an administrator's, as in a real cluster.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from workers.lab.address import LabAccount, LabAddress, LabNotRunning, read_lab_file
from workers.lab.controlplane.api import LabApi
from workers.lab.controlplane.child import last_lines
from workers.lab.controlplane.lab import start_lab, stop_lab
from workers.lab.controlplane.settings import REPOSITORY_CHART, LabSettings
from workers.lab.demo.cast import BOOT_TIME_S, GPUS, WORKING, whole_cast
from workers.lab.kubelet.client import FleetClient
from workers.lab.kubelet.spec import GPU_RESOURCE, POOL_LABEL, NodeSpec

CLUSTER: Final = "demo"
POLICY: Final = REPOSITORY_CHART.parent / "policies" / "demo.yaml"
NAMESPACE: Final = "default"
POD_GPUS: Final = 4
REPLICAS: Final = 6
MIN_AVAILABLE: Final = 4
COMMAND_LIMIT_S: Final = 60.0
END_LIMIT_S: Final = 20.0
CLI: Final = (sys.executable, "-m", "workers.cli")
TASTE: Final = {
    "FLEETMEND_SWEEP_INTERVAL_S": "5",
    "FLEETMEND_SWEEP_JITTER_S": "0",
    "FLEETMEND_WATCH_LISTEN": "off",
    "FLEETMEND_POLICY": str(POLICY),
}
"""What the demo's processes are told beside how to reach the lab."""


class SceneFailed(Exception):
    """Something of the scene did not come about; the message says what, and where to look."""


@dataclass
class Scene:
    """A running scene. `processes` are the companions of watch and worker."""

    address: LabAddress
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def api(self) -> LabApi:
        """An administrator's client, for one thread."""
        return LabApi(self.address)

    @property
    def fleet(self) -> FleetClient:
        """The simulated nodes."""
        return FleetClient(self.address.directory)

    def log(self, name: str) -> Path:
        """The log of watch or worker."""
        return self.address.paths.log(name)

    def log_end(self, name: str) -> str:
        """The last lines of that log, for messages."""
        return "\n".join(line[:300] for line in last_lines(self.log(name))[-6:])

    def start_processes(self) -> None:
        """Start watch and worker; both wait by themselves for what they need."""
        supervisor = read_lab_file(self.address.directory).supervisor
        for name, account in (("watch", LabAccount.WATCH), ("worker", LabAccount.WORKER)):
            command = [sys.executable, "-m", "workers.lab.demo.companion", str(supervisor.pid)]
            with self.log(name).open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    [*command, *CLI, name],
                    env=self._environment(account),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # a Ctrl-C at the terminal ends the demo in order
                )

    def refuse_dead(self) -> None:
        """Raises: SceneFailed: watch or worker has ended by itself."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise SceneFailed(
                    f"{name} ended with exit code {process.returncode}; the end of its log:\n"
                    f"{self.log_end(name)}"
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
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
        with suppress(LabNotRunning):
            stop_lab(self.address.directory)
        shutil.rmtree(self.address.directory, ignore_errors=True)

    def _environment(self, account: LabAccount) -> Mapping[str, str]:
        return {**os.environ, **self.address.environment(account), **TASTE}


def start_scene(*, detached: bool) -> Scene:
    """A lab with the demo's nodes, pools labelled, training pods deployed; nothing armed yet.

    Args:
        detached: True = it outlives this process.
    """
    directory = Path(tempfile.mkdtemp(prefix="fleetmend-demo-"))
    try:
        address = start_lab(directory, LabSettings(cluster=CLUSTER), detached=detached)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)  # the error shows the end of the logs
        raise
    scene = Scene(address)
    try:
        _add_nodes(scene)
        _deploy_training(scene)
    except BaseException:
        scene.end()
        raise
    return scene


def _add_nodes(scene: Scene) -> None:
    specs = [
        NodeSpec(name=part.node, pool=part.pool, gpus=GPUS, boot_time_s=BOOT_TIME_S, agent="real")
        for part in whole_cast()
    ]
    with scene.fleet as fleet:
        fleet.add_nodes(specs, await_agents=True)


def _deploy_training(scene: Scene) -> None:
    api = scene.api
    try:
        for pool in WORKING:
            for manifest in training_manifests(pool):
                api.apply(manifest)
    finally:
        api.close()


def training_manifests(pool: str) -> list[dict[str, Any]]:
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
            "spec": {"minAvailable": MIN_AVAILABLE, "selector": {"matchLabels": labels}},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "replicas": REPLICAS,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"nodeSelector": {POOL_LABEL: pool}, "containers": [container]},
                },
            },
        },
    ]


def running_pods(api: LabApi) -> int:
    """How many training pods are Ready."""
    listed = api.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")
    return sum(1 for pod in listed.get("items") or [] if _is_ready(pod))


def pods_wanted() -> int:
    """How many training pods there are to be."""
    return REPLICAS * len(WORKING)


def node_count() -> int:
    """How many nodes there are to be."""
    return len(whole_cast())


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    is_leaving = bool((pod.get("metadata") or {}).get("deletionTimestamp"))
    return not is_leaving and any(
        c.get("type") == "Ready" and c.get("status") == "True" for c in conditions
    )
