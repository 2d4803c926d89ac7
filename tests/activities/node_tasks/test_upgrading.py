"""In the middle of an upgrade the policy and the ConfigMap name different images for node tasks."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.node_tasks.runner import IMAGE_AGAIN_S, IMAGE_KEY, IMAGE_TRIES
from tests.activities.conftest import BareNodes
from tests.activities.desk import Desk
from tests.activities.node_tasks.test_runner import owned, rebooting
from tests.harness.audit import AuditLog
from tests.harness.cluster import Cluster
from tests.harness.nodes import TestNodes
from workflows.contracts import errors
from workflows.contracts.kube import Owner
from workflows.contracts.node_tasks import INVENTORY, REBOOT, NodeTaskRequest
from workflows.model.identity import NodeRef
from workflows.model.node_task import Result, TaskKind

ANOTHER = "fleetmend:another"


def last_attempt() -> ActivityEnvironment:
    """The one that asks no more."""
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, attempt=IMAGE_TRIES)
    return environment


def test_a_task_is_asked_for_again_until_both_name_the_same(
    desk: Desk,
    cluster: Cluster,
    nodes: TestNodes,
    pool: str,
    release: Callable[[str, str], None],
) -> None:
    release(IMAGE_KEY, ANOTHER)
    node = nodes.add("a", pool)
    owner = Owner(NodeRef(node, cluster.node(node).uid), f"ep-{node}")
    request = NodeTaskRequest(owner, TaskKind.INVENTORY, "count", 30)
    with pytest.raises(ApplicationError, match="an upgrade is changing the image") as told:
        desk.do(INVENTORY, request)
    assert (told.value.type, told.value.non_retryable) == (errors.API_FAILED, False)
    assert told.value.next_retry_delay is not None
    assert told.value.next_retry_delay.total_seconds() == IMAGE_AGAIN_S
    # For ever would be a step without an end: then it cannot be told.
    answer = desk.do(INVENTORY, request, environment=last_attempt())
    assert answer.result is Result.UNKNOWN
    assert "fleetmend-worker-pods/4" in answer.detail


def test_a_reboot_that_nobody_can_be_asked_for_is_refused_and_no_attempt(
    desk: Desk,
    bare: BareNodes,
    witness: AuditLog,
    epoch: str,
    release: Callable[[str, str], None],
) -> None:
    """Without an answer it would be waited for, and the next rung gives the machine away."""
    owner = owned(desk, bare.add("a"), epoch)
    release(IMAGE_KEY, "")
    answer = desk.do(REBOOT, rebooting(owner, "boot-1"))
    assert answer.result is Result.REFUSED
    assert f"names no {IMAGE_KEY}" in answer.detail
    release(IMAGE_KEY, ANOTHER)
    answer = desk.do(REBOOT, rebooting(owner, "boot-1"), environment=last_attempt())
    assert answer.result is Result.REFUSED
    assert "nothing was asked for" in answer.detail
    assert witness.reboots(owner.node.name) == []
