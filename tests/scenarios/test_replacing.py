"""A machine is replaced through the real Karpenter, and what happens when that acts by itself.

One lab with Karpenter for the module, its own repair on: it acts on two conditions that nobody else
sets. Each test has a NodePool, which is fleetmend's pool as well. Times of steps are printed.
"""

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from activities.kube import paths
from activities.kube.client import JsonObject, PatchKind
from tests.harness.audit import AuditEvent, AuditLog, Wanted
from tests.harness.cluster import Cluster
from tests.harness.fleet import Fleet, fleet_on
from tests.harness.karpenter import NAMESPACE, KarpenterHands
from tests.harness.nodes import TestNodes
from tests.harness.policies import TestPool
from tests.harness.training import WORK_LIMIT_S, Training, set_condition, settle
from tests.harness.waiting import wait_until
from tests.harness.work import Work
from workers.lab.address import LabAddress
from workers.lab.controlplane.lab import start_lab, stop_lab
from workers.lab.controlplane.settings import AuditMode, LabSettings
from workers.lab.karpenter.node_pools import PoolShape
from workers.lab.kubelet.spec import Machine
from workflows.contracts.messages import Command
from workflows.model.identity import NodeRef
from workflows.model.remediation.marks import VETOES

pytestmark = pytest.mark.long

SLOW_S = 150.0
POOLS = tuple(f"kp-{letter}" for letter in "abcdefghijkl")


@pytest.fixture(scope="module")
def own_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabAddress]:
    folder = tmp_path_factory.mktemp("replacing") / "lab"
    settings = LabSettings(
        cluster="replacing", karpenter=True, node_repair=True, audit_mode=AuditMode.BLOCKING
    )
    yield start_lab(folder, settings, detached=False)
    stop_lab(folder)


@pytest.fixture(scope="module")
def fleet(
    own_lab: LabAddress, own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    pools = [TestPool(name) for name in POOLS]
    # Node and claim go within 6 s unless something holds them.
    patience = {"timing": {"removal_deadline_s": 20}}
    with fleet_on(own_lab, own_cluster, folder, pools, patience) as own:
        yield own


@pytest.fixture(scope="module")
def _pools() -> Iterator[str]:
    return iter(POOLS)


@pytest.fixture
def pool(_pools: Iterator[str]) -> str:
    return next(_pools)


@pytest.fixture
def training(own_cluster: Cluster, pool: str, karpenter: KarpenterHands) -> Iterator[Training]:
    own = Training(own_cluster, pool)
    yield own
    own.end()


@pytest.fixture
def sick(
    fleet: Fleet, karpenter: KarpenterHands, pool: str, machines: TestNodes, own_cluster: Cluster
) -> Callable[[PoolShape], NodeRef]:
    """One node of a pool, well, and with a baseline; to be broken by the test."""

    def make(shape: PoolShape) -> NodeRef:
        karpenter.pool(shape)
        (node,) = karpenter.until_ready(pool, 1)
        settle(machines, own_cluster, node)
        return fleet.ref(node)

    return make


def say(line: str) -> None:
    sys.stdout.write(f"\n{line}\n")


def steps_of(seen: AuditLog, old: str, since: datetime) -> dict[str, float]:
    """Seconds that each step of a replacement took, by the API server's record."""

    def first(
        after: datetime,
        verb: str,
        resource: str,
        is_it: Callable[[AuditEvent], bool] = lambda _event: True,
    ) -> AuditEvent:
        later = [
            event
            for event in seen.events(Wanted(verb=verb, resource=resource))
            if event.received_at > after and is_it(event)
        ]
        assert later, f"after {after} nobody sent: {verb} {resource}"
        return later[0]

    def is_bound(event: AuditEvent) -> bool:
        is_there = (event.body.get("target") or {}).get("name") == node.body["metadata"]["name"]
        return is_there and not event.name.startswith("fleetmend-")

    def is_release(event: AuditEvent) -> bool:
        meta = event.body.get("metadata") or {}
        return event.name == old and "finalizers" in meta and not meta["finalizers"]

    evicted = first(since, "create", "pods/eviction")
    # By a person's hand, Karpenter drains and buys side by side.
    claim = first(since, "create", "nodeclaims")
    node = first(claim.answered_at, "create", "nodes")
    bound = first(node.answered_at, "create", "pods/binding", is_bound)
    deleted = first(since, "delete", "nodeclaims")
    gone = first(deleted.received_at, "patch", "nodes", is_release)
    return {
        "first eviction to the new claim": _between(evicted, claim),
        "new claim to its Node": _between(claim, node),
        "Node to work on it": _between(node, bound),
        "claim deleted to its Node gone": _between(deleted, gone),
    }


def _between(one: AuditEvent, other: AuditEvent) -> float:
    return (other.answered_at - one.answered_at).total_seconds()


def timeline(closing: Any, begun: datetime) -> str:
    return ", ".join(f"{name} {(at - begun).total_seconds():.1f} s" for name, at in closing.phases)


@pytest.mark.timeout(300)
def test_a_broken_machine_of_an_elastic_pool_is_replaced_and_its_work_runs_again(
    fleet: Fleet,
    karpenter: KarpenterHands,
    training: Training,
    pool: str,
    machines: TestNodes,
    own_cluster: Cluster,
    seen: AuditLog,
    capsys: pytest.CaptureFixture[str],
) -> None:
    karpenter.pool(PoolShape(pool))
    training.start(2)
    sick, well = training.places()
    for node in (sick, well):
        settle(machines, own_cluster, node)
    ref = fleet.ref(sick)
    begun = datetime.now(UTC)
    machines.inject(sick, "gpu-missing-after-reboot")
    wait_until(
        lambda: len(set(training.places()) - {sick}) == 2, WORK_LIMIT_S, "the work runs elsewhere"
    )
    running = (datetime.now(UTC) - begun).total_seconds()
    closing = fleet.episodes.closing(ref, 200)
    assert closing.outcome == "replaced", fleet.episodes.shown(ref)
    places = training.until_running(2)
    assert well in places
    assert sick not in places
    (successor,) = set(places) - {well}
    assert closing.detail == f"replaced by Node {successor}"
    assert own_cluster.has_baseline(successor)
    (event,) = seen.claim_deletions()
    assert event.succeeded
    assert len(seen.reboots(sick)) == 1
    counts = fleet.episodes.counts(ref)
    with capsys.disabled():
        say(f"elastic: {timeline(closing, begun)}; work ran again at {running:.1f} s; {counts}")
    ours = steps_of(seen, sick, begun)
    # The same by hand: a person deletes the other machine's claim, and Karpenter does all the rest.
    begun = datetime.now(UTC)
    claim = karpenter.claim_of(well)
    assert claim is not None
    karpenter.delete_claim(claim)
    wait_until(
        lambda: len(set(training.places()) - {well}) == 2, WORK_LIMIT_S, "the work runs elsewhere"
    )
    training.until_running(2)
    karpenter.until_gone(well)
    karpenters = wait_until(lambda: steps_of(seen, well, begun), 30, "the log has every step")
    with capsys.disabled():
        for step, takes_s in ours.items():
            say(f"{step}: {takes_s:.2f} s, by Karpenter alone {karpenters[step]:.2f} s")


@pytest.mark.timeout(300)
def test_a_static_pool_is_refilled_and_the_newcomer_has_its_baseline(
    fleet: Fleet,
    sick: Callable[[PoolShape], NodeRef],
    karpenter: KarpenterHands,
    pool: str,
    machines: TestNodes,
    own_cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ref = sick(PoolShape(pool, replicas=1))
    begun = datetime.now(UTC)
    machines.inject(ref.name, "gpu-missing-after-reboot")
    closing = fleet.episodes.closing(ref, 200)
    assert closing.outcome == "replaced", fleet.episodes.shown(ref)
    (successor,) = karpenter.until_ready(pool, 1)
    assert closing.detail == f"replaced by Node {successor}"
    assert own_cluster.has_baseline(successor)
    record = next(
        m for m in own_cluster.machines() if m["spec"].get("node", {}).get("uid") == ref.uid
    )
    assert (record["status"]["outcome"], record["status"]["strikeCount"]) == ("replaced", 1)
    assert [a["rung"] for a in record["status"]["attempts"]] == ["reboot", "replace"]
    with capsys.disabled():
        say(f"static: {timeline(closing, begun)}")


@pytest.mark.timeout(300)
def test_a_pool_at_its_limits_awaits_the_place_that_the_deletion_frees(
    fleet: Fleet,
    karpenter: KarpenterHands,
    training: Training,
    pool: str,
    machines: TestNodes,
    own_cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """R33 (karpenter#2905): rebooted first, given away only when that was in vain."""
    karpenter.pool(PoolShape(pool, most_nodes=1))
    training.start(1)
    (node,) = training.places()
    settle(machines, own_cluster, node)
    ref = fleet.ref(node)
    begun = datetime.now(UTC)
    machines.inject(node, "gpu-missing-after-reboot")
    closing = fleet.episodes.closing(ref, 200)
    assert closing.outcome == "replaced", fleet.episodes.shown(ref)
    (place,) = training.until_running(1)
    assert place != node
    with capsys.disabled():
        say(f"at its limits: {timeline(closing, begun)}")


@pytest.mark.timeout(300)
def test_a_retire_replaces_the_machine_without_a_reboot(
    fleet: Fleet,
    sick: Callable[[PoolShape], NodeRef],
    karpenter: KarpenterHands,
    pool: str,
    machines: TestNodes,
    seen: AuditLog,
) -> None:
    ref = sick(PoolShape(pool, replicas=1))
    machines.inject(ref.name, "unknown")
    fleet.episodes.until_phase(ref, "quarantined")
    fleet.episodes.tell(ref, Command.RETIRE)
    closing = fleet.episodes.closing(ref, 200)
    assert closing.outcome == "replaced", fleet.episodes.shown(ref)
    assert seen.reboots(ref.name) == []
    assert len(seen.claim_deletions()) == 1
    assert karpenter.until_ready(pool, 1) != [ref.name]


@pytest.mark.timeout(300)
def test_a_finalizer_that_stays_is_named_and_people_are_asked(
    fleet: Fleet,
    sick: Callable[[PoolShape], NodeRef],
    karpenter: KarpenterHands,
    pool: str,
    machines: TestNodes,
    own_cluster: Cluster,
) -> None:
    ref = sick(PoolShape(pool, replicas=1))
    claim = karpenter.claim_of(ref.name)
    assert claim is not None
    path = paths.node_claim(str(claim["metadata"]["name"]))
    finalizers = [*claim["metadata"]["finalizers"], "example.com/hold"]
    hold: JsonObject = {"metadata": {"finalizers": finalizers}}
    own_cluster.kube.patch(path, hold, kind=PatchKind.MERGE)
    machines.inject(ref.name, "gpu-missing-after-reboot")
    fleet.episodes.until_held(ref, 120)
    assert any("example.com/hold" in line for line in fleet.episodes.story(ref))
    let_go: JsonObject = {"metadata": {"finalizers": None}}
    own_cluster.kube.patch(path, let_go, kind=PatchKind.MERGE)
    closing = fleet.episodes.closing(ref, 120)
    assert closing.outcome == "replaced", fleet.episodes.shown(ref)


@pytest.mark.timeout(300)
def test_a_reboot_that_karpenter_has_begun_is_karpenters_and_nothing_of_ours_stays(
    fleet: Fleet,
    sick: Callable[[PoolShape], NodeRef],
    karpenter: KarpenterHands,
    pool: str,
    machines: TestNodes,
    own_cluster: Cluster,
    seen: AuditLog,
) -> None:
    ref = sick(PoolShape(pool, replicas=1))
    claim = karpenter.claim_of(ref.name)
    assert claim is not None
    # What Karpenter has begun lasts until this pod has stopped.
    work = Work(own_cluster)
    work.pod("slow", ref.name, stops_in_s=SLOW_S)
    set_condition(own_cluster, ref.name, "KWOKRebootRequired", "True")
    wait_until(
        lambda: karpenter.condition(claim, "Rebooting") == "True", WORK_LIMIT_S, "it has begun"
    )
    machines.inject(ref.name, "gpu-lost")
    closing = fleet.episodes.closing(ref, 140)
    assert closing.outcome == "yielded", fleet.episodes.shown(ref)
    assert own_cluster.marker(ref.name) is None
    assert not own_cluster.node(ref.name).unschedulable
    work.end()
    set_condition(own_cluster, ref.name, "KWOKRebootRequired", "False")
    wait_until(
        lambda: karpenter.condition(claim, "Rebooting") == "False", WORK_LIMIT_S, "it is over"
    )
    assert seen.reboots(ref.name) == []
    assert seen.claim_deletions() == []


@pytest.mark.timeout(300)
def test_the_same_machine_that_comes_back_is_not_admitted(
    fleet: Fleet,
    karpenter: KarpenterHands,
    training: Training,
    pool: str,
    machines: TestNodes,
    own_cluster: Cluster,
) -> None:
    """Work comes only when the cloud has the machine back, so that it is the next one given out."""
    karpenter.pool(PoolShape(pool, machine=Machine.AGAIN))
    training.start(1)
    (node,) = training.places()
    settle(machines, own_cluster, node)
    ref = fleet.ref(node)
    machines.inject(node, "unknown")
    fleet.episodes.until_phase(ref, "quarantined")
    training.scale(0)
    fleet.episodes.tell(ref, Command.RETIRE)
    fleet.episodes.until_phase(ref, "awaiting-capacity", deadline_s=180)
    training.scale(1)
    fleet.episodes.until_held(ref, 120)
    story = fleet.episodes.story(ref)
    assert any("the same machine came back" in line for line in story), story
    fleet.episodes.tell(ref, Command.RETIRE)
    assert fleet.episodes.closing(ref, 60).outcome == "replaced"


@pytest.mark.timeout(300)
def test_our_vetoes_keep_karpenters_repair_away_while_we_act(
    fleet: Fleet,
    sick: Callable[[PoolShape], NodeRef],
    karpenter: KarpenterHands,
    pool: str,
    machines: TestNodes,
    own_cluster: Cluster,
    seen: AuditLog,
) -> None:
    ref = sick(PoolShape(pool, replicas=1))
    claim = karpenter.claim_of(ref.name)
    assert claim is not None
    machines.inject(ref.name, "unknown")
    fleet.episodes.until_phase(ref, "quarantined")
    vetoes = own_cluster.node(ref.name).annotations
    assert [vetoes.get(key) for key in VETOES] == ["true", "true"]
    set_condition(own_cluster, ref.name, "KWOKUnhealthy", "True")
    events = paths.collection_path("v1", "events", namespace=NAMESPACE)

    def is_blocked() -> bool:
        found = own_cluster.kube.list(events).items
        return any(
            e.get("reason") == "DisruptionBlocked"
            and str(claim["metadata"]["name"]) == e.get("involvedObject", {}).get("name")
            for e in found
        )

    wait_until(is_blocked, 120, "Karpenter says that it is kept from it")
    assert own_cluster.node(ref.name).uid == ref.uid
    assert karpenter.condition(claim, "Initialized") == "True"
    fleet.episodes.tell(ref, Command.RETIRE)
    assert fleet.episodes.closing(ref, 120).outcome == "replaced"
    assert len(seen.claim_deletions()) == 1


@pytest.mark.timeout(400)
def test_an_emptied_node_stays_under_our_veto_and_goes_without_it(
    fleet: Fleet,
    karpenter: KarpenterHands,
    training: Training,
    pool: str,
    machines: TestNodes,
    own_cluster: Cluster,
    seen: AuditLog,
) -> None:
    """R31 (karpenter#3185): consolidation takes nodes that it believes to be empty."""
    karpenter.pool(PoolShape(pool, consolidate_after="0s"))
    training.start(1)
    (node,) = training.places()
    settle(machines, own_cluster, node)
    ref, claim = fleet.ref(node), karpenter.claim_of(node)
    assert claim is not None
    machines.inject(node, "unknown")
    fleet.episodes.until_phase(ref, "quarantined")
    training.scale(0)
    wait_until(
        lambda: karpenter.condition(claim, "Consolidatable") == "True",
        WORK_LIMIT_S,
        "Karpenter would take the empty node away",
    )
    fleet.episodes.until_held(ref, 120)
    assert own_cluster.node(node).uid == ref.uid
    lost: JsonObject = {"metadata": {"annotations": dict.fromkeys(VETOES)}}
    own_cluster.patch_node(node, lost)
    karpenter.until_gone(node)
    assert fleet.episodes.closing(ref, 180).outcome in ("vanished", "yielded")
    assert seen.claim_deletions() == []
