"""Karpenter in the lab, for real: it buys nodes, and the lab plays their kubelets.

One lab for the module, with Karpenter's own repair switched on: it acts on two conditions that
nobody else sets. Each test has a pool of its own.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from activities.kube import paths
from activities.kube.client import PatchKind, Selector
from tests.harness.cluster import Cluster
from tests.harness.karpenter import NAMESPACE, KarpenterHands
from tests.harness.nodes import TestNodes
from tests.harness.waiting import stays_true, wait_until
from workers.lab.address import Component, ComponentStage, LabAddress
from workers.lab.controlplane.lab import Lab, start_lab, stop_lab
from workers.lab.controlplane.settings import LabSettings
from workers.lab.karpenter.instance_types import GPUS, Capacity
from workers.lab.karpenter.node_pools import UNVALIDATED, PoolShape
from workers.lab.kubelet.client import FleetClient, FleetError
from workers.lab.kubelet.spec import Machine, NodeKind, Power

LIMIT_S = 30.0
REPAIR_LIMIT_S = 180.0
"""Karpenter's kwok provider tolerates both of its conditions for 30 s."""


@pytest.fixture(scope="module")
def own_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabAddress]:
    """A lab with Karpenter and without Temporal."""
    folder = tmp_path_factory.mktemp("karpenter") / "lab"
    settings = LabSettings(cluster="karpenter", karpenter=True, node_repair=True, temporal=False)
    yield start_lab(folder, settings, detached=False)
    stop_lab(folder)


@pytest.fixture
def fleet(own_lab: LabAddress) -> Iterator[FleetClient]:
    with FleetClient(own_lab.directory) as client:
        yield client


def _set_condition(cluster: Cluster, node: str, kind: str, status: str) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {
        "type": kind,
        "status": status,
        "reason": "Test",
        "message": "set by a test",
        "lastTransitionTime": now,
        "lastHeartbeatTime": now,
    }
    body: dict[str, Any] = {"status": {"conditions": [condition]}}
    cluster.kube.patch(paths.node_status(node), body, kind=PatchKind.STRATEGIC)


def _is_played(fleet: FleetClient, node: str) -> bool:
    return node in {view.name for view in fleet.nodes()}


def test_pending_pods_get_nodes_that_the_lab_plays_until_their_claims_go(
    own_cluster: Cluster, karpenter: KarpenterHands, fleet: FleetClient
) -> None:
    pool = karpenter.pool(PoolShape("elastic"))
    pods = karpenter.pods(pool, 2)
    placed = karpenter.until_running(pods)
    assert len(set(placed.values())) == len(karpenter.claims(pool)) == 2
    node = placed[pods[0]]
    hands = TestNodes(fleet, own_cluster, lambda name: name)
    hands.until_healthy(node)
    view = fleet.node(node)
    assert (view.kind, view.pool, view.gpus, view.power) == (NodeKind.FULL, pool, GPUS, Power.ON)
    assert own_cluster.node(node).provider_id == view.provider_id

    fleet.inject(node, "gpu-lost", {"gpu": 3})
    assert own_cluster.node(node).conditions["GPUHealthy"].status == "False"

    claim = karpenter.claim_of(node)
    assert claim is not None
    karpenter.delete_claim(claim)
    karpenter.until_gone(node)
    wait_until(lambda: not _is_played(fleet, node), LIMIT_S, f"{node} is no longer played")
    assert karpenter.pod(pods[0]) is None, "drained before the Node went"
    assert _is_played(fleet, placed[pods[1]])


def test_a_claim_is_initialized_only_when_its_startup_taint_is_gone(
    own_cluster: Cluster, karpenter: KarpenterHands
) -> None:
    pool = karpenter.pool(PoolShape("gated", kind=NodeKind.LIGHT, startup_taints=(UNVALIDATED,)))
    (pod,) = karpenter.pods(pool)
    (node,) = karpenter.until_ready(pool, 1)
    (claim,) = karpenter.claims(pool)
    wait_until(
        lambda: karpenter.condition(claim, "Registered") == "True", LIMIT_S, "it is registered"
    )
    assert karpenter.condition(claim, "Initialized") != "True"
    raw = own_cluster.kube.get(paths.node(node))
    kept = [taint for taint in raw["spec"]["taints"] if taint["key"] != UNVALIDATED.key]
    assert len(kept) == len(raw["spec"]["taints"]) - 1
    own_cluster.patch_node(node, {"spec": {"taints": kept}})
    karpenter.until_running([pod])
    wait_until(
        lambda: karpenter.condition(claim, "Initialized") == "True", LIMIT_S, "it is initialized"
    )


def test_a_static_pool_is_filled_again(karpenter: KarpenterHands, fleet: FleetClient) -> None:
    pool = karpenter.pool(PoolShape("static", kind=NodeKind.LIGHT, replicas=2))
    before = set(karpenter.until_ready(pool, 2))
    gone = before.pop()
    claim = karpenter.claim_of(gone)
    assert claim is not None
    karpenter.delete_claim(claim)
    karpenter.until_gone(gone)
    after = set(karpenter.until_ready(pool, 2))
    assert before < after
    assert gone not in after
    assert all(_is_played(fleet, node) for node in after)


def test_a_claim_that_goes_before_its_registration_takes_its_node_with_it(
    karpenter: KarpenterHands, fleet: FleetClient
) -> None:
    pool = karpenter.pool(PoolShape("early", kind=NodeKind.LIGHT, replicas=1))
    # Registered a second after it was made: this is sooner.
    wait_until(lambda: karpenter.nodes(pool), LIMIT_S, "there is a Node")
    (node,) = karpenter.nodes(pool)
    (claim,) = karpenter.claims(pool)
    karpenter.delete_claim(claim)
    karpenter.until_gone(node)
    wait_until(lambda: not _is_played(fleet, node), LIMIT_S, f"{node} is no longer played")


def test_a_pool_at_its_limit_buys_nothing_until_a_node_goes(
    own_cluster: Cluster, karpenter: KarpenterHands
) -> None:
    pool = karpenter.pool(PoolShape("limited", kind=NodeKind.LIGHT, most_nodes=1))
    (first,) = karpenter.pods(pool)
    node = karpenter.until_running([first])[first]
    (second,) = karpenter.pods(pool)
    events = paths.collection_path("v1", "events", namespace=NAMESPACE)
    selector = Selector(field=f"involvedObject.name={second}")

    def said_by_karpenter() -> list[str]:
        found = own_cluster.kube.list(events, selector=selector).items
        sources = [(str(e.get("source", {}).get("component")), str(e["message"])) for e in found]
        return [message for source, message in sources if source == "karpenter"]

    wait_until(
        lambda: any("limit" in message for message in said_by_karpenter()),
        LIMIT_S,
        "Karpenter says that the second pod pends for the pool's limit",
        saw=said_by_karpenter,
    )
    (claim,) = karpenter.claims(pool)
    karpenter.delete_claim(claim)
    assert karpenter.until_running([second])[second] != node


def test_reserved_machines_can_be_bought(own_cluster: Cluster, karpenter: KarpenterHands) -> None:
    shape = PoolShape("reserved", kind=NodeKind.LIGHT, capacity=Capacity.RESERVED)
    (pod,) = karpenter.pods(karpenter.pool(shape))
    labels = own_cluster.node(karpenter.until_running([pod])[pod]).labels
    assert labels["karpenter.sh/capacity-type"] == "reserved"


def test_a_restart_of_the_nodes_process_finds_the_same_machines(
    own_lab: LabAddress, karpenter: KarpenterHands, fleet: FleetClient, own_cluster: Cluster
) -> None:
    pool = karpenter.pool(PoolShape("restarted"))
    node = karpenter.until_running(karpenter.pods(pool)).popitem()[1]
    before = own_cluster.node(node)
    Lab(own_lab.directory).restart(Component.FLEET)
    wait_until(lambda: _is_played(fleet, node), LIMIT_S, f"{node} is played again")
    wait_until(
        lambda: own_cluster.node(node).boot_id != before.boot_id, LIMIT_S, "the machine has booted"
    )
    after = own_cluster.node(node)
    assert (after.uid, after.system_uuid, after.provider_id) == (
        before.uid,
        before.system_uuid,
        before.provider_id,
    )


def test_a_machine_may_come_back_under_another_name(
    karpenter: KarpenterHands, fleet: FleetClient, own_cluster: Cluster
) -> None:
    shape = PoolShape("again", NodeKind.LIGHT, most_nodes=1, machine=Machine.AGAIN)
    (first,) = karpenter.pods(karpenter.pool(shape))
    before = own_cluster.node(karpenter.until_running([first])[first])
    (second,) = karpenter.pods(shape.name)
    (claim,) = karpenter.claims(shape.name)
    karpenter.delete_claim(claim)
    after = own_cluster.node(karpenter.until_running([second])[second])
    assert (after.name != before.name, after.uid != before.uid) == (True, True)
    assert after.provider_id != before.provider_id
    assert after.system_uuid == before.system_uuid
    assert fleet.node(after.name).provider_id == after.provider_id


def test_only_karpenter_takes_its_nodes_away(karpenter: KarpenterHands, fleet: FleetClient) -> None:
    pool = karpenter.pool(PoolShape("kept", kind=NodeKind.LIGHT, replicas=1))
    (node,) = karpenter.until_ready(pool, 1)
    with pytest.raises(FleetError, match="delete its NodeClaim"):
        fleet.remove_node(node)
    assert karpenter.until_ready(pool, 1) == [node]


def test_karpenter_is_a_component_that_can_be_stopped_and_started(
    own_lab: LabAddress, karpenter: KarpenterHands
) -> None:
    lab = Lab(own_lab.directory)
    lab.kill(Component.KARPENTER)
    pool = karpenter.pool(PoolShape("later", kind=NodeKind.LIGHT, replicas=1))
    stages = {c.report.component: c.report.stage for c in lab.status().components}
    assert stages[Component.KARPENTER] is ComponentStage.STOPPED
    assert not karpenter.claims(pool)
    lab.start(Component.KARPENTER)
    karpenter.until_ready(pool, 1)


@pytest.mark.parametrize("kind", list(NodeKind))
def test_a_boot_that_the_provider_announces_becomes_one(
    karpenter: KarpenterHands, fleet: FleetClient, own_cluster: Cluster, kind: NodeKind
) -> None:
    pool = karpenter.pool(PoolShape(f"announced-{kind}", kind=kind, replicas=1))
    (node,) = karpenter.until_ready(pool, 1)
    body: dict[str, Any] = {"status": {"nodeInfo": {"bootID": "kwok-by-hand"}}}
    own_cluster.kube.patch(paths.node_status(node), body, kind=PatchKind.STRATEGIC)
    wait_until(
        lambda: fleet.node(node).boot_id == "kwok-by-hand", LIMIT_S, "the machine has that boot id"
    )
    # Both: Ready alone may be what was told before the boot.
    wait_until(
        lambda: (
            own_cluster.node(node).boot_id == "kwok-by-hand"
            and karpenter.ready_nodes(pool) == [node]
        ),
        LIMIT_S,
        "it is back",
    )
    boots = 1 if kind is NodeKind.FULL else 0
    stays_true(lambda: fleet.node(node).boots == boots, 2.0, "it has booted once and not again")


@pytest.mark.timeout(300)
def test_karpenter_replaces_an_unhealthy_node_by_itself(
    own_cluster: Cluster, karpenter: KarpenterHands, fleet: FleetClient
) -> None:
    pool = karpenter.pool(PoolShape("repaired", kind=NodeKind.LIGHT, replicas=1))
    (node,) = karpenter.until_ready(pool, 1)
    _set_condition(own_cluster, node, "KWOKUnhealthy", "True")
    wait_until(lambda: node not in karpenter.nodes(pool), REPAIR_LIMIT_S, f"{node} is gone")
    (successor,) = karpenter.until_ready(pool, 1)
    assert successor != node
    assert _is_played(fleet, successor)


@pytest.mark.timeout(300)
def test_karpenter_reboots_a_node_by_itself_and_the_machine_boots(
    own_cluster: Cluster, karpenter: KarpenterHands, fleet: FleetClient
) -> None:
    pool = karpenter.pool(PoolShape("rebooted", replicas=1))
    (node,) = karpenter.until_ready(pool, 1)
    before = own_cluster.node(node)
    _set_condition(own_cluster, node, "KWOKRebootRequired", "True")
    wait_until(
        lambda: fleet.node(node).boot_id.startswith("kwok-"),
        REPAIR_LIMIT_S,
        "the machine has booted as Karpenter announced",
        saw=lambda: karpenter.claims(pool),
    )
    _set_condition(own_cluster, node, "KWOKRebootRequired", "False")
    (claim,) = karpenter.claims(pool)
    wait_until(
        lambda: karpenter.condition(claim, "Rebooting") == "False",
        LIMIT_S,
        "Karpenter has seen the boot",
        saw=lambda: karpenter.claims(pool),
    )
    after = own_cluster.node(node)
    assert (after.uid, after.boot_id) == (before.uid, fleet.node(node).boot_id)
    assert after.boot_id != before.boot_id
    assert karpenter.until_ready(pool, 1) == [node]
