"""Histories of the guard, the sweep and the dispatcher, which have no node of their own.

Owns three short plays: a fresh guard that rebuilds, grants, is paused and continues as new; a
sweep that counts the baseline of two nodes, one of which gives no answer; and a dispatch of
validations that meets an open episode.
"""

import asyncio
from datetime import UTC, datetime

from temporalio import activity
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Worker

from tests.harness.temporal_server import IDENTITY, sandbox
from tests.replay.stage import LOOK_AGAIN_S, PATIENCE_S
from tests.workflows.world import GPUS, NODE, World
from workflows.contracts.fleet import FleetOrder, LeftAlone, Picked, Picks
from workflows.contracts.guard import (
    Asked,
    NotedPlace,
    RebuildRequest,
    Rebuilt,
    SweepRequest,
    Swept,
    Unbaselined,
)
from workflows.contracts.kube import MachineMemory, Owner, Reading
from workflows.contracts.machines import BaselineRequest, Recorded
from workflows.contracts.messages import Ask, Opening, PauseRequest, Release
from workflows.contracts.node_tasks import NodeTaskRequest, TaskAnswer
from workflows.fleet_guard import FleetGuard
from workflows.model.identity import NodeRef, workflow_id
from workflows.model.node_task import Result
from workflows.model.remediation.budget import Budget
from workflows.remediate_node import RemediateNode
from workflows.sweep import Sweep
from workflows.validate_fleet import ValidateFleet

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
IDLE_NODES = (NodeRef("node-4", "uid-4"), NodeRef("node-5", "uid-5"))


@activity.defn(name="claim_epoch")
async def claim_epoch(request: RebuildRequest) -> Asked:
    return Asked("guard")


@activity.defn(name="survey_marks")
async def survey_marks(request: RebuildRequest) -> Rebuilt:
    noted = NotedPlace("disruption", "training", NodeRef("node-0", "uid-0"), "ep-0", LONG_AGO)
    return Rebuilt((noted,), ())


@activity.defn(name="sweep_cluster")
async def sweep_cluster(request: SweepRequest) -> Swept:
    healthy, silent = NODE, NodeRef("node-2", "uid-2")
    return Swept(
        adopted=("node/test/node-3/uid-3",),
        cleaned=("machine-9",),
        unbaselined=(
            Unbaselined(healthy, "machine-1", "training"),
            Unbaselined(silent, "machine-2", "training"),
        ),
    )


@activity.defn(name="inventory")
async def inventory(request: NodeTaskRequest) -> TaskAnswer:
    if request.owner.node != NODE:
        return TaskAnswer(Result.UNKNOWN, "the task ended without a verdict")
    return TaskAnswer(Result.DONE, "", "boot-0", GPUS, "H100")


@activity.defn(name="read_node")
async def read_node(owner: Owner) -> Reading:
    return Reading(World().view(LONG_AGO), MachineMemory("machine-1", None, 0, 0, ""), None)


@activity.defn(name="record_baseline")
async def record_baseline(request: BaselineRequest) -> Recorded:
    return Recorded(request.machine_id)


def ask_of(number: int, cap: int = 2) -> Ask:
    """An ask of a workflow that does not exist: its grant fails, and the place is free again."""
    node = NodeRef(f"node-{number}", f"uid-{number}")
    return Ask(Budget.DISRUPTION, "training", cap, node, f"ep-{number}", f"node/{number}", "")


async def record_guard(client: Client) -> WorkflowHistory:
    """The first run of a guard, up to its continue-as-new."""
    async with Worker(
        client,
        task_queue="guard",
        workflows=[FleetGuard],
        activities=[claim_epoch, survey_marks],
        workflow_runner=sandbox(),
        identity=IDENTITY,
    ):
        handle = await client.start_workflow(
            FleetGuard.run,
            id="guard/test",
            task_queue="guard",
            start_signal="ask",
            start_signal_args=[ask_of(1)],
        )
        first = handle.first_execution_run_id
        async with asyncio.timeout(PATIENCE_S):
            while not (await handle.query(FleetGuard.budgets)).epoch:
                await asyncio.sleep(LOOK_AGAIN_S)
        await handle.signal("pause_changed", PauseRequest("training", True, "alice", "why"))
        await handle.signal("ask", ask_of(2))
        await handle.signal("pause_changed", PauseRequest("training", False, "alice", "why"))
        await handle.signal("release", Release(Budget.DISRUPTION, "training", "uid-0", "ep-0"))
        number = 3
        async with asyncio.timeout(PATIENCE_S):
            while (await handle.describe()).run_id == first:
                await handle.signal("ask", ask_of(number))
                await handle.query("budgets")  # one ask at a time keeps the history short
                number += 1
        await handle.terminate()
    return await client.get_workflow_handle("guard/test", run_id=first).fetch_history()


@activity.defn(name="pick_idle")
async def pick_idle(order: FleetOrder) -> Picks:
    picked = tuple(Picked(node, "training", f"ep-{node.name}", 2) for node in IDLE_NODES)
    return Picks(LONG_AGO, picked, (LeftAlone("node-9", "it is marked already"),))


async def record_validation(client: Client) -> WorkflowHistory:
    """One dispatch: a node is validated, another has an open episode already."""
    busy = IDLE_NODES[0]
    opening = Opening(busy, "test", "ep-0", "training", "watch")
    await client.start_workflow(
        RemediateNode.run, opening, id=workflow_id("test", busy), task_queue="nobody"
    )
    async with Worker(
        client,
        task_queue="validate",
        workflows=[ValidateFleet],
        activities=[pick_idle],
        workflow_runner=sandbox(),
        identity=IDENTITY,
    ):
        handle = await client.start_workflow(
            ValidateFleet.run, FleetOrder("test"), id="validate/test", task_queue="validate"
        )
        done = await handle.result()
        assert (done.started, [one.node for one in done.left]) == (
            (IDLE_NODES[1].name,),
            ["node-9", busy.name],
        )
        return await handle.fetch_history()


async def record_sweep(client: Client) -> WorkflowHistory:
    """One pass."""
    async with Worker(
        client,
        task_queue="sweep",
        workflows=[Sweep],
        activities=[sweep_cluster, inventory, read_node, record_baseline],
        workflow_runner=sandbox(),
        identity=IDENTITY,
    ):
        handle = await client.start_workflow(
            Sweep.run, SweepRequest("test"), id="sweep/test", task_queue="sweep"
        )
        await handle.result()
        return await handle.fetch_history()
