"""`fleetmend leave`: what is done before fleetmend is taken out of a cluster, and what it leaves.

Owns the order: nothing is armed any more, what was read before that has aged, Temporal's runs and
Schedules of this cluster end, and then each node with a mark of ours is handed over to people. It
gives no quarantined node back to work: only its gate may (P7), or a person's hand. Talks to the
cluster as the caller, who needs `patch nodes`; the chart calls it at an uninstallation.
"""

import asyncio
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from rich.markup import escape
from temporalio.client import Client, WorkflowExecution

from activities.kube import errors, paths
from activities.kube.client import Selector
from activities.kube.mark_writing import ROUNDS, send_mark
from activities.node_tasks.pod import TASK_LABEL
from activities.policy_file import NAMESPACE
from workers.cli.caller import Caller, caller
from workers.cli.cluster import ClusterReader, cluster_errors, open_cluster
from workers.cli.episodes import read_cluster
from workers.cli.outcome import CommandError, ExitCode, console, refused, write_json
from workers.cli.temporal import NotThere, bounded, connected
from workers.tables import plain_table
from workflows.model.detection.finding import FINDINGS_ANNOTATION
from workflows.model.detection.rules import AGENT_CONDITIONS
from workflows.model.identity import sweep_workflow_id, task_queue, validation_workflow_id
from workflows.model.node import BadObject, NodeView, parse_node
from workflows.model.remediation.admission import STARTUP_TAINT, is_newcomer
from workflows.model.remediation.arming import ARMING_CONFIG_MAP
from workflows.model.remediation.marks import (
    exit_patch,
    is_marked,
    marker_or_problem,
    marker_patch,
)
from workflows.model.remediation.permit import FRESH_S

SETTLED_S: Final = FRESH_S + 1.0
"""After the disarming: what watch and activities decide on is at most FRESH_S old."""
MAX_RUNS: Final = 10_000
TO: Final = "operator"
ACCESS_REVIEWS: Final = ("authorization.k8s.io/v1", "selfsubjectaccessreviews")
STAYS: Final = (
    (
        "GPUMachines and their CRD (strikes, baselines; each keeps the phase that it is in): "
        "kubectl delete crd gpumachines.fleetmend.io"
    ),
    (
        f"on GPU nodes: the agents' last word, conditions {', '.join(AGENT_CONDITIONS)} (nobody "
        f"renews them; they go with the Node) and annotation {FINDINGS_ANNOTATION}: "
        f"kubectl annotate nodes --all {FINDINGS_ANNOTATION}-"
    ),
    (
        f"in namespace {NAMESPACE}: ConfigMaps {ARMING_CONFIG_MAP} (its pauses hold again after a "
        "new installation) and fleetmend-guard, Lease fleetmend-watch"
    ),
    "in Temporal: closed histories, search attributes",
)
"""Whatever is done, an uninstallation takes these not away."""


@dataclass(frozen=True)
class Left:
    """One node, and what becomes of it; `is_owned` = people have it by name, or nothing of ours is on it."""

    node: str
    fault: str
    becomes: str
    is_owned: bool = True


@dataclass(frozen=True)
class Ended:
    """What was ended in Temporal; `problem` = why not all."""

    runs: int = 0
    problem: str = ""


def leave_cluster(*, yes: bool, reason: str, as_json: bool) -> ExitCode:
    """Show what stands and would become of it, and with `yes` do it."""
    cluster = read_cluster()
    by = caller(reason or "fleetmend leaves the cluster")
    ended = Ended()
    with open_cluster() as reader:
        if yes:
            _demand_rights(reader)
            _disarm(reader, by)
            # Temporal first: no run is to see its node's mark change.
            ended = _end_runs(cluster, by)
            time.sleep(SETTLED_S)
        nodes = reader.nodes()
        marked = [node for node in nodes if is_marked(node)]
        left = [_leave_to_people(reader, n.name, by) if yes else _foreseen(n) for n in marked]
        newcomers = [node.name for node in nodes if is_newcomer(node)]
        tasks = _tasks(reader)
    facts = {
        "done": yes,
        "nodes": left,
        "temporal": ended,
        "unvalidated": newcomers,
        "tasks": tasks,
    }
    if as_json:
        write_json({**facts, "stays": STAYS})
    else:
        _show(left, ended, newcomers, tasks, done=yes)
    if ended.problem:
        return ExitCode.UNREACHABLE
    return ExitCode.OK if all(one.is_owned for one in left) or not yes else ExitCode.REFUSED


def _demand_rights(reader: ClusterReader) -> None:
    """Before anything is changed: whoever may not finish does not begin.

    Raises:
        CommandError: the caller may not write Nodes.
    """
    asked = {"spec": {"resourceAttributes": {"verb": "patch", "resource": "nodes"}}}
    with cluster_errors(reader.kube):
        answer = reader.kube.create(paths.collection_path(*ACCESS_REVIEWS), asked)
    if not answer.get("status", {}).get("allowed"):
        raise refused(
            "you may not patch Nodes, so none could be handed over; nothing was changed. "
            "Next: run it as an administrator of the cluster"
        )


def _disarm(reader: ClusterReader, by: Caller) -> None:
    note = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z leave by {by.by}: {by.reason}"
    reader.change_arming(lambda now: replace(now, armed=()), note=note)


def _leave_to_people(reader: ClusterReader, name: str, by: Caller) -> Left:
    """As `_hand_over`; a node that fails stops no other, a cluster that is away stops all."""
    try:
        return _hand_over(reader, name, by)
    except CommandError as error:
        if error.code is ExitCode.UNREACHABLE:
            raise
        return Left(name, "", f"left as it is: {error}", is_owned=False)


def _hand_over(reader: ClusterReader, name: str, by: Caller) -> Left:
    """The node is people's: its marker says so, or nothing of ours is on it any more."""
    for _ in range(ROUNDS):
        with cluster_errors(reader.kube):
            try:
                node = parse_node(reader.kube.get(paths.node(name)))
            except errors.NotFound:
                return Left(name, "", "it is gone")
            except BadObject as error:
                raise refused(str(error)) from error
            marker, problem = marker_or_problem(node)
            if problem:
                return Left(name, "", f"left as it is: {problem}", is_owned=False)
            if marker is None:
                return Left(name, "", "it carries no mark any more")
            if marker.handed_over:
                return Left(name, marker.fault, f"it has been handed over ({marker.handed_over})")
            if not node.unschedulable:
                # A person put it into service: only the mark is left of us.
                body, becomes = exit_patch(node, marker), "in service; its mark is taken off"
            else:
                words = f"{TO}:{by.reason} ({by.by})"
                given = replace(marker, handed_over=words, slot=None)
                body, becomes = marker_patch(node, given), "stays cordoned, handed over to people"
            if send_mark(reader.kube, node, body) is not None:
                return Left(name, marker.fault, becomes)
    return Left(name, "", "left as it is: it changes faster than it can be written", is_owned=False)


def _foreseen(node: NodeView) -> Left:
    marker, problem = marker_or_problem(node)
    if problem:
        return Left(node.name, "", f"would be left as it is: {problem}", is_owned=False)
    if marker is None or marker.handed_over:
        return Left(node.name, marker.fault if marker else "", "it has been handed over")
    becomes = "would stay cordoned, handed over" if node.unschedulable else "its mark would go"
    return Left(node.name, marker.fault, becomes)


def _end_runs(cluster: str, by: Caller) -> Ended:
    """Schedules, guard and every open run of this cluster; none is to wake in a later installation."""

    async def work() -> int:
        client = await connected()
        for schedule in (sweep_workflow_id(cluster), validation_workflow_id(cluster)):
            try:
                await bounded(client.get_schedule_handle(schedule).delete(), f"ending {schedule}")
            except NotThere:
                continue
        return await _terminate(client, cluster, f"{by.reason} ({by.by})")

    try:
        return Ended(asyncio.run(work()))
    except (CommandError, NotThere) as error:
        return Ended(problem=str(error))


async def _terminate(client: Client, cluster: str, reason: str) -> int:
    query = f"TaskQueue = '{task_queue(cluster)}' AND ExecutionStatus = 'Running'"

    async def listed() -> list[WorkflowExecution]:
        return [run async for run in client.list_workflows(query, limit=MAX_RUNS)]

    runs = await bounded(listed(), "listing what runs")
    ended = 0
    for run in runs:
        handle = client.get_workflow_handle(run.id, run_id=run.run_id)
        try:
            await bounded(handle.terminate(reason=reason), f"ending {run.id}")
        except NotThere:
            continue  # it has just ended by itself
        ended += 1
    return ended


def _tasks(reader: ClusterReader) -> list[str]:
    """Node tasks that still run: they end by their own deadlines."""
    with cluster_errors(reader.kube):
        try:
            found = reader.kube.list(paths.pods(NAMESPACE), selector=Selector(label=TASK_LABEL))
        except errors.Forbidden:
            return []
    running = [i for i in found.items if i.get("status", {}).get("phase") in ("Pending", "Running")]
    return [f"{i['metadata']['name']} on {i['spec'].get('nodeName', '?')}" for i in running]


def _show(
    left: list[Left], ended: Ended, newcomers: list[str], tasks: list[str], *, done: bool
) -> None:
    out = console()
    if left:
        table = plain_table("NODE", "FAULT", "WHAT BECOMES OF IT")
        for one in left:
            table.add_row(escape(one.node), escape(one.fault), escape(one.becomes))
        out.print(table)
    else:
        out.print("no node carries a mark of fleetmend's")
    if done:
        temporal = (
            "" if ended.problem else f"; {ended.runs} runs ended in Temporal, and the Schedules"
        )
        out.print(f"no pool is armed{temporal}")
    if newcomers:
        out.print(
            f"the taint {STARTUP_TAINT} stays on {escape(', '.join(newcomers))}: nobody takes it off "
            "any more; do so, and take it out of the NodePools' startupTaints",
            soft_wrap=True,
        )
    if tasks:
        out.print(f"node tasks still run: {escape(', '.join(tasks))}", soft_wrap=True)
    out.print("an uninstallation leaves:")
    for line in STAYS:
        out.print(f"- {escape(line)}", soft_wrap=True)
    if not done:
        out.print("nothing was changed; to do it: fleetmend leave --yes")
    elif left:
        out.print(
            "a node that is handed over goes back to work with: kubectl uncordon NODE; kubectl "
            "annotate node NODE fleetmend.io/episode- karpenter.sh/do-not-disrupt- "
            "karpenter.sh/do-not-repair-",
            soft_wrap=True,
        )
    if ended.problem:
        # Last: of a long log a pod keeps the end as its message.
        out.print(
            f"[yellow]Temporal's runs and Schedules stay ({escape(ended.problem)}); "
            "run `fleetmend leave --yes` again[/]",
            soft_wrap=True,
        )
