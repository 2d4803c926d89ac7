"""Episodes as commands see them: open runs in Temporal, their story, and words sent to them.

Owns finding the open run of a node, the queries, and the sending of a person's word with its
request id, episode, expiry and a look whether it was heeded. Every call has a bound of its own.
Decides nothing about episodes.
"""

import asyncio
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.common import SearchAttributeKey, WorkflowIDConflictPolicy
from temporalio.service import RPCError

from workers.cli.caller import Caller
from workers.cli.outcome import refused, wrong_usage
from workers.cli.polling import Polling, read_polling
from workers.cli.temporal import CALL_S, NotThere, bounded, connected
from workers.temporal_connection import read_target
from workflows import search_attributes
from workflows.contracts.kube import DRAIN
from workflows.contracts.messages import Command, ControlMessage, Opening, PauseRequest
from workflows.model.identity import NodeRef, guard_workflow_id, task_queue, workflow_id

QUERY_S: Final = 3.0
"""A query needs a worker; without one there is no answer."""
HEEDED_S: Final = 3.0
LOOK_AGAIN_S: Final = 0.1
WORD_LIVES: Final = timedelta(hours=1)
"""A word that waits longer for a worker is no longer what the person meant."""
CLUSTER_VARIABLE: Final = "FLEETMEND_CLUSTER"
WORKFLOW_TYPE: Final = "RemediateNode"
MAX_LISTED: Final = 5000


@dataclass(frozen=True)
class OpenEpisode:
    """One open run, as its search attributes tell it."""

    workflow_id: str
    run_id: str
    phase: str
    step: str
    fault: str
    held: bool
    started: datetime


@dataclass(frozen=True)
class LastRun:
    """A run that has closed; `closed` None = only the machine's record tells of it."""

    workflow_id: str
    run_id: str
    closed: datetime | None

    @property
    def how_to_read(self) -> str:
        """The command that shows its history."""
        return f"temporal workflow show --workflow-id '{self.workflow_id}' --run-id {self.run_id}"


@dataclass(frozen=True)
class Told:
    """What became of a word.

    `heeded` None = no worker answered to confirm it; `episode` "" = nobody could tell which.
    """

    workflow_id: str
    episode: str
    run_id: str
    request_id: str
    heeded: bool | None
    line: str


class Episodes:
    """Temporal, for one cluster's episodes. Every method raises `CommandError`."""

    def __init__(self, client: Client, cluster: str) -> None:
        self._client = client
        self._cluster = cluster

    @classmethod
    async def open(cls, cluster: str | None = None) -> "Episodes":
        """Connected, or an explanation within a person's patience."""
        return cls(await connected(), cluster or read_cluster())

    async def all_open(self) -> dict[str, OpenEpisode]:
        """Every open run of this cluster, by workflow id."""

        async def collect() -> dict[str, OpenEpisode]:
            query = f"WorkflowType = '{WORKFLOW_TYPE}' AND ExecutionStatus = 'Running'"
            found: dict[str, OpenEpisode] = {}
            async for run in self._client.list_workflows(query, limit=MAX_LISTED):
                if run.id.startswith(f"node/{self._cluster}/"):
                    found[run.id] = _open(run)
            return found

        return await bounded(collect(), "listing the open episodes")

    async def polling(self) -> Polling:
        """Whether a worker is there that carries them on."""
        return await read_polling(self._client, self._cluster)

    async def find(self, node: NodeRef) -> OpenEpisode | None:
        """The open run of a Node; None = there is none."""
        run = await self._newest(node)
        return _open(run) if run and run.status is WorkflowExecutionStatus.RUNNING else None

    async def last(self, node: NodeRef) -> LastRun | None:
        """The newest run of a Node if it has closed; None = it is open, or Temporal knows none."""
        run = await self._newest(node)
        if run is None or run.status is WorkflowExecutionStatus.RUNNING or run.close_time is None:
            return None
        return LastRun(run.id, str(run.run_id), run.close_time)

    async def _newest(self, node: NodeRef) -> WorkflowExecutionDescription | None:
        handle = self._client.get_workflow_handle(workflow_id(self._cluster, node))
        try:
            return await bounded(handle.describe(), f"looking for {handle.id}")
        except NotThere:
            return None

    async def ask(self, found: OpenEpisode | LastRun, query: str) -> Any:
        """A query's answer; None = no worker answered in time."""
        handle = self._handle(found)
        try:
            return await asyncio.wait_for(
                handle.query(query, rpc_timeout=timedelta(seconds=QUERY_S)), QUERY_S
            )
        except (TimeoutError, RPCError, WorkflowQueryFailedError):
            return None

    async def tell(self, found: OpenEpisode, command: Command, message: ControlMessage) -> Told:
        """Send a word to an open run and look whether it took it."""
        handle = self._handle(found)
        await bounded(handle.signal(command.value, message), f"sending {command}")
        return await self._heeded(found, command, message)

    async def open_with(self, opening: Opening, command: Command, message: ControlMessage) -> Told:
        """Start an episode with its first word; one that was opened meanwhile gets the word."""
        await self._demand_guard()
        identity = workflow_id(self._cluster, opening.node)
        handle = await bounded(
            self._client.start_workflow(
                WORKFLOW_TYPE,
                opening,
                id=identity,
                task_queue=task_queue(self._cluster),
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                start_signal=command.value,
                start_signal_args=[message],
                static_summary=f"{opening.node.name}: operator",
            ),
            f"starting {identity}",
        )
        found = await self.find(opening.node)
        if found is None:
            run = handle.result_run_id or ""
            return Told(identity, message.episode, run, message.request_id, None, "")
        return await self._heeded(found, command, message)

    async def _demand_guard(self) -> None:
        """A cluster that nothing works for would keep the word for ever, outside all budgets."""
        guard = guard_workflow_id(self._cluster)
        try:
            await bounded(
                self._client.get_workflow_handle(guard).describe(), f"looking for {guard}"
            )
        except NotThere:
            raise refused(
                f"no worker has worked for cluster {self._cluster!r} on the Temporal at "
                f"{read_target().address}: FLEETMEND_CLUSTER must be the worker's (its log line "
                "'worker polls' names it); if it is, start a worker first"
            ) from None

    async def tell_guard(self, request: PauseRequest) -> None:
        """Tell the guard at once what the ConfigMap says; a guard that is not there reads it."""
        handle = self._client.get_workflow_handle(guard_workflow_id(self._cluster))
        try:
            await bounded(handle.signal("pause_changed", request), "telling the guard")
        except NotThere:
            return

    async def _heeded(self, found: OpenEpisode, command: Command, message: ControlMessage) -> Told:
        told = Told(found.workflow_id, message.episode, found.run_id, message.request_id, None, "")
        deadline = asyncio.get_running_loop().time() + HEEDED_S
        while asyncio.get_running_loop().time() < deadline:
            story = await self.ask(found, "story")
            if story is None:
                return told
            for line in reversed(story):
                verdict = _verdict(str(line), command, message)
                if verdict is not None:
                    return replace(told, heeded=verdict, line=str(line))
            await asyncio.sleep(LOOK_AGAIN_S)
        return told

    async def in_the_way(self, found: OpenEpisode) -> list[str]:
        """Who keeps a running drain waiting, by its heartbeat; nothing = nobody, or none runs."""
        try:
            described = await bounded(self._handle(found).describe(), "reading its step")
        except NotThere:
            return []
        for pending in described.raw_description.pending_activities:
            if pending.activity_type.name != DRAIN.name:
                continue
            told = await self._client.data_converter.decode(pending.heartbeat_details.payloads)
            if told and isinstance(told[0], dict):
                return [str(line) for line in told[0].get("in_the_way") or ()]
        return []

    def _handle(self, found: OpenEpisode | LastRun) -> WorkflowHandle[Any, Any]:
        # With the run's id: a word that comes late never reaches the node's next episode.
        return self._client.get_workflow_handle(found.workflow_id, run_id=found.run_id)


def message_for(by: Caller, *, episode: str, question: str = "") -> ControlMessage:
    """A person's word, ready to be sent."""
    return ControlMessage(
        request_id=uuid.uuid4().hex[:16],
        by=by.by,
        reason=by.reason,
        episode=episode,
        question=question,
        expires=datetime.now(UTC) + WORD_LIVES,
    )


def read_cluster(environment: Mapping[str, str] = os.environ) -> str:
    """The cluster's name, part of every workflow id.

    Raises:
        CommandError: FLEETMEND_CLUSTER is not set.
    """
    name = environment.get(CLUSTER_VARIABLE, "")
    if not name:
        raise wrong_usage(
            f"{CLUSTER_VARIABLE} is not set: it is the cluster's name in workflow ids; set it to "
            "what watch and worker run with (in a lab: lab)"
        )
    return name


def _verdict(line: str, command: Command, message: ControlMessage) -> bool | None:
    said = f"{command} by {message.by}"
    if said not in line:
        return None
    # A story's line begins with the time; another request of the same person may stand above.
    at = line[:19]
    if at < f"{datetime.now(UTC) - timedelta(seconds=CALL_S + HEEDED_S):%Y-%m-%d %H:%M:%S}":
        return None
    return not line[20:].startswith("ignored")


def _open(run: Any) -> OpenEpisode:
    attributes = run.typed_search_attributes

    def word(key: SearchAttributeKey[str]) -> str:
        return str(attributes.get(key, "") or "")

    return OpenEpisode(
        workflow_id=run.id,
        run_id=run.run_id,
        phase=word(search_attributes.PHASE),
        step=word(search_attributes.STEP),
        fault=word(search_attributes.FAULT),
        held=bool(attributes.get(search_attributes.HELD, False)),
        started=run.start_time,
    )
