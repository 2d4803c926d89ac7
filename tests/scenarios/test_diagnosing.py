"""A diagnostic that gives no answer (D33): the kernel log is asked, and nothing passes unproven."""

from typing import Any

import pytest

from tests.harness.audit import AuditLog
from tests.harness.fleet import Fleet
from tests.harness.nodes import TestNodes
from tests.harness.waiting import wait_until
from workflows.contracts.messages import Command
from workflows.model.identity import NodeRef


def _quarantined_as_unknown(fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef) -> None:
    nodes.inject(node, "unknown")
    fleet.episodes.until_phase(ref, "quarantined")


def _status(fleet: Fleet, node: str) -> dict[str, Any]:
    machine = fleet.cluster.machine_of(node)
    assert machine is not None
    found: dict[str, Any] = machine["status"]
    return found


def _validation(fleet: Fleet, node: str) -> dict[str, Any]:
    found: dict[str, Any] = _status(fleet, node)["lastValidation"]
    return found


def test_d33_a_hang_that_ends_is_followed_by_a_passed_diagnosis_and_the_nodes_return(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    nodes.inject(node, "dcgm-hang")
    _quarantined_as_unknown(fleet, nodes, node, ref)
    nodes.clear(node, "unknown")
    wait_until(lambda: witness.node_tasks(node, "diagnose"), 60, "the diagnosis runs into the hang")
    nodes.clear(node, "dcgm-hang")
    closing = fleet.episodes.closing(ref)
    assert closing.outcome == "returned", fleet.episodes.shown(ref)
    assert len(witness.node_tasks(node, "kernel-log")) == 1
    assert witness.reboots(node) == []
    assert not fleet.cluster.node(node).unschedulable
    validation = _validation(fleet, node)
    assert (validation["result"], validation["level"]) == ("passed", 1)


def test_d33_a_hang_that_lasts_is_held_with_its_quarantine_and_destroys_nothing(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    nodes.inject(node, "dcgm-hang")
    _quarantined_as_unknown(fleet, nodes, node, ref)
    nodes.clear(node, "unknown")
    fleet.episodes.until_held(ref)
    assert "no end within" in fleet.held_reason(node)
    assert fleet.cluster.node(node).unschedulable
    assert witness.reboots(node) == []
    assert _validation(fleet, node)["result"] == "unknown"
    nodes.clear(node, "dcgm-hang")
    fleet.episodes.tell(ref, Command.RESUME)
    assert fleet.episodes.closing(ref).outcome == "returned", fleet.episodes.shown(ref)


def test_a_crash_of_the_diagnostic_after_a_reboot_does_not_certify(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    nodes.inject(node, "dcgm-crash", lasting=True)
    nodes.inject(node, "gpu-lost")
    fleet.episodes.until_held(ref)
    assert "signal 11" in fleet.held_reason(node)
    assert len(witness.reboots(node)) == 1
    assert fleet.cluster.node(node).unschedulable
    nodes.clear(node, "dcgm-crash")
    fleet.episodes.tell(ref, Command.RESUME)
    assert fleet.episodes.closing(ref).outcome == "returned", fleet.episodes.shown(ref)
    assert len(witness.reboots(node)) == 1


def test_a_hardware_xid_behind_an_unknown_health_goes_that_classs_way(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    nodes.inject(node, "xid-79", gpu=3)
    nodes.inject(node, "unknown")
    closing = fleet.episodes.closing(ref)
    assert (closing.outcome, closing.fault) == ("returned", "gpu-lost"), fleet.episodes.shown(ref)
    assert len(witness.reboots(node)) == 1
    validation = _validation(fleet, node)
    assert (validation["result"], validation["level"]) == ("passed", 2)


def test_an_applications_xid_behind_an_unknown_health_reboots_nothing(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    nodes.inject(node, "xid-13")
    _quarantined_as_unknown(fleet, nodes, node, ref)
    nodes.clear(node, "unknown")
    assert fleet.episodes.closing(ref).outcome == "returned", fleet.episodes.shown(ref)
    assert witness.reboots(node) == []


def test_an_unreadable_kernel_log_is_held(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    nodes.inject(node, "kmsg-unreadable")
    _quarantined_as_unknown(fleet, nodes, node, ref)
    fleet.episodes.until_held(ref)
    assert "kernel log" in fleet.held_reason(node)
    assert witness.reboots(node) == []
    assert witness.node_tasks(node, "diagnose") == []
    fleet.episodes.tell(ref, Command.RETIRE)
    assert fleet.episodes.closing(ref).outcome == "retired"


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("spec", [{"agent": "real"}], ids=["real-agent"])
def test_d33_seen_by_the_real_agent_is_held_until_dcgm_answers_and_a_person_resumes(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    """The agent asks DCGM once a minute, longer than this policy waits for a recovery."""
    nodes.inject(node, "dcgm-hang")
    fleet.episodes.until_held(ref, 150)
    assert "no answer" in fleet.held_reason(node)
    assert len(witness.node_tasks(node, "kernel-log")) == 1
    nodes.clear(node, "dcgm-hang")
    wait_until(
        lambda: fleet.cluster.node(node).conditions["GPUHealthy"].status == "True",
        120,
        "the agent hears DCGM again",
    )
    fleet.episodes.tell(ref, Command.RESUME)
    closing = fleet.episodes.closing(ref)
    assert closing.outcome == "returned", fleet.episodes.shown(ref)
    assert witness.reboots(node) == []
    assert _validation(fleet, node)["result"] == "passed"
