"""A year of ticks of the validations' Schedule on a real server, which is away for three days.

Real: the server, its Schedule as the product makes it, the worker, the dispatcher, the kill (twice
SIGKILL, on the same file) and what the server says of the runs. The Schedule's clock is moved: it
passes each interval at once, and three days at once while no timer of the server fires, so that
after its last start the Schedule finds its clock as after an absence of three days, with its
timer long due. What a tick starts lives in real time. The pool is simulated (`idle_fleet.py`), and
the run of a node is only as long as the pool says.

Three ticks a day instead of 144: 1,095 in the year, each with a real dispatch, take minutes; all
other settings are the defaults.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from temporalio import activity, workflow
from temporalio.client import (
    ScheduleDescription,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    WorkflowExecutionCount,
)
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.harness.skipped_time import FileServer, Run, ScheduleClock, file_server
from tests.workflows.idle_fleet import Habits, IdleFleet
from workers.control.schedules import Ensured, ensure_schedule, wanted_schedules
from workers.control.settings import WorkerSettings
from workflows.contracts.fleet import FleetOrder, Picked, Picks
from workflows.contracts.messages import Opening
from workflows.model.identity import NodeRef, task_queue
from workflows.model.upkeep import ValidationPolicy
from workflows.validate_fleet import ValidateFleet

pytestmark = pytest.mark.long

INTERVAL = timedelta(hours=8)
SETTINGS = WorkerSettings(cluster="year", validation_interval_s=INTERVAL.total_seconds())
CATCH_UP = timedelta(seconds=SETTINGS.validation_catch_up_s)
JITTER = timedelta(seconds=SETTINGS.validation_jitter_s)
RULE = ValidationPolicy(enabled=True, period_s=28 * 86_400, share="25%")
PERIOD = timedelta(seconds=RULE.period_s)
HABITS = Habits(nodes=16, job=timedelta(hours=10), takes=timedelta(hours=10), is_staggered=True)
"""An idle time of a node holds a tick; a validation lasts beyond the next one."""
SEED = 1
TICKS = 365 * 3
SLOW_AT = 200
"""The tick whose dispatch outlasts the next ones."""
SLOW_FOR = 2
AWAY_AT = 500
AWAY = timedelta(days=3)
BACK_AFTER_TICK = timedelta(seconds=150)
"""After its jitter, and within the catch-up window: this tick, the last one missed, is caught up."""
SETTLED_AFTER = timedelta(days=2)
"""What came due meanwhile is validated a share at a time, each when its node is idle."""
DEADLINE_S = 60.0
LOOK_S = 0.01


@workflow.defn(name="RemediateNode")
class NodeRun:
    """Stands for the node's own run: open as long as its validation takes."""

    @workflow.run
    async def run(self, opening: Opening) -> None:
        await workflow.execute_activity(
            "validate", opening.node.name, start_to_close_timeout=timedelta(hours=1)
        )


class Pool:
    """The answers to a dispatcher and to the runs of nodes, from the simulated pool."""

    def __init__(self, clock: ScheduleClock, start: datetime) -> None:
        self.fleet = IdleFleet(SEED, RULE, HABITS, start)
        self.looked_at: list[datetime] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._clock = clock
        self._begun: dict[str, asyncio.Event] = {}
        self._freed: dict[str, asyncio.Event] = {}

    @activity.defn(name="pick_idle")
    async def pick_idle(self, order: FleetOrder) -> Picks:
        """At the moment of the tick; a validation ends for the pool only if its run has begun."""
        tick = self._clock.tick_of(activity.info().workflow_id or "")
        self.looked_at.append(tick)
        await self.may_answer.wait()
        async with asyncio.timeout(DEADLINE_S):
            for begun in self._begun.values():
                await begun.wait()
        self.fleet.live_to(tick)
        for name in [name for name in self._freed if self.fleet.nodes[name].free_at is None]:
            self._freed.pop(name).set()
            self._begun.pop(name)
        return Picks(tick, tuple(self._picked(node, tick) for node in self.fleet.pick(tick)))

    @activity.defn(name="validate")
    async def validate(self, name: str) -> None:
        freed = self._freed[name]
        self._begun[name].set()
        await freed.wait()

    async def looked_after(self, moment: datetime) -> datetime:
        """The first tick after `moment` of which a dispatch has come so far that it looks."""
        async with asyncio.timeout(DEADLINE_S):
            while not self.looked_at or self.looked_at[-1] <= moment:
                await asyncio.sleep(LOOK_S)
        return next(tick for tick in self.looked_at if tick > moment)

    def end(self) -> None:
        """Every validation ends."""
        for freed in self._freed.values():
            freed.set()

    def _picked(self, node: NodeRef, tick: datetime) -> Picked:
        self._begun[node.name], self._freed[node.name] = asyncio.Event(), asyncio.Event()
        return Picked(node, "training", f"ep-{node.name}-{tick:%m%d%H}", 2)


@dataclass(frozen=True)
class Lived:
    """What the year showed; all but `fleet` in the server's words."""

    schedule: ScheduleDescription
    first: datetime
    away: tuple[datetime, datetime]
    runs: list[Run]
    beside_the_slow: list[list[Run]]
    skipped: int
    fleet: IdleFleet
    validations: WorkflowExecutionCount

    @property
    def until(self) -> datetime:
        """The end of the year."""
        return self.first + TICKS * INTERVAL

    def due(self, since: datetime, until: datetime) -> list[datetime]:
        """The ticks of that time."""
        ticks = (self.first + number * INTERVAL for number in range(TICKS))
        return [tick for tick in ticks if since < tick <= until]

    def started(self, since: datetime, until: datetime) -> list[datetime]:
        """Those of them that started a run, as often as they did."""
        return [run.tick for run in self.runs if since < run.tick <= until]


class Year:
    """The course of the year."""

    def __init__(
        self, server: FileServer, clock: ScheduleClock, pool: Pool, first: datetime
    ) -> None:
        self._server, self._clock, self._pool = server, clock, pool
        self.tick = first

    async def pass_tick(self) -> None:
        """To the middle of the next interval, and until the dispatch of its tick has ended."""
        await self._clock.pass_to(self.tick + INTERVAL / 2)
        await self._pool.looked_after(self.tick - INTERVAL)
        await self._clock.ended(self.tick, DEADLINE_S)
        self.tick += INTERVAL

    async def pass_slow_tick(self) -> tuple[list[list[Run]], int]:
        """The dispatches that were open at each tick beside a slow one, and the ticks skipped."""
        self._pool.may_answer.clear()
        slow, open_then = self.tick, []
        await self._clock.pass_to(slow + INTERVAL / 2)
        await self._pool.looked_after(slow - INTERVAL)
        before = (await self._clock.described()).info.num_actions_skipped_overlap
        for _ in range(SLOW_FOR):
            self.tick += INTERVAL
            await self._clock.pass_to(self.tick + INTERVAL / 2)
            await self._clock.until_due_after(self.tick, DEADLINE_S)
            open_then.append(await self._clock.runs("ValidateFleet", is_open=True))
        skipped = (await self._clock.described()).info.num_actions_skipped_overlap - before
        self._pool.may_answer.set()
        await self._clock.ended(slow, DEADLINE_S)
        self.tick += INTERVAL
        return open_then, skipped

    async def pass_absence(self) -> tuple[datetime, datetime]:
        """The last moment before and the first one after it."""
        left_at = await self._clock.now()
        back_at = self.tick + AWAY + BACK_AFTER_TICK
        await self._server.kill()
        await self._server.start_held()
        await self._clock.stop_at_timer(self.tick + INTERVAL / 2 - left_at)
        await self._clock.pass_to(back_at)
        assert not [tick for tick in self._pool.looked_at if tick > left_at], "it was not away"
        await self._server.kill()
        await self._server.start()
        await self._clock.ended(await self._pool.looked_after(left_at), DEADLINE_S)
        self.tick += AWAY + INTERVAL
        return left_at, back_at


def next_tick(now: datetime) -> datetime:
    """Temporal counts intervals from 1970."""
    return datetime.fromtimestamp(0, UTC) + INTERVAL * (
        (now - datetime.fromtimestamp(0, UTC)) // INTERVAL + 1
    )


async def live(folder: Path, port: int) -> Lived:
    """The whole year."""
    wanted = wanted_schedules(SETTINGS)[1]
    async with file_server(folder, port) as server:
        client = await server.start()
        clock = ScheduleClock(client, wanted.identity)
        assert await ensure_schedule(client, wanted) is Ensured.CREATED
        first = next_tick(await clock.now())
        pool = Pool(clock, first)
        year = Year(server, clock, pool, first)
        async with Worker(
            client,
            task_queue=task_queue(SETTINGS.cluster),
            workflows=[ValidateFleet, NodeRun],
            activities=[pool.pick_idle, pool.validate],
            workflow_runner=UnsandboxedWorkflowRunner(),  # half of the time went into sandboxes
        ):
            while year.tick < first + SLOW_AT * INTERVAL:
                await year.pass_tick()
            beside, skipped = await year.pass_slow_tick()
            while year.tick < first + AWAY_AT * INTERVAL:
                await year.pass_tick()
            away = await year.pass_absence()
            while year.tick < first + TICKS * INTERVAL:
                await year.pass_tick()
            pool.end()
            return Lived(
                schedule=await clock.described(),
                first=first,
                away=away,
                runs=await clock.runs("ValidateFleet"),
                beside_the_slow=beside,
                skipped=skipped,
                fleet=pool.fleet,
                validations=await client.count_workflows("WorkflowType = 'RemediateNode'"),
            )


@pytest.fixture(scope="module")
def year(
    tmp_path_factory: pytest.TempPathFactory, unused_tcp_port_factory: Callable[[], int]
) -> Lived:
    return asyncio.run(live(tmp_path_factory.mktemp("year"), unused_tcp_port_factory()))


def test_the_schedule_skips_catches_up_shortly_and_has_a_jitter(year: Lived) -> None:
    spec, policy = year.schedule.schedule.spec, year.schedule.schedule.policy
    assert list(spec.intervals) == [ScheduleIntervalSpec(every=INTERVAL)]
    assert spec.jitter == JITTER
    assert policy.overlap is ScheduleOverlapPolicy.SKIP
    assert policy.catchup_window == CATCH_UP < INTERVAL


def test_every_tick_but_the_missed_and_the_skipped_starts_one_run(year: Lived) -> None:
    left_at, back_at = year.away
    slow = year.first + SLOW_AT * INTERVAL
    skipped = year.due(slow, slow + SLOW_FOR * INTERVAL)
    before = year.due(year.first - INTERVAL, left_at)
    served = [tick for tick in before if tick not in skipped]
    assert year.started(year.first - INTERVAL, left_at) == served
    assert year.started(back_at, year.until) == year.due(back_at, year.until)


def test_of_the_ticks_of_three_days_away_only_the_last_is_caught_up(year: Lived) -> None:
    due, started = year.due(*year.away), year.started(*year.away)
    assert len(due) == AWAY / INTERVAL + 1
    assert len(started) <= CATCH_UP // INTERVAL + 1
    assert started == due[-1:]
    assert year.schedule.info.num_actions_missed_catchup_window >= len(due) - len(started)


def test_no_two_dispatches_ever_run_at_once(year: Lived) -> None:
    runs = sorted(year.runs, key=lambda run: run.began)
    assert all(run.ended is not None for run in runs)
    assert not [
        (one, other)
        for one, other in pairwise(runs)
        if one.ended is None or one.ended > other.began or one.tick >= other.tick
    ]


def test_a_tick_beside_an_open_dispatch_is_skipped(year: Lived) -> None:
    slow = year.first + SLOW_AT * INTERVAL
    assert [[run.tick for run in then] for then in year.beside_the_slow] == [[slow]] * SLOW_FOR
    assert year.skipped == SLOW_FOR


def test_each_idle_node_is_validated_within_its_period_but_for_the_outage(year: Lived) -> None:
    left_at, back_at = year.away
    settled = back_at + SETTLED_AFTER
    assert year.fleet.oldest(year.first, left_at) <= PERIOD
    assert year.fleet.oldest(left_at, settled) <= PERIOD + AWAY
    assert year.fleet.oldest(settled, year.until) <= PERIOD


def test_each_pick_is_one_run_of_its_node(year: Lived) -> None:
    picked = sum(look.picked for look in year.fleet.looks)
    assert year.validations.count == picked > HABITS.nodes * 365 * 86_400 / RULE.period_s
