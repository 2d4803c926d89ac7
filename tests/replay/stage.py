"""A stage: the real workflow on a real server, with one in-memory node behind its activities.

Owns the activities (each contract answered by `tests.workflows.world`, failures mapped to the
closed set of types), the signals that watch and people would send, and the waits of a scene on
what happened. Time is real, so scenes run under a policy with short times.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from tests.workflows.world import NODE, World, report_of, word
from workflows.contracts import (
    Contract,
    errors,
    fleet,
    guard,
    karpenter,
    kube,
    machines,
    node_tasks,
)
from workflows.contracts.messages import Closing, Grant, NodeFacts, Opening
from workflows.memory_runtime import START, MemoryRuntime, StillWaiting
from workflows.model.identity import NodeRef, workflow_id
from workflows.remediate_node import RemediateNode
from workflows.runtime import NodeGone, NotOwner, OtherHealer, Overruled, StepFailed

PATIENCE_S = 60.0
"""Longest wait of a scene for anything: a slow machine is no failure."""
HEARTBEAT_S = 0.05
LOOK_AGAIN_S = 0.05
FAILURES: dict[type[Exception], str] = {
    NodeGone: errors.NODE_GONE,
    NotOwner: errors.NOT_OWNER,
    Overruled: errors.OVERRULED,
    OtherHealer: errors.OTHER_HEALER,
    StepFailed: errors.BAD_REQUEST,
}


class NotPermitted(Exception):
    """A person's setting forbids the step now."""


ENDINGS: tuple[type[Exception], ...] = (*FAILURES, NotPermitted, StillWaiting)
"""What a step may end with; all else is an error of the stage's own."""


@dataclass
class Surroundings:
    """What a `World` wants of its runtime: a clock, later moments, and an inbox."""

    signals: list[tuple[str, Any]] = field(default_factory=list)
    on_moment: Callable[[], None] = lambda: None

    @property
    def inbox(self) -> "Surroundings":
        return self

    def now(self) -> datetime:
        return datetime.now(UTC)

    def at(self, moment: timedelta, action: Callable[[], None]) -> None:
        def happen() -> None:
            action()
            self.on_moment()

        delay = (START + moment - self.now()).total_seconds()
        asyncio.get_running_loop().call_later(max(0.0, delay), happen)

    def take_facts(self, facts: NodeFacts) -> None:
        self.signals.append(("node_changed", facts))

    def take_grant(self, grant: Grant, now: datetime) -> None:
        self.signals.append(("grant", grant))


@dataclass
class Stage:
    """One episode. `calls` are the steps' names in order, `records` the phases told so far."""

    client: Client
    name: str
    world: World
    opening: Opening
    task_queue: str
    calls: list[str] = field(default_factory=list)
    records: list[machines.PhaseRecord] = field(default_factory=list)
    blocked: dict[str, asyncio.Event] = field(default_factory=dict)
    forbidden: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    at_close: Callable[[], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        self.surroundings = Surroundings(on_moment=self._send_later)
        # A World asks its runtime for three things only; Surroundings has them.
        self.world.runtime = cast("MemoryRuntime", self.surroundings)
        self._changed = asyncio.Condition()
        self._sending = asyncio.Lock()

    @property
    def id(self) -> str:
        return workflow_id("test", NodeRef(self.name, NODE.uid))

    @property
    def handle(self) -> WorkflowHandle[Any, Closing]:
        return self.client.get_workflow_handle(self.id, result_type=Closing)

    async def open(self, *, told: str = "") -> None:
        """Starts the run as watch does (with its report), or as a person does (`told`)."""
        report = report_of(self.world, self.opening.episode, self.surroundings.now())
        signal = (told, word(f"{told}-0")) if told else ("report", report)
        is_silent = self.opening.recover or self.opening.validation is not None
        await self.client.start_workflow(
            RemediateNode.run,
            self.opening,
            id=self.id,
            task_queue=self.task_queue,
            static_summary=f"{self.name}: node-1",
            start_signal=None if is_silent else signal[0],
            start_signal_args=[] if is_silent else [signal[1]],
        )

    async def say(self, command: str, request: str = "") -> None:
        """A person's word."""
        await self.handle.signal(command, word(request or f"{command}-1"))

    async def change(self, action: Callable[[], None]) -> None:
        """Something happens to the node, and watch tells it."""
        action()
        self.world.touch()
        await self.send()

    async def send(self) -> None:
        """Sends what watch and the guard have to say, in order."""
        async with self._sending:
            while self.surroundings.signals:
                name, payload = self.surroundings.signals.pop(0)
                await self.handle.signal(name, payload)

    def _send_later(self) -> None:
        task = asyncio.get_running_loop().create_task(self.send())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def block(self, step: str) -> asyncio.Event:
        """The next attempts of `step` heartbeat and do nothing until the event is set."""
        return self.blocked.setdefault(step, asyncio.Event())

    async def until(self, holds: Callable[["Stage"], bool]) -> None:
        """Waits for something that a step or a record shows."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(lambda: holds(self))

    async def until_called(self, step: str) -> None:
        await self.until(lambda stage: step in stage.calls)

    async def until_held(self, times: int = 1) -> None:
        await self.until(lambda stage: sum(r.held for r in stage.records) >= times)

    async def until_phase(self, phase: str) -> None:
        await self.until(lambda stage: any(r.phase == phase for r in stage.records))

    async def until_story(self, words: str) -> None:
        """Waits for a line of the run's own story (a query: nothing outside shows a pause)."""
        async with asyncio.timeout(PATIENCE_S):
            while not any(words in line for line in await self.story()):
                await asyncio.sleep(LOOK_AGAIN_S)

    async def story(self) -> list[str]:
        lines: list[str] = await self.handle.query("story")
        return lines

    async def answer(self, contract: Contract[Any, Any], request: Any) -> Any:
        """One attempt of one step."""
        await self._tell(contract.name)
        gate = self.blocked.get(contract.name)
        while gate is not None and not gate.is_set():
            activity.heartbeat()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(gate.wait(), HEARTBEAT_S)
        try:
            if contract.name in self.broken:
                raise StepFailed(f"{contract.name} cannot be carried out as asked")
            if contract.name in self.forbidden:
                raise NotPermitted(f"{contract.name}: pool training is paused by alice")
            if contract.name == "await_permit" and self.forbidden:
                raise StillWaiting
            if self.at_close and isinstance(request, machines.PhaseRecord) and request.outcome:
                relapse, self.at_close = self.at_close, None
                await relapse()
            result = self.world.answer(contract.name, request, self.surroundings.now())
        except ENDINGS as fact:
            raise failure(fact) from None
        finally:
            await self.send()
        if isinstance(request, machines.PhaseRecord):
            self.records.append(request)
            await self._tell()
        return result

    async def _tell(self, step: str = "") -> None:
        async with self._changed:
            if step:
                self.calls.append(step)
            self._changed.notify_all()


def failure(fact: Exception) -> ApplicationError:
    """As `activities/errors.py` maps it."""
    if isinstance(fact, StillWaiting):
        benign = ApplicationErrorCategory.BENIGN
        return ApplicationError("not yet", type=errors.NOT_YET, category=benign)
    if isinstance(fact, NotPermitted):
        return ApplicationError(str(fact), type=errors.NOT_PERMITTED, non_retryable=True)
    return ApplicationError(str(fact), type=FAILURES[type(fact)], non_retryable=True)


def contracts() -> tuple[Contract[Any, Any], ...]:
    """Every contract of an episode."""
    modules = (kube, karpenter, machines, node_tasks, guard, fleet)
    found = [v for module in modules for v in vars(module).values() if isinstance(v, Contract)]
    return tuple(c for c in found if c.name not in ("claim_epoch", "survey_marks"))


def activities_of(stages: dict[str, Stage]) -> list[Callable[..., Any]]:
    """One activity for each contract, answered by the stage of the asking workflow."""

    def implement(contract: Contract[Any, Any]) -> Callable[..., Any]:
        async def run(request: Any) -> Any:
            return await stages[activity.info().workflow_id or ""].answer(contract, request)

        run.__annotations__ = {"request": contract.request, "return": contract.result}
        return activity.defn(name=contract.name)(run)

    return [implement(contract) for contract in contracts()]
