"""Idle nodes are validated before a job meets them: by schedule and by hand, and nothing is evicted."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from activities.kube import paths
from activities.kube.client import JsonObject
from tests.harness.audit import AuditEvent, AuditLog, Wanted, done
from tests.harness.cluster import Cluster
from tests.harness.fleet import Fleet, fleet_on
from tests.harness.nodes import TestNodes
from tests.harness.policies import TestPool
from tests.harness.processes import CliAnswer, fleetmend
from tests.harness.waiting import wait_until
from tests.harness.work import NAMESPACE, Work
from tests.scenarios.conftest import POOLS
from workers.lab.address import LabAddress
from workers.lab.kubelet.spec import POOL_LABEL
from workflows.model.identity import NodeRef

ENABLED = {"enabled": True, "period_s": 600, "level": 2, "share": "10%"}
BY_SCHEDULE = frozenset(POOLS[:3])
"""Pools that are validated by themselves; the others only by hand, so that tests don't meet."""
GIVEN_BACK_WITHIN_S = 15.0
LOADED_S = 15.0
"""What a loaded machine may add to that: a diagnosis that goes on instead takes `DIAGNOSE_S`, and fails."""


@pytest.fixture(scope="module")
def fleet(
    lab: LabAddress, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Fleetmend at work, with three pools that are validated by themselves."""
    pools = [TestPool(name, validation=ENABLED if name in BY_SCHEDULE else None) for name in POOLS]
    folder: Path = tmp_path_factory.mktemp("fleet")
    with fleet_on(lab, cluster, folder, pools) as own:
        yield own


def by_hand(fleet: Fleet, *arguments: str) -> CliAnswer:
    return fleetmend(fleet.lab, "validate", *arguments, "--json")


def last_validation(fleet: Fleet, node: str) -> dict[str, Any]:
    machine = fleet.cluster.machine_of(node)
    found: dict[str, Any] = ((machine or {}).get("status") or {}).get("lastValidation") or {}
    return found


def pending(fleet: Fleet, name: str, pool: str, gpus: int = 1) -> JsonObject:
    """A pod that any idle node of the pool would do for; as it was created."""
    return fleet.cluster.kube.create(
        paths.pods(NAMESPACE),
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"work": name}},
            "spec": {
                "nodeSelector": {POOL_LABEL: pool},
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "work",
                        "image": "train:1",
                        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
                    }
                ],
            },
        },
    )


def exits(witness: AuditLog, node: str) -> list[AuditEvent]:
    """The patches that took our marker off."""
    sent = Wanted(verb="patch", resource="nodes", name=node, succeeded=None)
    return done(
        event
        for event in witness.events(sent)
        if event.annotations_sent.get("fleetmend.io/episode", "") is None
    )


def test_a_tick_validates_an_idle_node_and_gives_it_back(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    fleet.tick()
    fleet.episodes.until_open(ref)
    closing = fleet.episodes.closing(ref)
    assert (closing.outcome, closing.fault) == ("returned", "operator"), fleet.episodes.shown(ref)
    found = last_validation(fleet, node)
    assert (found["result"], found["level"]) == ("passed", 2)
    assert len(witness.cordons(node)) == len(exits(witness, node)) == 1
    assert not fleet.cluster.node(node).unschedulable
    assert witness.evictions() == []


def test_a_node_whose_diagnosis_fails_ends_in_an_episode_without_a_moment_in_service(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    nodes.inject(node, "gpu-weak", gpu=2)
    fleet.tick()
    fleet.episodes.until_open(ref)
    closing = fleet.episodes.closing(ref)
    said = fleet.episodes.shown(ref)
    assert (closing.outcome, closing.fault) == ("returned", "diagnostic-failed"), said
    assert len(witness.reboots(node)) == 1
    assert len(witness.cordons(node)) == len(exits(witness, node)) == 1
    # Before the reboot, to tell what it is, and after it; one that was cut off is asked again.
    assert len(witness.node_tasks(node, "diagnose")) >= 3
    assert last_validation(fleet, node)["result"] == "passed"


def test_a_tick_touches_nothing_while_the_fleet_is_paused(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    fleet.cluster.pause("*")
    try:
        answer = by_hand(fleet, node)
        assert answer.code == 1
        assert "the fleet is paused" in answer.json["left"][0]["why"]
        fleet.tick()
        handle = fleet.episodes.client().get_schedule_handle(f"validate/{fleet.lab.cluster}")
        wait_until(
            lambda: not fleet.episodes.call(handle.describe()).info.running_actions,
            60,
            "the tick's dispatcher has ended",
        )
        assert not fleet.episodes.is_open(ref)
        assert witness.node_writes(node) == []
    finally:
        fleet.cluster.resume("*")


def test_a_pod_that_pends_has_the_node_within_15_s(
    fleet: Fleet,
    nodes: TestNodes,
    node: str,
    ref: NodeRef,
    pool: str,
    work: Work,
    witness: AuditLog,
) -> None:
    nodes.inject(node, "dcgm-hang")
    assert by_hand(fleet, node).code == 0
    wait_until(lambda: witness.node_tasks(node, "diagnose"), 60, "the diagnosis runs")
    created = pending(fleet, f"wants-{node}", pool)
    work.pods[f"wants-{node}"] = created["metadata"]["uid"]
    wait_until(lambda: work.phase(f"wants-{node}") == "Running", 60, "the pod runs")
    closing = fleet.episodes.closing(ref)
    assert closing.outcome == "returned", fleet.episodes.shown(ref)
    assert f"gave way to pod {NAMESPACE}/wants-{node}" in closing.detail
    given_back = exits(witness, node)[0].answered_at
    asked = datetime.fromisoformat(created["metadata"]["creationTimestamp"])
    assert (given_back - asked).total_seconds() < GIVEN_BACK_WITHIN_S + LOADED_S
    assert last_validation(fleet, node) == {}
    assert witness.evictions() == []
    nodes.clear(node, "dcgm-hang")


def test_a_pod_that_the_cordon_does_not_keep_out_ends_the_diagnosis_too(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, work: Work, witness: AuditLog
) -> None:
    nodes.inject(node, "dcgm-hang")
    assert by_hand(fleet, node).code == 0
    wait_until(lambda: witness.node_tasks(node, "diagnose"), 60, "the diagnosis runs")
    work.pod(f"named-{node}", node)
    closing = fleet.episodes.closing(ref)
    assert closing.outcome == "returned", fleet.episodes.shown(ref)
    assert f"gave way to pod {NAMESPACE}/named-{node}" in closing.detail
    assert work.phase(f"named-{node}") == "Running"
    nodes.clear(node, "dcgm-hang")


def test_a_busy_node_is_not_touched(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, work: Work, witness: AuditLog
) -> None:
    work.pod(f"job-{node}", node)
    answer = by_hand(fleet, node)
    assert answer.code == 1
    assert f"pod {NAMESPACE}/job-{node} requests its GPUs" in answer.json["left"][0]["why"]
    assert not fleet.episodes.is_open(ref)
    assert witness.node_writes(node) == []


def test_a_worker_that_dies_in_the_diagnosis_leaves_no_node_behind(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    nodes.inject(node, "dcgm-hang", for_s=20)
    assert by_hand(fleet, node, "--level", "1").code == 0
    wait_until(lambda: witness.node_tasks(node, "diagnose"), 60, "the diagnosis runs")
    fleet.worker.kill()
    fleet.restart_worker()
    closing = fleet.episodes.closing(ref)
    assert closing.outcome == "returned", fleet.episodes.shown(ref)
    assert last_validation(fleet, node)["result"] == "passed"
    assert fleet.cluster.marker(node) is None
    assert not fleet.cluster.node(node).unschedulable


def test_a_person_who_uncordons_has_the_node_back_and_is_not_asked(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    nodes.inject(node, "dcgm-hang")
    assert by_hand(fleet, node).code == 0
    wait_until(lambda: witness.node_tasks(node, "diagnose"), 60, "the diagnosis runs")
    fleet.cluster.uncordon(node)
    closing = fleet.episodes.closing(ref, but=frozenset())
    assert closing.outcome == "dismissed", fleet.episodes.shown(ref)
    assert "a person took the node back" in closing.detail
    assert fleet.cluster.marker(node) is None
    nodes.clear(node, "dcgm-hang")


def test_a_fault_that_is_reported_meanwhile_makes_it_an_episode_of_the_same_run(
    fleet: Fleet, nodes: TestNodes, node: str, ref: NodeRef, witness: AuditLog
) -> None:
    nodes.inject(node, "dcgm-hang")
    assert by_hand(fleet, node).code == 0
    wait_until(lambda: witness.node_tasks(node, "diagnose"), 60, "the diagnosis runs")
    nodes.inject(node, "gpu-lost")  # whose reboot ends the hang, too
    closing = fleet.episodes.closing(ref)
    assert (closing.outcome, closing.fault) == ("returned", "gpu-lost"), fleet.episodes.shown(ref)
    assert len(witness.reboots(node)) == 1
    assert len(witness.cordons(node)) == 1
