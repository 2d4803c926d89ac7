"""What really happened in an episode, read from its Temporal history.

Owns turning a history into phases with times and counted actions. The history is the record that
nobody edits: this is neither the workflow's own summary nor a log. Used by the demo's verdict and
summary, and by the benchmarks.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus

from workflows.contracts.machines import RECORD_PHASE, PhaseRecord
from workflows.contracts.messages import Closing

HELD: Final = "held"
OPEN: Final = "open"
MAX_EPISODES: Final = 10_000

_TEMPORAL_ACTIONS: Final = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED,
        EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
        EventType.EVENT_TYPE_TIMER_STARTED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
        EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED,
        EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES,
        EventType.EVENT_TYPE_MARKER_RECORDED,
    }
)
"""What Temporal Cloud bills as an action, as far as an episode does it (docs.temporal.io/cloud/
pricing, 2026): a start, an activity, a timer, a signal, an upsert, a marker. Retries and
heartbeats are billed too and counted apart, since histories don't show them all."""


@dataclass(frozen=True)
class PhaseSeen:
    """One phase change, or a change of `held` within it."""

    phase: str
    at: datetime
    held: bool
    detail: str


@dataclass(frozen=True)
class Chronicle:
    """One run. `outcome` is `open` while it runs; `retries` are attempts beyond the first."""

    workflow_id: str
    run_id: str
    outcome: str
    is_held: bool
    detail: str
    started: datetime
    phases: tuple[PhaseSeen, ...]
    steps: Mapping[str, int]
    events: int
    actions: int
    retries: int
    step_seconds: Mapping[str, float]
    closing: Closing | None = field(default=None)

    def first(self, phase: str) -> datetime | None:
        """When a phase was first reached; None = never."""
        return next((seen.at for seen in self.phases if seen.phase == phase), None)

    def heartbeats(self, steps: Collection[str], pace_s: float) -> int:
        """At most how many heartbeats of these steps reached the server, one each `pace_s`.

        Histories don't show them; the pace is what the worker's SDK lets through.
        """
        return sum(int(self.step_seconds.get(step, 0.0) // pace_s) for step in steps)


async def read_chronicles(client: Client, cluster: str) -> dict[str, Chronicle]:
    """The newest episode of every node of a cluster, by the node's name."""
    query = "WorkflowType = 'RemediateNode'"
    newest: dict[str, WorkflowExecution] = {}
    async for run in client.list_workflows(query, limit=MAX_EPISODES):
        parts = run.id.split("/", 3)
        if len(parts) != 4 or parts[:2] != ["node", cluster]:
            continue
        node = parts[2]
        if node not in newest or newest[node].start_time < run.start_time:
            newest[node] = run
    return {node: await read_chronicle(client, run) for node, run in newest.items()}


async def read_chronicle(client: Client, run: WorkflowExecution) -> Chronicle:
    """One run's history as values."""
    handle = client.get_workflow_handle(run.id, run_id=run.run_id)
    events = [event async for event in handle.fetch_history_events()]
    phases = await _phases(client, events)
    closing = await _closing(client, events)
    is_running = run.status is WorkflowExecutionStatus.RUNNING
    outcome = OPEN if is_running else closing.outcome if closing else _status_of(run)
    return Chronicle(
        workflow_id=run.id,
        run_id=run.run_id,
        outcome=outcome,
        is_held=is_running and bool(phases) and phases[-1].held,
        detail=closing.detail if closing else phases[-1].detail if phases else "",
        started=run.start_time,
        phases=phases,
        steps=_steps(events),
        events=len(events),
        actions=sum(1 for event in events if event.event_type in _TEMPORAL_ACTIONS),
        retries=_retries(events),
        step_seconds=_step_seconds(events),
        closing=closing,
    )


def _status_of(run: WorkflowExecution) -> str:
    return run.status.name.lower() if run.status else "unknown"


async def _phases(client: Client, events: list[HistoryEvent]) -> tuple[PhaseSeen, ...]:
    seen: list[PhaseSeen] = []
    for event in events:
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name != RECORD_PHASE.name:
            continue
        (record,) = await client.data_converter.decode(scheduled.input.payloads, [PhaseRecord])
        assert isinstance(record, PhaseRecord)
        seen += [PhaseSeen(one.phase, one.at, one.held, one.detail) for one in record.in_order]
    return tuple(seen)


async def _closing(client: Client, events: list[HistoryEvent]) -> Closing | None:
    for event in reversed(events):
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
            payloads = event.workflow_execution_completed_event_attributes.result.payloads
            (closing,) = await client.data_converter.decode(payloads, [Closing])
            assert isinstance(closing, Closing)
            return closing
    return None


def _steps(events: list[HistoryEvent]) -> dict[str, int]:
    names = (
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    )
    return dict(Counter(names))


def _retries(events: list[HistoryEvent]) -> int:
    return sum(
        max(0, event.activity_task_started_event_attributes.attempt - 1)
        for event in events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED
    )


def _step_seconds(events: list[HistoryEvent]) -> dict[str, float]:
    """How long each kind of step ran, all of its runs together."""
    named: dict[int, str] = {}
    begun: dict[int, datetime] = {}
    spent: dict[str, float] = {}
    for event in events:
        scheduled = event.activity_task_scheduled_event_attributes
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            named[event.event_id] = scheduled.activity_type.name
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            started = event.activity_task_started_event_attributes
            begun[started.scheduled_event_id] = _instant(event)
        else:
            ended = _ended_step(event)
            if ended in begun:
                seconds = (_instant(event) - begun[ended]).total_seconds()
                spent[named[ended]] = spent.get(named[ended], 0.0) + seconds
    return spent


def _ended_step(event: HistoryEvent) -> int:
    """The id of the scheduling event of the step that this event ends; 0 = none."""
    return (
        event.activity_task_completed_event_attributes.scheduled_event_id
        or event.activity_task_failed_event_attributes.scheduled_event_id
        or event.activity_task_timed_out_event_attributes.scheduled_event_id
        or event.activity_task_canceled_event_attributes.scheduled_event_id
    )


def _instant(event: HistoryEvent) -> datetime:
    """When the server recorded an event."""
    return event.event_time.ToDatetime(tzinfo=UTC)
