"""Small workflows that ask the guard as an episode does, and the guard's two activities.

Owns `Asker` (asks, repeats, notes what it was granted, releases when told) and `Hall`, the test's
view of all of them: who was granted what in which order, and how many hold at once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from tests.harness.temporal_server import IDENTITY, sandbox
from workflows.contracts.guard import Asked, NotedPlace, RebuildRequest, Rebuilt
from workflows.contracts.messages import Ask, Grant, Release
from workflows.fleet_guard import FleetGuard, GuardState
from workflows.model.identity import NodeRef
from workflows.model.remediation.budget import Budget

GUARD = "guard/test"
QUEUE = "guard"
AGAIN_S = 2.0
PATIENCE_S = 90.0
CALL = timedelta(seconds=60)


@workflow.defn(name="Asker")
class Asker:
    """Asks every `again_s` until granted; releases on `done`, or by itself after `holds_s`."""

    def __init__(self) -> None:
        self._grants: list[Grant] = []
        self._done = False

    @workflow.run
    async def run(self, ask: Ask, again_s: float, holds_s: float | None = None) -> list[Grant]:
        is_noted = False
        while not is_noted:
            await workflow.execute_activity("send_ask", ask, start_to_close_timeout=CALL)
            await _until(lambda: bool(self._grants), again_s)
            if self._grants:
                is_noted = await workflow.execute_activity(
                    "note",
                    args=[ask, self._grants[-1].epoch],
                    result_type=bool,
                    start_to_close_timeout=CALL,
                )
                if not is_noted:
                    ask = replace(ask, refused=self._grants[-1].epoch)
                    self._grants.clear()
        await _until(lambda: self._done, holds_s)
        freed = Release(ask.budget, ask.pool, ask.node.uid, ask.episode)
        await workflow.execute_activity("unnote", freed, start_to_close_timeout=CALL)
        await workflow.execute_activity("send_release", freed, start_to_close_timeout=CALL)
        return self._grants

    @workflow.signal
    def grant(self, grant: Grant) -> None:
        self._grants.append(grant)

    @workflow.signal
    def done(self) -> None:
        self._done = True


async def _until(holds: Callable[[], bool], within_s: float | None) -> None:
    try:
        timeout = None if within_s is None else timedelta(seconds=within_s)
        await workflow.wait_condition(holds, timeout=timeout)
    except TimeoutError:
        return


@dataclass
class Hall:
    """Everybody who asks. `noted` is what stands on the nodes, `most` the most that ever did."""

    client: Client
    noted: dict[str, Ask] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    most: int = 0
    claims: list[str] = field(default_factory=list)
    refused: int = 0
    state: GuardState | None = field(default_factory=lambda: GuardState(epoch="epoch-0"))
    slow_survey: asyncio.Event | None = None

    def __post_init__(self) -> None:
        self._changed = asyncio.Condition()

    # -- activities

    @activity.defn
    async def send_ask(self, ask: Ask) -> None:
        await self.start_guard("ask", ask)

    @activity.defn
    async def send_release(self, release: Release) -> None:
        await self.guard.signal("release", release)

    @activity.defn
    async def note(self, ask: Ask, epoch: str) -> bool:
        """As the activity that notes a slot: a grant of an older guard is refused."""
        if self.claims and epoch != self.claims[-1]:
            self.refused += 1
            return False
        self.noted[ask.node.uid] = ask
        self.order.append(ask.node.name)
        self.most = max(self.most, len(self.noted))
        await self._tell()
        return True

    @activity.defn
    async def unnote(self, release: Release) -> None:
        self.noted.pop(release.node_uid, None)

    @activity.defn
    async def claim_epoch(self, request: RebuildRequest) -> Asked:
        self.claims.append(request.epoch)
        await self._tell()
        return Asked("guard")

    @activity.defn
    async def survey_marks(self, request: RebuildRequest) -> Rebuilt:
        if self.slow_survey is not None:
            await self.slow_survey.wait()
        places = tuple(
            NotedPlace(
                ask.budget.value, ask.pool, ask.node, ask.episode, activity.info().started_time
            )
            for ask in self.noted.values()
        )
        return Rebuilt(places, ())

    # -- the test's hands

    @property
    def guard(self) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(GUARD)

    async def start_guard(self, signal: str, payload: Any) -> None:
        """As the ask_guard activity does; `state` None = a fresh guard, which rebuilds."""
        await self.client.start_workflow(
            FleetGuard.run,
            self.state,
            id=GUARD,
            task_queue=QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal=signal,
            start_signal_args=[payload],
        )

    async def ask(self, number: int, *, holds_s: float | None = None, **changes: Any) -> Ask:
        """One more asker, who asks before this returns if the worker keeps up."""
        ask = ask_of(number, **changes)
        await self.client.start_workflow(
            Asker.run, args=[ask, AGAIN_S, holds_s], id=ask.workflow_id, task_queue=QUEUE
        )
        return ask

    async def done(self, ask: Ask) -> None:
        handle = self.client.get_workflow_handle(ask.workflow_id)
        await handle.signal("done")
        await handle.result()

    async def ended(self, ask: Ask) -> None:
        """Waits until this asker has had its place and released it."""
        async with asyncio.timeout(PATIENCE_S):
            await self.client.get_workflow_handle(ask.workflow_id).result()

    async def granted(self, count: int) -> None:
        """Waits until so many grants were noted."""
        await self.until(lambda: len(self.order) >= count)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(holds)

    async def until_state(self, holds: Callable[[GuardState], bool]) -> GuardState:
        """Waits for the guard's own view (a query: nobody signals its changes)."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                state = await self.budgets()
                if holds(state):
                    return state
                await asyncio.sleep(0.05)

    async def budgets(self) -> GuardState:
        """What the guard says; nothing, as long as nobody has started it."""
        try:
            state: GuardState = await self.guard.query(FleetGuard.budgets)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return GuardState()
        return state

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def ask_of(
    number: int, *, cap: int = 2, pool: str = "training", budget: Budget = Budget.DISRUPTION
) -> Ask:
    node = NodeRef(f"node-{number}", f"uid-{number}")
    return Ask(budget, pool, cap, node, f"ep-{number}", f"asker/{budget}/{pool}/{number}", "")


@asynccontextmanager
async def hall_of(client: Client) -> AsyncIterator[Hall]:
    """A hall with its worker."""
    hall = Hall(client)
    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[FleetGuard, Asker],
        activities=[
            hall.send_ask,
            hall.send_release,
            hall.note,
            hall.unnote,
            hall.claim_epoch,
            hall.survey_marks,
        ],
        workflow_runner=sandbox(),
        identity=IDENTITY,
    ):
        yield hall
