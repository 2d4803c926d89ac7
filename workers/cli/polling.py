"""Whether any worker polls a cluster's task queue, as Temporal tells it.

Owns that one question and its words. Bounded; whoever cannot be told by it is told nothing: a
`status` is not worth less without. Polls are seen by Temporal's clock and judged by ours.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError

from workflows.model.identity import task_queue

ASK_S: Final = 2.0
LIVES_S: Final = 90.0
"""A poll is held open for up to 60 s (Temporal's long poll), and counts from its beginning."""


@dataclass(frozen=True)
class Polling:
    """`is_polled` None = it cannot be told; `problem` is for people, "" = none."""

    task_queue: str = ""
    is_polled: bool | None = None
    problem: str = ""


async def read_polling(client: Client, cluster: str) -> Polling:
    """Whether a worker of this cluster asks for work right now."""
    queue = task_queue(cluster)
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    try:
        answer = await client.workflow_service.describe_task_queue(
            request, timeout=timedelta(seconds=ASK_S)
        )
    except (RPCError, TimeoutError):
        return Polling(queue)
    now = datetime.now(UTC)
    ages_s = [
        (now - poller.last_access_time.ToDatetime(UTC)).total_seconds() for poller in answer.pollers
    ]
    if ages_s and min(ages_s) <= LIVES_S:
        return Polling(queue, is_polled=True)
    last = f" (the last one asked {min(ages_s):.0f} s ago)" if ages_s else ""
    return Polling(
        queue,
        is_polled=False,
        problem=f"no worker polls task queue {queue}{last}: nothing is repaired or given back. "
        "Next: look at Deployment fleetmend-worker, or start `fleetmend worker`",
    )
