"""A node that runs a pod of fleetmend's own Deployments is left alone by watch and worker."""

from collections.abc import Callable

from tests.harness.audit import AuditLog
from tests.harness.fleet import Fleet
from tests.harness.nodes import TestNodes
from tests.harness.services import service_on, until_seen
from tests.harness.waiting import stays_true, wait_until
from workflows.model.identity import NodeRef

QUIET_S = 3.0
"""How long "nothing is done" is watched: longer than debounce and permit take."""


def test_a_node_with_a_service_of_ours_is_repaired_once_the_service_has_moved(
    fleet: Fleet,
    nodes: TestNodes,
    node: str,
    ref: NodeRef,
    witness: AuditLog,
    unique: Callable[[str], str],
) -> None:
    with service_on(fleet.cluster, node, unique("svc")) as service:
        until_seen(fleet.watch, node)
        nodes.inject(node, "gpu-lost")
        fleet.episodes.until_open(ref)
        wait_until(
            lambda: any("scope.protected_namespaces" in line for line in fleet.episodes.story(ref)),
            30,
            "the run says what it waits for",
        )
        stays_true(lambda: not witness.node_writes(node), QUIET_S, "no process writes the Node")
        assert witness.reboots(node) == []
        service.leave()
        assert fleet.episodes.closing(ref).outcome == "returned", fleet.episodes.shown(ref)
    assert len(witness.cordons(node)) == 1
    assert len(witness.reboots(node)) == 1
