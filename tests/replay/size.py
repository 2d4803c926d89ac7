"""What a history costs: events, and billable actions with retries counted apart.

Owns the counting rules of Temporal Cloud's pricing page (actions, 2026): a start, each activity,
each timer, each signal received or sent, each upsert and each continue-as-new count one; a start
by signal counts both. Retries and heartbeats are billed too, but depend on how long things take.
"""

from collections import Counter
from dataclasses import dataclass

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory

_ACTIONS = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED,
        EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
        EventType.EVENT_TYPE_TIMER_STARTED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
        EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED,
        EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
    }
)


@dataclass(frozen=True)
class HistorySize:
    """One history; `parts` are its actions by kind."""

    events: int
    actions: int
    retries: int
    parts: dict[str, int]


def size_of(history: WorkflowHistory) -> HistorySize:
    """How large a history is."""
    kinds = Counter(event.event_type for event in history.events if event.event_type in _ACTIONS)
    retries = sum(
        max(0, event.activity_task_started_event_attributes.attempt - 1)
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED
    )
    names = {
        EventType.Name(kind).removeprefix("EVENT_TYPE_").lower(): n for kind, n in kinds.items()
    }
    return HistorySize(
        len(history.events), sum(kinds.values()), retries, dict(sorted(names.items()))
    )
