"""Restored backups of Temporal and of etcd: what was done already is not done again (P1).

On a lab of its own. The backup is taken in mid episode, the episodes end, the backup is put back,
and everything that runs meets a past it has left behind.
"""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from tests.chaos.cast import PARTS, Company, cast_policy, cast_pools, company
from tests.chaos.stage import ENDS_S, OwnLab, Stage, own_lab
from tests.harness.audit import audit
from tests.harness.waiting import wait_until
from workers.lab.address import Component
from workers.lab.controlplane.lab import Lab

PREFIX = "backup"
CONTROL_PLANE = (
    Component.ETCD,
    Component.API_SERVER,
    Component.CONTROLLER_MANAGER,
    Component.SCHEDULER,
)
REFRESH_S = 5.0
"""Of the agents: what they reported in the restored past is corrected within it (really 5 min)."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnLab]:
    folder = tmp_path_factory.mktemp("backup")
    with own_lab(folder, cast_pools(PREFIX), cast_policy()) as started:
        yield started


@contextmanager
def stopped(lab: Lab, *components: Component) -> Iterator[None]:
    """These are down within the block, and up afterwards."""
    for component in reversed(components):
        lab.stop_component(component)
    yield
    for component in components:
        lab.start(component)


def in_mid_episode(own: OwnLab, *parts: str) -> Company:
    chosen = [part for part in PARTS if part.name in parts]
    actors = company(own.stage(), PREFIX, chosen, agent_refresh_s=REFRESH_S)
    actors.enter()
    return actors


def is_in_service(stage: Stage, node: str) -> bool:
    return not stage.cluster.node(node).unschedulable and stage.cluster.marker(node) is None


def until_nobody_waits(stage: Stage, nodes: Iterable[str]) -> None:
    """Returns when every episode of these nodes has ended and they are in service."""
    for node in nodes:
        wait_until(
            lambda node=node: (  # type: ignore[misc]  # mypy infers no default argument
                is_in_service(stage, node) and not stage.fleet.episodes.is_open(stage.refs[node])
            ),
            ENDS_S,
            f"{node} is in service and has no open episode",
            saw=lambda node=node: stage.shown(node),  # type: ignore[misc]  # as above
        )


@pytest.mark.timeout(600)
def test_a_restored_temporal_drains_and_reboots_nothing_again(own: OwnLab) -> None:
    """Guard: the fence of each request, and `closed_outcome` of the machine record."""
    actors = in_mid_episode(own, "drain", "slot", "reboot", "boot", "gate")
    stage = actors.stage
    database = own.lab.paths.temporal_database
    backup = own.lab.directory / "backup"
    backup.mkdir()
    with stopped(own.hands, Component.TEMPORAL):
        for file in database.parent.glob(f"{database.name}*"):
            shutil.copy2(file, backup)
    actors.leave()
    actors.judge()
    later = audit(own.lab)
    pods = [stage.add_pod(node, "later") for node in actors.cast]
    with stopped(own.hands, Component.TEMPORAL):
        for file in database.parent.glob(f"{database.name}*"):
            file.unlink()
        for file in backup.iterdir():
            shutil.copy2(file, database.parent)
    until_nobody_waits(stage, actors.cast)
    for node in actors.cast:
        assert stage.closing(node).outcome == "yielded", stage.shown(node)
        assert later.reboots(node) == []
        assert stage.new_boots(node) == 1
        assert later.cordons(node) == []
    assert later.evictions(pods) == []
    uids = {stage.refs[node].uid for node in actors.cast}
    wait_until(lambda: not uids & stage.places(), 60, "the places are free", saw=stage.ledgers)
    own.nodes.remove_all()


@pytest.mark.timeout(600)
def test_a_restored_etcd_reboots_nothing_again(own: OwnLab) -> None:
    """Guard: `recover` episodes only gate; a task is bound to the boot it was asked in."""
    actors = in_mid_episode(own, "drain", "boot")
    stage = actors.stage
    folder, backup = own.lab.paths.etcd / "data", own.lab.directory / "etcd-backup"
    with stopped(own.hands, *CONTROL_PLANE):
        shutil.copytree(folder, backup)
    actors.leave()
    actors.judge()
    with stopped(own.hands, *CONTROL_PLANE):
        shutil.rmtree(folder)
        shutil.copytree(backup, folder)
    later = audit(own.lab)
    pods = [stage.add_pod(node, "later") for node in actors.cast]
    until_nobody_waits(stage, actors.cast)
    for node in actors.cast:
        assert later.reboots(node) == [], stage.shown(node)
        assert stage.new_boots(node) == 1
    assert later.evictions(pods) == []
    own.nodes.remove_all()
