"""The worker is killed in each phase of an episode, or the Node deleted: what must still hold.

One node stands in each phase (`cast.py`); each test disturbs them all at once. The long one kills
the worker twice, before and after the parts go on.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.cast import PARTS, cast_policy, cast_pools, company
from tests.chaos.stage import STANDS_S, Stage
from tests.harness.audit import AuditLog
from tests.harness.cluster import Cluster
from tests.harness.fleet import Fleet, fleet_on
from tests.harness.nodes import TestNodes
from tests.harness.processes import until_working
from tests.harness.waiting import wait_until
from workers.lab.address import LabAddress

KILLED, DELETED = "killed", "deleted"


@pytest.fixture(scope="module")
def fleet(
    lab: LabAddress, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    folder: Path = tmp_path_factory.mktemp("killed")
    pools = [pool for prefix in (KILLED, DELETED) for pool in cast_pools(prefix)]
    with fleet_on(lab, cluster, folder, pools, cast_policy()) as own:
        yield own


@pytest.fixture
def stage(fleet: Fleet, nodes: TestNodes, witness: AuditLog) -> Stage:
    return Stage(fleet, nodes, witness)


@pytest.mark.timeout(400)
def test_a_killed_worker_changes_no_ending_whatever_phase_the_episode_is_in(stage: Stage) -> None:
    """Killed in each phase, which goes on before another worker is there; then once more."""
    actors = company(stage, KILLED, PARTS)
    actors.enter()
    stage.fleet.worker.kill()
    restarted = stage.fleet.processes.start("worker")
    actors.leave()
    stage.fleet.worker = until_working(restarted)
    stage.fleet.worker.kill()
    stage.fleet.restart_worker()
    actors.judge()


@pytest.mark.timeout(400)
def test_a_node_deleted_in_any_phase_vanishes_and_leaves_nothing_of_ours(stage: Stage) -> None:
    """R42 (NVSentinel#1387): a node that was deleted was retried for ever."""
    actors = company(stage, DELETED, PARTS)
    actors.enter()
    reboots = {node: len(stage.witness.reboots(node)) for node in actors.cast}
    stage.nodes.client.remove_nodes(list(actors.cast))
    for node in actors.cast:
        closing = stage.closing(node)
        assert closing.outcome == "vanished", f"{node}: {closing}: {stage.shown(node)}"
        assert len(stage.witness.reboots(node)) == reboots[node]
        assert stage.task_pods(node) == []
    uids = {stage.refs[node].uid for node in actors.cast}
    wait_until(
        lambda: not uids & stage.places(),
        STANDS_S,
        "the guard's places are free",
        saw=stage.ledgers,
    )
