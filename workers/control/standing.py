"""What stands for the whole cluster: the guard, and the schedule of sweeps.

Owns bringing both into being, the same way from any number of workers, and correcting the schedule
when its settings have changed. What they do is `workflows/fleet_guard.py` and `workflows/sweep.py`.
"""

from datetime import timedelta

import structlog
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.common import WorkflowIDConflictPolicy

from workers.control.settings import WorkerSettings
from workers.temporal_connection import TASK_QUEUE
from workflows.contracts.guard import SweepRequest
from workflows.fleet_guard import FleetGuard
from workflows.model.identity import guard_workflow_id, sweep_workflow_id
from workflows.sweep import Sweep

_log = structlog.get_logger(__name__)


async def ensure_standing(client: Client, settings: WorkerSettings) -> None:
    """The guard runs, the schedule is as the settings say, and a sweep is under way.

    Safe to repeat and to run in several workers at once.

    Raises:
        RPCError: Temporal did not answer; try again.
    """
    await _ensure_guard(client, settings)
    await _ensure_sweeps(client, settings)
    _log.info(
        "guard and sweeps stand",
        guard=guard_workflow_id(settings.cluster),
        sweep_interval_s=settings.sweep_interval_s,
    )


async def _ensure_guard(client: Client, settings: WorkerSettings) -> None:
    await client.start_workflow(
        FleetGuard.run,
        id=guard_workflow_id(settings.cluster),
        task_queue=TASK_QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary=f"budgets of cluster {settings.cluster}",
    )


async def _ensure_sweeps(client: Client, settings: WorkerSettings) -> None:
    identity = sweep_workflow_id(settings.cluster)
    wanted = _schedule(identity, settings)
    try:
        await client.create_schedule(identity, wanted, trigger_immediately=True)
    except ScheduleAlreadyRunningError:
        handle = client.get_schedule_handle(identity)

        def corrected(found: ScheduleUpdateInput) -> ScheduleUpdate | None:
            now = found.description.schedule
            if now.spec.intervals == wanted.spec.intervals and now.policy == wanted.policy:
                return None
            # A person's pause of the schedule stays.
            now.spec, now.policy, now.action = wanted.spec, wanted.policy, wanted.action
            return ScheduleUpdate(now)

        await handle.update(corrected)
        # A worker that starts may follow an outage: what was left ownerless is found now.
        await handle.trigger()


def _schedule(identity: str, settings: WorkerSettings) -> Schedule:
    return Schedule(
        action=ScheduleActionStartWorkflow(
            Sweep.run,
            SweepRequest(settings.cluster),
            id=identity,
            task_queue=TASK_QUEUE,
            static_summary=f"sweep of cluster {settings.cluster}",
        ),
        spec=ScheduleSpec(
            intervals=[ScheduleIntervalSpec(every=timedelta(seconds=settings.sweep_interval_s))],
            jitter=timedelta(seconds=settings.sweep_jitter_s),
        ),
        policy=SchedulePolicy(
            overlap=ScheduleOverlapPolicy.SKIP,
            catchup_window=timedelta(seconds=settings.sweep_catch_up_s),
        ),
        state=ScheduleState(note="marks without an open episode, baselines of healthy nodes"),
    )
