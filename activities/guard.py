"""Talking to the guard: asking for a place, and telling that one is free.

Owns the activities `ask_guard` and `release_place`: the only way in which an episode reaches
FleetGuard. They are async because they only talk to Temporal. Each call is bounded here, because
the client's own time-outs bound single tries.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from temporalio import activity
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from activities import errors
from workflows.contracts.guard import Asked
from workflows.contracts.messages import Ask, Release
from workflows.model.identity import guard_workflow_id, task_queue

GUARD_WORKFLOW: Final = "FleetGuard"
ASK_SIGNAL: Final = "ask"
RELEASE_SIGNAL: Final = "release"
CALL_S: Final = 8.0
"""Longest time for one call; a hung server is then left to the step's retries."""


@dataclass(frozen=True)
class Place:
    """Where workflows are started: the cluster's name in their ids, and in their task queue."""

    cluster: str

    @property
    def task_queue(self) -> str:
        """The cluster's own."""
        return task_queue(self.cluster)


class GuardActivities:
    """Signals the guard of one cluster."""

    def __init__(self, temporal: Client, place: Place) -> None:
        self._temporal = temporal
        self._place = place
        self._guard = guard_workflow_id(place.cluster)

    async def ask_guard(self, ask: Ask) -> Asked:
        """Implements `ask_guard`: the ask reached the guard, which was started if it did not run.

        Idempotent: the guard knows an asker by node and budget.
        """
        info = activity.info()
        ask = replace(
            ask,
            workflow_id=ask.workflow_id or info.workflow_id or "",
            run_id=ask.run_id or info.workflow_run_id or "",
        )
        start = self._temporal.start_workflow(
            GUARD_WORKFLOW,
            id=self._guard,
            task_queue=self._place.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal=ASK_SIGNAL,
            start_signal_args=[ask],
            static_summary=f"budgets of cluster {self._place.cluster}",
        )
        try:
            await asyncio.wait_for(start, CALL_S)
        except (RPCError, TimeoutError) as error:
            raise errors.try_again(f"asking {self._guard}: {_words(error)}") from error
        return Asked(self._guard)

    async def release_place(self, release: Release) -> Asked:
        """Implements `release_place`: the guard knows, or none runs (a fresh one counts marks)."""
        handle = self._temporal.get_workflow_handle(self._guard)
        try:
            await asyncio.wait_for(handle.signal(RELEASE_SIGNAL, release), CALL_S)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise errors.try_again(f"telling {self._guard}: {_words(error)}") from error
        except TimeoutError as error:
            raise errors.try_again(f"telling {self._guard}: {_words(error)}") from error
        return Asked(self._guard)


def _words(error: Exception) -> str:
    return str(error) or f"no answer from Temporal within {CALL_S:g} s"
