"""Sweep: the sure way by which every mark has an owner, beside the outbox, which is the fast one.

Owns one pass: marks without an open episode get one that only diagnoses and gates, and healthy
nodes without a baseline get theirs counted. A Schedule starts it (overlap: skip).
"""

import asyncio
from datetime import timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

from workflows.contracts import Contract
from workflows.contracts.errors import FINAL
from workflows.contracts.guard import SWEEP_CLUSTER, SweepRequest, Swept, Unbaselined
from workflows.contracts.kube import READ_NODE, Owner
from workflows.contracts.machines import RECORD_BASELINE, baseline_request
from workflows.contracts.node_tasks import INVENTORY, NodeTaskRequest
from workflows.contracts.options import options_of
from workflows.model.node_task import Result, TaskKind

Request = TypeVar("Request")
Answer = TypeVar("Answer")

COUNTING_AT_ONCE = 4
TASK_DEADLINE_S = 120.0
TRIES = 3
"""Of one step on one node in one pass: the next pass comes anyway."""


@workflow.defn(name="Sweep")
class Sweep:
    """One pass over the cluster."""

    @workflow.run
    async def run(self, request: SweepRequest) -> Swept:
        """What was found and mended."""
        swept = await _step(SWEEP_CLUSTER, request)
        for start in range(0, len(swept.unbaselined), COUNTING_AT_ONCE):
            batch = swept.unbaselined[start : start + COUNTING_AT_ONCE]
            await asyncio.gather(*(self._count(item) for item in batch))
        return swept

    async def _count(self, item: Unbaselined) -> None:
        """One node's baseline; a node that cannot be counted now is counted at a later pass."""
        owner = Owner(item.node, f"baseline-{workflow.info().run_id[:8]}")
        try:
            answer = await _step(
                INVENTORY,
                NodeTaskRequest(owner, TaskKind.INVENTORY, "baseline", TASK_DEADLINE_S),
            )
            if answer.result is not Result.DONE:
                return
            reading = await _step(READ_NODE, owner)
            if reading.node.boot_id != answer.boot_id or reading.machine.baseline is not None:
                return
            request = baseline_request(owner, item.pool, reading, answer, workflow.now())
            await _step(RECORD_BASELINE, request)
        except ActivityError as failure:
            workflow.logger.warning(
                "baseline not recorded", extra={"node": item.node.name, "error": str(failure.cause)}
            )


async def _step(contract: Contract[Request, Answer], request: Request) -> Answer:
    row = options_of(contract.name)
    answer: Answer = await workflow.execute_activity(
        contract.name,
        request,
        result_type=contract.result,
        summary=contract.summary,
        start_to_close_timeout=row.start_to_close,
        schedule_to_close_timeout=timedelta(minutes=15),
        heartbeat_timeout=row.heartbeat,
        retry_policy=RetryPolicy(maximum_attempts=TRIES, non_retryable_error_types=list(FINAL)),
    )
    return answer
