"""What people can do next: with a node that was handed over to them, and under a pause."""

from typing import Any

import pytest

from tests.harness.cluster import Cluster
from tests.harness.nodes import TestNodes
from tests.harness.processes import Processes, fleetmend
from tests.harness.waiting import wait_until
from tests.workers.cli.conftest import POOL
from workers.cli.outcome import ExitCode
from workers.lab.address import LabAddress

pytestmark = pytest.mark.timeout(240)


def handed_over_to(cluster: Cluster, node: str) -> str:
    marker = cluster.marker(node)
    return marker.handed_over if marker else ""


def closed(lab: LabAddress, node: str) -> Any:
    """What is told of a node whose run has closed, and has given its places back."""
    told = fleetmend(lab, "node", node, "--json").json
    return told if told["last_run"] else None


def test_a_node_that_was_handed_over_says_how_it_comes_back_and_is_not_retired_again(
    lab: LabAddress, running: Processes, cluster: Cluster, nodes: TestNodes
) -> None:
    node = nodes.add("a", POOL)
    told = fleetmend(lab, "retire", node, "--reason", "fan is due", "--json")
    assert told.code == ExitCode.OK, told.err
    assert told.json["waits"] == ""
    said = wait_until(
        lambda: handed_over_to(cluster, node), 60, f"{node} is handed over", saw=running.tails
    )
    wait_until(lambda: closed(lab, node), 60, "its run has closed", saw=running.tails)
    back = f"when it is well, kubectl uncordon {node}"
    assert back in fleetmend(lab, "node", node, "--json").json["node"]["next"]
    assert f"next {back}" in " ".join(fleetmend(lab, "node", node).out.split())
    assert f"handed over: {node}: {back}" in fleetmend(lab, "status").out
    for word in ("retire", "resume", "approve", "deny"):
        answer = fleetmend(lab, word, node, "--reason", "once more")
        assert answer.code == ExitCode.REFUSED
        assert f"Node {node} is handed over to operator, out of service since " in answer.err
        assert "fan is due" in answer.err
        assert f"Next: {back}" in answer.err
    assert handed_over_to(cluster, node) == said
    cluster.uncordon(node)
    assert fleetmend(lab, "node", node, "--json").json["node"]["next"] == ""


@pytest.mark.parametrize("scope", ["*", POOL], ids=["fleet", "pool"])
def test_what_a_pause_keeps_waiting_says_who_paused_and_how_it_goes_on(
    lab: LabAddress, running: Processes, cluster: Cluster, nodes: TestNodes, scope: str
) -> None:
    """Seen: "take a slot" and no other word, for as long as the fleet was paused."""
    sick, other = nodes.add_many(["a", "b"], POOL)
    option = ("--fleet",) if scope == "*" else ("--pool", scope)
    what = "the fleet" if scope == "*" else f"pool {scope}"
    by = {"FLEETMEND_CALLER": "ada@desk"}
    paused = fleetmend(lab, "pause", *option, "--reason", "a look", environment=by)
    assert paused.code == ExitCode.OK, paused.err
    why = f"{what} is paused by ada@desk: a look; next: fleetmend resume {' '.join(option)}"
    try:
        nodes.inject(sick, "gpu-lost")
        wait_until(
            lambda: fleetmend(lab, "node", sick, "--json").json["node"]["phase"] == "quarantined",
            60,
            f"{sick} is quarantined",
            saw=running.tails,
        )
        assert fleetmend(lab, "node", sick, "--json").json["node"]["waits"] == why
        assert f"waits {why}" in " ".join(fleetmend(lab, "node", sick).out.split())
        status = fleetmend(lab, "status")
        assert f"waits: {sick}: {why}" in status.out
        assert f"{other}: {what}" not in status.out
        retired = fleetmend(lab, "retire", other)
        assert f"waits: {why}" in retired.out, retired.err
    finally:
        assert fleetmend(lab, "resume", *option).code == ExitCode.OK
    wait_until(lambda: handed_over_to(cluster, other), 60, f"{other} is retired", saw=running.tails)
    assert fleetmend(lab, "node", other, "--json").json["node"]["waits"] == ""
