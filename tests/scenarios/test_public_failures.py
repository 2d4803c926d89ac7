"""Failures that other systems had in production, by their public reports: none may happen here."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.audit import AuditLog
from tests.harness.fleet import Fleet
from tests.harness.nodes import TestNodes
from tests.harness.waiting import stays_true, wait_until
from tests.harness.work import Work
from workflows.contracts.messages import Command
from workflows.model.detection.finding import FINDINGS_ANNOTATION
from workflows.model.identity import NodeRef

QUIET_S = 2.0


def test_r10_a_node_cordoned_by_an_admin_is_drained_all_the_same_and_stays_cordoned(
    fleet: Fleet,
    nodes: TestNodes,
    node: str,
    ref: NodeRef,
    work: Work,
    witness: AuditLog,
    unique: Callable[[str], str],
) -> None:
    pod = work.pod(unique("pod"), node)
    fleet.cluster.patch_node(node, {"spec": {"unschedulable": True}})
    nodes.inject(node, "gpu-lost")
    assert fleet.episodes.closing(ref).outcome == "returned", fleet.episodes.shown(ref)
    evicted = witness.evictions([pod])
    assert len(evicted) == 1
    assert evicted[0].answered_at < witness.reboots(node)[0].received_at
    assert fleet.cluster.node(node).unschedulable, "the admin's cordon is not ours to lift"
    assert fleet.cluster.marker(node) is None


def test_r11_n1_a_cold_start_replays_no_ended_fault_and_two_faults_are_one_reboot(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    nodes.inject(node, "gpu-lost", gpu=0)
    nodes.inject(node, "gpu-memory", gpu=1)
    assert fleet.episodes.closing(ref).outcome == "returned", fleet.episodes.shown(ref)
    assert len(witness.reboots(node)) == 1
    fleet.watch.end()
    fleet.worker.end()
    fleet.restart_watch()
    fleet.restart_worker()
    stays_true(lambda: not fleet.episodes.is_open(ref), QUIET_S, "no episode is opened again")
    assert len(witness.reboots(node)) == 1
    assert not fleet.cluster.node(node).unschedulable


@pytest.mark.parametrize(
    "spec", [{"boot_time_s": 0.1, "not_ready_after_boot_s": 0}], ids=["fast boot"]
)
def test_r12_a_reboot_faster_than_any_not_ready_is_proven_by_its_boot_id(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef
) -> None:
    nodes.inject(node, "gpu-lost")
    assert fleet.episodes.closing(ref).outcome == "returned", fleet.episodes.shown(ref)
    assert nodes.boots(node) == 1


def test_r17_n9_a_reboot_that_the_node_refuses_is_held_at_once_with_the_reason(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    shim = next((Path(fleet.lab.directory) / "nodes" / node / "opt" / "lab").rglob("chroot"))
    shim.unlink()  # the real chroot then finds no systemctl below the node's root
    nodes.inject(node, "gpu-lost")
    fleet.episodes.until_held(ref)
    assert "reboot" in fleet.held_reason(node)
    assert len(witness.reboots(node)) == 1
    assert nodes.boots(node) == 0
    fleet.episodes.tell(ref, Command.RETIRE)
    fleet.episodes.closing(ref)


def test_r18_a_chronic_fault_is_rebooted_once_and_then_held(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    nodes.inject(node, "gpu-lost")
    fleet.episodes.until_phase(ref, "validated", "probation", "closed")
    nodes.inject(node, "gpu-lost")
    wait_until(
        lambda: fleet.episodes.is_held(ref) or not fleet.episodes.is_open(ref),
        60,
        "the relapse is held, or came after the close",
        saw=lambda: fleet.episodes.shown(ref),
    )
    assert len(witness.reboots(node)) <= 2
    if fleet.episodes.is_held(ref):
        assert len(witness.reboots(node)) == 1
        fleet.episodes.tell(ref, Command.RETIRE)
        assert fleet.episodes.closing(ref).outcome == "retired"


def test_r20_a_node_whose_hostname_is_not_its_name_is_uncordoned_after_its_reboot(
    fleet: Fleet,
    nodes: TestNodes,
    pool: str,
    work: Work,
    witness: AuditLog,
    unique: Callable[[str], str],
) -> None:
    """The label even names another node: that one, and its work, must not be meant."""
    other = nodes.add("b", pool)
    node = nodes.add("a", pool, labels={"kubernetes.io/hostname": other})
    fleet.until_baselines(nodes)
    ref = fleet.ref(node)
    bystander, own = work.pod(unique("other"), other), work.pod(unique("own"), node)
    nodes.inject(node, "gpu-lost")
    assert fleet.episodes.closing(ref).outcome == "returned", fleet.episodes.shown(ref)
    after = fleet.cluster.node(node)
    assert after.labels["kubernetes.io/hostname"] == other
    assert (after.unschedulable, fleet.cluster.marker(node)) == (False, None)
    assert (nodes.boots(node), nodes.boots(other)) == (1, 0)
    assert (len(witness.evictions([own])), witness.evictions([bystander])) == (1, [])
    assert witness.node_writes(other) == []


def test_n2_an_uncordon_during_the_drain_is_followed_by_no_reboot(
    fleet: Fleet,
    nodes: TestNodes,
    node: str,
    ref: NodeRef,
    work: Work,
    witness: AuditLog,
    unique: Callable[[str], str],
) -> None:
    pod = work.pod(unique("pod"), node, stops_in_s=12)
    nodes.inject(node, "gpu-lost")
    wait_until(lambda: witness.evictions([pod]), 30, "the pod is being evicted")
    fleet.cluster.uncordon(node)
    nodes.inject(node, "agent-forgets")
    fleet.episodes.until_held(ref)
    wait_until(lambda: work.phase(pod) == "", 60, "the evicted pod has ended")
    stays_true(lambda: not witness.reboots(node), QUIET_S, "nobody reboots the node")
    fleet.episodes.tell(ref, Command.RETIRE)
    assert fleet.episodes.closing(ref).outcome == "retired"


def test_n4_a_fault_after_an_overruled_one_is_quarantined_again(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    """R42 (NVSentinel#1451), too: what ended the old incident does not end the new one."""
    nodes.inject(node, "unknown")
    fleet.episodes.until_phase(ref, "quarantined")
    fleet.cluster.uncordon(node)
    fleet.episodes.until_held(ref)
    before = len(witness.cordons(node))
    nodes.inject(node, "gpu-lost")
    wait_until(lambda: len(witness.cordons(node)) > before, 60, "the new fault is quarantined")
    assert fleet.episodes.closing(ref).outcome == "returned", fleet.episodes.shown(ref)
    assert len(witness.reboots(node)) == 1


def test_n6_a_node_with_two_faults_returns_only_when_both_are_gone(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef
) -> None:
    nodes.inject(node, "unknown")
    fleet.episodes.until_phase(ref, "quarantined")
    nodes.inject(node, "gpu-lost")
    assert fleet.episodes.closing(ref).outcome == "returned", fleet.episodes.shown(ref)
    assert nodes.boots(node) == 1
    conditions = fleet.cluster.node(node).conditions
    assert conditions["GPUHealthy"].status == "True"
    assert not fleet.cluster.node(node).unschedulable


def test_r38_a_pod_that_looks_bound_to_a_recreated_node_is_not_evicted_for_the_old_one(
    fleet: Fleet,
    nodes: TestNodes,
    node: str,
    ref: NodeRef,
    work: Work,
    witness: AuditLog,
    unique: Callable[[str], str],
) -> None:
    """kubernetes#141365: pods of the old Node stay, bound to the name that another Node has now."""
    pod = work.pod(unique("pod"), node)
    fleet.worker.freeze()
    nodes.inject(node, "gpu-lost")
    wait_until(lambda: witness.cordons(node), 30, "the old Node is quarantined")
    nodes.inject(node, "node-recreated-same-name")
    wait_until(lambda: nodes.view(node).uid not in ("", ref.uid), 30, "the Node is another")
    nodes.until_healthy(node)
    assert node in {p["spec"]["nodeName"] for p in fleet.cluster.pods_on(node)}
    fleet.worker.thaw()
    assert fleet.episodes.closing(ref).outcome == "vanished", fleet.episodes.shown(ref)
    stays_true(lambda: not witness.evictions([pod]), QUIET_S, "nobody evicts the pod")
    assert not fleet.cluster.node(node).unschedulable
    assert witness.reboots(node) == []


def test_n12_monitors_that_start_anew_and_report_all_again_start_no_second_reboot(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    """NVSentinel#1543: a fault that no reboot mends, and a monitor whose restart fires it again."""
    nodes.inject(node, "gpu-missing-after-reboot")
    fleet.episodes.until_held(ref)
    assert len(witness.reboots(node)) == 1
    fleet.cluster.delete_pods_of(node)
    fleet.watch.end()
    fleet.restart_watch()
    nodes.inject(node, "gpu-lost", gpu=1)
    stays_true(lambda: fleet.episodes.is_held(ref), QUIET_S, "it stays held")
    assert len(witness.reboots(node)) == 1
    fleet.episodes.tell(ref, Command.RETIRE)
    assert fleet.episodes.closing(ref).outcome == "retired"


@pytest.mark.parametrize("spec", [{"agent": "real"}], ids=["real agent"])
def test_n26_an_applications_xid_costs_no_node(
    fleet: Fleet,
    nodes: TestNodes,
    node: str,
    ref: NodeRef,
    work: Work,
    witness: AuditLog,
    unique: Callable[[str], str],
) -> None:
    """NVSentinel#911: Xid 31 was taken for fatal, and the node drained and never given back."""
    pod = work.pod(unique("pod"), node)
    nodes.inject(node, "xid-31")
    wait_until(
        lambda: "xid-31" in fleet.cluster.node(node).annotations.get(FINDINGS_ANNOTATION, ""),
        30,
        "the agent has told of it",
    )
    stays_true(lambda: not fleet.cluster.node(node).unschedulable, QUIET_S, "it stays in service")
    assert work.phase(pod) == "Running"
    assert (witness.cordons(node), witness.evictions([pod])) == ([], [])
    assert not fleet.episodes.is_open(ref)
