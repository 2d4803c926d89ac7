"""Evictions against the real API server and its disruption controller: each refusal by its name."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from activities.kube import errors, paths
from activities.kube.client import JsonObject, KubeClient, PatchKind
from tests.harness.proxy import FaultProxy
from tests.harness.proxy_faults import Answer
from tests.harness.waiting import wait_until

NAMESPACE = "default"


@dataclass
class Guarded:
    """A pod that looks running, with budgets of its own."""

    kube: KubeClient
    name: str

    def add_pod(self) -> str:
        """Create it, running and ready by its status; its UID."""
        body = {
            "metadata": {"name": self.name, "labels": {"fleetmend.io/test": self.name}},
            "spec": {
                "schedulerName": "nobody",
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "none"}],
            },
        }
        made = self.kube.create(paths.pods(NAMESPACE), body)
        ready = {"type": "Ready", "status": "True"}
        self.kube.patch(
            paths.pod_status(NAMESPACE, self.name),
            {"status": {"phase": "Running", "conditions": [ready]}},
            kind=PatchKind.STRATEGIC,
        )
        return str(made["metadata"]["uid"])

    def add_budget(self, short: str, minimum: int) -> paths.ObjectPath:
        """A budget over the pod that its controller has already looked at."""
        collection = paths.pod_disruption_budgets(NAMESPACE)
        name = f"{self.name}-{short}"
        selector = {"matchLabels": {"fleetmend.io/test": self.name}}
        body = {
            "metadata": {"name": name},
            "spec": {"minAvailable": minimum, "selector": selector},
        }
        self.kube.create(collection, body)
        path = paths.object_path(collection, name)
        wait_until(lambda: is_seen(self.kube.get(path)), 15, f"the budget {name} is looked at")
        return path

    def evict(self, uid: str) -> None:
        self.kube.evict(NAMESPACE, self.name, uid=uid)


def is_seen(budget: JsonObject) -> bool:
    status = budget.get("status", {})
    return bool(status.get("expectedPods") == 1 and status.get("currentHealthy") == 1)


@pytest.fixture
def guarded(kube: KubeClient, unique: Callable[[str], str]) -> Iterator[Guarded]:
    mine = Guarded(kube, unique("p"))
    yield mine
    for short in ("a", "b"):
        collection = paths.pod_disruption_budgets(NAMESPACE)
        with suppress(errors.NotFound):
            kube.delete(paths.object_path(collection, f"{mine.name}-{short}"), uid=None)
    with suppress(errors.NotFound):
        kube.delete(paths.pod(NAMESPACE, mine.name), uid=None, grace_s=0)


def test_a_pod_without_a_budget_is_evicted(guarded: Guarded) -> None:
    uid = guarded.add_pod()
    guarded.evict(uid)
    with pytest.raises(errors.NotFound):
        guarded.evict(uid)


def test_a_budget_that_holds_is_named(guarded: Guarded) -> None:
    uid = guarded.add_pod()
    guarded.add_budget("a", minimum=1)
    with pytest.raises(errors.TooMany) as caught:
        guarded.evict(uid)
    assert caught.value.is_disruption_budget
    assert not caught.value.is_budget_pending
    assert f"{guarded.name}-a" in str(caught.value.budget)


def test_a_budget_with_room_lets_the_pod_go(guarded: Guarded) -> None:
    uid = guarded.add_pod()
    guarded.add_budget("a", minimum=0)
    guarded.evict(uid)


def test_two_budgets_are_blocked_by_configuration(guarded: Guarded) -> None:
    uid = guarded.add_pod()
    guarded.add_budget("a", minimum=0)
    guarded.add_budget("b", minimum=0)
    with pytest.raises(errors.ServerError) as caught:
        guarded.evict(uid)
    assert caught.value.is_two_budgets


def test_another_pod_of_the_same_name_is_not_evicted(guarded: Guarded) -> None:
    guarded.add_pod()
    with pytest.raises(errors.Conflict):
        guarded.evict("00000000-0000-0000-0000-000000000000")
    assert (
        "deletionTimestamp" not in guarded.kube.get(paths.pod(NAMESPACE, guarded.name))["metadata"]
    )


def test_a_busy_server_is_not_a_budget(
    guarded: Guarded, faulty: KubeClient, proxy: FaultProxy
) -> None:
    uid = guarded.add_pod()
    proxy.add(Answer(429, retry_after_s=1), path="/eviction")
    proxy.add(Answer(429, budget="The disruption budget x needs 1 healthy pods"), path="/eviction")
    with pytest.raises(errors.TooMany) as busy:
        faulty.evict(NAMESPACE, guarded.name, uid=uid)
    assert not busy.value.is_disruption_budget
    assert busy.value.retry_after_s == 1.0
    with pytest.raises(errors.TooMany) as blocked:
        faulty.evict(NAMESPACE, guarded.name, uid=uid)
    assert blocked.value.is_disruption_budget
