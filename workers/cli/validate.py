"""`fleetmend validate NODE | --pool P [--level N]`: validate idle nodes by hand, now.

Owns starting a dispatcher (`workflows/validate_fleet.py`) and telling what it started and whom it
left alone. It decides nothing: whether a node is idle and may be touched is read where it is done.
"""

import asyncio
import uuid
from dataclasses import asdict
from typing import Final

from rich.markup import escape
from temporalio.client import WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ActivityError
from temporalio.service import RPCError

from workers.cli.caller import caller
from workers.cli.episodes import read_cluster
from workers.cli.outcome import console, refused, unreachable, write_json
from workers.cli.temporal import connected
from workers.tables import plain_table
from workflows.contracts.fleet import Dispatched, FleetOrder
from workflows.model.identity import task_queue, validation_workflow_id
from workflows.validate_fleet import ValidateFleet

ANSWER_S: Final = 30.0
"""For the dispatcher's look at the cluster; it goes on without us."""


def validate(*, node: str, pool: str, level: int, reason: str, as_json: bool) -> None:
    """Start the validation of one node, or of each idle node of a pool."""
    by = caller(reason)
    said = by.by + (f": {by.reason}" if by.reason else "")
    order = FleetOrder(read_cluster(), by=said, node=node, pool=pool, level=level)
    dispatched = asyncio.run(_dispatch(order))
    left = [asdict(one) for one in dispatched.left]
    if not dispatched.started and node:
        why = dispatched.left[0].why if dispatched.left else "it is in no pool of the policy"
        message = f"Node {node} is not validated: {why}; see: fleetmend status"
        raise refused(message, started=[], left=left)
    if as_json:
        write_json({"started": dispatched.started, "left": left})
        return
    table = plain_table("NODE", "", "WHY")
    for name in dispatched.started:
        table.add_row(escape(name), "started", "")
    for one in dispatched.left:
        table.add_row(escape(one.node), "left alone", escape(one.why))
    console().print(table)
    if dispatched.started:
        console().print(
            "each takes a place of the budget of validations first; see: fleetmend status"
        )


async def _dispatch(order: FleetOrder) -> Dispatched:
    identity = validation_workflow_id(order.cluster, uuid.uuid4().hex[:16])
    client = await connected()
    try:
        async with asyncio.timeout(ANSWER_S):
            handle = await client.start_workflow(
                ValidateFleet.run,
                order,
                id=identity,
                task_queue=task_queue(order.cluster),
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                static_summary=f"validation by {order.by}",
            )
            return await handle.result()
    except TimeoutError:
        raise unreachable(
            f"{identity} was sent, and no worker has answered within {ANSWER_S:g} s; it goes on "
            "when one runs. Next: start a worker, then see: fleetmend status"
        ) from None
    except WorkflowFailureError as failure:
        cause = failure.cause
        why = cause.cause if isinstance(cause, ActivityError) else cause
        raise refused(f"nothing is validated: {why}") from failure
    except RPCError as error:
        raise refused(f"starting {identity}: Temporal said: {error}") from error
