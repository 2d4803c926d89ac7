"""The tasks that look for faults: what the worker asks for, and what it believes."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.kube import paths
from activities.node_tasks.pod import task_name
from activities.node_tasks.runner import ENGINE_KEY, RUNTIME_KEY
from tests.activities.conftest import BareNodes
from tests.activities.desk import Desk
from tests.activities.node_tasks.test_runner import (
    _end,
    is_gone,
    owner_of,
)
from tests.harness.audit import AuditLog
from tests.harness.cluster import Cluster
from tests.harness.nodes import TestNodes
from workflows.contracts import Contract, errors
from workflows.contracts.kube import Owner
from workflows.contracts.node_tasks import DIAGNOSE, KERNEL_LOG, NodeTaskRequest, TaskAnswer
from workflows.model.node_task import Health, Result, TaskKind

CONTRACTS: dict[TaskKind, Contract[NodeTaskRequest, TaskAnswer]] = {
    TaskKind.DIAGNOSE: DIAGNOSE,
    TaskKind.KERNEL_LOG: KERNEL_LOG,
}


def asking(owner: Owner, kind: TaskKind, level: int = 1, **more: Any) -> NodeTaskRequest:
    fields = {"level": level, "expected_gpus": 8, "limit_s": 20.0, **more}
    return NodeTaskRequest(owner, kind, "look", 50, **fields)


@pytest.fixture(autouse=True)
def _tidy(cluster: Cluster, bare: BareNodes) -> Iterator[None]:
    yield
    for name in bare.added:
        cluster.delete_pods_of(name)


# ---- on a simulated node


@pytest.mark.parametrize("kind", CONTRACTS)
def test_a_well_node_is_healthy_and_a_second_run_says_the_same(
    desk: Desk,
    nodes: TestNodes,
    pool: str,
    cluster: Cluster,
    witness: AuditLog,
    kind: TaskKind,
) -> None:
    name = nodes.add("n", pool)
    request = asking(owner_of(cluster, name), kind)
    answer = desk.do(CONTRACTS[kind], request)
    assert (answer.result, answer.health) == (Result.DONE, Health.HEALTHY), answer.detail
    assert answer.boot_id == cluster.node(name).boot_id
    assert is_gone(cluster, request)
    # The worker died after the pod was gone, before it could answer.
    assert desk.do(CONTRACTS[kind], request, details=desk.told[-1:]) == answer
    assert len(witness.node_tasks(name)) == 1


def test_level_2_is_run_on_an_idle_node(
    desk: Desk, nodes: TestNodes, pool: str, cluster: Cluster
) -> None:
    name = nodes.add("n", pool)
    answer = desk.do(DIAGNOSE, asking(owner_of(cluster, name), TaskKind.DIAGNOSE, level=2))
    assert answer.health is Health.HEALTHY, answer.detail


def test_another_number_of_gpus_than_expected_is_unknown(
    desk: Desk, nodes: TestNodes, pool: str, cluster: Cluster
) -> None:
    owner = owner_of(cluster, nodes.add("n", pool))
    answer = desk.do(DIAGNOSE, asking(owner, TaskKind.DIAGNOSE, expected_gpus=9))
    assert (answer.result, answer.health) == (Result.DONE, Health.UNKNOWN)
    assert "9 are expected" in answer.detail


# ---- what is never asked for (bare Node objects)


def test_no_load_beside_work(
    desk: Desk, bare: BareNodes, cluster: Cluster, witness: AuditLog
) -> None:
    owner = bare.add("a")
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{owner.node.name}-w"},
        "spec": {
            "nodeName": owner.node.name,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "i"}],
        },
    }
    cluster.kube.create(paths.pods("default"), body)
    answer = desk.do(DIAGNOSE, asking(owner, TaskKind.DIAGNOSE, level=2))
    assert (answer.result, answer.health) == (Result.REFUSED, Health.UNKNOWN)
    assert f"default/{owner.node.name}-w" in answer.detail
    assert witness.node_tasks(owner.node.name) == []


@pytest.mark.parametrize("level", [-1, 0, 5])
def test_a_level_that_is_none_is_a_defect(desk: Desk, bare: BareNodes, level: int) -> None:
    with pytest.raises(ApplicationError) as caught:
        desk.do(DIAGNOSE, asking(bare.add("a"), TaskKind.DIAGNOSE, level=level))
    assert caught.value.type == errors.BAD_REQUEST


@pytest.mark.parametrize("kind", CONTRACTS)
def test_observe_mode_makes_no_pod(
    desk: Desk, bare: BareNodes, cluster: Cluster, pool: str, witness: AuditLog, kind: TaskKind
) -> None:
    owner = bare.add("a")
    cluster.disarm(pool)
    with pytest.raises(ApplicationError) as caught:
        desk.do(CONTRACTS[kind], asking(owner, kind))
    assert caught.value.type == errors.NOT_PERMITTED
    assert witness.node_tasks(owner.node.name) == []


def test_a_diagnosis_that_never_starts_is_given_up_before_its_own_time_is_over(
    desk: Desk, bare: BareNodes, cluster: Cluster
) -> None:
    request = replace(asking(bare.add("a"), TaskKind.DIAGNOSE, limit_s=600.0), deadline_s=602)
    answer = desk.do(DIAGNOSE, request)
    assert "did not start" in answer.detail
    assert is_gone(cluster, request)


# ---- hostile verdicts, written by hand in the kubelet's place


def _verdict(request: NodeTaskRequest, **changes: Any) -> str:
    verdict = {
        "schema": "fleetmend.io/node-task/v1",
        "kind": request.kind.value,
        "episode": request.owner.episode,
        "task": task_name(request),
        "boot_id": "boot-1",
        "result": "done",
        "health": "healthy",
    }
    return json.dumps({**verdict, **changes})


GRAVE = {"what": "xid-79", "device": "GPU-1", "fault": "gpu-lost", "words": "off\n`the` bus"}


@pytest.mark.parametrize("kind", CONTRACTS)
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Health.HEALTHY),
        ({"health": "faulty", "failures": [GRAVE]}, Health.FAULTY),
        ({"health": "unknown", "failures": [GRAVE]}, Health.UNKNOWN),
        ({"health": ""}, Health.UNKNOWN),
        ({"failures": [GRAVE]}, Health.UNKNOWN),
        ({"health": "faulty"}, Health.UNKNOWN),
        ({"health": "faulty", "failures": [GRAVE] * 17}, Health.UNKNOWN),
        ({"health": "faulty", "failures": [{**GRAVE, "words": "x" * 5000}]}, Health.UNKNOWN),
        ({"result": "unknown"}, Health.UNKNOWN),
        ({"kind": "inventory"}, Health.UNKNOWN),
        ({"episode": "another"}, Health.UNKNOWN),
    ],
    ids=[
        "healthy",
        "faulty",
        "unknown",
        "no-health",
        "healthy-and-failed",
        "faulty-and-not-failed",
        "many",
        "long",
        "unfinished",
        "kind",
        "episode",
    ],
)
def test_only_a_whole_verdict_is_believed(
    desk: Desk,
    bare: BareNodes,
    cluster: Cluster,
    kind: TaskKind,
    changes: dict[str, Any],
    expected: Health,
) -> None:
    request = asking(bare.add("a"), kind)
    message = _verdict(request, **changes)
    hand = threading.Thread(target=_end, args=(cluster, request, message))
    hand.start()
    answer = desk.do(CONTRACTS[kind], request)
    hand.join()
    assert answer.health is expected, answer.detail
    assert all("`" not in str(one) and "\n" not in str(one) for one in answer.failures)
    assert is_gone(cluster, request)


# ---- its way to the GPUs


@pytest.fixture
def diagnosis(nodes: TestNodes, pool: str, cluster: Cluster) -> NodeTaskRequest:
    return asking(owner_of(cluster, nodes.add("n", pool)), TaskKind.DIAGNOSE)


def test_a_host_engine_that_the_policy_does_not_know_yet_is_asked_for_again(
    desk: Desk, diagnosis: NodeTaskRequest, release: Callable[[str, str], None]
) -> None:
    release(ENGINE_KEY, "engine:5555")
    with pytest.raises(ApplicationError, match=r"or their way to GPUs: .*worker-pods/12"):
        desk.do(DIAGNOSE, diagnosis)


def test_a_runtime_class_that_the_cluster_does_not_have_is_unknown_and_named(
    desk: Desk, diagnosis: NodeTaskRequest, release: Callable[[str, str], None]
) -> None:
    release(RUNTIME_KEY, "absent")
    answer = desk.do(DIAGNOSE, diagnosis)
    assert answer.result is Result.UNKNOWN
    assert 'RuntimeClass "absent" not found' in answer.detail
