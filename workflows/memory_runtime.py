"""The Runtime in memory: the same runbook, driven without Temporal and without a clock.

Owns virtual time, and the order of things that happen at given moments (messages, changes of the
world). Steps are answered by a `World`, any object with one function for each contract name. Used
by the unit tests and, later, by the forecast. Same exceptions and same looks into the inbox as
`TemporalRuntime`.
"""

import contextlib
import heapq
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar

from workflows.contracts import Contract, Effect
from workflows.contracts.machines import PhaseRecord
from workflows.contracts.options import options_of
from workflows.inbox import Inbox, Interruption
from workflows.model.policy import StepOptions
from workflows.model.remediation.phase import Phase
from workflows.runtime import PASSING, Interrupted, Story, Until

Request = TypeVar("Request")
Result = TypeVar("Result")
Outcome = TypeVar("Outcome")

START = datetime(2026, 1, 1, tzinfo=UTC)
MAX_MOMENTS = 100_000
"""Virtual moments of one run: a runbook that never ends is a defect."""


class World(Protocol):
    """What answers the steps."""

    def answer(self, name: str, request: Any, now: datetime) -> Any:
        """The result of the contract `name`, or one of the runtime's exceptions."""


class StillWaiting(Exception):
    """A waiting contract has no answer yet; the world raises it."""


class Deadlocked(AssertionError):
    """Nothing is planned any more, and the runbook still waits."""


@dataclass(order=True)
class _Planned:
    at: datetime
    number: int
    action: Callable[[], None] = field(compare=False)


class MemoryRuntime:
    """The Runtime over a `World`. `steps` lists every step that was carried out, in order."""

    def __init__(self, inbox: Inbox, world: World, *, step_takes: timedelta = timedelta()) -> None:
        """Time starts at `START`; each step takes `step_takes` of it."""
        self._inbox = inbox
        self._world = world
        self._step_takes = step_takes
        self._now = START
        self._planned: list[_Planned] = []
        self._moments = 0
        self.overrides: Mapping[str, StepOptions] = {}
        self.steps: list[tuple[str, Any]] = []
        self.published: list[tuple[Phase, Story]] = []
        self._passed: PhaseRecord | None = None

    @property
    def inbox(self) -> Inbox:
        """The run's messages."""
        return self._inbox

    def now(self) -> datetime:
        """Virtual time."""
        return self._now

    def at(self, moment: timedelta, action: Callable[[], None]) -> None:
        """Plans something that happens `moment` after the start."""
        heapq.heappush(self._planned, _Planned(START + moment, len(self._planned), action))

    def let_pass(self, time: timedelta) -> None:
        """Lets time pass within a step: an attempt died, and another one is to come."""
        self._pass_time(self._now + time)

    async def step(self, contract: Contract[Request, Result], request: Request) -> Result:
        """See `Runtime.step`."""
        while contract.effect is not Effect.READ and self._inbox.paused:
            if self._inbox.interruption() is not None:
                break
            if self._passed is not None:
                self._record(self._passed)
            self._advance(None)
        self._raise_interruption(contract.name)
        self.steps.append((contract.name, request))
        self._pass_time(self._now + self._step_takes)
        result = self._world.answer(contract.name, request, self._now)
        if options_of(contract.name).heartbeat is not None:
            reason = self._inbox.interruption()
            if reason is not None:
                raise Interrupted(reason, contract.name, result)
        return result  # type: ignore[no-any-return]  # the world answers any contract

    async def wait(self, until: Until, within: timedelta | None) -> bool:
        """See `Runtime.wait`."""
        end = None if within is None else self._now + within
        while True:
            self._raise_interruption("wait")
            if until(self._inbox):
                return True
            if end is not None and self._now >= end:
                return False
            self._advance(end)

    async def wait_for_answer(
        self,
        contract: Contract[Request, Result],
        request: Request,
        until: Until,
        within: timedelta | None,
    ) -> Result | None:
        """See `Runtime.wait_for_answer`; it is asked at each moment at which anything happens."""
        answers: list[Result] = []

        def is_answered(inbox: Inbox) -> bool:
            if until(inbox):
                return True
            with contextlib.suppress(StillWaiting):
                answers.append(self._world.answer(contract.name, request, self._now))
            return bool(answers)

        await self.wait(is_answered, within)
        return answers[0] if answers else None

    async def publish(self, phase: Phase, story: Story) -> None:
        """See `Runtime.publish`."""
        record = replace(
            story.record,
            sequence=len(self.published) + 1,
            phase=phase.value,
            run_id="memory",
            passed=self._passed,
        )
        self.published.append((phase, replace(story, record=record)))
        self._inbox.tell(self._now, f"{phase}: {record.detail}")
        if phase in PASSING:
            self._passed = record
        else:
            self._record(record)

    def _record(self, record: PhaseRecord) -> None:
        self._passed = None
        self.steps.append(("record_phase", record))
        self._world.answer("record_phase", record, self._now)

    def run(self, coroutine: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Drives the runbook to its end."""
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # of the coroutine's own type
        raise AssertionError("the runbook awaited something that is not the Runtime")

    def _advance(self, end: datetime | None) -> None:
        """To the next planned moment, or to `end` if that comes first."""
        self._moments += 1
        if self._moments > MAX_MOMENTS:
            raise Deadlocked(f"no end after {MAX_MOMENTS} moments")
        if not self._planned and end is None:
            raise Deadlocked("nothing is planned and the runbook waits without limit")
        if self._planned and (end is None or self._planned[0].at <= end):
            self._pass_time(max(self._now, self._planned[0].at))
        elif end is not None:
            self._now = max(self._now, end)

    def _pass_time(self, to: datetime) -> None:
        while self._planned and self._planned[0].at <= to:
            planned = heapq.heappop(self._planned)
            self._now = max(self._now, planned.at)
            planned.action()
        self._now = max(self._now, to)

    def _raise_interruption(self, step: str) -> None:
        reason: Interruption | None = self._inbox.interruption()
        if reason is not None:
            self._inbox.tell(self._now, f"{step} stopped: {reason}")
            raise Interrupted(reason, step)
