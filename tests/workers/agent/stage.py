"""One node of the lab with an agent that the test starts, kills and makes sources for.

Owns a full node on which no DaemonSet puts an agent, a pod for the agent's token, and the agent's
process. The witness is the Node and the API server's audit log, never what the agent says.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from activities.kube import paths
from tests.harness.audit import AGENT, AuditEvent, AuditLog, Wanted
from tests.harness.cluster import Cluster
from tests.harness.nodes import TestNodes
from tests.harness.processes import Running
from tests.harness.waiting import wait_until
from tests.workers.agent.playing import NORMAL, reading
from workers.lab.address import NAMESPACE, LabAddress
from workers.lab.controlplane.tether import tether
from workers.lab.kubelet.spec import AGENT_LABEL, NodeSpec
from workers.lab.kubelet.volumes import write_files
from workflows.model.detection.finding import FINDINGS_ANNOTATION, Finding, parse_findings

ROOT = Path(__file__).parents[3]
LIMIT_S = 30.0
ALL = ("GPUHealthy", "InterconnectHealthy", "NetworkHealthy", "HostHealthy")


@dataclass
class Stage:
    """The node, the files of its sources, and its agents so far."""

    lab: LabAddress
    cluster: Cluster
    nodes: TestNodes
    witness: AuditLog
    folder: Path
    node: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    agents: list[Running] = field(default_factory=list)

    def prepare(self, unique: Callable[[str], str]) -> None:
        """A Ready node whose agent is ours, and healthy sources."""
        self.node = unique("n")
        spec = NodeSpec(name=self.node, pool="agent", labels={AGENT_LABEL: "of-the-test"})
        self.nodes.added.append(self.node)
        self.nodes.client.add_nodes([spec])
        account = self.folder / "account"
        token = self._token(unique("agent"))
        content = {"token": token.encode(), "namespace": NAMESPACE.encode()}
        write_files(account, {**content, "ca.crt": self.lab.ca_file.read_bytes()})
        host, port = self.lab.api_url.removeprefix("https://").split(":")
        self.environment = {
            "NODE_NAME": self.node,
            "FLEETMEND_HOST_ROOT": str(self.host_root),
            "FLEETMEND_SERVICEACCOUNT": str(account),
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "FLEETMEND_AGENT_LISTEN": "127.0.0.1:0",
            "FLEETMEND_LOG_LEVEL": "debug",
            "PATH": os.environ["PATH"],
            "PYTHONUNBUFFERED": "1",
        }
        (self.folder / "stream").write_text("")
        self.polled(**NORMAL)

    @property
    def host_root(self) -> Path:
        return Path(self.nodes.view(self.node).host_root)

    def start(self, *command: str, **environment: str) -> Running:
        """An agent over the played sources, or another command of the agent."""
        words = command or ("-m", "tests.workers.agent.playing", str(self.folder))
        log = self.folder / f"agent-{len(self.agents)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=ROOT,
                env={**self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=tether(os.getpid()),  # noqa: PLW1509 - this test has one thread
            )
        running = Running(f"agent-{len(self.agents)}", process, log)
        self.agents.append(running)
        return running

    def start_healthy(self) -> Running:
        """As `start`; returns when all four conditions are True."""
        agent = self.start()
        self.until(dict.fromkeys(ALL, "True"))
        return agent

    def boot(self, boot_id: str) -> None:
        """The machine is in this boot now, as far as a program on it can see."""
        (self.host_root / "proc/sys/kernel/random/boot_id").write_text(boot_id + "\n")

    def polled(self, *rows: Mapping[str, Any], **order: Any) -> None:
        """What the polled source says or does from now on."""
        content = {"readings": list(rows), **order}
        draft = self.folder / "polled.json.new"
        draft.write_text(json.dumps(content))
        draft.replace(self.folder / "polled.json")

    def stream(self, *rows: Mapping[str, Any], **order: Any) -> None:
        """One more item of the streamed source."""
        with (self.folder / "stream").open("a") as file:
            file.write(json.dumps({"readings": list(rows), **order}) + "\n")

    def until(self, statuses: Mapping[str, str], limit_s: float = LIMIT_S) -> None:
        """Returns when these conditions have these statuses."""
        wait_until(
            lambda: statuses.items() <= self.statuses().items(),
            limit_s,
            f"{self.node} has {dict(statuses)}",
            saw=lambda: (self.conditions(), self.agents[-1].tail(15) if self.agents else ""),
        )

    def until_reason(self, kind: str, reason: str, limit_s: float = LIMIT_S) -> None:
        """Returns when a condition has this reason."""
        wait_until(
            lambda: (self.conditions().get(kind) or {}).get("reason") == reason,
            limit_s,
            f"{kind} of {self.node} is {reason}",
            saw=lambda: (self.conditions(), self.agents[-1].tail(15)),
        )

    def object(self) -> Any:
        """The Node now."""
        return self.cluster.kube.get(paths.node(self.node))

    def conditions(self) -> dict[str, Any]:
        """The agent's conditions on the Node, by type."""
        found = self.object()["status"].get("conditions") or []
        return {row["type"]: row for row in found if row["type"] in ALL}

    def statuses(self) -> dict[str, str]:
        return {kind: row["status"] for kind, row in self.conditions().items()}

    def annotation(self) -> Any:
        """The findings annotation as JSON; {} = there is none."""
        text = (self.object()["metadata"].get("annotations") or {}).get(FINDINGS_ANNOTATION, "{}")
        return json.loads(text)

    def findings(self) -> tuple[Finding, ...]:
        """The findings as everybody else reads them."""
        notes = self.object()["metadata"].get("annotations") or {}
        return parse_findings(notes[FINDINGS_ANNOTATION])

    def codes(self) -> set[str]:
        return {row["code"] for row in self.annotation().get("findings", [])}

    def reports(self) -> list[AuditEvent]:
        """Every PATCH that an agent got through on this node."""
        wanted = Wanted(who=AGENT, verb="patch", resource="nodes/status", name=self.node)
        return self.witness.events(wanted)

    def said(self, kind: str) -> list[str]:
        """The statuses of one condition in the order in which they were reported."""
        rows = [row for e in self.reports() for row in e.body["status"]["conditions"]]
        return [row["status"] for row in rows if row["type"] == kind]

    def clear(self) -> None:
        """End every agent."""
        (self.folder / "undead").unlink(missing_ok=True)
        for agent in self.agents:
            agent.end()

    def _token(self, name: str) -> str:
        """Of a pod on the node, as a DaemonSet's would have it."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeName": self.node,
                "serviceAccountName": "fleetmend-agent",
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "busybox"}],
            },
        }
        self.cluster.kube.create(paths.pods(NAMESPACE), pod)
        body = {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "spec": {
                "expirationSeconds": 3600,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": name},
            },
        }
        return token_of(self.cluster, body)


def token_of(cluster: Cluster, body: dict[str, Any]) -> str:
    """A token of the agent's account."""
    path = paths.ObjectPath(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/fleetmend-agent/token")
    return str(cluster.kube.create(path, body)["status"]["token"])


__all__ = ["ALL", "Stage", "reading"]
