"""People step in: what they undo stays undone, what they pause stands still."""

from collections.abc import Callable

from tests.harness.audit import AuditLog
from tests.harness.fleet import Fleet
from tests.harness.nodes import TestNodes
from tests.harness.waiting import stays_true, wait_until
from tests.harness.work import Work
from workflows.contracts.messages import Command
from workflows.model.identity import NodeRef

QUIET_S = 2.0
"""How long "nothing is done" is watched: ten times what the next step takes."""


def test_a_cordon_that_a_person_removes_in_mid_episode_stays_removed_until_resume(
    fleet: Fleet,
    nodes: TestNodes,
    node: str,
    ref: NodeRef,
    work: Work,
    witness: AuditLog,
    unique: Callable[[str], str],
) -> None:
    pod = work.pod(unique("pod"), node)
    work.block(pod)
    nodes.inject(node, "gpu-lost")
    wait_until(
        lambda: any("drain" in line for line in _blocked(witness, pod)),
        30,
        "the drain was refused by the budget",
    )
    fleet.cluster.uncordon(node)
    fleet.episodes.until_held(ref)
    wait_until(lambda: fleet.cluster.marker(node) is None, 30, "our mark comes off")
    before = len(witness.cordons(node))
    stays_true(
        lambda: not fleet.cluster.node(node).unschedulable, QUIET_S, "the node stays schedulable"
    )
    assert len(witness.cordons(node)) == before
    assert fleet.cluster.marker(node) is None
    assert witness.reboots(node) == []
    assert witness.evictions([pod]) == []
    assert work.phase(pod) == "Running"
    machine = fleet.cluster.machine_of(node)
    assert machine is not None
    assert machine["status"]["overruled"][0]["fault"] == "gpu-lost"
    work.unblock(pod)
    fleet.episodes.tell(ref, Command.RESUME)
    closing = fleet.episodes.closing(ref)
    assert (closing.outcome, closing.fault) == ("returned", "gpu-lost"), fleet.episodes.shown(ref)
    assert len(witness.reboots(node)) == 1


def _blocked(witness: AuditLog, pod: str) -> list[str]:
    refused = [e for e in witness.events() if e.resource == "pods/eviction" and e.name == pod]
    return ["drain" for e in refused if e.code == 429]


def test_a_paused_node_is_left_alone_until_the_annotation_goes(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    fleet.cluster.annotate(node, pause="hands off")
    nodes.inject(node, "gpu-lost")
    fleet.episodes.until_open(ref)
    stays_true(lambda: not witness.node_writes(node), QUIET_S, "no process writes the Node")
    assert witness.reboots(node) == []
    fleet.cluster.annotate(node, pause=None)
    assert fleet.episodes.closing(ref).outcome == "returned", fleet.episodes.shown(ref)
    assert len(witness.reboots(node)) == 1


def test_a_paused_pool_is_quarantined_and_not_disrupted_and_returns_are_not_blocked(
    fleet: Fleet, nodes: TestNodes, pool: str, witness: AuditLog
) -> None:
    first, second = nodes.add_many(["a", "b"], pool, boot_time_s=3)
    fleet.until_baselines(nodes)
    nodes.inject(first, "gpu-lost")
    ref = fleet.ref(first)
    wait_until(lambda: witness.reboots(first), 30, "the first node is being rebooted")
    fleet.cluster.pause(pool)
    try:
        nodes.inject(second, "gpu-lost")
        other = fleet.ref(second)
        assert fleet.episodes.closing(ref).outcome == "returned", fleet.episodes.shown(ref)
        fleet.episodes.until_phase(other, "quarantined", "drained")
        stays_true(lambda: not witness.reboots(second), QUIET_S, "the second is not rebooted")
        assert fleet.cluster.node(second).unschedulable
    finally:
        fleet.cluster.resume(pool)
    assert fleet.episodes.closing(other).outcome == "returned", fleet.episodes.shown(other)


def test_retire_lifts_a_pause_given_by_signal_and_not_the_annotations(
    fleet: Fleet, nodes: TestNodes, pool: str, witness: AuditLog
) -> None:
    first, second = nodes.add_many(["a", "b"], pool)
    refs = [fleet.ref(first), fleet.ref(second)]
    for node, ref in zip((first, second), refs, strict=True):
        nodes.inject(node, "unknown")
        fleet.episodes.until_phase(ref, "quarantined")
    fleet.episodes.tell(refs[0], Command.PAUSE)
    fleet.cluster.annotate(second, pause="hands off")
    before = len(witness.node_writes(second))
    for ref in refs:
        fleet.episodes.tell(ref, Command.RETIRE)
    assert fleet.episodes.closing(refs[0]).outcome == "retired"
    stays_true(lambda: len(witness.node_writes(second)) == before, QUIET_S, "the annotation holds")
    fleet.cluster.annotate(second, pause=None)
    assert fleet.episodes.closing(refs[1]).outcome == "retired"
