"""One node's whole life, on a real API server and a real Temporal server."""

from tests.harness.audit import WATCH, AuditLog
from tests.harness.fleet import Fleet
from tests.harness.nodes import TestNodes
from tests.harness.waiting import wait_until
from workflows.contracts.messages import Command
from workflows.model.identity import NodeRef

ACTIONS_LIMIT, EVENTS_LIMIT = 60, 220
"""Of one episode, retries on a loaded machine included: what it costs on a quiet one, 40 and 160 at
most, is the bench's to hold."""


def test_a_lost_gpu_is_rebooted_once_validated_and_given_back(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    boots = nodes.boots(node)
    nodes.inject(node, "gpu-lost")
    closing = fleet.episodes.closing(ref)
    assert closing.outcome == "returned", fleet.episodes.shown(ref)
    assert [phase for phase, _ in closing.phases] == [
        "suspect",
        "quarantined",
        "drained",
        "rebooted",
        "validated",
        "probation",
        "closed",
    ]
    assert nodes.boots(node) == boots + 1
    assert len(witness.reboots(node)) == 1
    assert [event.who for event in witness.cordons(node)] == [WATCH]
    after = fleet.cluster.node(node)
    assert not after.unschedulable
    assert fleet.cluster.marker(node) is None
    counts = fleet.episodes.counts(ref)
    assert counts.actions <= ACTIONS_LIMIT, counts
    assert counts.events <= EVENTS_LIMIT, counts


def test_a_gpu_missing_after_the_reboot_is_held_and_keeps_its_quarantine(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    nodes.inject(node, "gpu-missing-after-reboot")
    fleet.episodes.until_held(ref)
    assert len(witness.reboots(node)) == 1
    assert fleet.cluster.node(node).unschedulable
    marker = fleet.cluster.marker(node)
    assert marker is not None
    assert marker.slot is None, "a held episode gives up its slot"
    fleet.episodes.tell(ref, Command.RETIRE)
    assert fleet.episodes.closing(ref).outcome == "retired"


def test_unknown_health_that_passes_is_dismissed_and_never_marked(
    fleet: Fleet, nodes: TestNodes, pool: str, witness: AuditLog
) -> None:
    node = nodes.add("a", pool)
    ref = fleet.ref(node)
    fleet.worker.freeze()
    try:
        nodes.inject(node, "unknown")
        fleet.episodes.until_open(ref)
        nodes.clear(node, "unknown")
    finally:
        fleet.worker.thaw()
    assert fleet.episodes.closing(ref, but=frozenset()).outcome == "dismissed"
    assert witness.node_writes(node) == []


def test_a_retire_by_signal_drains_and_hands_over(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef
) -> None:
    nodes.inject(node, "unknown")
    fleet.episodes.until_phase(ref, "quarantined")
    fleet.episodes.tell(ref, Command.RETIRE)
    assert fleet.episodes.closing(ref).outcome == "retired"
    marker = fleet.cluster.marker(node)
    assert marker is not None
    assert marker.handed_over.startswith("operator:")
    assert fleet.cluster.node(node).unschedulable
    wait_until(lambda: not fleet.episodes.is_open(ref), 30, "nothing is opened again")
