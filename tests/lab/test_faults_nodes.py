"""Each fault on a real control plane: what the cluster then sees, and what ends it."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.kube import paths
from activities.kube.errors import NotFound
from tests.harness.audit import AGENT, AuditEvent, AuditLog, Wanted
from tests.harness.cluster import Cluster
from tests.harness.nodes import TestNodes
from tests.harness.waiting import stays_true, wait_until
from tests.lab.conftest import LIMIT_S, Pods, boot_log, phase_of
from workers.lab.kubelet.client import FleetError
from workers.lab.kubelet.host_root import BootEvent
from workers.lab.kubelet.spec import NodeKind, Power

FINDINGS = "fleetmend.io/findings"
UNKNOWN_S = 25.0


@pytest.fixture
def node(nodes: TestNodes) -> str:
    return nodes.add("n", "faults", boot_time_s=0.3)


def _raw(cluster: Cluster, node: str) -> Any:
    return cluster.kube.get(paths.node(node))


def _gpu_health(cluster: Cluster, node: str) -> tuple[str, str]:
    found = next(
        c for c in _raw(cluster, node)["status"]["conditions"] if c["type"] == "GPUHealthy"
    )
    return found["status"], found["reason"]


def _findings(cluster: Cluster, node: str) -> Any:
    return json.loads(_raw(cluster, node)["metadata"]["annotations"][FINDINGS])


def _ready(cluster: Cluster, node: str) -> str:
    found = next(c for c in _raw(cluster, node)["status"]["conditions"] if c["type"] == "Ready")
    return str(found["status"])


def _boot_id(cluster: Cluster, node: str) -> str:
    return str(_raw(cluster, node)["status"]["nodeInfo"]["bootID"])


def _until_booted(nodes: TestNodes, cluster: Cluster, node: str) -> None:
    before = _boot_id(cluster, node)
    nodes.client.reboot(node)
    wait_until(lambda: _boot_id(cluster, node) != before, LIMIT_S, "the boot id has changed")


@pytest.mark.parametrize(
    ("fault", "reason", "finding"),
    [
        ("gpu-lost", "GpuLost", ("gpu-lost", "xid-79")),
        ("gpu-memory", "GpuMemoryUncorrectable", ("gpu-memory-uncorrectable", "xid-48")),
    ],
)
def test_a_gpu_fault_is_reported_at_once_and_a_reboot_heals_it(
    nodes: TestNodes, cluster: Cluster, node: str, fault: str, reason: str, finding: tuple[str, str]
) -> None:
    receipt = nodes.inject(node, fault, gpu=2)
    assert _gpu_health(cluster, node) == ("False", reason)
    (told,) = _findings(cluster, node)["findings"]
    assert (told["fault"], told["code"]) == finding
    information = list((_gpu_folders(nodes, node)).glob("*/information"))
    assert any(told["device"] in path.read_text() for path in information)
    assert receipt.sent_at is not None
    assert receipt.patched_at is not None
    assert receipt.sent_at < receipt.patched_at <= time.time()
    _until_booted(nodes, cluster, node)
    nodes.until_healthy(node)
    assert _findings(cluster, node)["findings"] == []
    assert nodes.view(node).faults == ()


def _gpu_folders(nodes: TestNodes, node: str) -> Path:
    return Path(nodes.view(node).host_root) / "proc/driver/nvidia/gpus"


def test_conditions_and_findings_travel_in_one_patch_by_the_agent(
    nodes: TestNodes, node: str, witness: AuditLog
) -> None:
    nodes.inject(node, "gpu-lost")

    def with_the_fault() -> list[AuditEvent]:
        # Lines of the agent's patches before the fault may come late, too.
        return [
            event
            for event in witness.events(Wanted(who=AGENT, name=node))
            if any(c["status"] == "False" for c in event.body["status"].get("conditions", []))
        ]

    (patch,) = wait_until(with_the_fault, LIMIT_S, "the agent's patch is in the audit log")
    assert (patch.verb, patch.resource) == ("patch", "nodes/status")
    assert list(patch.annotations_sent) == [FINDINGS]
    assert len(patch.body["status"]["conditions"]) == 4


def test_a_cleared_fault_is_reported_healthy(nodes: TestNodes, cluster: Cluster, node: str) -> None:
    nodes.inject(node, "gpu-lost")
    assert nodes.clear(node, "gpu-lost").cleared == ("gpu-lost/0",)
    assert _gpu_health(cluster, node) == ("True", "Healthy")


def _told(witness: AuditLog, who: str, node: str, kind: str) -> list[tuple[str, str]]:
    """Status and reason of a condition as each patch of `who` said them, oldest first."""
    wanted = Wanted(who=who, verb="patch", resource="nodes/status", name=node)
    return [
        (condition["status"], condition["reason"])
        for event in witness.events(wanted)
        for condition in event.body["status"].get("conditions", [])
        if condition["type"] == kind
    ]


def test_unknown_recovers_by_itself(nodes: TestNodes, node: str, witness: AuditLog) -> None:
    nodes.inject(node, "unknown", for_s=1)

    def told() -> list[tuple[str, str]]:
        return _told(witness, AGENT, node, "GPUHealthy")

    # By the witness: a look may come when the second is over.
    wanted = [("Unknown", "DiagnosticUnknown"), ("True", "Healthy")]
    wait_until(lambda: told()[-2:] == wanted, LIMIT_S, "it was so and has recovered", saw=told)


def test_a_dead_kubelet_makes_the_node_unknown_and_its_processes_go_on(
    nodes: TestNodes, cluster: Cluster, node: str, pods: Pods
) -> None:
    name = pods.timer(node)
    pods.until_phase(name, "Running")
    nodes.inject(node, "kubelet-dead")
    late = pods.timer(node)
    wait_until(lambda: _ready(cluster, node) == "Unknown", UNKNOWN_S, "Ready is Unknown")
    assert phase_of(pods.get(late)) == "Pending"
    assert phase_of(pods.get(name)) == "Running"
    nodes.clear(node, "kubelet-dead")
    wait_until(lambda: cluster.node(node).ready, LIMIT_S, "the node is Ready again")
    pods.until_phase(late, "Running")
    restarts = pods.get(name)["status"]["containerStatuses"][0]["restartCount"]
    assert restarts == 0


def test_the_agent_speaks_while_the_kubelet_is_dead(
    nodes: TestNodes, cluster: Cluster, node: str
) -> None:
    nodes.inject(node, "kubelet-dead")
    nodes.inject(node, "gpu-lost")
    assert _gpu_health(cluster, node) == ("False", "GpuLost")


def test_a_slow_boot_takes_its_time(nodes: TestNodes, cluster: Cluster, node: str) -> None:
    nodes.inject(node, "slow-boot", seconds=3)
    before = _boot_id(cluster, node)
    asked = datetime.now(UTC)
    nodes.client.reboot(node)
    wait_until(lambda: _boot_id(cluster, node) != before, LIMIT_S, "it has booted")
    assert boot_log(nodes, node)[-1].at - asked >= timedelta(seconds=3)


def test_a_reboot_that_hangs_comes_back_when_cleared(
    nodes: TestNodes, cluster: Cluster, node: str
) -> None:
    nodes.inject(node, "reboot-hangs")
    before = _boot_id(cluster, node)
    nodes.client.reboot(node)
    wait_until(lambda: nodes.view(node).power is Power.HUNG, LIMIT_S, "it hangs")
    wait_until(lambda: _ready(cluster, node) == "Unknown", UNKNOWN_S, "Ready is Unknown")
    assert boot_log(nodes, node)[-1].event is BootEvent.HUNG
    assert _boot_id(cluster, node) == before
    nodes.clear(node, "reboot-hangs")
    wait_until(lambda: _boot_id(cluster, node) != before, LIMIT_S, "it has booted")
    nodes.until_healthy(node)


def test_a_reboot_that_lies_changes_nothing_and_is_witnessed(
    nodes: TestNodes, cluster: Cluster, node: str, witness: AuditLog
) -> None:
    nodes.inject(node, "reboot-lies")
    before = _boot_id(cluster, node)
    nodes.client.reboot(node, "a test")
    wait_until(
        lambda: boot_log(nodes, node)[-1].event is BootEvent.IGNORED, LIMIT_S, "it is witnessed"
    )
    stays_true(lambda: _boot_id(cluster, node) == before, 1.5, "nothing is")
    assert nodes.boots(node) == 0
    # What the kubelet says: others call the node Unknown when its Lease comes late.
    told = _told(witness, f"system:node:{node}", node, "Ready")
    assert {status for status, _ in told} <= {"True"}


def test_a_reboot_that_lies_may_let_ready_flap(
    nodes: TestNodes, cluster: Cluster, node: str, witness: AuditLog
) -> None:
    nodes.inject(node, "reboot-lies", flap=True)
    before = _boot_id(cluster, node)
    nodes.client.reboot(node)

    def told() -> list[str]:
        kubelet = f"system:node:{node}"
        return [status for status, _ in _told(witness, kubelet, node, "Ready")]

    wait_until(
        lambda: "False" in told() and told()[-1] == "True",
        LIMIT_S,
        "Ready went and came back",
        saw=told,
    )
    assert _boot_id(cluster, node) == before


def test_a_gpu_is_missing_after_the_reboot(nodes: TestNodes, cluster: Cluster, node: str) -> None:
    nodes.inject(node, "gpu-missing-after-reboot", gpu=5)
    assert _gpu_health(cluster, node) == ("False", "GpuLost")
    assert len(list(_gpu_folders(nodes, node).iterdir())) == 8
    _until_booted(nodes, cluster, node)
    nodes.until_healthy(node)
    assert _raw(cluster, node)["status"]["allocatable"]["nvidia.com/gpu"] == "7"
    assert len(list(_gpu_folders(nodes, node).iterdir())) == 7
    nodes.clear(node, "gpu-missing-after-reboot")
    _until_booted(nodes, cluster, node)
    nodes.until_healthy(node)
    assert nodes.view(node).gpus == 8


@pytest.mark.parametrize("same_machine", [False, True], ids=["new machine", "same machine"])
@pytest.mark.parametrize("kind", [NodeKind.FULL, NodeKind.LIGHT])
def test_a_recreated_node_has_its_name_only(
    nodes: TestNodes, cluster: Cluster, kind: NodeKind, same_machine: bool
) -> None:
    node = nodes.add("n", "recreated", kind=kind, boot_time_s=0.2)
    before = _raw(cluster, node)
    nodes.inject(node, "node-recreated-same-name", same_machine=same_machine)
    wait_until(
        lambda: _uid(cluster, node) not in ("", before["metadata"]["uid"]),
        LIMIT_S,
        "there is another Node of that name",
    )
    after = _raw(cluster, node)
    assert after["status"]["nodeInfo"]["bootID"] != before["status"]["nodeInfo"]["bootID"]

    def machine(node: Any) -> list[str]:
        facts = node["status"]["nodeInfo"]
        return [node["spec"]["providerID"], facts["machineID"], facts["systemUUID"]]

    pairs = list(zip(machine(before), machine(after), strict=True))
    assert all((old == new) is same_machine for old, new in pairs)


def _uid(cluster: Cluster, node: str) -> str:
    try:
        return str(_raw(cluster, node)["metadata"]["uid"])
    except NotFound:
        return ""


def test_a_node_recreated_in_mid_reboot_boots_once(nodes: TestNodes, cluster: Cluster) -> None:
    # Long enough to be caught in its boot.
    node = nodes.add("n", "mid", boot_time_s=6.0)
    uid = _uid(cluster, node)
    nodes.client.reboot(node)
    wait_until(lambda: nodes.view(node).power is Power.BOOTING, LIMIT_S, "it goes down")
    nodes.inject(node, "node-recreated-same-name")
    wait_until(lambda: _uid(cluster, node) not in ("", uid), LIMIT_S, "it is there again")
    nodes.until_healthy(node)
    stays_true(lambda: nodes.boots(node) == 1, 2.0, "it has booted once")
    assert [r.event for r in boot_log(nodes, node)] == [BootEvent.FIRST, BootEvent.NEW_MACHINE]


def test_an_agent_forgets_without_a_boot_and_remembers_when_cleared(
    nodes: TestNodes, cluster: Cluster, node: str
) -> None:
    nodes.inject(node, "gpu-lost")
    nodes.inject(node, "agent-forgets")
    assert _gpu_health(cluster, node) == ("True", "Healthy")
    assert _findings(cluster, node)["findings"] == []
    assert nodes.boots(node) == 0
    nodes.clear(node, "agent-forgets")
    assert _gpu_health(cluster, node) == ("False", "GpuLost")


def test_a_silent_agent_writes_nothing(
    nodes: TestNodes, cluster: Cluster, witness: AuditLog
) -> None:
    node = nodes.add("n", "silent", agent_refresh_s=0.3)
    nodes.inject(node, "agent-silent")
    count = len(witness.events(Wanted(who=AGENT, name=node)))
    receipt = nodes.inject(node, "gpu-lost")
    assert receipt.patched_at is None
    stays_true(
        lambda: len(witness.events(Wanted(who=AGENT, name=node))) <= count + 1, 1.5, "it is silent"
    )
    nodes.clear(node, "agent-silent")
    assert _gpu_health(cluster, node) == ("False", "GpuLost")


def test_a_fault_is_injected_once(nodes: TestNodes, node: str) -> None:
    nodes.inject(node, "gpu-lost")
    with pytest.raises(FleetError, match="has gpu-lost/0 already: clear it first"):
        nodes.inject(node, "gpu-lost")
    nodes.inject(node, "gpu-lost", gpu=1)
    assert set(nodes.view(node).faults) == {"gpu-lost/0", "gpu-lost/1"}


def test_what_cannot_be_injected_says_why(nodes: TestNodes, node: str) -> None:
    with pytest.raises(FleetError, match="no simulated node 'nobody'"):
        nodes.inject("nobody", "gpu-lost")
    with pytest.raises(FleetError, match=r"gpu=9: node .* has GPUs 0 to 7"):
        nodes.inject(node, "gpu-lost", gpu=9)
    with pytest.raises(FleetError, match=r"has no active fault unknown; active: none"):
        nodes.clear(node, "unknown")
    assert nodes.view(node).faults == ()


def test_a_light_node_takes_the_faults_it_can_show(nodes: TestNodes, cluster: Cluster) -> None:
    node = nodes.add("l", "faults", kind=NodeKind.LIGHT)
    nodes.inject(node, "gpu-lost")
    assert _gpu_health(cluster, node) == ("False", "GpuLost")
    nodes.inject(node, "kubelet-dead")
    wait_until(lambda: _ready(cluster, node) == "Unknown", UNKNOWN_S, "Ready is Unknown")
    nodes.clear(node, "kubelet-dead")
    assert cluster.node(node).ready
    with pytest.raises(FleetError, match="is light and has no host root"):
        nodes.inject(node, "reboot-hangs")
