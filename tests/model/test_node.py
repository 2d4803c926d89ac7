"""Reading the API's Nodes and Pods: total values, or one named error."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.views import ANY_JSON, TEXT, mutated
from workflows.model.node import EPOCH, BadObject, parse_instant, parse_node, parse_pod

NODE: dict[str, Any] = {
    "metadata": {
        "name": "node-1",
        "uid": "uid-1",
        "resourceVersion": "12",
        "labels": {"pool": "training"},
        "annotations": {"a": "b"},
        "creationTimestamp": "2026-03-01T12:00:00Z",
    },
    "spec": {
        "unschedulable": True,
        "providerID": "aws:///i-1",
        "taints": [{"key": "k", "effect": "NoSchedule"}],
    },
    "status": {
        "nodeInfo": {"bootID": "b", "systemUUID": "S", "machineID": "m"},
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "lastHeartbeatTime": "2026-03-01T12:00:00Z",
            }
        ],
        "allocatable": {"nvidia.com/gpu": "8", "cpu": "64", "memory": "1Gi"},
        "capacity": {"nvidia.com/gpu": 8},
    },
}
POD: dict[str, Any] = {
    "metadata": {
        "namespace": "jobs",
        "name": "train-0",
        "uid": "p-1",
        "ownerReferences": [{"kind": "Job", "name": "train", "controller": True}],
    },
    "spec": {
        "nodeName": "node-1",
        "containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}],
        "tolerations": [{"operator": "Exists"}],
    },
    "status": {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]},
}


def test_a_node_is_read_whole() -> None:
    view = parse_node(NODE)
    assert (view.name, view.uid, view.boot_id, view.system_uuid) == ("node-1", "uid-1", "b", "S")
    assert view.unschedulable
    assert view.ready
    assert dict(view.gpus) == {"nvidia.com/gpu": 8}
    assert view.taints == ("k:NoSchedule",)
    assert view.created == datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_what_is_absent_is_empty_and_never_ready() -> None:
    view = parse_node({"metadata": {"name": "n", "uid": "u"}})
    assert (view.boot_id, view.provider_id, view.resource_version) == ("", "", "")
    assert not view.ready
    assert not view.conditions
    assert view.created == EPOCH


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({}, id="empty"),
        pytest.param(None, id="null"),
        pytest.param([], id="a-list"),
        pytest.param({"metadata": {"name": "n"}}, id="no-uid"),
        pytest.param({"metadata": {"uid": "u"}}, id="no-name"),
        pytest.param({**NODE, "status": {"conditions": [{}]}}, id="condition-without-type"),
        pytest.param(
            {"metadata": {"name": "n", "uid": "u", "annotations": {"fleetmend.io/episode": 5}}},
            id="annotation-is-a-number",
        ),
        pytest.param(
            {"metadata": {"name": "n", "uid": "u", "labels": {"a": None}}}, id="label-is-null"
        ),
        pytest.param({"metadata": {"name": ["n"], "uid": "u"}}, id="name-is-a-list"),
    ],
)
def test_an_object_that_cannot_be_a_node_is_refused_by_its_name(body: Any) -> None:
    with pytest.raises(BadObject, match="cannot be read"):
        parse_node(body)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"node-role.kubernetes.io/control-plane": ""}, True),
        ({"node-role.kubernetes.io/master": "true"}, True),
        ({"node-role.kubernetes.io/worker": ""}, False),
    ],
    ids=["control-plane", "master", "worker"],
)
def test_control_plane_nodes_are_known_by_their_labels(
    labels: dict[str, str], expected: bool
) -> None:
    assert (
        parse_node({"metadata": {"name": "n", "uid": "u", "labels": labels}}).is_control_plane
        is expected
    )


def test_a_pod_is_read_whole() -> None:
    view = parse_pod(POD)
    assert (view.owner_kind, view.owner_name, view.node_name) == ("Job", "train", "node-1")
    assert view.requests_gpu
    assert view.tolerates_all
    assert view.running_containers == 1


GPU = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": [{"name": "c"}, GPU]}, True),
        ({"containers": [{"name": "c"}], "initContainers": [GPU]}, True),
        (
            {"containers": [{"name": "c"}], "initContainers": [{**GPU, "restartPolicy": "Always"}]},
            True,
        ),
        ({"containers": [{"name": "c"}], "resourceClaims": [{"name": "gpus"}]}, True),
        ({"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]}, False),
        ({}, False),
    ],
    ids=["container", "init", "sidecar", "claim", "none", "empty"],
)
def test_a_pod_that_may_use_gpus_in_any_way_is_known(spec: dict[str, Any], expected: bool) -> None:
    """Else its node counts as idle, and a validation puts load on the GPUs that it uses."""
    assert parse_pod({**POD, "spec": spec}).requests_gpu is expected


def test_an_owner_that_does_not_control_is_no_owner() -> None:
    meta = {**POD["metadata"], "ownerReferences": [{"kind": "Node", "name": "n"}]}
    assert parse_pod({**POD, "metadata": meta}).owner_kind == ""


def bodies(body: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Anything, and the real thing with anything in any of its places."""
    parts = {part: mutated(body[part]) | ANY_JSON for part in ("metadata", "spec", "status")}
    return ANY_JSON | st.fixed_dictionaries(parts)


@given(bodies(NODE))
def test_reading_any_node_raises_nothing_but_bad_object(body: Any) -> None:
    try:
        view = parse_node(body)
    except BadObject:
        return
    assert view.name
    assert view.uid
    assert all(
        isinstance(text, str) for text in (*view.labels.values(), *view.annotations.values())
    )


@given(bodies(POD))
def test_reading_any_pod_raises_nothing_but_bad_object(body: Any) -> None:
    try:
        view = parse_pod(body)
    except BadObject:
        return
    assert view.uid


def test_a_body_nested_beyond_reading_is_a_bad_object() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(BadObject):
        parse_node({"metadata": {"name": "n", "uid": "u", "resourceVersion": deep}})
    with pytest.raises(BadObject):
        parse_pod({"metadata": {"name": deep, "uid": "u"}})


@pytest.mark.parametrize("value", [None, 5, "", "yesterday", "2026-13-01T00:00:00Z", {}], ids=repr)
def test_an_unreadable_time_is_older_than_anything(value: Any) -> None:
    assert parse_instant(value) == EPOCH


@given(TEXT | st.datetimes(timezones=st.timezones()).map(lambda at: at.isoformat()))
def test_a_time_that_was_read_can_be_compared(text: str) -> None:
    at = parse_instant(text)
    assert (at < EPOCH) or (at >= EPOCH)
