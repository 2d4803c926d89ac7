"""The stage of the chaos tests: fleetmend at work, nodes to break, and how an episode is judged.

Owns the small hands these tests share: starting an episode that is told from the one before,
training pods, an own lab for tests that end Temporal or etcd, and the one judgement of an ending.
The judges are the audit log and the node's own boot.log.
"""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from activities.kube import paths
from activities.kube.client import JsonObject
from activities.kube.errors import NotFound
from tests.harness.audit import AuditEvent, AuditLog, audit
from tests.harness.cluster import Cluster, cluster_of
from tests.harness.fleet import Fleet, fleet_on
from tests.harness.nodes import TestNodes, test_nodes
from tests.harness.policies import TestPool
from tests.harness.waiting import wait_until
from workers.lab.address import NAMESPACE, LabAddress
from workers.lab.controlplane.lab import Lab, start_lab, stop_lab
from workers.lab.controlplane.settings import AuditMode, LabSettings
from workers.lab.kubelet.host_root import BootEvent, read_boot_log
from workers.lab.kubelet.spec import GPU_RESOURCE
from workers.lab.kubelet.timer import TERMINATION
from workflows.contracts.messages import Closing
from workflows.model.identity import NodeRef

WORK_NAMESPACE = "default"
STANDS_S = 90.0
ENDS_S = 240.0
"""Longest waits; each ends at once when its condition holds. Ours, for a machine shared by ten."""


ON_DEVICES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gpu-lost": ("xid-79", {}),
    "unknown": ("nvml-hang", {}),
    "agent-silent": ("nvml-hang", {"lasting": "true"}),
}
"""What an agent's stand-in is told to say -> what lets a real agent find the same: from a boot on,
an agent whose NVML hangs has nothing good to say, as one that is silent."""


@dataclass(frozen=True)
class Ending:
    """How an episode is to end; `is_out` = the node stays quarantined, handed over to people.

    `reboots` are asked for, `or_reboots` as well; `boots`: in the node's own log; None = exactly
    those that were asked for.
    """

    outcome: str
    reboots: int = 0
    or_reboots: int | None = None
    boots: Collection[int] | None = None
    is_out: bool = False
    is_marked: bool = True


@dataclass
class Stage:
    """One test's view of fleetmend: its nodes, their episodes, and what the server recorded."""

    fleet: Fleet
    nodes: TestNodes
    witness: AuditLog
    before: dict[str, str] = field(default_factory=dict)
    refs: dict[str, NodeRef] = field(default_factory=dict)
    boots_before: dict[str, int] = field(default_factory=dict)
    runs_before: dict[str, int] = field(default_factory=dict)
    strikes_before: dict[str, int] = field(default_factory=dict)
    with_real_agent: set[str] = field(default_factory=set)
    """Nodes on which faults are made as `ON_DEVICES` says."""

    @property
    def cluster(self) -> Cluster:
        return self.fleet.cluster

    def settle(self, *names: str) -> None:
        """Returns when these nodes have baselines and no episode: what begins now is new."""
        self.fleet.until_baselines(self.nodes)
        for node in names:
            self.refs[node] = self.fleet.ref(node)
            wait_until(
                lambda node=node: not self.fleet.episodes.is_open(self.refs[node]),  # type: ignore[misc]  # mypy infers no default argument
                STANDS_S,
                f"{node} has no open episode",
                saw=lambda node=node: self.fleet.episodes.shown(self.refs[node]),  # type: ignore[misc]  # as above
            )
            self.before[node] = self.run_id(node)
            self.boots_before[node] = self.boots(node)
            self.runs_before[node] = self.runs(node)
            self.strikes_before[node] = 0
            self.strikes_before[node] = len(self.struck(node))

    def inject(self, node: str, fault: str, **options: Any) -> None:
        name, more = self._made_as(node, fault)
        self.nodes.inject(node, name, **more, **options)

    def clear(self, node: str, fault: str) -> None:
        """End a fault, unless a power cut has ended it."""
        name, _ = self._made_as(node, fault)
        if any(key.split("/")[0] == name for key in self.nodes.view(node).faults):
            self.nodes.clear(node, name)

    def _made_as(self, node: str, fault: str) -> tuple[str, Mapping[str, Any]]:
        if node in self.with_real_agent:
            return ON_DEVICES.get(fault, (fault, {}))
        return fault, {}

    def run_id(self, node: str) -> str:
        """Of the newest run; "" = none."""
        described = self._described(node)
        return str(described.run_id) if described else ""

    def _described(self, node: str) -> Any:
        episodes = self.fleet.episodes
        try:
            return episodes.call(episodes.handle(self.refs[node]).describe())
        except RPCError:
            return None

    def has_begun(self, node: str) -> bool:
        """True once there is another run than before `settle`."""
        return self.run_id(node) not in ("", self.before.get(node, ""))

    def runs(self, node: str) -> int:
        """How many workflow runs the node has had, by visibility."""
        return len(self._run_ids(node))

    def _run_ids(self, node: str) -> list[str]:
        """Of all the node's runs, oldest first, by visibility."""
        episodes = self.fleet.episodes
        name = episodes.handle(self.refs[node]).id

        async def find() -> list[str]:
            found = episodes.client().list_workflows(f"WorkflowId = '{name}'")
            runs = sorted([run async for run in found], key=lambda run: run.start_time)
            return list(dict.fromkeys(str(run.run_id) for run in runs))

        return episodes.call(find())

    def new_runs(self, node: str) -> int:
        """Runs since `settle`."""
        return self.runs(node) - self.runs_before[node]

    def phase(self, node: str) -> str:
        """Of the episode that began after `settle`; "" = it has not begun."""
        return self.fleet.episodes.phase(self.refs[node]) if self.has_begun(node) else ""

    def until(self, node: str, *phases: str) -> None:
        """Returns when the episode is in one of these phases."""
        wait_until(
            lambda: self.phase(node) in phases,
            STANDS_S,
            f"the episode of {node} is {' or '.join(phases)}",
            saw=lambda: self.shown(node),
        )

    def until_held(self, node: str) -> None:
        """Returns when the episode is held."""
        wait_until(
            lambda: self.has_begun(node) and self.fleet.episodes.is_held(self.refs[node]),
            2 * STANDS_S,
            f"the episode of {node} is held",
            saw=lambda: self.shown(node),
        )

    def until_cordoned(self, node: str, deadline_s: float = STANDS_S) -> AuditEvent:
        """The patch that made the node unschedulable."""
        cordons = wait_until(
            lambda: self.witness.cordons(node), deadline_s, f"{node} is unschedulable"
        )
        return cordons[0]

    def closing(self, node: str) -> Closing:
        """How the episode ended, once it has."""

        def has_ended() -> bool:
            found = self._described(node)
            return (
                found is not None
                and found.run_id != self.before.get(node)
                and found.status is not WorkflowExecutionStatus.RUNNING
            )

        wait_until(has_ended, ENDS_S, f"the episode of {node} ends", saw=lambda: self.shown(node))
        return self.fleet.episodes.call(self.fleet.episodes.handle(self.refs[node]).result())

    def first_closing(self, node: str) -> Closing:
        """How the first episode that began after `settle` ended."""
        episodes, before = self.fleet.episodes, self.before.get(node, "")
        ids = self._run_ids(node)
        first = ids[ids.index(before) + 1] if before in ids else ids[0]
        handle = episodes.handle(self.refs[node], run_id=first)
        return episodes.call(handle.result(follow_runs=False))

    def struck(self, node: str) -> list[str]:
        """Outcomes of the episodes since `settle` that the machine record counts as strikes."""
        machine = self.cluster.machine_of(node) or {}
        strikes = (machine.get("status") or {}).get("strikes") or []
        return [strike["outcome"] for strike in strikes[self.strikes_before[node] :]]

    def ledgers(self) -> Mapping[str, Any]:
        """What the guard says: "<budget>/<pool>" -> holders and waiting, by Node UID."""
        episodes = self.fleet.episodes
        found: Mapping[str, Any] = episodes.call(episodes.guard().query("budgets"))
        return dict(found["ledgers"])

    def places(self) -> set[str]:
        """UIDs of all Nodes that hold a place or wait for one."""
        return {
            uid
            for ledger in self.ledgers().values()
            for uid in (*ledger["holders"], *ledger["waiting"])
        }

    def is_waiting_for_slot(self, node: str) -> bool:
        """True if the guard has the node in the line for a disruption slot."""
        uid = self.refs[node].uid
        return any(
            uid in ledger["waiting"]
            for key, ledger in self.ledgers().items()
            if key.startswith("disruption/")
        )

    def shown(self, node: str) -> str:
        return self.fleet.episodes.shown(self.refs[node])

    def boots(self, node: str) -> int:
        """Boots in the node's own log, the first one not counted."""
        folder = self.fleet.lab.paths.nodes / node
        return sum(1 for line in read_boot_log(folder) if line.event is BootEvent.BOOT)

    def new_boots(self, node: str) -> int:
        """Boots since `settle`."""
        return self.boots(node) - self.boots_before[node]

    def add_pod(self, node: str, name: str = "work", **spec: Any) -> str:
        """A pod that holds a GPU of the node and runs until it is told to go; its name.

        Args:
            node: where it is bound.
            name: the end of its name.
            spec: `stops_for_s` = how slowly it stops; `labels`.
        """
        pod = f"{node}-{name}"
        stops_for_s = spec.get("stops_for_s", 0)
        self.cluster.kube.create(
            paths.pods(WORK_NAMESPACE), _training_pod(pod, node, stops_for_s, spec.get("labels"))
        )
        wait_until(lambda: self.pod_phase(pod) == "Running", STANDS_S, f"pod {pod} runs")
        return pod

    def pod(self, name: str) -> JsonObject | None:
        """A training pod; None = it is gone."""
        try:
            return self.cluster.kube.get(paths.pod(WORK_NAMESPACE, name))
        except NotFound:
            return None

    def pod_phase(self, name: str) -> str:
        """Of a training pod; "" = it is gone."""
        found = self.pod(name)
        return str((found.get("status") or {}).get("phase", "")) if found else ""

    def is_terminating(self, name: str) -> bool:
        found = self.pod(name)
        return bool(found and found["metadata"].get("deletionTimestamp"))

    def delete_pod(self, name: str) -> None:
        """At once, as `kubectl delete --force` does."""
        found = self.pod(name)
        if found is not None:
            path = paths.pod(WORK_NAMESPACE, name)
            self.cluster.kube.delete(path, uid=found["metadata"]["uid"], grace_s=0)

    def task_pods(self, node: str) -> list[Any]:
        """Node-task pods that are there for a node and are not being deleted."""
        return [
            pod
            for pod in self.cluster.kube.list(paths.pods(NAMESPACE)).items
            if pod["spec"].get("nodeName") == node
            and "fleetmend.io/task" in (pod["metadata"].get("labels") or {})
            and not pod["metadata"].get("deletionTimestamp")
        ]

    def judge(self, node: str, ending: Ending) -> Closing:
        """Wait for the episode's end and compare everything that can be seen from outside."""
        closing = self.closing(node)
        if closing.outcome == "dismissed" and ending.outcome != "dismissed":
            # Unreachable for a moment, as a server was away: a run after it that found nothing.
            closing = self.first_closing(node)
        told = f"{node}: {closing.detail}: {self.shown(node)}"
        # Reported once more while it closed: the same run, and an episode of its own.
        assert closing.outcome == ending.outcome or ending.outcome in self.struck(node), told
        assert len(self.witness.reboots(node)) in (ending.reboots, ending.or_reboots), told
        assert self.new_boots(node) in (ending.boots or (ending.reboots,)), told
        assert len(self.witness.cordons(node)) == int(ending.is_marked), told
        after = self.cluster.node(node)
        assert after.unschedulable == ending.is_out, told
        marker = self.cluster.marker(node)
        assert (marker is not None) == ending.is_out, told
        assert marker is None or (marker.handed_over and marker.slot is None), told
        assert self.task_pods(node) == [], told
        return closing


def _training_pod(
    name: str, node: str, stops_for_s: float, labels: Mapping[str, str] | None
) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": dict(labels or {}),
            "annotations": {TERMINATION: str(stops_for_s)},
        },
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": int(stops_for_s) + 1,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "rank",
                    "image": "trainer:test",
                    "resources": {"limits": {GPU_RESOURCE: "1"}},
                }
            ],
        },
    }


@dataclass
class OwnLab:
    """A lab that one module may break, with fleetmend and nodes on it."""

    lab: LabAddress
    hands: Lab
    fleet: Fleet
    nodes: TestNodes

    def stage(self) -> Stage:
        """A view that begins now."""
        return Stage(self.fleet, self.nodes, audit(self.lab))


@contextmanager
def own_lab(
    folder: Path, pools: Sequence[TestPool | str], changes: Mapping[str, Any] | None = None
) -> Iterator[OwnLab]:
    """A fresh lab; it ends with the block."""
    directory = folder / "lab"
    settings = LabSettings(cluster="chaos", audit_mode=AuditMode.BLOCKING)
    lab = start_lab(directory, settings, detached=False)
    numbers = itertools.count(1)
    try:
        cluster = cluster_of(lab)
        with (
            fleet_on(lab, cluster, folder / "fleet", pools, changes) as fleet,
            test_nodes(lab, cluster, lambda name: f"{name}-{next(numbers)}") as nodes,
        ):
            yield OwnLab(lab, Lab(lab.directory), fleet, nodes)
        cluster.kube.close()
    finally:
        stop_lab(directory)
