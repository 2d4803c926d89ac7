"""A person's words to a node's episode, through the command line to the real workflow."""

import pytest

from tests.harness.audit import AuditLog
from tests.harness.cluster import Cluster
from tests.harness.nodes import TestNodes
from tests.harness.processes import Processes, fleetmend
from tests.harness.waiting import wait_until
from tests.harness.work import Work
from tests.workers.cli.conftest import POOL
from workers.cli.outcome import ExitCode
from workers.lab.address import LabAddress
from workers.lab.kubelet.spec import NodeKind
from workflows.model.remediation.marks import EPISODE

pytestmark = pytest.mark.timeout(240)


def test_retire_without_an_episode_drains_and_hands_over(
    lab: LabAddress,
    running: Processes,
    cluster: Cluster,
    nodes: TestNodes,
    witness: AuditLog,
) -> None:
    node = nodes.add("a", POOL)
    answer = fleetmend(
        lab,
        "retire",
        node,
        "--reason",
        "fan is due",
        "--json",
        environment={"FLEETMEND_CALLER": "ada@desk"},
    )
    assert answer.code == ExitCode.OK, answer.err
    assert answer.json["heeded"] is not False  # None = a busy worker had not answered yet

    def handed_over() -> str:
        marker = cluster.marker(node)
        return marker.handed_over if marker else ""

    said = wait_until(handed_over, 60, f"{node} is handed over", saw=running.tails)
    assert "ada@desk" in said
    assert "fan is due" in said
    assert cluster.node(node).unschedulable
    assert len(witness.cordons(node)) == 1
    # The mark is on before the run has written its record, closed, and come to the list of runs.
    wait_until(
        lambda: fleetmend(lab, "node", node, "--json").json["last_run"],
        60,
        "its run has closed",
        saw=running.tails,
    )
    status = fleetmend(lab, "status", "--json").json
    (row,) = [row for row in status["nodes"] if row["node"] == node]
    assert row["phase"] == "retired"
    assert "cordon" in row["marks"]
    # The morning after: the run has closed, and still says what happened and where to read it.
    told = fleetmend(lab, "node", node, "--json").json
    assert told["last_run"]["workflow_id"].endswith(f"/{cluster.node(node).uid}")
    assert told["last_run"]["closed"]
    assert any("retire by ada@desk" in line for line in told["story"])
    assert told["plan"] == []
    away = fleetmend(lab, "node", node, environment={"TEMPORAL_ADDRESS": "127.0.0.1:1"})
    assert away.code == ExitCode.UNREACHABLE
    assert f"--run-id {told['last_run']['run_id']}" in away.out
    assert "phase         retired" in away.out


def test_a_node_with_a_marker_that_nobody_can_read_is_not_retired(
    lab: LabAddress, running: Processes, cluster: Cluster, nodes: TestNodes
) -> None:
    node = nodes.add("a", POOL)
    cluster.patch_node(node, {"metadata": {"annotations": {EPISODE: "garbage"}}})
    answer = fleetmend(lab, "retire", node)
    assert answer.code == ExitCode.REFUSED
    assert "see who wrote it and remove it with kubectl" in answer.err
    assert f"Then again: fleetmend retire {node}" in answer.err
    shown = fleetmend(lab, "node", node)
    assert "see who wrote it and remove it with kubectl" in shown.out
    assert not cluster.node(node).unschedulable


def test_a_drain_that_waits_is_shown_with_who_is_in_its_way(
    lab: LabAddress, running: Processes, cluster: Cluster, nodes: TestNodes
) -> None:
    """Seen: "take a slot" for as long as a budget stopped the drain, and nobody was named."""
    node = nodes.add("b", POOL)
    work = Work(cluster)
    pod = work.pod(f"{node}-pod", node)
    work.block(pod)
    try:
        assert fleetmend(lab, "retire", node, "--json").code == ExitCode.OK

        def named() -> list[tuple[str, object, object]]:
            told = fleetmend(lab, "node", node, "--json").json
            if told["node"]["step"] != "drain":
                return []  # the list of runs is behind
            lines = [x for x in told["plan"] if f"default/{pod}" in x and "budget" in x]
            return [(line, told["node"]["step"], told["node"]["held"]) for line in lines]

        (line, step, held), *_ = wait_until(
            named, 60, "the pod in the way is named", saw=running.tails
        )
        assert line.startswith("in the way of the drain: ")
        assert (step, held) == ("drain", False)
    finally:
        work.unblock(pod)
    wait_until(lambda: work.phase(pod) == "", 60, "the drain went on", saw=running.tails)


def test_a_pause_of_a_node_without_an_episode_says_how_to_keep_off_it(
    lab: LabAddress, running: Processes, nodes: TestNodes
) -> None:
    node = nodes.add("a", POOL)
    answer = fleetmend(lab, "pause", node)
    assert answer.code == ExitCode.REFUSED
    assert f"kubectl annotate node {node} fleetmend.io/pause='why'" in answer.err


def test_an_answer_that_nobody_asked_for_is_refused(
    lab: LabAddress, running: Processes, cluster: Cluster, nodes: TestNodes
) -> None:
    node = nodes.add("a", POOL)
    # A class that waits for recovery: the episode is open and asks nothing.
    nodes.inject(node, "unknown")
    marker = wait_until(
        lambda: cluster.marker(node), 60, f"{node} is quarantined", saw=running.tails
    )
    assert marker is not None

    def refused() -> str:
        """What it says once the run answers questions."""
        answer = fleetmend(lab, "approve", node)
        return answer.err if answer.code == ExitCode.REFUSED else ""

    said = wait_until(refused, 60, "the word is refused", saw=running.tails)
    assert "nothing is asked right now" in said
    told = fleetmend(lab, "pause", node, "--reason", "looking", "--json")
    assert told.code == ExitCode.OK, told.err
    assert told.json["heeded"] is not False
    assert told.json["episode"] == marker.episode

    def is_told() -> bool:
        story = fleetmend(lab, "node", node, "--json").json["story"]
        return any("pause by" in line and "looking" in line for line in story)

    wait_until(is_told, 60, "the pause is in its story", saw=running.tails)
    resumed = fleetmend(lab, "resume", node)
    assert f"Node {node}, episode {marker.episode}: " in resumed.out, resumed.err
    assert fleetmend(lab, "retire", node).code == ExitCode.OK


def test_a_node_outside_every_pool_is_not_retired(
    lab: LabAddress, running: Processes, nodes: TestNodes
) -> None:
    node = nodes.add("a", "no-such-pool")
    answer = fleetmend(lab, "retire", node)
    assert answer.code == ExitCode.REFUSED
    assert "in no pool of the policy" in answer.err


def test_a_validation_of_a_node_that_is_not_there_says_where_to_look(
    lab: LabAddress, running: Processes
) -> None:
    answer = fleetmend(lab, "validate", "no-such-node")
    assert answer.code == ExitCode.REFUSED
    assert "there is no such Node; see: fleetmend status" in answer.err


def test_nodes_out_of_scope_are_named(
    lab: LabAddress, running: Processes, nodes: TestNodes
) -> None:
    stray = nodes.add("a", "no-such-pool")
    shown = fleetmend(lab, "status").out
    assert f"1 other node is in no pool of the policy: out of scope: {stray}\n" in shown
    more = nodes.add_many([f"b{i}" for i in range(5)], "no-such-pool", kind=NodeKind.LIGHT)
    shown = fleetmend(lab, "status").out
    (line,) = [each for each in shown.splitlines() if each.startswith("6 other nodes are in no")]
    assert line.endswith(", ...")
    assert sum(name in line for name in (stray, *more)) == 5
