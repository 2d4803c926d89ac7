"""Demand: which pending pod could use a node, read from hostile JSON."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.views import ANY_JSON, mutated, node
from workflows.model.node import BadObject
from workflows.model.remediation.demand import (
    Requirement,
    WaitingPod,
    claimant_of,
    may_use,
    parse_waiting_pod,
)

GPU = "nvidia.com/gpu"
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


def body(**spec: Any) -> dict[str, Any]:
    container = {"name": "work", "resources": {"limits": {GPU: "8"}}}
    return {
        "metadata": {"namespace": "ns", "name": "job-0"},
        "spec": {"containers": [container], **spec},
        "status": {"phase": "Pending", "conditions": [UNSCHEDULABLE]},
    }


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"affinity": {"nodeAffinity": {key: {"nodeSelectorTerms": list(terms)}}}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def test_an_unschedulable_pod_that_asks_for_gpus_waits() -> None:
    found = parse_waiting_pod(body(nodeSelector={"pool": "training"}))
    assert found == WaitingPod("ns", "job-0", {GPU: 8}, {"pool": "training"})


def without_gpus(pod: dict[str, Any]) -> None:
    pod["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}}


def bound(pod: dict[str, Any]) -> None:
    pod["spec"]["nodeName"] = "node-1"


def leaving(pod: dict[str, Any]) -> None:
    pod["metadata"]["deletionTimestamp"] = "2026-03-01T00:00:00Z"


def not_looked_at(pod: dict[str, Any]) -> None:
    pod["status"] = {"phase": "Pending"}


def gated(pod: dict[str, Any]) -> None:
    pod["status"]["conditions"][0] = {**UNSCHEDULABLE, "reason": "SchedulingGated"}


@pytest.mark.parametrize("change", [without_gpus, bound, leaving, not_looked_at, gated])
def test_no_other_pod_waits(change: Any) -> None:
    pod = json.loads(json.dumps(body()))
    change(pod)
    assert parse_waiting_pod(pod) is None


def test_counts_of_containers_add_up_and_those_of_init_containers_do_not() -> None:
    two = {"resources": {"requests": {GPU: "2"}}}
    six = {"resources": {"limits": {GPU: 6}}}
    found = parse_waiting_pod(body(containers=[two, two], initContainers=[six, two]))
    assert found is not None
    assert found.gpus == {GPU: 6}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"nodeSelector": {"pool": "training"}},
        affinity(expression("pool", "In", "other", "training")),
        affinity(expression("pool", "In", "other"), expression("pool", "Exists")),
        affinity(expression("zone", "DoesNotExist")),
        affinity(expression("zone", "NotIn", "a")),
        affinity(expression("rank", "Gt", "5")),
        affinity(
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
        ),
    ],
)
def test_a_pod_that_may_go_to_the_node_could_use_it(spec: dict[str, Any]) -> None:
    found = parse_waiting_pod(body(**spec))
    assert found is not None
    assert may_use(found, node())
    assert claimant_of(node(), [found]) == "ns/job-0"


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [{"resources": {"limits": {GPU: "9"}}}]},
        {"containers": [{"resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}}]},
        {"nodeSelector": {"pool": "inference"}},
        affinity(expression("pool", "In", "other")),
        affinity(expression("pool", "NotIn", "training")),
        affinity(expression("zone", "Exists")),
        affinity(expression("pool", "DoesNotExist")),
        affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["x"]}]}),
        affinity({}),
    ],
)
def test_a_pod_that_may_not_go_there_could_not(spec: dict[str, Any]) -> None:
    found = parse_waiting_pod(body(**spec))
    assert found is not None
    assert not may_use(found, node())
    assert claimant_of(node(), [found]) == ""


HOSTILE = st.one_of(
    ANY_JSON,
    mutated(body()),
    mutated(body()["spec"]).map(lambda spec: {**body(), "spec": spec}),
    mutated({"name": "x", "resources": {}}).map(lambda one: body(containers=[one])),
    mutated(affinity(expression("a", "In"))).map(lambda one: body(**one)),
)


@given(HOSTILE)
def test_any_json_is_a_pod_that_waits_or_does_not_or_cannot_be_read(pod: Any) -> None:
    try:
        found = parse_waiting_pod(pod)
    except BadObject as error:
        said, found = str(error), None
    else:
        said = ""
    assert len(said) < 500
    assert found is None or may_use(found, node()) in (True, False)


def test_an_expression_that_nobody_knows_may_well_fit() -> None:
    pod = WaitingPod("ns", "p", {GPU: 1}, terms=((Requirement("k", "Fancy", ()),),))
    assert may_use(pod, node())
