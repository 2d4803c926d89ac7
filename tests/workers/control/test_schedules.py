"""The ticks of a Schedule on a real server that is away for a while: none overlap, no storm after."""

import asyncio
import os
import signal
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import psutil
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.worker import Worker

from tests.harness.temporal_server import dev_server, sandbox
from workers.control.schedules import Ensured, ensure_schedule, wanted_schedules
from workers.control.settings import WorkerSettings
from workflows.contracts.fleet import FleetOrder, Picks
from workflows.model.identity import task_queue
from workflows.validate_fleet import ValidateFleet

EVERY_S = 1.0
CATCH_UP_S = 10.0
AWAY_S = 12.0
"""Longer than the catch-up window, of which 10 s is the shortest that Temporal takes."""
SETTINGS = WorkerSettings(
    cluster="ticks",
    validation_interval_s=EVERY_S,
    validation_jitter_s=0,
    validation_catch_up_s=CATCH_UP_S,
)
DEADLINE_S = 60.0


@activity.defn(name="pick_idle")
async def pick_nobody(order: FleetOrder) -> Picks:
    await asyncio.sleep(0.3)
    return Picks(datetime.now(UTC), ())


async def runs(client: Client) -> list[tuple[datetime, datetime]]:
    """When each finished dispatch began and ended, oldest first."""
    query = "WorkflowType = 'ValidateFleet' AND ExecutionStatus = 'Completed'"
    found = [
        (run.start_time, run.close_time)
        async for run in client.list_workflows(query)
        if run.status is WorkflowExecutionStatus.COMPLETED and run.close_time is not None
    ]
    return sorted(found)


async def until_runs(
    client: Client, count: int, since: datetime
) -> list[tuple[datetime, datetime]]:
    """The dispatches, once `count` of them began after `since`."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = await runs(client)
            if sum(began > since for began, _ in found) >= count:
                return found
            await asyncio.sleep(0.1)


def server() -> psutil.Process:
    """The server that this test has started; the session's lab may have one of its own."""
    own = psutil.Process().children(recursive=True)
    found = [child for child in own if "temporal" in child.name()]
    return max(found, key=lambda child: child.create_time())


async def test_ticks_missed_in_an_outage_are_left_out_and_none_overlap() -> None:
    wanted = wanted_schedules(SETTINGS)[1]
    async with (
        dev_server() as client,
        Worker(
            client,
            task_queue=task_queue(SETTINGS.cluster),
            workflows=[ValidateFleet],
            activities=[pick_nobody],
            workflow_runner=sandbox(),
        ),
    ):
        assert await ensure_schedule(client, wanted) is Ensured.CREATED
        assert await ensure_schedule(client, wanted) is Ensured.UNCHANGED
        await until_runs(client, 3, datetime.min.replace(tzinfo=UTC))
        process = server()
        os.kill(process.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(AWAY_S)  # the outage itself
        finally:
            os.kill(process.pid, signal.SIGCONT)
        back = datetime.now(UTC)
        found = await until_runs(client, 4, back)
        described = await client.get_schedule_handle(wanted.identity).describe()
    after = [began for began, _ in found if began > back]
    took_s = (after[-1] - back) / timedelta(seconds=1)
    assert len(after) <= took_s / EVERY_S + 2, after
    assert all(ended <= later for (_, ended), (later, _) in pairwise(found))
    left_out = (
        described.info.num_actions_missed_catchup_window
        + described.info.num_actions_skipped_overlap
    )
    assert left_out >= AWAY_S / EVERY_S / 2, described.info
