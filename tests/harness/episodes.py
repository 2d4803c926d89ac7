"""Episodes as tests see them: the run of a node, its result, its story, and what it is told.

Owns the reading of Temporal from synchronous tests: one event loop in one thread, one client.
Does not judge. Counts (events, actions) come from the history itself.
"""

import asyncio
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError

from tests.harness.waiting import wait_until
from workers.lab.address import LabAddress
from workers.payloads import DATA_CONVERTER
from workflows.contracts.messages import Closing, Command, ControlMessage
from workflows.model.identity import (
    NodeRef,
    guard_workflow_id,
    sweep_workflow_id,
    workflow_id,
)

Answer = TypeVar("Answer")
CALL_LIMIT_S = 20.0
LOOK_S = 2.0
"""How long one look waits at the server for a run to end."""
TESTER = "tester@tests"
HICCUPS = frozenset({"dismissed"})
"""Outcome of a run for a new node that was not Ready for a moment: another one than the test's."""


@dataclass(frozen=True)
class Counts:
    """What one run cost: events of its history, and billable actions without retries."""

    events: int
    actions: int


class Episodes:
    """The episodes of one lab."""

    def __init__(self, lab: LabAddress) -> None:
        self._lab = lab
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._client: Client | None = None

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_LIMIT_S)

    def call(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        """The answer of an async call, from a test that is not async."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_LIMIT_S)

    def client(self) -> Client:
        if self._client is None:
            self._client = self.call(
                Client.connect(self._lab.temporal_address, data_converter=DATA_CONVERTER)
            )
        return self._client

    def handle(self, node: NodeRef, run_id: str | None = None) -> WorkflowHandle[Any, Closing]:
        """The newest run of a node, or a certain one."""
        name = workflow_id(self._lab.cluster, node)
        return self.client().get_workflow_handle(name, run_id=run_id, result_type=Closing)

    def guard(self) -> WorkflowHandle[Any, Any]:
        return self.client().get_workflow_handle(guard_workflow_id(self._lab.cluster))

    def is_open(self, node: NodeRef) -> bool:
        """True if the node has a running episode."""
        return self._status(node) is WorkflowExecutionStatus.RUNNING

    def _status(self, node: NodeRef) -> WorkflowExecutionStatus | None:
        try:
            return self.call(self.handle(node).describe()).status
        except RPCError:
            return None

    def phase(self, node: NodeRef) -> str:
        """FleetmendPhase of the newest run; "" = none yet."""
        return self._attribute(node, "FleetmendPhase")

    def is_held(self, node: NodeRef) -> bool:
        """FleetmendHeld of the newest run."""
        return self._attribute(node, "FleetmendHeld") == "True"

    def _attribute(self, node: NodeRef, name: str) -> str:
        try:
            attributes = self.call(self.handle(node).describe()).typed_search_attributes
        except RPCError:
            return ""
        return next((str(pair.value) for pair in attributes if pair.key.name == name), "")

    def until_open(self, node: NodeRef, deadline_s: float = 20) -> None:
        """Returns when an episode runs."""
        wait_until(lambda: self.is_open(node), deadline_s, f"{node.name} has an open episode")

    def until_phase(self, node: NodeRef, *phases: str, deadline_s: float = 60) -> None:
        """Returns when the newest run is in one of these phases."""
        wait_until(
            lambda: self.phase(node) in phases,
            deadline_s,
            f"the episode of {node.name} is {' or '.join(phases)}",
            saw=lambda: self.shown(node),
        )

    def until_held(self, node: NodeRef, deadline_s: float = 90) -> None:
        """Returns when the newest run is held."""
        wait_until(
            lambda: self.is_held(node),
            deadline_s,
            f"the episode of {node.name} is held",
            saw=lambda: self.shown(node),
        )

    def closing(
        self, node: NodeRef, deadline_s: float = 120, *, but: frozenset[str] = HICCUPS
    ) -> Closing:
        """How the newest run ended, once it has; one with an outcome of `but` does not count."""

        def ended() -> Closing | None:
            try:
                closing = self.call(asyncio.wait_for(self.handle(node).result(), LOOK_S))
            except (RPCError, TimeoutError):
                return None
            return None if closing.outcome in but else closing

        found = wait_until(
            ended, deadline_s, f"the episode of {node.name} ends", saw=lambda: self.shown(node)
        )
        assert found is not None
        return found

    def shown(self, node: NodeRef) -> str:
        """Phase and story, for messages."""
        return f"phase {self.phase(node)!r}; " + " | ".join(self.story(node)[-12:])

    def story(self, node: NodeRef) -> list[str]:
        """What the run tells; empty if no worker answers."""
        try:
            return list(self.call(self.handle(node).query("story", result_type=list[str])))
        except (RPCError, TimeoutError):
            return []

    def runs(self, node: NodeRef) -> int:
        """How many runs the node has had, by visibility."""
        name = workflow_id(self._lab.cluster, node)

        async def count() -> int:
            return (await self.client().count_workflows(f"WorkflowId = '{name}'")).count

        return self.call(count())

    def tell(self, node: NodeRef, command: Command, **fields: Any) -> None:
        """Sends a person's word to the newest run."""
        message = ControlMessage(
            request_id=fields.pop("request_id", uuid4().hex), by=TESTER, reason="a test", **fields
        )
        self.call(self.handle(node).signal(command.value, message))

    def sweep_now(self) -> None:
        """Begin a sweep without waiting for its time; one that runs already is enough."""
        name = sweep_workflow_id(self._lab.cluster)
        self.call(self.client().get_schedule_handle(name).trigger())

    def counts(self, node: NodeRef) -> Counts:
        """Events and actions of the newest run's history."""

        async def fetch() -> list[Any]:
            return [event async for event in self.handle(node).fetch_history_events()]

        return count_events(self.call(fetch()))


BILLED = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
        EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
        EventType.EVENT_TYPE_TIMER_STARTED,
        EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES,
        EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED,
    }
)
"""Each is one action on Temporal Cloud's list (docs, "Actions", 2026-11); retries are apart."""


def count_events(events: list[Any]) -> Counts:
    """The cost of a history."""
    return Counts(len(events), sum(1 for event in events if event.event_type in BILLED))
