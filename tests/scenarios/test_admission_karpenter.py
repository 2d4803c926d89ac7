"""Karpenter's new nodes wait for their admission; the bad ones are replaced and never run a job."""

import sys
from collections.abc import Iterator

import pytest

from tests.harness.audit import WORKER, AuditEvent, AuditLog, Wanted, audit
from tests.harness.cluster import Cluster
from tests.harness.fleet import Fleet, fleet_on
from tests.harness.karpenter import KarpenterHands
from tests.harness.waiting import wait_until
from workers.lab.address import LabAddress
from workers.lab.controlplane.lab import start_lab, stop_lab
from workers.lab.controlplane.settings import AuditMode, LabSettings
from workers.lab.karpenter.node_pools import UNVALIDATED, PoolShape
from workers.lab.kubelet.client import FleetClient
from workflows.model.remediation.admission import STARTUP_TAINT

POOL = "fresh"
NODES = 10
LIMIT_S = 240.0
TAKES_WORK_WITHIN_S = 10.0
"""Of which the scheduler's own pause after a pod's last try may be all (`podMaxBackoffSeconds`)."""
UNHURRIED = {"gate": {"diagnose_limits_s": [60] * 4, "timeout_s": 60}}
"""Ten diagnoses at once on two busy cores; a diagnosis that is cut off says nothing."""


@pytest.fixture(scope="module")
def own_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabAddress]:
    """A lab with Karpenter and Temporal."""
    folder = tmp_path_factory.mktemp("admission") / "lab"
    settings = LabSettings(cluster="admission", karpenter=True, audit_mode=AuditMode.BLOCKING)
    yield start_lab(folder, settings, detached=False)
    stop_lab(folder)


@pytest.fixture(scope="module")
def own_fleet(
    own_lab: LabAddress, own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    with fleet_on(own_lab, own_cluster, tmp_path_factory.mktemp("fleet"), [POOL], UNHURRIED) as own:
        yield own


@pytest.mark.long
@pytest.mark.timeout(900)
def test_of_a_scale_up_of_ten_the_good_take_work_at_once_and_the_two_bad_are_replaced(
    own_lab: LabAddress,
    own_cluster: Cluster,
    own_fleet: Fleet,
    karpenter: KarpenterHands,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One lacks a GPU, one fails DCGM's diagnostic and shows nothing else."""
    witness = audit(own_lab)
    own_cluster.disarm(POOL)  # so that the faults are there before anybody looks
    karpenter.pool(PoolShape(POOL, startup_taints=(UNVALIDATED,)))
    pods = karpenter.pods(POOL, NODES)
    nodes = karpenter.until_ready(POOL, NODES)
    assert all(STARTUP_TAINT in own_cluster.node(node).taints for node in nodes)
    bad, good = nodes[:2], nodes[2:]
    with FleetClient(own_lab.directory) as machines:
        machines.inject(bad[0], "gpu-lost", {})
        machines.inject(bad[1], "gpu-weak", {})
    own_cluster.arm(POOL)

    def saw() -> object:
        stories = {n: _story(own_fleet, n) for n in karpenter.nodes(POOL)}
        return stories, own_fleet.watch.tail(), own_fleet.worker.tail()

    def is_replaced() -> bool:
        return not set(bad) & set(karpenter.nodes(POOL))

    def is_all_running() -> bool:
        return all(
            (karpenter.pod(p) or {}).get("status", {}).get("phase") == "Running" for p in pods
        )

    wait_until(is_replaced, LIMIT_S, "both bad nodes are replaced", saw=saw)
    wait_until(is_all_running, LIMIT_S, "every job runs, two of them on the successors", saw=saw)
    bound = {
        str((e.body.get("target") or {}).get("name")): e
        for pod in pods
        for e in witness.events(Wanted(verb="create", resource="pods/binding", name=pod))
    }
    assert not set(bad) & set(bound)
    assert set(good) < set(bound)
    assert len(bound) == NODES
    for node in bad:
        assert not witness.reboots(node)
    deleted = witness.claim_deletions()
    assert len([event for event in deleted if event.succeeded]) == len(bad)
    wait_until(
        lambda: all(_admissions(witness, node) for node in good),
        30,
        "the log has every last check",
    )
    waited = [
        (bound[node].received_at - _admissions(witness, node)[-1].answered_at).total_seconds()
        for node in good
    ]
    with capsys.disabled():
        sys.stdout.write(
            f"\nfrom the last check to work: {sorted(round(w, 1) for w in waited)} s\n"
        )
    assert max(waited) <= TAKES_WORK_WITHIN_S


def _admissions(witness: AuditLog, node: str) -> list[AuditEvent]:
    """The patches after which work may come; one that the server cut off (504) may have been done."""
    sent = Wanted(who=WORKER, verb="patch", resource="nodes", name=node, succeeded=None)
    return [event for event in witness.events(sent) if event.succeeded or event.code == 504]


def _story(fleet: Fleet, node: str) -> object:
    try:
        return fleet.episodes.story(fleet.ref(node))
    except Exception as error:  # noqa: BLE001 - for the message of a wait in vain
        return repr(error)
