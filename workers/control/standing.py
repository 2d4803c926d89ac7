"""What stands for the whole cluster: the guard, and the Schedules.

Owns bringing them into being, the same way from any number of workers. What they do is
`workflows/fleet_guard.py`, and what `schedules.py` names.
"""

import structlog
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy

from workers.control.schedules import Ensured, ensure_schedule, wanted_schedules
from workers.control.settings import WorkerSettings
from workflows.fleet_guard import FleetGuard
from workflows.model.identity import guard_workflow_id, task_queue

_log = structlog.get_logger(__name__)


async def ensure_standing(client: Client, settings: WorkerSettings) -> None:
    """The guard runs, the Schedules are as the settings say, and a sweep is under way.

    Safe to repeat and to run in several workers at once.

    Raises:
        RPCError: Temporal did not answer; try again.
    """
    await _ensure_guard(client, settings)
    for wanted in wanted_schedules(settings):
        done = await ensure_schedule(client, wanted)
        if wanted.at_once and done is not Ensured.CREATED:
            # A worker that starts may follow an outage: what was left ownerless is found now.
            await client.get_schedule_handle(wanted.identity).trigger()
    _log.info(
        "guard and sweeps stand",
        guard=guard_workflow_id(settings.cluster),
        sweep_interval_s=settings.sweep_interval_s,
        validation_interval_s=settings.validation_interval_s,
    )


async def _ensure_guard(client: Client, settings: WorkerSettings) -> None:
    await client.start_workflow(
        FleetGuard.run,
        id=guard_workflow_id(settings.cluster),
        task_queue=task_queue(settings.cluster),
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary=f"budgets of cluster {settings.cluster}",
    )
