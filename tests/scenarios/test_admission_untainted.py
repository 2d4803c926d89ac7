"""New nodes that come without the startup taint are examined by a tick, under a mark, before they count.

The pool says so in policy (`admission.untainted`); its nodes are not validated otherwise. Triggering
the Schedule stands for the tick, which comes each few minutes.
"""

from collections.abc import Iterator

import pytest

from tests.harness.audit import AuditLog
from tests.harness.cluster import Cluster
from tests.harness.fleet import Fleet, fleet_on
from tests.harness.nodes import TestNodes
from tests.harness.policies import TestPool
from tests.harness.waiting import wait_until
from workers.lab.address import LabAddress
from workflows.model.remediation.marks import Quarantine

POOL = "untainted"


@pytest.fixture(scope="module")
def fleet(
    lab: LabAddress, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    pool = TestPool(POOL, admission={"untainted": True, "level": 2})
    with fleet_on(lab, cluster, tmp_path_factory.mktemp("fleet"), [pool]) as own:
        yield own


def test_a_good_one_is_examined_under_a_mark_and_has_its_baseline(
    fleet: Fleet, nodes: TestNodes, witness: AuditLog
) -> None:
    node = nodes.add("good", POOL)
    ref = fleet.ref(node)
    assert not fleet.cluster.has_baseline(node), "the sweep leaves it to the tick"
    fleet.tick()
    fleet.episodes.until_open(ref)
    closing = fleet.episodes.closing(ref)
    assert closing.outcome == "returned", fleet.episodes.shown(ref)
    assert fleet.cluster.has_baseline(node)
    assert not fleet.cluster.node(node).unschedulable
    assert fleet.cluster.marker(node) is None
    assert len(witness.cordons(node)) == 1
    assert [kind for kind in ("inventory", "diagnose") if witness.node_tasks(node, kind)] == [
        "inventory",
        "diagnose",
    ]
    assert witness.evictions() == []


def test_one_that_fails_stays_out_and_people_are_asked_where_nobody_replaces_it(
    fleet: Fleet, nodes: TestNodes, witness: AuditLog
) -> None:
    node = nodes.add("short", POOL, gpus=7)
    ref = fleet.ref(node)
    fleet.tick()
    wait_until(
        lambda: fleet.episodes.is_open(ref) and fleet.episodes.is_held(ref),
        60.0,
        f"the episode of {node} is held",
        saw=lambda: fleet.episodes.shown(ref),
    )
    marker = fleet.cluster.marker(node)
    assert marker is not None
    assert marker.quarantine is not Quarantine.REFLEX
    assert fleet.cluster.node(node).unschedulable
    assert not fleet.cluster.has_baseline(node)
    assert not witness.reboots(node), "what has never worked is not repaired"
