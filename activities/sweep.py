"""The sweep: whatever has our marks has an owner, and what is known of machines stays true.

Owns the activity `sweep_cluster`: one level-triggered look over nodes, machine records and open
workflows, as it must also repair what a restored backup or a lost process left behind. It writes
no Node, and deletes only node tasks that nobody waits for. Async, as most of it asks Temporal; calls to the API server run in threads.
"""

import asyncio
import secrets
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from activities import errors
from activities.guard import CALL_S, Place
from activities.kube import paths
from activities.kube.client import JsonObject
from activities.kube.errors import NotFound
from activities.kube.marks_survey import places_on, readable_marker
from activities.kube.protected_pods import protected_pods
from activities.machines.record import baseline_of
from activities.node_tasks.leftovers import remove_leftovers
from activities.sources import Sources
from workflows.contracts.guard import SweepRequest, Swept, Unbaselined
from workflows.contracts.messages import HeldMarks, Opening
from workflows.model.identity import NodeRef, guard_workflow_id, machine_id, workflow_id
from workflows.model.node import BadObject, NodeView, PodView, parse_instant, parse_node
from workflows.model.policy import Policy
from workflows.model.remediation.admission import is_due, is_newcomer, is_registered, waits_for
from workflows.model.remediation.arming import Arming
from workflows.model.remediation.gate import Verdict, judge_conditions
from workflows.model.remediation.marks import is_marked
from workflows.model.remediation.permit import Effect, may_mark
from workflows.model.remediation.protection import decide_protection

REMEDIATION_WORKFLOW: Final = "RemediateNode"
RECONCILE_SIGNAL: Final = "reconcile"
YOUNG: Final = timedelta(seconds=30)
"""A marker, or a new node, younger than this may have its workflow on the way: watch writes first,
then signals."""
REPORT_GRACE_S = 10.0
"""A report that waits in watch for Temporal comes within its back-off (5 s) and two calls of 2 s."""
ADMISSION: Final = "new and not admitted"
"""What a new node wants an owner for."""
LEFT_FOR_ADMISSION: Final = timedelta(hours=1)
"""Where policy has new nodes without the startup taint examined: so long is a baseline left to
that. One that was busy all the time is then counted like any other."""
LONG_GONE: Final = timedelta(minutes=15)
"""After this a Node that is missing will not come back under the same UID."""
MAX_UNBASELINED: Final = 50
"""Inventories that one sweep asks for."""
GPU_RESOURCE: Final = "nvidia.com/gpu"
HEARTBEAT_EACH: Final = 20

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Seen:
    """One look at the cluster."""

    nodes: tuple[NodeView, ...]
    machines: tuple[JsonObject, ...]
    policy: Policy
    arming: Arming
    protected: tuple[PodView, ...]
    at: datetime


class SweepActivity:
    """Sweeps one cluster."""

    def __init__(self, sources: Sources, temporal: Client, place: Place) -> None:
        self._sources = sources
        self._temporal = temporal
        self._place = place

    async def sweep_cluster(self, request: SweepRequest) -> Swept:
        """Implements `sweep_cluster`.

        Nodes with our marker and no open workflow get one that only diagnoses and gates, and new
        ones that wait for their admission one that admits them (both in `adopted`). Records
        of machines whose Node is long gone lose it, and node-task pods that were left behind are
        deleted (both in `cleaned`). The guard is told what is noted. Healthy armed nodes without
        baseline are named, at most `MAX_UNBASELINED`. Idempotent: workflows are found by id, and
        each step is decided on what is there now. Heartbeats as it goes.
        """
        if request.cluster != self._place.cluster:
            raise errors.bad_request(
                f"sweep of cluster {request.cluster!r}: this worker serves {self._place.cluster!r}"
            )
        seen = await asyncio.to_thread(self._look)
        adopted = await self._adopt(seen)
        await self._tell_guard(seen)
        cleaned = await self._clean(seen)
        cleaned += await asyncio.to_thread(remove_leftovers, self._sources.kube, seen.at)
        return Swept(adopted, cleaned, _unbaselined(seen))

    def _look(self) -> _Seen:
        # Nodes last: a record whose Node appeared in between is then not taken for orphaned.
        machines = tuple(self._sources.machines.all())
        policy = self._sources.policies.read()
        return _Seen(
            nodes=tuple(self._sources.survey.nodes()),
            machines=machines,
            policy=policy,
            protected=protected_pods(self._sources.kube, policy),
            arming=self._sources.authority.arming(),
            at=datetime.now(UTC),
        )

    async def _adopt(self, seen: _Seen) -> tuple[str, ...]:
        alone = []
        for count, node in enumerate(seen.nodes):
            if count % HEARTBEAT_EACH == 0:
                activity.heartbeat(f"{count} of {len(seen.nodes)} nodes")
            wants = _wants_owner(node, seen)
            if wants and not await self._has_run(node):
                alone.append((node, wants))
        if alone:
            await _give_watch_time(len(alone))
        adopted = []
        for node, wants in alone:
            activity.heartbeat(f"{node.name} has no run")
            ref = NodeRef(node.name, node.uid)
            is_alone = not await self._has_run(node)
            if is_alone and await asyncio.to_thread(self._still_wants, ref, wants, seen):
                await self._start(seen, node, wants)
                adopted.append(node.name)
        return tuple(adopted)

    async def _has_run(self, node: NodeView) -> bool:
        return await self._is_open(workflow_id(self._place.cluster, NodeRef(node.name, node.uid)))

    def _still_wants(self, ref: NodeRef, wants: str, seen: _Seen) -> bool:
        """True if it does now: an episode that closed since the list took mark or taint off."""
        try:
            found = parse_node(self._sources.kube.get(paths.node(ref.name)))
        except (NotFound, BadObject):
            return False
        return found.uid == ref.uid and _wants_owner(found, seen) == wants

    async def _is_open(self, name: str) -> bool:
        """True if a workflow of this id runs. Asked by id: list queries lag behind."""
        handle = self._temporal.get_workflow_handle(name)
        try:
            found = await asyncio.wait_for(handle.describe(), CALL_S)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise errors.try_again(f"looking for workflow {name}: {error}") from error
        except TimeoutError as error:
            raise errors.try_again(f"looking for workflow {name}: no answer") from error
        return found.status is WorkflowExecutionStatus.RUNNING

    async def _start(self, seen: _Seen, node: NodeView, wants: str) -> None:
        ref = NodeRef(node.name, node.uid)
        pool = seen.policy.pool_of(node.labels)
        opening = Opening(
            node=ref,
            cluster=self._place.cluster,
            episode=secrets.token_hex(8),
            pool=pool.name if pool else "",
            opened_by="sweep",
            recover=wants != ADMISSION,
        )
        _log.warning("orphan_adopted", node=ref.name, uid=ref.uid, wants=wants)
        start = self._temporal.start_workflow(
            REMEDIATION_WORKFLOW,
            opening,
            id=workflow_id(self._place.cluster, ref),
            task_queue=self._place.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"{ref.name}: {wants}, without a workflow",
        )
        try:
            await asyncio.wait_for(start, CALL_S)
        except (RPCError, TimeoutError) as error:
            raise errors.try_again(f"starting the workflow of Node {ref.name}: {error}") from error

    async def _tell_guard(self, seen: _Seen) -> None:
        """What is noted, so that places of nodes that are unmarked by now become free."""
        noted = tuple(
            (place.budget, place.node.uid)
            for node in seen.nodes
            for place in places_on(node, seen.policy)
        )
        handle = self._temporal.get_workflow_handle(guard_workflow_id(self._place.cluster))
        scopes = tuple(entry.scope for entry in seen.arming.paused)
        marks = HeldMarks(noted, seen.at, None if seen.arming.problem else scopes)
        try:
            signal = handle.signal(RECONCILE_SIGNAL, marks)
            await asyncio.wait_for(signal, CALL_S)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise errors.try_again(f"telling the guard what is noted: {error}") from error
        except TimeoutError as error:
            raise errors.try_again("telling the guard what is noted: no answer") from error

    async def _clean(self, seen: _Seen) -> tuple[str, ...]:
        """Records that name a Node or a run that there is no more, and whose workflow is not open.

        An unmarked node has no other sign of an episode than its record: while that names a run
        that was terminated, the node is never validated.
        """
        alive = {node.uid for node in seen.nodes}
        marked = {node.uid for node in seen.nodes if is_marked(node)}
        machines = self._sources.machines
        cleaned = []
        for body in seen.machines:
            activity.heartbeat("machine records")
            name = str((body.get("status") or {}).get("workflowID") or "")
            if _is_long_gone(body, alive, seen.at):
                clean = machines.forget_node
            elif name and _node_uid(body) in alive - marked:
                clean = machines.forget_run
            else:
                continue
            if name and await self._is_open(name):
                continue
            if await asyncio.to_thread(clean, body):
                cleaned.append(str(body["metadata"]["name"]))
        return tuple(cleaned)


async def _give_watch_time(count: int) -> None:
    """After an outage of Temporal its reports are on their way: they say more than a mark does."""
    until = asyncio.get_running_loop().time() + REPORT_GRACE_S
    while (left_s := until - asyncio.get_running_loop().time()) > 0:
        activity.heartbeat(f"{count} nodes have no run: will watch report them?")
        await asyncio.sleep(min(1.0, left_s))


def _wants_owner(node: NodeView, seen: _Seen) -> str:
    """Why the node must have an open workflow, in words; "" = it needs none, or one is on its way."""
    marker = readable_marker(node)
    if marker is not None:
        return f"marked by episode {marker.episode}" if seen.at - marker.since >= YOUNG else ""
    is_new = is_due(node, waits_for(node, seen.policy, seen.arming) if is_newcomer(node) else "")
    return ADMISSION if is_new and seen.at - node.created >= YOUNG else ""


def _is_long_gone(body: JsonObject, alive: AbstractSet[str], now: datetime) -> bool:
    uid = _node_uid(body)
    if not uid or uid in alive:
        return False
    status = body.get("status") or {}
    made = parse_instant(body["metadata"].get("creationTimestamp"))
    return now - max(made, parse_instant(status.get("lastTransition"))) > LONG_GONE


def _node_uid(body: JsonObject) -> str:
    """Of the Node that the record names; "" = it names none."""
    node = (body.get("spec") or {}).get("node")
    return str(node.get("uid")) if isinstance(node, dict) else ""


def _unbaselined(seen: _Seen) -> tuple[Unbaselined, ...]:
    """Healthy nodes that may be touched and whose machine has no baseline yet."""
    recorded = {
        str(body["metadata"]["name"])
        for body in seen.machines
        if baseline_of(body.get("status") or {}) is not None
    }
    found = []
    for node in seen.nodes:
        machine = machine_id(node.system_uuid, node.provider_id, node.uid)
        pool = seen.policy.pool_of(node.labels)
        if machine in recorded or pool is None or pool.expected_gpus is None:
            continue
        if pool.admission.untainted and seen.at - node.created < LEFT_FOR_ADMISSION:
            continue
        if node.gpus.get(GPU_RESOURCE, 0) == pool.expected_gpus and _is_healthy(node, seen):
            found.append(Unbaselined(NodeRef(node.name, node.uid), machine, pool.name))
    return tuple(found[:MAX_UNBASELINED])


def _is_healthy(node: NodeView, seen: _Seen) -> bool:
    """In service, permitted to be touched, and nothing against it."""
    if is_marked(node) or is_newcomer(node) or not is_registered(node):
        return False
    if node.unschedulable or node.deleting:
        return False
    if may_mark(node, seen.arming, seen.policy).refusal is not None:
        return False
    if decide_protection(Effect.MARK, node, seen.protected, seen.policy).refusal is not None:
        return False
    return judge_conditions(node, seen.policy, seen.at).verdict is Verdict.PASSED
