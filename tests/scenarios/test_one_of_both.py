"""With Karpenter's repair on, one of both acts on a node: whoever began first.

Owns the interleavings on the real Karpenter: it begins before us, in our drain (a reboot that it
committed after somebody took our veto off), in our reboot, and wants to after us. Every point of
the runbook is played in memory by tests/workflows/test_one_of_both.py. One lab for the module.
"""

from collections.abc import Iterator
from contextlib import suppress

import pytest

from activities.kube.client import JsonObject
from activities.kube.errors import NotFound
from tests.harness.audit import AuditLog
from tests.harness.cluster import Cluster
from tests.harness.fleet import Fleet, fleet_on
from tests.harness.karpenter import KarpenterHands
from tests.harness.nodes import TestNodes
from tests.harness.policies import TestPool
from tests.harness.training import WORK_LIMIT_S, set_condition, settle
from tests.harness.waiting import wait_until
from tests.harness.work import Work
from workers.lab.address import LabAddress
from workers.lab.controlplane.lab import start_lab, stop_lab
from workers.lab.controlplane.settings import LabSettings
from workers.lab.karpenter.node_pools import PoolShape
from workers.lab.kubelet.client import FleetError
from workflows.model.identity import NodeRef
from workflows.model.node import NodeView
from workflows.model.policy import Policy
from workflows.model.remediation.marks import EPISODE, VETOES, other_healer

POOLS = tuple(f"both-{letter}" for letter in "abcd")
REPLACE = "KWOKUnhealthy"
REBOOT = "KWOKRebootRequired"
"""Conditions on which kwok's policies act after 30 s; nobody else knows them."""
BEGINS_WITHIN_S = 180.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def own_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabAddress]:
    """A lab in which Karpenter repairs nodes."""
    folder = tmp_path_factory.mktemp("both") / "lab"
    settings = LabSettings(cluster="both", karpenter=True, node_repair=True)
    yield start_lab(folder, settings, detached=False)
    stop_lab(folder)


@pytest.fixture(scope="module")
def fleet(
    own_lab: LabAddress, own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    built_in = Policy().model_dump(mode="json")
    patience = {
        "faults": {n: {**row, "drain_deadline_s": 180} for n, row in built_in["faults"].items()},
        # What is unreachable or silent while Karpenter reboots it lasts less than they want.
        "rules": built_in["rules"],
    }
    pools = [TestPool(name) for name in POOLS]
    with fleet_on(own_lab, own_cluster, folder, pools, patience) as own:
        yield own


@pytest.fixture(scope="module")
def _pools() -> Iterator[str]:
    return iter(POOLS)


@pytest.fixture
def own_work(own_cluster: Cluster) -> Iterator[Work]:
    work = Work(own_cluster)
    yield work
    work.end()


@pytest.fixture
def sick(
    fleet: Fleet,
    karpenter: KarpenterHands,
    _pools: Iterator[str],
    machines: TestNodes,
    own_cluster: Cluster,
) -> NodeRef:
    """The one node of a pool, well and with a baseline; to be broken by the test."""
    pool = next(_pools)
    karpenter.pool(PoolShape(pool, replicas=1))
    (node,) = karpenter.until_ready(pool, 1)
    settle(machines, own_cluster, node)
    return fleet.ref(node)


def node_of(cluster: Cluster, ref: NodeRef) -> NodeView | None:
    """The Node as it is now; None = gone."""
    try:
        found = cluster.node(ref.name)
    except NotFound:
        return None
    return found if found.uid == ref.uid else None


def has_begun(cluster: Cluster, ref: NodeRef) -> bool:
    """Karpenter acts on the Node, or has taken it away."""
    node = node_of(cluster, ref)
    return node is None or bool(other_healer(node))


def nothing_of_ours(cluster: Cluster, ref: NodeRef) -> bool:
    """The Node is gone, or carries neither our mark, cordon nor vetoes."""
    node = node_of(cluster, ref)
    if node is None:
        return True
    left = [key for key in (EPISODE, *VETOES) if key in node.annotations]
    return not left and not node.unschedulable


def test_first_karpenter_replaces_it_and_we_do_nothing(
    fleet: Fleet, sick: NodeRef, machines: TestNodes, own_cluster: Cluster, seen: AuditLog
) -> None:
    set_condition(own_cluster, sick.name, REPLACE, "True")
    wait_until(lambda: has_begun(own_cluster, sick), BEGINS_WITHIN_S, "Karpenter begins")
    with suppress(FleetError):  # it may have ended already
        machines.inject(sick.name, "gpu-lost")
    wait_until(
        lambda: node_of(own_cluster, sick) is None,
        BEGINS_WITHIN_S,
        "Karpenter has replaced it",
    )
    wait_until(lambda: not fleet.episodes.is_open(sick), WORK_LIMIT_S, "no run of ours is left")
    assert (seen.reboots(sick.name), seen.claim_deletions(), seen.evictions()) == ([], [], [])


def test_in_our_drain_it_commits_a_reboot_and_we_give_way(
    fleet: Fleet,
    sick: NodeRef,
    machines: TestNodes,
    own_cluster: Cluster,
    own_work: Work,
    seen: AuditLog,
    karpenter: KarpenterHands,
) -> None:
    """Our veto holds until somebody takes it off; what is committed then is Karpenter's."""
    claim = karpenter.claim_of(sick.name)
    assert claim is not None
    own_work.pod("slow", sick.name, stops_in_s=90)
    machines.inject(sick.name, "gpu-lost")
    fleet.episodes.until_phase(sick, "quarantined")
    wait_until(lambda: seen.evictions(["slow"]), WORK_LIMIT_S, "our drain waits for the pod")
    set_condition(own_cluster, sick.name, REBOOT, "True")
    lost: JsonObject = {"metadata": {"annotations": dict.fromkeys(VETOES)}}
    own_cluster.patch_node(sick.name, lost)
    wait_until(
        lambda: karpenter.condition(claim, "Rebooting") == "True",
        BEGINS_WITHIN_S,
        "Karpenter commits its reboot",
        saw=lambda: (fleet.episodes.story(sick), own_cluster.node(sick.name)),
    )
    closing = fleet.episodes.closing(sick, 180)
    assert closing.outcome == "yielded", fleet.episodes.shown(sick)
    assert nothing_of_ours(own_cluster, sick)
    set_condition(own_cluster, sick.name, REBOOT, "False")
    wait_until(
        lambda: karpenter.condition(claim, "Rebooting") == "False", BEGINS_WITHIN_S, "it has ended"
    )
    assert (seen.reboots(sick.name), seen.claim_deletions()) == ([], [])


def test_in_our_reboot_its_claim_is_deleted_and_we_give_way(
    fleet: Fleet,
    sick: NodeRef,
    machines: TestNodes,
    own_cluster: Cluster,
    seen: AuditLog,
    karpenter: KarpenterHands,
) -> None:
    claim = karpenter.claim_of(sick.name)
    assert claim is not None
    machines.inject(sick.name, "gpu-missing-after-reboot")
    wait_until(lambda: seen.reboots(sick.name), WORK_LIMIT_S, "our reboot is asked for")
    karpenter.delete_claim(claim)
    closing = fleet.episodes.closing(sick, 180)
    assert closing.outcome in ("yielded", "vanished"), fleet.episodes.shown(sick)
    wait_until(lambda: nothing_of_ours(own_cluster, sick), WORK_LIMIT_S, "nothing of ours is left")
    assert len(seen.reboots(sick.name)) == 1
    assert seen.claim_deletions() == []


def test_last_it_is_kept_away_and_carries_out_what_we_asked_for(
    fleet: Fleet,
    sick: NodeRef,
    machines: TestNodes,
    own_cluster: Cluster,
    seen: AuditLog,
) -> None:
    """Its repair falls due after our entry: our reboot and our deletion are the only acts."""
    machines.inject(sick.name, "gpu-missing-after-reboot")
    fleet.episodes.until_phase(sick, "quarantined", "drained", "rebooted")
    set_condition(own_cluster, sick.name, REBOOT, "True")
    set_condition(own_cluster, sick.name, REPLACE, "True")
    closing = fleet.episodes.closing(sick, 240)
    assert closing.outcome == "replaced", fleet.episodes.shown(sick)
    assert len(seen.reboots(sick.name)) == 1
    assert len([event for event in seen.claim_deletions() if event.succeeded]) == 1
