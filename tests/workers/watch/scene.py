"""One test's pool: its light nodes, its policy, watch processes, and what became of the nodes.

Owns the words in which tests of watch speak. Nodes are Node objects of the simulated fleet; a fault
is the agent's own PATCH of nodes/status. Talks to the harness.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from activities.kube import paths
from activities.kube.client import JsonObject
from activities.kube.errors import NotFound
from tests.harness.audit import WATCH, AuditEvent, AuditLog, Wanted
from tests.harness.cluster import Cluster
from tests.harness.nodes import TestNodes
from tests.harness.policies import WIDE, TestPool, write_policy
from tests.harness.processes import Processes, Running
from tests.harness.waiting import wait_until
from workers.lab.address import NAMESPACE
from workers.lab.kubelet.spec import NodeKind
from workflows.model.node import NodeView

START_LIMIT_S = 30.0
REACT_LIMIT_S = 10.0


@dataclass
class Scene:
    """See the module."""

    cluster: Cluster
    nodes: TestNodes
    processes: Processes
    witness: AuditLog
    folder: Path
    pool: str
    uids: dict[str, str] = field(default_factory=dict)
    watches: list[Running] = field(default_factory=list)

    def add(self, *names: str, **spec: Any) -> list[str]:
        """Light nodes of the pool, healthy; their real names."""
        added = self.nodes.add_many(list(names), self.pool, kind=NodeKind.LIGHT, **spec)
        for name in added:
            self.uids[name] = self.cluster.node(name).uid
        return added

    def watch(self, *, reflex: int | str = "100%", **environment: str) -> Running:
        """Start watch with this pool's reflex budget; returns at once."""
        policy = self.folder / "policy.yaml"
        budgets = {**WIDE, "reflex_quarantine": reflex}
        write_policy(policy, [TestPool(self.pool, budgets=budgets)], **self.policy_changes)
        settings = {"FLEETMEND_POLICY": str(policy), **environment}
        running = self.processes.watch(**settings)
        self.watches.append(running)
        return running

    policy_changes: Mapping[str, Any] = field(default_factory=dict)

    def writing_watch(self, *, reflex: int | str = "100%", **environment: str) -> Running:
        """Start watch; returns when it is the writer and has seen every node."""
        return self.until_writing(self.watch(reflex=reflex, **environment))

    def until_writing(self, watch: Running, times: int = 1) -> Running:
        """Returns when this watch has become the writer (for the so-manyth time)."""

        def writes() -> bool:
            if not watch.is_alive():
                raise RuntimeError(watch.tail())
            return len(watch.logged("writing")) >= times

        wait_until(writes, START_LIMIT_S, "watch is the writer", saw=watch.tail)
        return watch

    def arm(self) -> None:
        self.cluster.arm(self.pool)

    def break_node(self, node: str, fault: str = "gpu-lost") -> float:
        """Inject a fault; the moment (monotonic) at which the report is in the API server."""
        self.nodes.inject(node, fault)
        return time.monotonic()

    def node(self, name: str) -> NodeView:
        return self.cluster.node(name)

    def is_quarantined(self, node: str) -> bool:
        """Cordoned and marked."""
        return self.node(node).unschedulable and self.cluster.marker(node) is not None

    def until_quarantined(self, node: str, deadline_s: float = REACT_LIMIT_S) -> None:
        wait_until(
            lambda: self.is_quarantined(node), deadline_s, f"{node} is quarantined", saw=self.tails
        )

    def quarantined(self, nodes: Sequence[str]) -> list[str]:
        return [name for name in nodes if self.is_quarantined(name)]

    def node_writes(self) -> list[AuditEvent]:
        """Successful writes of watch on the pool's Nodes, by the API server's own record."""
        return [
            e for e in self.witness.writes(WATCH) if e.resource == "nodes" and e.name in self.uids
        ]

    def cordons(self, node: str) -> list[AuditEvent]:
        return self.witness.cordons(node)

    def reaction_s(self, node: str) -> float:
        """From the agent's bad report to the cordon of watch, both as the API server recorded."""
        reported = [
            e.answered_at
            for e in self.witness.events(Wanted(resource="nodes/status", name=node))
            if any(
                c.get("type") == "GPUHealthy" and c.get("status") == "False"
                for c in (e.body.get("status") or {}).get("conditions") or []
            )
        ]
        return (self.cordons(node)[0].answered_at - reported[0]).total_seconds()

    def events_about(self, node: str) -> list[JsonObject]:
        """Kubernetes Events from watch about one Node."""
        found = self.witness.events(Wanted(who=WATCH, verb="create", resource="events"))
        return [
            e.body or {} for e in found if (e.body.get("involvedObject") or {}).get("name") == node
        ]

    def write_machine(self, node: str, status: JsonObject, *, node_uid: str | None = None) -> str:
        """A machine record for a node, as the worker would write it; its name."""
        view = self.node(node)
        machine = view.system_uuid.lower()
        spec = {
            "machineID": machine,
            "node": {"name": node, "uid": node_uid or view.uid},
            "pool": self.pool,
        }
        body = {
            "apiVersion": "fleetmend.io/v1alpha1",
            "kind": "GPUMachine",
            "metadata": {"name": machine},
            "spec": spec,
        }
        made = self.cluster.kube.create(paths.gpu_machines(), body)
        self.machines.append(machine)
        self.cluster.kube.replace(paths.gpu_machine_status(machine), {**made, "status": status})
        return machine

    machines: list[str] = field(default_factory=list)
    config_maps: list[str] = field(default_factory=list)

    def tails(self) -> str:
        return "\n\n".join(watch.tail() for watch in self.watches)

    def clear(self) -> None:
        """Take away what fixtures do not know of."""
        for watch in self.watches:
            watch.end()
        self.cluster.disarm(self.pool)
        for machine in self.machines:
            self._delete(paths.gpu_machine(machine))
        for name in self.config_maps:
            self._delete(paths.config_map(NAMESPACE, name))

    def _delete(self, path: paths.ObjectPath) -> None:
        try:
            self.cluster.kube.delete(path, uid=None)
        except NotFound:
            return
