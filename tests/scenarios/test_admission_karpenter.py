"""Karpenter's new nodes wait for their admission; the bad one is replaced and never runs a job."""

from collections.abc import Iterator

import pytest

from activities.kube.errors import NotFound
from tests.harness.audit import Wanted, audit
from tests.harness.cluster import Cluster
from tests.harness.fleet import Fleet, fleet_on
from tests.harness.karpenter import KarpenterHands
from tests.harness.waiting import wait_until
from workers.lab.address import LabAddress
from workers.lab.controlplane.lab import start_lab, stop_lab
from workers.lab.controlplane.settings import LabSettings
from workers.lab.karpenter.node_pools import UNVALIDATED, PoolShape
from workers.lab.kubelet.client import FleetClient
from workflows.model.remediation.admission import STARTUP_TAINT

POOL = "fresh"
NODES = 3
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def own_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabAddress]:
    """A lab with Karpenter and Temporal."""
    folder = tmp_path_factory.mktemp("admission") / "lab"
    yield start_lab(folder, LabSettings(cluster="admission", karpenter=True), detached=False)
    stop_lab(folder)


@pytest.fixture(scope="module")
def own_fleet(
    own_lab: LabAddress, own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    with fleet_on(own_lab, own_cluster, tmp_path_factory.mktemp("fleet"), [POOL]) as own:
        yield own


@pytest.mark.long
@pytest.mark.timeout(400)
def test_of_a_scale_up_the_good_take_work_and_the_bad_one_is_replaced(
    own_lab: LabAddress, own_cluster: Cluster, own_fleet: Fleet, karpenter: KarpenterHands
) -> None:
    witness = audit(own_lab)
    own_cluster.disarm(POOL)  # so that the fault is there before anybody looks
    karpenter.pool(PoolShape(POOL, startup_taints=(UNVALIDATED,)))
    pods = karpenter.pods(POOL, NODES)
    nodes = karpenter.until_ready(POOL, NODES)
    assert all(STARTUP_TAINT in own_cluster.node(node).taints for node in nodes)
    bad = nodes[0]
    with FleetClient(own_lab.directory) as machines:
        machines.inject(bad, "gpu-lost", {})
    own_cluster.arm(POOL)

    def is_gone() -> bool:
        try:
            own_cluster.node(bad)
        except NotFound:
            return True
        return False

    def saw() -> object:
        return own_fleet.worker.tail(), own_fleet.watch.tail(), karpenter.nodes(POOL)

    wait_until(is_gone, LIMIT_S, f"the bad node {bad} is replaced", saw=saw)
    wait_until(
        lambda: all((karpenter.pod(p) or {})["status"].get("phase") == "Running" for p in pods),
        LIMIT_S,
        "every job runs, one of them on the successor",
        saw=saw,
    )
    bound = {
        str((e.body.get("target") or {}).get("name"))
        for pod in pods
        for e in witness.events(Wanted(verb="create", resource="pods/binding", name=pod))
    }
    assert bad not in bound
    assert len(bound) == NODES
    assert not witness.reboots(bad)
