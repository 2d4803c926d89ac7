"""Signals to Temporal: which call, with which id, and for how long it may take.

Owns the connection (made anew when it hangs) and the deadline of each call: the SDK's own
`rpc_timeout` bounds single tries, not the whole. Does not retry: `outbox.py` does. Nothing here is
waited for by a quarantine.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from time import monotonic
from typing import Final, TypeVar

import structlog
from temporalio.client import Client
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.service import RPCError, RPCStatusCode

from activities.kube.backoff import Backoff
from workers.temporal_connection import (
    TemporalTarget,
    TemporalUnreachable,
    connect_or_explain,
)
from workers.watch.metrics import Gauge, Metrics
from workers.watch.outbox import CutOff
from workflows.contracts.messages import NodeFacts, Opening, Report
from workflows.model.identity import NodeRef, task_queue, workflow_id

WORKFLOW: Final = "RemediateNode"
REPORT_SIGNAL: Final = "report"
FACTS_SIGNAL: Final = "node_changed"
DEADLINE_S: Final = 3.0
"""Of one call. A busy server on two cores answers a signal-with-start within 0.3 s."""
TRY_TIMEOUT: Final = timedelta(seconds=2)
ABANDON_AFTER: Final = 3
"""Deadlines missed in a row after which the connection is made anew."""
SAY_AGAIN_S: Final = 30.0
"""How often the log repeats that Temporal is away."""
_BACKOFF: Final = Backoff(first_s=0.25, limit_s=2.0)
_AWAY: Final = frozenset(
    {RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED}
)
_NODE = SearchAttributeKey.for_keyword("FleetmendNode")
_POOL = SearchAttributeKey.for_keyword("FleetmendPool")
_FAULT = SearchAttributeKey.for_keyword("FleetmendFault")

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")


class Connection:
    """The connection to Temporal, for as long as it answers. Lives in one event loop."""

    def __init__(self, target: TemporalTarget, metrics: Metrics) -> None:
        """A connection that is made at the first call."""
        self._target = target
        self._metrics = metrics
        self._client: Client | None = None
        self._making: asyncio.Task[Client] | None = None
        self._missed = 0

    async def client(self) -> Client:
        """A connected client, however long that takes (cancel to give up)."""
        if self._client is not None:
            return self._client
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._make())
        # One attempt for all senders, and it outlives the deadline of each.
        return await asyncio.shield(self._making)

    def note_answer(self) -> None:
        """It answers."""
        self._missed = 0

    def note_missed(self, client: Client) -> None:
        """A call over `client` missed its deadline."""
        self._missed += 1
        if self._missed >= ABANDON_AFTER and self._client is client:
            _log.warning("temporal_connection_abandoned", address=self._target.address)
            self._client = None
            self._missed = 0
            self._metrics.set_gauge(Gauge.TEMPORAL_CONNECTED, 0)

    def close(self) -> None:
        """Stop trying."""
        if self._making is not None:
            self._making.cancel()

    async def _make(self) -> Client:
        failures = 0
        said_at = float("-inf")
        while True:
            try:
                self._client = await connect_or_explain(self._target, timeout_s=DEADLINE_S)
            except TemporalUnreachable as error:
                failures += 1
                if monotonic() - said_at >= SAY_AGAIN_S:
                    said_at = monotonic()
                    _log.warning("temporal_away", problem=str(error), attempt=failures)
                await asyncio.sleep(_BACKOFF.pause_s(failures, random.Random()))
            else:
                self._metrics.set_gauge(Gauge.TEMPORAL_CONNECTED, 1)
                _log.info("temporal_connected", address=self._target.address, attempt=failures + 1)
                return self._client


class TemporalPost:
    """Sends reports and facts as signals of RemediateNode."""

    def __init__(self, connection: Connection, cluster: str) -> None:
        """A post for the workflows of one cluster."""
        self._connection = connection
        self._cluster = cluster

    async def send_report(self, report: Report) -> None:
        """Signal the node's open run, or start one; a repetition of either changes nothing new.

        Raises:
            CutOff: Temporal did not answer in time. The report may have arrived all the same.
            RPCError: it refused.
        """
        opening = Opening(
            node=report.node,
            cluster=self._cluster,
            episode=report.episode,
            pool=report.pool,
            opened_by="watch",
        )
        fault = report.matches[0].fault.value if report.matches else "quarantined or new"

        async def start(client: Client) -> object:
            return await client.start_workflow(
                WORKFLOW,
                opening,
                id=workflow_id(self._cluster, report.node),
                task_queue=task_queue(self._cluster),
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                start_signal=REPORT_SIGNAL,
                start_signal_args=[report],
                static_summary=f"{fault} on {report.node.name}",
                search_attributes=_attributes(report, fault),
                rpc_timeout=TRY_TIMEOUT,
            )

        await self._call(start)

    async def send_facts(self, node: NodeRef, facts: NodeFacts) -> bool:
        """Signal the node's open run; False if there is none.

        Raises:
            CutOff: Temporal did not answer in time.
            RPCError: it refused.
        """

        async def signal(client: Client) -> None:
            handle = client.get_workflow_handle(workflow_id(self._cluster, node))
            await handle.signal(FACTS_SIGNAL, facts, rpc_timeout=TRY_TIMEOUT)

        try:
            await self._call(signal)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return True

    async def _call(self, make: Callable[[Client], Awaitable[_T]]) -> _T:
        # Not `wait_for`: in Python 3.11 it swallows a cancellation that meets the answer, and the
        # process would not end.
        try:
            async with asyncio.timeout(DEADLINE_S):
                client = await self._connection.client()
        except TimeoutError:
            raise CutOff("no connection to Temporal yet") from None
        try:
            async with asyncio.timeout(DEADLINE_S):
                answer = await make(client)
        except TimeoutError:
            self._connection.note_missed(client)
            raise CutOff(f"Temporal did not answer within {DEADLINE_S:g} s") from None
        except RPCError as error:
            if error.status in _AWAY:
                raise CutOff(str(error)) from error
            self._connection.note_answer()
            raise
        self._connection.note_answer()
        return answer


def _attributes(report: Report, fault: str) -> TypedSearchAttributes:
    pairs = [
        SearchAttributePair(_NODE, report.node.name),
        SearchAttributePair(_POOL, report.pool),
    ]
    if report.matches:
        pairs.append(SearchAttributePair(_FAULT, fault))
    return TypedSearchAttributes(pairs)
