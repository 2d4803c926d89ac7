"""watch and nodes that run a pod of a protected namespace: no quarantine at once, until it moved."""

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from activities.kube import errors, paths
from activities.kube.client import JsonObject
from tests.harness.cluster import Cluster
from tests.harness.services import service_on, until_seen
from tests.harness.waiting import stays_true, wait_until
from tests.workers.watch.recorder import Recorder
from tests.workers.watch.scene import Scene
from tests.workers.watch.test_process import _ask as ask
from workers.lab.address import NAMESPACE

RBAC = "rbac.authorization.k8s.io/v1"
NOTHING_FOR_S = 1.0


def test_protected_node_is_reported_and_quarantined_when_the_pod_has_moved(
    scene: Scene, recorder: Recorder, unique: Callable[[str], str]
) -> None:
    protected, other = scene.add("a", "b")
    scene.arm()
    watch = scene.writing_watch()
    with service_on(scene.cluster, protected, unique("svc")) as service:
        pod = service.pods()[0]
        until_seen(watch, protected)
        scene.break_node(protected)
        uid = scene.uids[protected]
        wait_until(lambda: recorder.reports(protected, uid), 10, "it is reported", saw=scene.tails)
        wait_until(lambda: scene.events_about(protected), 10, "an Event says why", saw=scene.tails)
        (event,) = scene.events_about(protected)
        assert event["reason"] == "NotQuarantined"
        assert f"fleetmend/{pod}" in event["message"]
        (said,) = watch.logged("quarantine_withheld")
        assert (said["node"], said["refusal"]) == (protected, "protected")
        scene.break_node(other)
        scene.until_quarantined(other)
        stays_true(lambda: not scene.cordons(protected), NOTHING_FOR_S, "it is left alone")
        service.leave()
        scene.until_quarantined(protected)
    (opening,) = [recorder.opening(protected, uid)]
    assert opening is not None


def test_pod_that_comes_later_protects_and_one_that_was_there_before_the_start_too(
    scene: Scene, unique: Callable[[str], str]
) -> None:
    before, later = scene.add("a", "b")
    scene.arm()
    with service_on(scene.cluster, before, unique("svc-a")):
        watch = scene.writing_watch()
        with service_on(scene.cluster, later, unique("svc-b")):
            until_seen(watch, later)
            for node in (before, later):
                scene.break_node(node)
            wait_until(
                lambda: (
                    {line["node"] for line in watch.logged("quarantine_withheld")}
                    == {before, later}
                ),
                10,
                "both are withheld",
                saw=scene.tails,
            )
            stays_true(lambda: not scene.node_writes(), NOTHING_FOR_S, "no Node is written")


@pytest.fixture
def hidden(cluster: Cluster, unique: Callable[[str], str]) -> Iterator[str]:
    """A namespace whose pods watch may not see."""
    name = unique("hidden")
    namespaces = paths.collection_path("v1", "namespaces")
    cluster.kube.create(namespaces, {"metadata": {"name": name}})
    yield name
    with suppress(errors.NotFound):
        cluster.kube.delete(paths.object_path(namespaces, name), uid=None)


def test_namespace_that_may_not_be_read_stops_no_report_and_is_told_until_it_may(
    scene: Scene, recorder: Recorder, hidden: str, unused_tcp_port: int
) -> None:
    (node,) = scene.add("a")
    scene.arm()
    scene.policy_changes = {"scope": {"protected_namespaces": [NAMESPACE, hidden]}}
    watch = scene.writing_watch(FLEETMEND_WATCH_LISTEN=f"127.0.0.1:{unused_tcp_port}")
    scene.break_node(node)
    uid = scene.uids[node]
    wait_until(lambda: recorder.reports(node, uid), 10, "it is reported", saw=scene.tails)
    wait_until(
        lambda: watch.logged("protected_namespace_unreadable"), 15, "it is said", saw=scene.tails
    )
    (said,) = watch.logged("protected_namespace_unreadable")
    assert said["namespace"] == hidden
    assert "protectedNamespaces" in said["remedy"]
    status, text = ask(unused_tcp_port, "readyz")
    assert (status, hidden in text) == (200, True)
    gauge = "fleetmend_watch_protected_namespaces_unreadable"
    wait_until(lambda: f"{gauge} 1" in ask(unused_tcp_port, "metrics")[1], 10, "the gauge says so")
    assert not scene.node_writes()

    _let_watch_see(scene.cluster, hidden)
    scene.until_quarantined(node, 40)
    assert ask(unused_tcp_port, "readyz") == (200, "ok\n")
    wait_until(lambda: f"{gauge} 0" in ask(unused_tcp_port, "metrics")[1], 10, "the gauge says so")


def _let_watch_see(cluster: Cluster, namespace: str) -> None:
    """As the chart does for a namespace that its values name."""
    name = "fleetmend-protected-pods"
    group = RBAC.split("/", maxsplit=1)[0]
    role: JsonObject = {
        "metadata": {"name": name},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}],
    }
    binding: JsonObject = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "fleetmend-watch", "namespace": NAMESPACE}],
    }
    for plural, body in (("roles", role), ("rolebindings", binding)):
        cluster.kube.create(paths.collection_path(RBAC, plural, namespace=namespace), body)
