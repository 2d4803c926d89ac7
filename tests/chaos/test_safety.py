"""Late, stale and forged causes that must not act: each test fails without the guard it is about.

Owns what can be shown on the session's lab; restored backups are in `test_restored_backups.py`.
The guard of each test is named beside it, so that a reader can take it out and see the test fail.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities.kube import paths
from activities.kube.client import JsonObject, KubeClient, PatchKind
from activities.node_tasks.pod import NAMESPACE, read_task_pod, task_name, task_pod
from activities.policy_file import PolicySource
from activities.registry import Dependencies
from tests.activities.desk import Desk
from tests.chaos.stage import WORK_NAMESPACE, Ending, Stage
from tests.harness.audit import AuditLog, Wanted, audit
from tests.harness.cluster import Cluster
from tests.harness.fleet import Fleet, fleet_on
from tests.harness.nodes import TestNodes
from tests.harness.waiting import stays_true, wait_until
from workers.lab.address import LabAccount, LabAddress
from workers.lab.kubelet.host_root import BootEvent, read_boot_log
from workers.lab.kubelet.spec import POOL_LABEL, Power
from workflows.contracts import errors
from workflows.contracts.kube import GIVE_BACK, PROVE_REBOOT, GiveBackRequest, Owner, RebootWatch
from workflows.contracts.messages import Command
from workflows.contracts.node_tasks import NodeTaskRequest
from workflows.model.detection.finding import FINDINGS_ANNOTATION
from workflows.model.identity import NodeRef
from workflows.model.node_task import TaskKind
from workflows.model.remediation.marks import EPISODE, parse_marker
from workflows.model.remediation.permit import FRESH_S
from workflows.model.remediation.reboot import BootRecord, Proof

POOL = "safety"
CHANGES = {
    "gate": {"timeout_s": 120, "settle_s": 60},
    "timing": {"boot_deadline_s": 60, "node_task_deadline_s": 30},
}
RETURNED = Ending("returned", reboots=1)
WAITS_S = 90.0
NOTHING_S = 4.0
"""How long nothing is to happen: a drain that may evict does so within a second."""


@pytest.fixture(scope="module")
def fleet(
    lab: LabAddress, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    folder: Path = tmp_path_factory.mktemp("safety")
    with fleet_on(lab, cluster, folder, [POOL], CHANGES) as own:
        yield own


@pytest.fixture
def stage(fleet: Fleet, nodes: TestNodes, witness: AuditLog) -> Iterator[Stage]:
    yield Stage(fleet, nodes, witness)
    fleet.worker.thaw()


@pytest.fixture(scope="module")
def desk(lab: LabAddress, fleet: Fleet) -> Iterator[Desk]:
    """The activities under the worker's account, to be carried out whenever a test says so."""
    kube = KubeClient.from_kubeconfig(lab.kubeconfig(LabAccount.WORKER), process="worker")
    policy = Path(fleet.processes.environment["FLEETMEND_POLICY"])
    no_temporal = cast("Client", None)
    yield Desk(Dependencies(kube, no_temporal, PolicySource(kube, policy), lab.cluster))
    kube.close()


def one_node(stage: Stage) -> str:
    node = stage.nodes.add("a", POOL)
    stage.settle(node)
    return node


# ---------------------------------------------------------------- what an older episode sends


@dataclass(frozen=True)
class Second:
    """A node in the quarantine of its second episode; `old` is the id of the first."""

    stage: Stage
    node: str
    old: str

    @property
    def ref(self) -> NodeRef:
        return self.stage.refs[self.node]

    def end(self) -> None:
        """It recovers, and is given back by its own episode."""
        self.stage.nodes.clear(self.node, "unknown")
        self.stage.judge(self.node, Ending("returned"))


@pytest.fixture
def second(stage: Stage, lab: LabAddress) -> Second:
    node = one_node(stage)
    stage.inject(node, "gpu-lost")
    stage.judge(node, RETURNED)
    old = parse_marker(stage.witness.cordons(node)[0].annotations_sent[EPISODE]).episode
    stage.witness = audit(lab)
    stage.settle(node)
    stage.inject(node, "unknown")
    stage.until(node, "quarantined")
    return Second(stage, node, old)


def test_a_stale_return_of_an_older_episode_is_refused(second: Second, desk: Desk) -> None:
    """Guard: the comparison of episodes in `fence` (model/remediation/permit.py)."""
    with pytest.raises(ApplicationError) as refused:
        desk.do(GIVE_BACK, GiveBackRequest(Owner(second.ref, second.old)))
    assert refused.value.type == errors.NOT_OWNER
    assert second.stage.cluster.node(second.node).unschedulable
    assert second.stage.cluster.marker(second.node) is not None
    second.end()


def test_a_retire_that_names_an_older_episode_is_recorded_and_ignored(second: Second) -> None:
    """Guard: `Inbox._refusal` (workflows/inbox.py)."""
    episodes = second.stage.fleet.episodes
    episodes.tell(second.ref, Command.RETIRE, episode=second.old)
    wait_until(
        lambda: any(second.old in line for line in episodes.story(second.ref)),
        WAITS_S,
        "the story tells of the late retire",
        saw=lambda: episodes.story(second.ref),
    )
    second.end()


# ---------------------------------------------------------------- a drain that wakes too late


def test_a_drain_that_wakes_after_the_return_evicts_nothing(stage: Stage) -> None:
    """Guard: the permit before each eviction, not older than FRESH_S (activities/permit.py)."""
    node = one_node(stage)
    pod = stage.add_pod(node, labels={"job": node})
    budgets = paths.pod_disruption_budgets(WORK_NAMESPACE)
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": node},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"job": node}}},
    }
    made = stage.cluster.kube.create(budgets, budget)
    stage.inject(node, "gpu-lost")
    blocked = Wanted(verb="create", resource="pods/eviction", name=pod, succeeded=False)
    wait_until(lambda: stage.witness.events(blocked), WAITS_S, "an eviction was refused")
    stage.fleet.worker.freeze()
    unmarked = {"metadata": {"annotations": {EPISODE: None}}, "spec": {"unschedulable": None}}
    stage.cluster.patch_node(node, unmarked)
    uid = made["metadata"]["uid"]
    stage.cluster.kube.delete(paths.object_path(budgets, node), uid=uid)
    stays_true(lambda: not stage.is_terminating(pod), FRESH_S + 0.5, "the pod runs on")
    stage.fleet.worker.thaw()
    stage.until_held(node)
    stays_true(
        lambda: stage.witness.evictions([pod]) == [] and stage.pod_phase(pod) == "Running",
        NOTHING_S,
        "nothing is evicted from a node that is in service",
    )
    assert stage.witness.reboots(node) == []


# ---------------------------------------------------------------- a reboot pod that starts late


def late_reboot_pod(stage: Stage, desk: Desk, node: str, not_after: datetime) -> str:
    """A reboot pod on a node whose kubelet is down; its name."""
    request = NodeTaskRequest(
        owner=Owner(stage.refs[node], "late"),
        kind=TaskKind.REBOOT,
        step="late",
        deadline_s=60,
        expected_boot_id=stage.cluster.node(node).boot_id,
        not_after=not_after,
    )
    name = task_name(request)
    body = task_pod(request, name, "fleetmend:lab")
    desk.dependencies.kube.create(paths.pods(NAMESPACE), body)
    return name


def said_by(stage: Stage, name: str) -> str:
    """The verdict of a task's pod, once it has ended."""

    def message() -> str:
        body = stage.cluster.kube.get(paths.pod(NAMESPACE, name))
        return read_task_pod(body).message or ""

    return wait_until(message, WAITS_S, f"pod {name} has ended")


def test_a_reboot_pod_that_starts_after_its_time_refuses(stage: Stage, desk: Desk) -> None:
    """Guard: not_after in `_refusal` (workers/node_task/task.py)."""
    node = one_node(stage)
    stage.inject(node, "kubelet-dead")
    not_after = datetime.now(UTC) + timedelta(seconds=1)
    name = late_reboot_pod(stage, desk, node, not_after)
    wait_until(lambda: datetime.now(UTC) > not_after, 5, "it is too late")
    stage.nodes.clear(node, "kubelet-dead")
    assert '"refused"' in (verdict := said_by(stage, name)), verdict
    assert "too late" in verdict
    assert stage.new_boots(node) == 0


def test_a_reboot_pod_that_starts_in_another_boot_refuses(stage: Stage, desk: Desk) -> None:
    """Guard: expected_boot_id in `_refusal` (workers/node_task/task.py)."""
    node = one_node(stage)
    stage.inject(node, "kubelet-dead")
    name = late_reboot_pod(stage, desk, node, datetime.now(UTC) + timedelta(minutes=5))
    stage.nodes.client.reboot(node, "somebody pressed the button")
    wait_until(lambda: stage.new_boots(node) == 1, WAITS_S, f"{node} has booted")
    stage.nodes.clear(node, "kubelet-dead")
    assert '"refused"' in (verdict := said_by(stage, name)), verdict
    assert stage.new_boots(node) == 1


@pytest.mark.timeout(400)
def test_a_kubelet_that_heals_after_the_episode_gave_up_finds_no_reboot_to_do(
    stage: Stage,
) -> None:
    """Guard: the task's pod is deleted before the episode goes on (activities/node_tasks)."""
    node = one_node(stage)
    stage.inject(node, "kubelet-dead")
    stage.inject(node, "gpu-lost")
    stage.until_held(node)
    assert len(stage.witness.reboots(node)) == 1
    assert stage.task_pods(node) == []
    stage.nodes.clear(node, "kubelet-dead")
    wait_until(lambda: stage.cluster.node(node).ready, WAITS_S, f"{node} is Ready")
    stays_true(lambda: stage.new_boots(node) == 0, 10, "nothing reboots the node")
    assert stage.cluster.node(node).unschedulable


# ---------------------------------------------------------------- forgetful agents, other iron


def test_a_lost_gpu_that_the_agent_forgets_is_rebooted_all_the_same(stage: Stage) -> None:
    """Guard: HARD classes (workflows/episode.py)."""
    node = one_node(stage)
    stage.fleet.worker.freeze()
    stage.inject(node, "gpu-lost")
    stage.until_cordoned(node)
    stage.inject(node, "agent-forgets")
    stage.fleet.worker.thaw()
    stage.judge(node, RETURNED)


def test_a_node_recreated_while_it_reboots_is_not_touched_by_the_old_episode(
    stage: Stage, lab: LabAddress
) -> None:
    """Guard: the UID in `Authority.look` and in each patch (activities/permit.py, marks.py)."""
    node = one_node(stage)
    stage.inject(node, "reboot-hangs")
    stage.inject(node, "gpu-lost")
    wait_until(lambda: stage.nodes.view(node).power is Power.HUNG, WAITS_S, f"{node} is down")
    later = audit(lab)
    stage.inject(node, "node-recreated-same-name")
    wait_until(
        lambda: stage.nodes.view(node).uid not in ("", stage.refs[node].uid),
        WAITS_S,
        f"{node} is another Node",
    )
    stage.nodes.until_healthy(node)
    pod = stage.add_pod(node)
    assert stage.closing(node).outcome == "vanished"
    assert later.node_writes(node) == []
    assert later.reboots(node) == []
    assert stage.pod_phase(pod) == "Running"
    events = [line.event for line in read_boot_log(lab.paths.nodes / node)]
    assert events == [BootEvent.FIRST, BootEvent.HUNG, BootEvent.NEW_MACHINE]


# ---------------------------------------------------------------- a Node that tells no boot id


@pytest.fixture
def bare(stage: Stage, unique: Callable[[str], str]) -> Iterator[Callable[[], str]]:
    """Makes a Node object without a machine behind it; its name."""
    name = unique("bare")

    def make() -> str:
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {POOL_LABEL: POOL}},
        }
        made = stage.cluster.kube.create(paths.nodes(), body)
        stage.refs[name] = NodeRef(name, made["metadata"]["uid"])
        return name

    yield make
    if name in stage.refs:
        stage.cluster.kube.delete(paths.node(name), uid=stage.refs[name].uid)


def set_status(stage: Stage, node: str, boot_id: str, **conditions: str) -> None:
    """Write what kubelet and agent would: `GPUHealthy="False"`."""
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    rows: list[dict[str, Any]] = [
        {
            "type": name,
            "status": status,
            "reason": "GpuLost" if status == "False" else "Healthy",
            "message": "as the test says",
            "lastHeartbeatTime": at,
            "lastTransitionTime": at,
        }
        for name, status in conditions.items()
    ]
    empty = ("machineID", "systemUUID", "kernelVersion", "osImage", "containerRuntimeVersion")
    more = ("kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture")
    info = {**dict.fromkeys((*empty, *more), ""), "systemUUID": node, "bootID": boot_id}
    report = json.dumps({"v": 1, "boot": boot_id, "at": at, "findings": []})
    stage.cluster.kube.patch(
        paths.node_status(node),
        {
            "metadata": {"annotations": {FINDINGS_ANNOTATION: report}},
            "status": {"nodeInfo": info, "conditions": rows},
        },
        kind=PatchKind.STRATEGIC,
    )


HEALTHY = dict.fromkeys(("InterconnectHealthy", "NetworkHealthy", "HostHealthy", "Ready"), "True")


def test_a_node_without_boot_id_is_held_and_never_rebooted(
    stage: Stage, bare: Callable[[], str]
) -> None:
    """Guard: the look at boot_id in `reboot` (workflows/proving.py)."""
    node = bare()
    stage.fleet.worker.freeze()
    set_status(stage, node, "boot-1", GPUHealthy="False", **HEALTHY)
    stage.until_cordoned(node)
    set_status(stage, node, "")
    stage.fleet.worker.thaw()
    stage.until_held(node)
    assert "no bootID" in stage.shown(node)
    assert stage.witness.reboots(node) == []
    assert stage.cluster.node(node).unschedulable


def test_a_reboot_after_which_the_boot_id_is_empty_is_unknown(
    stage: Stage, bare: Callable[[], str], desk: Desk
) -> None:
    """Guard: the empty boot id in `prove_reboot` (model/remediation/reboot.py)."""
    node = bare()
    set_status(stage, node, "", GPUHealthy="True", **HEALTHY)
    ref = stage.refs[node]
    before = BootRecord(ref.uid, "", node, "boot-1", datetime.now(UTC))
    found = desk.do(PROVE_REBOOT, RebootWatch(Owner(ref, "any"), before))
    assert found.proof is Proof.UNKNOWN
