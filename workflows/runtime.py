"""The Runtime: the four methods through which the runbook touches the world.

Owns the protocol, the exceptions it raises, and its Temporal implementation: options of each step
from the one table, pauses, interruptions (retire, a worse finding, an overruling, a deleted Node)
and waits on permits. The runbook uses no asyncio and knows no Temporal. `memory_runtime.py` is
the other implementation.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeUpdate
from temporalio.exceptions import ActivityError, ApplicationError

from workflows.contracts import Contract, Effect, errors
from workflows.contracts.kube import AWAIT_PERMIT, PermitRequest
from workflows.contracts.machines import RECORD_PHASE, PhaseRecord
from workflows.contracts.options import Options, options_of
from workflows.inbox import Inbox, Interruption
from workflows.model.policy import StepOptions
from workflows.model.remediation.phase import Phase
from workflows.search_attributes import phase_updates, step_update

Request = TypeVar("Request")
Result = TypeVar("Result")
Until = Callable[[Inbox], bool]

PASSING = frozenset({Phase.VALIDATED})
"""Phases that are over with the very next step. Each is recorded with the phase after it, or when
people's settings make that step wait: six events less in the node's history."""


class Interrupted(Exception):
    """A step or wait was stopped; `result` is what the step answered all the same, if it did."""

    def __init__(self, reason: Interruption, step: str, result: object | None = None) -> None:
        super().__init__(f"{reason} during {step}")
        self.reason = reason
        self.step = step
        self.result = result


class NodeGone(Exception):
    """The Node does not exist any more, or another one has its name."""


class NotOwner(Exception):
    """Another episode, or a person, owns the node."""


class Overruled(Exception):
    """Somebody took our marker or cordon off."""


class OtherHealer(Exception):
    """Another healer has begun on the node: everything of ours comes off."""


class StepFailed(Exception):
    """A step cannot succeed as asked; the node keeps its quarantine and people must look."""


@dataclass(frozen=True)
class Story:
    """What a phase change says to people: one line of detail, what comes next, what is asked."""

    record: PhaseRecord
    doing: str
    plan: tuple[str, ...] = field(default=())
    asks: str = ""


class Runtime(Protocol):
    """What the runbook needs. Everything it learns from outside comes through here.

    `overrides` is what the episode's policy says about options of steps; the runbook sets it.
    """

    overrides: Mapping[str, StepOptions]

    @property
    def inbox(self) -> Inbox:
        """The run's messages."""

    async def step(self, contract: Contract[Request, Result], request: Request) -> Result:
        """Carries out one contract.

        Raises:
            Interrupted: stopped; the world is to be read again.
            NodeGone, NotOwner, Overruled, OtherHealer, StepFailed: see there.
        """

    async def wait(self, until: Until, within: timedelta | None) -> bool:
        """True once `until` holds, False once `within` has passed (None = no limit).

        Raises:
            Interrupted: stopped.
        """

    async def wait_for_answer(
        self,
        contract: Contract[Request, Result],
        request: Request,
        until: Until,
        within: timedelta | None,
    ) -> Result | None:
        """The answer of a contract whose retries are waiting (`waits` in the options table).

        It lies beneath the signals, for the case that one is lost: None = `until` held first, or
        `within` has passed (None = no limit).

        Raises:
            Interrupted: stopped.
        """

    def now(self) -> datetime:
        """The run's clock."""

    async def publish(self, phase: Phase, story: Story) -> None:
        """Makes a phase change visible everywhere: search attributes, details, record, Event."""


_EXCEPTIONS: Mapping[str, type[Exception]] = {
    errors.NODE_GONE: NodeGone,
    errors.NOT_OWNER: NotOwner,
    errors.OVERRULED: Overruled,
    errors.OTHER_HEALER: OtherHealer,
    errors.BAD_REQUEST: StepFailed,
}


def exception_of(failure: ApplicationError) -> Exception | None:
    """The runtime's exception for a failure type that is final; None for the others."""
    kind = _EXCEPTIONS.get(failure.type or "")
    return kind(failure.message) if kind else None


class TemporalRuntime:
    """The Runtime inside a workflow."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self.overrides: Mapping[str, StepOptions] = {}
        self.details = ""
        self.plan: tuple[str, ...] = ()
        self._told: tuple[PhaseRecord, Story] | None = None
        self._doing = ""
        self._stood_still = False
        self._sequence = 0
        self._upserted: dict[str, object] = {}
        self._passed: PhaseRecord | None = None

    @property
    def inbox(self) -> Inbox:
        """The run's messages."""
        return self._inbox

    @property
    def asks(self) -> str:
        """What is asked of people now, with what each answer does; "" = nothing."""
        return self._told[1].asks if self._told else ""

    def now(self) -> datetime:
        """Workflow time: the same at a replay."""
        return workflow.now()

    async def wait(self, until: Until, within: timedelta | None) -> bool:
        """See `Runtime.wait`."""
        self._raise_interruption("wait")
        if not until(self._inbox):
            await self._until(until, within)
            self._raise_interruption("wait")
        return until(self._inbox)

    async def wait_for_answer(
        self,
        contract: Contract[Request, Result],
        request: Request,
        until: Until,
        within: timedelta | None,
    ) -> Result | None:
        """See `Runtime.wait_for_answer`."""
        self._begin(contract)
        try:
            return await self._wait_for_answer(contract, request, until, within)
        finally:
            self._end()

    async def _wait_for_answer(
        self,
        contract: Contract[Request, Result],
        request: Request,
        until: Until,
        within: timedelta | None,
    ) -> Result | None:
        self._raise_interruption(contract.name)
        if until(self._inbox):
            return None
        handle = self._start(contract, request)
        await self._until(lambda inbox: handle.done() or until(inbox), within)
        reason = self._inbox.interruption()
        if not handle.done():
            handle.cancel()
        answer = None
        with contextlib.suppress(ActivityError):
            answer = await handle
        if reason is not None:
            raise self._interrupted(reason, contract.name)
        return answer

    async def _until(self, until: Until, within: timedelta | None) -> None:
        """Until it holds, a reason to stop has come, or the time has passed."""
        inbox = self._inbox
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: until(inbox) or inbox.interruption() is not None, timeout=within
            )

    async def step(self, contract: Contract[Request, Result], request: Request) -> Result:
        """See `Runtime.step`."""
        while True:
            await self._until_resumed(contract)
            self._raise_interruption(contract.name)
            self._begin(contract)
            try:
                return await self._carry_out(contract, request)
            except _NotPermitted as refusal:
                await self._until_permitted(contract, request, str(refusal))
            finally:
                self._end()

    async def publish(self, phase: Phase, story: Story) -> None:
        """See `Runtime.publish`."""
        self._sequence += 1
        info = workflow.info()
        record = replace(
            story.record,
            workflow_id=info.workflow_id,
            run_id=info.run_id,
            sequence=self._sequence,
            phase=phase.value,
            passed=self._passed,
        )
        self.plan = story.plan
        line = f"{phase}: {record.detail}" + (" (held)" if record.held else "")
        self._inbox.tell(self.now(), line)
        self._told, self._doing = (record, story), story.doing
        self.show()
        self._upsert(phase_updates(record, story.doing))
        if phase in PASSING:
            self._passed = record
        else:
            await self._record(record)

    async def _record(self, record: PhaseRecord) -> None:
        self._passed = None
        await self._carry_out(RECORD_PHASE, record)

    def _upsert(self, updates: list[tuple[SearchAttributeUpdate[Any], object]]) -> None:
        changed = [u for u, value in updates if self._upserted.get(u.key.name) != value]
        self._upserted |= {u.key.name: value for u, value in updates}
        if changed:
            workflow.upsert_search_attributes(changed)

    def _begin(self, contract: Contract[Any, Any]) -> None:
        """Shows what runs now: in the details always, as they cost no history.

        In the search attribute only what disrupts, and what comes after a standstill.
        """
        self._doing = f"{contract.name} ({contract.summary})"
        self.show()
        if contract.effect is Effect.DISRUPT or self._stood_still:
            self._stood_still = False
            self._upsert(step_update(contract.name))

    def _end(self) -> None:
        """Nothing runs: what was told last is shown again."""
        self._doing = self._told[1].doing if self._told else ""
        self.show()

    async def _stand_still(self, contract: Contract[Any, Any], why: str) -> None:
        """A step that people's settings keep from being done; what has passed is recorded now."""
        self._doing, self._stood_still = f"{contract.name} waits: {why}", True
        self.show()
        self._upsert(step_update(f"{contract.name} waits"))
        if self._passed is not None:
            await self._record(self._passed)

    def show(self) -> None:
        """The current details anew: what was told last, what runs now, and a pause."""
        if self._told is None:
            return
        record, story = self._told
        lines = [
            f"**{record.phase}**{' — held' if record.held else ''}, fault `{record.fault}`",
            "",
            record.detail,
            "",
            f"Now: {self._doing}",
        ]
        if pause := self._inbox.pause():
            lines += ["", f"**{pause}**"]
        if story.asks:
            lines += ["", story.asks]
        if story.plan and not record.outcome:
            lines += ["", "Next: " + "; ".join(story.plan)]
        lines += ["", *(f"- {line}" for line in self._inbox.story[-12:])]
        self.details = "\n".join(lines)
        workflow.set_current_details(self.details)

    def _raise_interruption(self, step: str) -> None:
        reason = self._inbox.interruption()
        if reason is not None:
            raise self._interrupted(reason, step)

    def _interrupted(
        self, reason: Interruption, step: str, result: object | None = None
    ) -> Interrupted:
        self._inbox.tell(self.now(), f"{step} stopped: {reason}")
        return Interrupted(reason, step, result)

    async def _until_resumed(self, contract: Contract[Any, Any]) -> None:
        """A pause by signal stops everything but looking."""
        inbox = self._inbox
        if contract.effect is Effect.READ or inbox.paused is None:
            return
        inbox.tell(self.now(), f"paused before {contract.name}")
        await self._stand_still(contract, inbox.pause())
        await workflow.wait_condition(
            lambda: inbox.paused is None or inbox.interruption() is not None
        )

    async def _until_permitted(
        self, contract: Contract[Any, Any], request: Any, detail: str
    ) -> None:
        """A person's setting forbids the step: wait until it is lifted or anything changes."""
        inbox = self._inbox
        inbox.tell(self.now(), f"{contract.name} waits: {detail}")
        news = inbox.news
        await self._stand_still(contract, detail)
        asked = PermitRequest(request.owner, contract.effect)
        await self._wait_for_answer(AWAIT_PERMIT, asked, lambda box: box.news != news, None)

    def _start(
        self, contract: Contract[Request, Result], request: Request
    ) -> workflow.ActivityHandle[Result]:
        row = options_of(contract.name, self.overrides)
        return workflow.start_activity(
            contract.name,
            request,
            result_type=contract.result,
            summary=contract.summary,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            start_to_close_timeout=row.start_to_close,
            heartbeat_timeout=row.heartbeat,
            retry_policy=_retry_policy(row),
        )

    async def _carry_out(self, contract: Contract[Request, Result], request: Request) -> Result:
        """One activity. A long one is stopped by an interruption; its true result counts."""
        inbox = self._inbox
        handle = self._start(contract, request)
        reason = None
        if options_of(contract.name, self.overrides).heartbeat is not None:
            await workflow.wait_condition(lambda: handle.done() or inbox.interruption() is not None)
            reason = inbox.interruption()
            if not handle.done():
                handle.cancel()
        try:
            result = await handle
        except ActivityError as failure:
            if reason is not None:
                raise self._interrupted(reason, contract.name) from failure
            raise _translated(failure) from failure
        if reason is not None:
            raise self._interrupted(reason, contract.name, result)
        return result


class _NotPermitted(Exception):
    """A person's setting forbids the step now."""


def _translated(failure: ActivityError) -> Exception:
    cause = failure.cause
    if isinstance(cause, ApplicationError):
        if cause.type == errors.NOT_PERMITTED:
            return _NotPermitted(cause.message)
        known = exception_of(cause)
        if known is not None:
            return known
    return StepFailed(f"{failure.activity_type}: {cause or failure}")


def _retry_policy(row: Options) -> RetryPolicy:
    return RetryPolicy(
        initial_interval=row.retry_initial,
        maximum_interval=row.retry_maximum,
        non_retryable_error_types=list(row.non_retryable),
    )
