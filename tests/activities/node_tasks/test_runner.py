"""Node tasks on simulated nodes: one pod, one verdict, and nothing left behind."""

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.kube import errors as api
from activities.kube import paths
from activities.kube.client import PatchKind
from activities.node_tasks.leftovers import LEFT_AFTER, remove_leftovers
from activities.node_tasks.pod import task_name, task_pod
from tests.activities.conftest import BareNodes
from tests.activities.desk import Desk
from tests.harness.audit import AuditLog
from tests.harness.cluster import Cluster
from tests.harness.nodes import TestNodes
from tests.harness.waiting import wait_until
from workflows.contracts import errors
from workflows.contracts.kube import (
    AWAIT_REBOOT,
    NOTE_SLOT,
    PROVE_REBOOT,
    QUARANTINE,
    Owner,
    QuarantineRequest,
    RebootWatch,
    SlotRequest,
)
from workflows.contracts.node_tasks import INVENTORY, REBOOT, NodeTaskRequest, TaskAnswer
from workflows.model.identity import NodeRef
from workflows.model.node_task import Result, TaskKind
from workflows.model.remediation.marks import Marker, Quarantine
from workflows.model.remediation.reboot import BootRecord, Proof


def counting(owner: Owner, step: str = "count", deadline_s: float = 30) -> NodeTaskRequest:
    return NodeTaskRequest(owner, TaskKind.INVENTORY, step, deadline_s)


def rebooting(owner: Owner, boot_id: str, deadline_s: float = 30) -> NodeTaskRequest:
    late = datetime.now(UTC) + timedelta(seconds=deadline_s)
    return NodeTaskRequest(owner, TaskKind.REBOOT, "reboot-0", deadline_s, boot_id, late)


def owned(desk: Desk, owner: Owner, epoch: str) -> Owner:
    at = datetime.now(UTC)
    marker = Marker(owner.episode, owner.node.uid, at, "r", "gpu-lost", Quarantine.CONFIRMED)
    desk.do(QUARANTINE, QuarantineRequest(owner, marker))
    desk.do(NOTE_SLOT, SlotRequest(owner, epoch))
    return owner


def owner_of(cluster: Cluster, name: str) -> Owner:
    return Owner(NodeRef(name, cluster.node(name).uid), f"ep-{name}")


def pod_path(request: NodeTaskRequest) -> paths.ObjectPath:
    return paths.pod("fleetmend", task_name(request))


def is_gone(cluster: Cluster, request: NodeTaskRequest) -> bool:
    try:
        pod = cluster.kube.get(pod_path(request))
    except api.NotFound:
        return True
    return bool(pod["metadata"].get("deletionTimestamp"))


@pytest.fixture(autouse=True)
def _tidy(cluster: Cluster, bare: BareNodes) -> Iterator[None]:
    yield
    for name in bare.added:
        cluster.delete_pods_of(name)


# ---- on a simulated node


def test_the_inventory_counts_the_gpus_of_the_boot(
    desk: Desk, nodes: TestNodes, pool: str, cluster: Cluster, witness: AuditLog
) -> None:
    name = nodes.add("n", pool)
    owner = owner_of(cluster, name)
    answer = desk.do(INVENTORY, counting(owner))
    assert answer.result is Result.DONE
    assert len(answer.gpus) == 8
    assert answer.boot_id == cluster.node(name).boot_id
    assert answer.model
    assert is_gone(cluster, counting(owner))
    # The worker died after the pod was gone, before it could answer.
    assert desk.do(INVENTORY, counting(owner), details=desk.told[-1:]) == answer
    assert len(witness.node_tasks(name)) == 1


def test_a_reboot_is_asked_for_once_and_proven(
    desk: Desk, nodes: TestNodes, pool: str, cluster: Cluster, witness: AuditLog, epoch: str
) -> None:
    name = nodes.add("n", pool)
    owner = owned(desk, owner_of(cluster, name), epoch)
    node = cluster.node(name)
    before = BootRecord(
        node.uid, node.provider_id, node.machine_uuid, node.boot_id, datetime.now(UTC)
    )
    # The three attempts and the boot between them take their time.
    request = rebooting(owner, node.boot_id, deadline_s=120)
    answer = desk.do(REBOOT, request)
    assert answer.result is Result.DONE
    wait_until(
        lambda: desk.do(PROVE_REBOOT, RebootWatch(owner, before)).proof is Proof.DONE,
        30,
        "the reboot is proven",
    )
    assert desk.do(AWAIT_REBOOT, RebootWatch(owner, before)).proof is Proof.DONE
    assert desk.do(REBOOT, request, details=desk.told[-1:]).result is Result.DONE
    assert desk.do(REBOOT, request).result is Result.DONE  # no heartbeat arrived: the boot tells
    assert is_gone(cluster, request)
    assert len(witness.reboots(name)) == 1
    assert nodes.boots(name) == 1


def test_a_reboot_bound_to_another_boot_asks_for_nothing(
    desk: Desk, nodes: TestNodes, pool: str, cluster: Cluster, witness: AuditLog, epoch: str
) -> None:
    name = nodes.add("n", pool)
    owner = owned(desk, owner_of(cluster, name), epoch)
    answer = desk.do(REBOOT, rebooting(owner, "an-earlier-boot"))
    assert answer.boot_id == cluster.node(name).boot_id
    assert witness.reboots(name) == []


# ---- what is never asked for (bare Node objects)


def refused(desk: Desk, request: NodeTaskRequest) -> ApplicationError:
    with pytest.raises(ApplicationError) as caught:
        desk.do(REBOOT, request)
    return caught.value


def test_no_reboot_without_fence_and_slot(
    desk: Desk, bare: BareNodes, cluster: Cluster, witness: AuditLog, epoch: str, pool: str
) -> None:
    owner = bare.add("a")
    request = rebooting(owner, "boot-1")
    assert refused(desk, request).type == errors.OVERRULED
    at = datetime.now(UTC)
    marker = Marker(owner.episode, owner.node.uid, at, "r", "gpu-lost", Quarantine.CONFIRMED)
    desk.do(QUARANTINE, QuarantineRequest(owner, marker))
    assert refused(desk, request).type == errors.BAD_REQUEST
    desk.do(NOTE_SLOT, SlotRequest(owner, epoch))
    assert refused(desk, replace(request, owner=replace(owner, episode="x"))).type == (
        errors.NOT_OWNER
    )
    cluster.pause(pool)
    try:
        assert refused(desk, request).type == errors.NOT_PERMITTED
    finally:
        cluster.resume(pool)
    assert refused(desk, replace(request, expected_boot_id="")).type == errors.BAD_REQUEST
    assert refused(desk, replace(request, kind=TaskKind.INVENTORY)).type == errors.BAD_REQUEST
    assert witness.reboots(owner.node.name) == []


def test_no_reboot_of_a_node_with_work_on_it_or_too_late(
    desk: Desk, bare: BareNodes, cluster: Cluster, witness: AuditLog, epoch: str
) -> None:
    owner = owned(desk, bare.add("a"), epoch)
    late = replace(rebooting(owner, "boot-1"), not_after=datetime.now(UTC))
    assert desk.do(REBOOT, late).result is Result.REFUSED
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
    answer = desk.do(REBOOT, rebooting(owner, "boot-1"))
    assert answer.result is Result.REFUSED
    assert f"default/{owner.node.name}-w" in answer.detail
    assert witness.reboots(owner.node.name) == []


def test_a_pod_that_never_starts_is_deleted_and_unknown(
    desk: Desk, bare: BareNodes, cluster: Cluster, epoch: str
) -> None:
    owner = owned(desk, bare.add("a"), epoch)
    request = rebooting(owner, "boot-1", deadline_s=2)
    answer = desk.do(REBOOT, request)
    assert answer.result is Result.UNKNOWN
    assert "did not start" in answer.detail
    assert is_gone(cluster, request)


def test_a_reboot_pod_that_is_gone_is_never_made_again(
    desk: Desk, bare: BareNodes, witness: AuditLog, epoch: str
) -> None:
    owner = owned(desk, bare.add("a"), epoch)
    request = rebooting(owner, "boot-1")
    answer = desk.do(REBOOT, request, details=[{"pod_uid": "made-before"}])
    assert answer.result is Result.UNKNOWN
    bare.set_boot_id(owner, "boot-2")
    again = desk.do(REBOOT, request, details=[{"pod_uid": "made-before"}])
    assert (again.result, again.boot_id) == (Result.DONE, "boot-2")
    assert witness.reboots(owner.node.name) == []


def test_another_boot_of_the_node_is_the_answer_of_a_reboot(
    desk: Desk, bare: BareNodes, cluster: Cluster, epoch: str
) -> None:
    owner = owned(desk, bare.add("a"), epoch)
    request = rebooting(owner, "boot-1", deadline_s=60)
    answers: list[TaskAnswer] = []
    running = threading.Thread(target=lambda: answers.append(desk.do(REBOOT, request)))
    running.start()
    _until_there(cluster, request)
    bare.set_boot_id(owner, "boot-2")
    running.join(30)
    assert (answers[0].result, answers[0].boot_id) == (Result.DONE, "boot-2")
    assert is_gone(cluster, request)


def _until_there(cluster: Cluster, request: NodeTaskRequest) -> None:
    def there() -> bool:
        with suppress(api.NotFound):
            cluster.kube.get(pod_path(request))
            return True
        return False

    wait_until(there, 30, "the task's pod is there")


def test_a_cancelled_task_leaves_no_pod(desk: Desk, bare: BareNodes, cluster: Cluster) -> None:
    owner = bare.add("a")
    environment = ActivityEnvironment()
    answers: list[TaskAnswer] = []
    request = counting(owner, deadline_s=60)
    running = threading.Thread(
        target=lambda: answers.append(desk.do(INVENTORY, request, environment=environment))
    )
    running.start()
    _until_there(cluster, request)
    environment.cancel()
    running.join(30)
    assert not running.is_alive()
    assert answers[0].result is Result.UNKNOWN
    assert is_gone(cluster, request)


def test_an_attempt_that_temporal_gave_up_leaves_the_pod_to_the_next(
    desk: Desk, bare: BareNodes, cluster: Cluster
) -> None:
    """Its heartbeats were lost, for example with the API server: another attempt has begun."""
    owner = bare.add("a")
    environment = ActivityEnvironment()
    failures: list[str] = []
    request = counting(owner, deadline_s=60)

    def attempt() -> None:
        try:
            desk.do(INVENTORY, request, environment=environment)
        except ApplicationError as failure:
            failures.append(failure.type or "")

    running = threading.Thread(target=attempt)
    running.start()
    _until_there(cluster, request)
    environment.cancel(ActivityCancellationDetails(timed_out=True))
    running.join(30)
    assert not running.is_alive()
    assert failures == [errors.API_FAILED]
    assert not is_gone(cluster, request)


def test_a_task_of_a_node_that_goes_is_not_waited_for(
    desk: Desk, bare: BareNodes, cluster: Cluster
) -> None:
    """Seen: a whole sweep stood still until the deadline of one node's inventory."""
    owner = bare.add("a")
    request = counting(owner, deadline_s=120)
    failures: list[str] = []

    def attempt() -> None:
        try:
            desk.do(INVENTORY, request)
        except ApplicationError as failure:
            failures.append(failure.type or "")

    running = threading.Thread(target=attempt)
    running.start()
    _until_there(cluster, request)
    cluster.kube.delete(paths.node(owner.node.name), uid=owner.node.uid)
    running.join(30)
    assert failures == [errors.NODE_GONE]
    assert is_gone(cluster, request)


def test_observe_mode_makes_no_pod(
    desk: Desk, bare: BareNodes, cluster: Cluster, pool: str, witness: AuditLog
) -> None:
    owner = bare.add("a")
    cluster.disarm(pool)
    with pytest.raises(ApplicationError) as caught:
        desk.do(INVENTORY, counting(owner))
    assert caught.value.type == errors.NOT_PERMITTED
    assert witness.node_tasks(owner.node.name) == []


def test_a_foreign_pod_of_the_same_name_is_left_alone(
    desk: Desk, bare: BareNodes, cluster: Cluster
) -> None:
    owner = bare.add("a")
    request = counting(owner)
    stranger = task_pod(
        replace(request, owner=replace(owner, node=NodeRef(owner.node.name, "another"))),
        task_name(request),
        "fleetmend:lab",
    )
    cluster.kube.create(paths.pods("fleetmend"), stranger)
    with pytest.raises(ApplicationError) as caught:
        desk.do(INVENTORY, request)
    assert caught.value.type == errors.BAD_REQUEST
    assert "another" in caught.value.message
    assert not is_gone(cluster, request)


def test_only_pods_that_nobody_waits_for_are_leftovers(
    desk: Desk, bare: BareNodes, cluster: Cluster
) -> None:
    request = counting(bare.add("a"))
    name = task_name(request)
    cluster.kube.create(paths.pods("fleetmend"), task_pod(request, name, "fleetmend:lab"))
    now = datetime.now(UTC)
    assert name not in remove_leftovers(desk.dependencies.kube, now + LEFT_AFTER * 0.9)
    assert name in remove_leftovers(desk.dependencies.kube, now + LEFT_AFTER * 1.1)
    assert is_gone(cluster, request)
    assert name not in remove_leftovers(desk.dependencies.kube, now + LEFT_AFTER * 1.1)


# ---- hostile verdicts, written by hand in the kubelet's place


def _end(cluster: Cluster, request: NodeTaskRequest, message: str) -> None:
    _until_there(cluster, request)
    ended = {"exitCode": 0, "message": message, "reason": "Completed"}
    status = {
        "phase": "Succeeded",
        "containerStatuses": [
            {
                "name": "task",
                "image": "i",
                "imageID": "i",
                "ready": False,
                "restartCount": 0,
                "state": {"terminated": ended},
            }
        ],
    }
    path = paths.pod_status("fleetmend", task_name(request))
    cluster.kube.patch(path, {"status": status}, kind=PatchKind.MERGE)


def _verdict(request: NodeTaskRequest, **changes: Any) -> str:
    verdict = {
        "schema": "fleetmend.io/node-task/v1",
        "kind": "inventory",
        "episode": request.owner.episode,
        "task": task_name(request),
        "boot_id": "boot-1",
        "result": "done",
        "gpus": ["GPU-1"],
    }
    return json.dumps({**verdict, **changes})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"schema": "v2"}, "schema"),
        ({"episode": "another"}, "not about this task"),
        ({"task": "another"}, "not about this task"),
        ({"kind": "reboot"}, "not about this task"),
        ({"gpus": ["\x1b[31m"]}, "gpus"),
        ({"extra": 1}, "extra"),
        ({"detail": "x" * 5000}, "longer than"),
    ],
    ids=["good", "schema", "episode", "task", "kind", "gpus", "extra", "long"],
)
def test_each_defect_of_a_verdict_is_unknown_and_named(
    desk: Desk,
    bare: BareNodes,
    cluster: Cluster,
    changes: dict[str, Any],
    expected: str | None,
) -> None:
    owner = bare.add("a")
    request = counting(owner)
    message = _verdict(request, **changes)
    hand = threading.Thread(target=_end, args=(cluster, request, message))
    hand.start()
    answer = desk.do(INVENTORY, request)
    hand.join()
    if expected is None:
        assert (answer.result, answer.gpus) == (Result.DONE, ("GPU-1",))
    else:
        assert answer.result is Result.UNKNOWN
        assert expected in answer.detail
    assert is_gone(cluster, request)


@pytest.mark.parametrize("message", ["", "no JSON", "[]", "x" * 100_000])
def test_what_is_no_verdict_is_unknown(
    desk: Desk, bare: BareNodes, cluster: Cluster, message: str
) -> None:
    owner = bare.add("a")
    request = counting(owner)
    hand = threading.Thread(target=_end, args=(cluster, request, message))
    hand.start()
    answer = desk.do(INVENTORY, request)
    hand.join()
    assert answer.result is Result.UNKNOWN
    assert len(answer.detail) < 600
