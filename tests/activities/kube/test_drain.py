"""Draining nodes: who is evicted, who stands in the way, and what stops it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.kube import errors as api
from activities.kube import paths
from activities.kube.client import KubeClient, PatchKind
from tests.activities.desk import Desk
from tests.harness.audit import WORKER, AuditEvent, AuditLog, Wanted
from tests.harness.cluster import Cluster
from tests.harness.nodes import TestNodes
from tests.harness.proxy import FaultProxy
from tests.harness.waiting import wait_until
from workers.lab.kubelet.spec import NodeKind
from workers.lab.kubelet.timer import DURATION
from workflows.contracts import errors
from workflows.contracts.kube import (
    DRAIN,
    NOTE_SLOT,
    QUARANTINE,
    Drained,
    DrainRequest,
    Owner,
    QuarantineRequest,
    SlotRequest,
)
from workflows.model.identity import NodeRef
from workflows.model.policy import DrainWay
from workflows.model.remediation.marks import Marker, Quarantine, parse_marker

IMAGE = "example.invalid/training:1"
EVICTIONS = Wanted(who=WORKER, resource="pods/eviction", succeeded=None)


@dataclass
class Work:
    """Pods bound to one node, and budgets over them."""

    kube: KubeClient
    node: str
    family: str
    pods: list[str] = field(default_factory=list)
    budgets: list[str] = field(default_factory=list)

    def pod(self, name: str, **changes: Any) -> str:
        real = f"{self.family}-{name}"
        meta = {"name": real, "labels": {"app": self.family, **changes.get("labels", {})}}
        spec = {
            "nodeName": self.node,
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": changes.get("grace_s", 1),
            "containers": [{"name": "c", "image": IMAGE}],
        }
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**meta, "annotations": changes.get("annotations", {})},
            "spec": spec,
        }
        self.kube.create(paths.pods("default"), body)
        self.pods.append(real)
        return real

    def budget(self, name: str, **limit: Any) -> str:
        real = f"{self.family}-{name}"
        body = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": real},
            "spec": {"selector": {"matchLabels": {"app": self.family}}, **limit},
        }
        self.kube.create(paths.pod_disruption_budgets("default"), body)
        self.budgets.append(real)
        return real

    def budget_path(self, real: str) -> paths.ObjectPath:
        return paths.object_path(paths.pod_disruption_budgets("default"), real)

    def remove_budget(self, real: str) -> None:
        with suppress(api.NotFound):
            self.kube.delete(self.budget_path(real), uid=None)

    def until_running(self) -> None:
        def running() -> bool:
            found = [self.kube.get(paths.pod("default", name)) for name in self.pods]
            return all(pod["status"].get("phase") == "Running" for pod in found)

        wait_until(running, 30, "all pods run")

    def until_counted(self, allowed: int) -> None:
        """The budgets' controller has looked."""

        def counted() -> bool:
            found = [self.kube.get(self.budget_path(name)) for name in self.budgets]
            return all(
                (b.get("status") or {}).get("disruptionsAllowed") == allowed
                and b["status"].get("observedGeneration")
                for b in found
            )

        wait_until(counted, 30, f"each budget allows {allowed}")

    def left(self) -> list[str]:
        names = []
        for name in self.pods:
            with suppress(api.NotFound):
                if not self.kube.get(paths.pod("default", name))["metadata"].get(
                    "deletionTimestamp"
                ):
                    names.append(name)
        return names


@pytest.fixture
def work(
    nodes: TestNodes, pool: str, cluster: Cluster, unique: Callable[[str], str]
) -> Iterator[Work]:
    node = nodes.add("n", pool, kind=NodeKind.LIGHT)
    wait_until(lambda: cluster.node(node).ready, 30, f"{node} is Ready")
    own = Work(cluster.kube, node, unique("w"))
    yield own
    for name in own.budgets:
        own.remove_budget(name)
    for name in own.pods:
        with suppress(api.NotFound):
            cluster.kube.delete(paths.pod("default", name), uid=None, grace_s=0)


@pytest.fixture
def owner(work: Work, desk: Desk, cluster: Cluster, epoch: str) -> Owner:
    """The episode that has quarantined the node and noted its slot."""
    node = cluster.node(work.node)
    own = Owner(NodeRef(node.name, node.uid), f"ep-{node.name}")
    marker = Marker(own.episode, node.uid, node.created, "r", "gpu-lost", Quarantine.CONFIRMED)
    desk.do(QUARANTINE, QuarantineRequest(own, marker))
    desk.do(NOTE_SLOT, SlotRequest(own, epoch))
    return own


def now(owner: Owner, deadline_s: float = 20) -> DrainRequest:
    return DrainRequest(owner, DrainWay.NOW, deadline_s)


def test_it_evicts_work_and_leaves_what_is_exempt(
    desk: Desk, work: Work, owner: Owner, witness: AuditLog
) -> None:
    for name in ("a", "b", "c"):
        work.pod(name)
    task = work.pod("task", labels={"fleetmend.io/task": "inventory"})
    work.until_running()
    answer = desk.do(DRAIN, now(owner))
    assert answer == Drained(done=True, evicted=3, remaining=0)
    assert work.left() == [task]
    assert desk.do(DRAIN, now(owner)) == Drained(done=True, evicted=0, remaining=0)
    assert len(witness.events(EVICTIONS)) == 3


def test_each_eviction_names_the_uid_of_the_pod_just_read(
    faulty_desk: Desk, worker_proxy: FaultProxy, work: Work, owner: Owner, witness: AuditLog
) -> None:
    pod = work.pod("a")
    work.until_running()
    uid = work.kube.get(paths.pod("default", pod))["metadata"]["uid"]
    faulty_desk.do(DRAIN, now(owner))
    about_pod = [one.method for one in worker_proxy.seen(path=f"/pods/{pod}")]
    # More follows if the answer comes too late for the desk's short patience.
    assert about_pod[:2] == ["GET", "POST"]
    eviction = witness.events(EVICTIONS)[0]
    assert eviction.body["deleteOptions"]["preconditions"]["uid"] == uid


def test_a_blocked_pod_is_named_with_its_budget_at_the_deadline(
    desk: Desk, work: Work, owner: Owner
) -> None:
    work.pod("a")
    work.budget("none", maxUnavailable=0)
    work.until_running()
    work.until_counted(0)
    answer = desk.do(DRAIN, now(owner, deadline_s=2))
    assert (answer.done, answer.evicted, answer.remaining) == (False, 0, 1)
    assert answer.blocked[0].pod == f"default/{work.pods[0]}"
    assert answer.blocked[0].owner == "no owner"
    assert "disruption budget" in answer.blocked[0].reason
    assert work.left() == work.pods


def test_it_goes_on_as_soon_as_a_budget_opens(
    desk: Desk, work: Work, owner: Owner, cluster: Cluster, witness: AuditLog
) -> None:
    work.pod("a")
    budget = work.budget("one", minAvailable=1)
    work.until_running()
    work.until_counted(0)
    done: list[Drained] = []
    draining = threading.Thread(target=lambda: done.append(desk.do(DRAIN, now(owner, 60))))
    draining.start()
    # Blocked often enough for its back-off to have grown to 5 s: by itself it would come later.
    wait_until(lambda: len(witness.events(EVICTIONS)) >= 4, 30, "it was refused four times")
    body = {"spec": {"minAvailable": 0}}
    cluster.kube.patch(work.budget_path(budget), body, kind=PatchKind.MERGE)
    draining.join(60)
    assert done == [Drained(done=True, evicted=1, remaining=0)]
    # It opens when Kubernetes' own controller has said so, which is not the drain's time.
    told = Wanted(resource="poddisruptionbudgets/status", name=budget)

    def openings() -> list[AuditEvent]:
        return [e for e in witness.events(told) if e.body["status"]["disruptionsAllowed"] > 0]

    opened = wait_until(openings, 30, "the controller's word is in the audit log")[0]
    evicted = witness.evictions(work.pods)[-1]
    assert (evicted.received_at - opened.received_at).total_seconds() < 4


def test_two_budgets_on_one_pod_are_told_at_once_and_the_others_go(
    desk: Desk, work: Work, owner: Owner, unique: Callable[[str], str]
) -> None:
    work.pod("a")
    work.budget("x", minAvailable=0)
    work.budget("y", minAvailable=0)
    other = Work(work.kube, work.node, unique("o"))
    other.pod("free")
    work.until_running()
    other.until_running()
    work.until_counted(1)
    answer = desk.do(DRAIN, now(owner, deadline_s=60))
    assert (answer.done, answer.evicted, answer.remaining) == (False, 1, 1)
    assert "more than one PodDisruptionBudget" in answer.blocked[0].reason
    assert other.left() == []


def test_a_marker_removed_in_mid_drain_stops_it(
    desk: Desk, work: Work, owner: Owner, cluster: Cluster, witness: AuditLog
) -> None:
    for number in range(6):
        work.pod(str(number))
    work.budget("slow", minAvailable=6)
    work.until_running()
    work.until_counted(0)
    failures: list[ApplicationError] = []

    def drain() -> None:
        try:
            desk.do(DRAIN, now(owner, deadline_s=60))
        except ApplicationError as error:
            failures.append(error)

    draining = threading.Thread(target=drain)
    draining.start()
    wait_until(lambda: len(witness.events(EVICTIONS)) >= 6, 20, "each was tried")
    cluster.annotate(work.node, episode=None)
    draining.join(20)
    assert failures[0].type == errors.OVERRULED
    assert work.left() == work.pods
    removed = next(
        e.answered_at
        for e in witness.events(Wanted(verb="patch", resource="nodes", name=work.node))
        if e.annotations_sent.get("fleetmend.io/episode", "") is None
    )
    late = [e for e in witness.events(EVICTIONS) if (e.received_at - removed).total_seconds() > 5]
    assert late == []


def test_it_gives_way_to_another_healer_while_it_only_waits(
    desk: Desk, work: Work, owner: Owner, cluster: Cluster
) -> None:
    work.pod("a")
    work.until_running()
    taint = {"key": "karpenter.sh/rebooting", "effect": "NoSchedule"}
    taints = cluster.kube.get(paths.node(work.node))["spec"].get("taints") or []
    labels = {"karpenter.sh/nodepool": "p"}
    cluster.patch_node(
        work.node, {"metadata": {"labels": labels}, "spec": {"taints": [*taints, taint]}}
    )
    with pytest.raises(ApplicationError) as caught:
        desk.do(DRAIN, DrainRequest(owner, DrainWay.FINISH_WORK, 30))
    assert caught.value.type == errors.OTHER_HEALER
    assert work.left() == work.pods


@pytest.mark.parametrize("way", [DrainWay.FINISH_WORK, DrainWay.NONE])
def test_ways_that_do_not_evict_leave_the_pods(
    desk: Desk, work: Work, owner: Owner, witness: AuditLog, way: DrainWay
) -> None:
    work.pod("a")
    work.until_running()
    answer = desk.do(DRAIN, DrainRequest(owner, way, 1))
    assert (answer.done, answer.remaining) == (False, 1)
    assert answer.blocked[0].reason == "still runs; it was not asked to go"
    assert work.left() == work.pods
    assert witness.events(EVICTIONS) == []


def test_finish_work_is_done_when_the_work_has_ended(desk: Desk, work: Work, owner: Owner) -> None:
    work.pod("a", annotations={DURATION: "2"})
    answer = desk.do(DRAIN, DrainRequest(owner, DrainWay.FINISH_WORK, 30))
    assert answer == Drained(done=True, evicted=0, remaining=0)


def test_without_a_slot_nothing_is_evicted(
    desk: Desk, work: Work, owner: Owner, cluster: Cluster, witness: AuditLog
) -> None:
    work.pod("a")
    work.until_running()
    text = cluster.node(work.node).annotations["fleetmend.io/episode"]
    bare = replace(parse_marker(text), slot=None)
    cluster.annotate(work.node, episode=bare.encode())
    with pytest.raises(ApplicationError) as caught:
        desk.do(DRAIN, now(owner))
    assert caught.value.type == errors.BAD_REQUEST
    assert witness.events(EVICTIONS) == []


def test_cancelled_it_answers_how_far_it_came(desk: Desk, work: Work, owner: Owner) -> None:
    work.pod("a")
    work.budget("none", maxUnavailable=0)
    work.until_running()
    work.until_counted(0)
    environment = ActivityEnvironment()
    done: list[Drained] = []
    draining = threading.Thread(
        target=lambda: done.append(
            desk.do(DRAIN, now(owner, deadline_s=60), environment=environment)
        )
    )
    draining.start()
    wait_until(lambda: desk.told, 10, "it has told its first heartbeat")
    environment.cancel()
    draining.join(30)
    assert not draining.is_alive()
    assert (done[0].done, done[0].remaining) == (False, 1)


def test_a_second_attempt_keeps_the_first_ones_time_and_count(
    desk: Desk, work: Work, owner: Owner
) -> None:
    work.pod("a")
    work.budget("none", maxUnavailable=0)
    work.until_running()
    work.until_counted(0)
    details = [{"spent_s": 3600.0, "evicted": ["u1", "u2"]}]
    begun = monotonic()
    answer = desk.do(DRAIN, now(owner, deadline_s=60), details=details)
    assert (answer.done, answer.evicted, answer.remaining) == (False, 2, 1)
    assert monotonic() - begun < 30, "it began a deadline of its own"


def test_the_time_between_two_attempts_does_not_count_against_the_deadline(
    desk: Desk, work: Work, owner: Owner, witness: AuditLog
) -> None:
    """Seen: the worker was away for a minute; its next attempt gave up without asking anybody."""
    work.pod("a")
    work.budget("none", maxUnavailable=0)
    work.until_running()
    work.until_counted(0)
    # What an attempt of the release before wrote: when it began, hours ago.
    details = [{"begun": "2026-01-01T00:00:00+00:00", "spent_s": 1.0, "evicted": []}]
    begun = monotonic()
    answer = desk.do(DRAIN, now(owner, deadline_s=15), details=details)
    assert monotonic() - begun >= 14, "it gave up before its time"
    assert "disruption budget" in answer.blocked[0].reason
    assert len(witness.events(EVICTIONS)) >= 2


def test_an_attempt_whose_time_is_over_asks_each_pod_once_before_it_gives_up(
    desk: Desk, work: Work, owner: Owner, witness: AuditLog
) -> None:
    pods = [work.pod(name, grace_s=1) for name in ("a", "b", "c")]
    work.until_running()
    answer = desk.do(DRAIN, now(owner, deadline_s=1), details=[{"spent_s": 9.0, "evicted": []}])
    assert answer.evicted == 3
    assert {one.name for one in witness.evictions(pods)} == set(pods)


def test_heartbeats_name_who_is_in_the_way_while_they_are(
    desk: Desk, work: Work, owner: Owner
) -> None:
    pod = work.pod("a")
    budget = work.budget("none", maxUnavailable=0)
    work.until_running()
    work.until_counted(0)
    desk.do(DRAIN, now(owner, deadline_s=15))
    named = [line for told in desk.told for line in told["in_the_way"] if budget in line]
    assert named
    assert named[0].startswith(f"default/{pod} (no owner): ")


def test_a_worker_that_stops_leaves_the_rest_to_the_next_one(
    desk: Desk, work: Work, owner: Owner
) -> None:
    work.pod("a")
    work.budget("none", maxUnavailable=0)
    work.until_running()
    work.until_counted(0)
    environment = ActivityEnvironment()
    environment.worker_shutdown()
    with pytest.raises(ApplicationError) as caught:
        desk.do(DRAIN, now(owner, deadline_s=60), environment=environment)
    assert (caught.value.type, caught.value.non_retryable) == (errors.API_FAILED, False)
    assert "spent_s" in desk.told[-1]
