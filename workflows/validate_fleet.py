"""ValidateFleet: picks the idle nodes whose turn it is, and starts the validation of each.

Owns one dispatch, by the Schedule's tick or by a person. Each node is validated in a child that is
the node's own RemediateNode: its id is the node's, so that no node is validated twice at once, nor
while an episode is open, and whatever befalls it meanwhile meets its owner. The child outlives the
dispatcher. The course of one validation is `validating.py`.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from workflows.contracts.errors import FINAL
from workflows.contracts.fleet import (
    BY_SCHEDULE,
    PICK_IDLE,
    Dispatched,
    FleetOrder,
    LeftAlone,
    Picked,
)
from workflows.contracts.messages import Opening, ValidationOrder
from workflows.contracts.options import options_of
from workflows.model.identity import workflow_id
from workflows.remediate_node import RemediateNode

BEGUN_WITHIN = timedelta(minutes=15)
"""After its pick: an order that comes later (Temporal was away) is not what the look was for."""
PLACE_WITHIN_S = 120.0
"""A validation that gets no place by then is left to a later tick."""
PLACE_BY_HAND_WITHIN_S = 3600.0
"""A person who names a whole pool wants all of it, a few nodes at a time."""
TRIES = 3
"""Of the pick in one dispatch: the next tick comes anyway."""


@workflow.defn(name="ValidateFleet")
class ValidateFleet:
    """One dispatch."""

    @workflow.run
    async def run(self, order: FleetOrder) -> Dispatched:
        """Whose validation was started, and who was left alone."""
        row = options_of(PICK_IDLE.name)
        picks = await workflow.execute_activity(
            PICK_IDLE.name,
            order,
            result_type=PICK_IDLE.result,
            summary=PICK_IDLE.summary,
            start_to_close_timeout=row.start_to_close,
            schedule_to_close_timeout=timedelta(minutes=10),
            retry_policy=RetryPolicy(maximum_attempts=TRIES, non_retryable_error_types=list(FINAL)),
        )
        started, left = [], list(picks.left)
        for picked in picks.picked:
            if await self._start(order, picked):
                started.append(picked.node.name)
            else:
                left.append(LeftAlone(picked.node.name, "it has an open episode"))
        return Dispatched(tuple(started), tuple(left))

    async def _start(self, order: FleetOrder, picked: Picked) -> bool:
        """False = the node has an open run."""
        wait_s = PLACE_BY_HAND_WITHIN_S if order.is_by_hand else PLACE_WITHIN_S
        latest = workflow.now() + BEGUN_WITHIN
        by = order.by or BY_SCHEDULE
        opening = Opening(
            node=picked.node,
            cluster=order.cluster,
            episode=picked.episode,
            pool=picked.pool,
            opened_by=by,
            validation=ValidationOrder(picked.level, wait_s, latest, picked.is_new),
        )
        try:
            await workflow.start_child_workflow(
                RemediateNode.run,
                opening,
                id=workflow_id(order.cluster, picked.node),
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                static_summary=f"validation of {picked.node.name}, by {by}",
            )
        except WorkflowAlreadyStartedError:
            return False
        return True
