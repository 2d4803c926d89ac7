"""The dispatcher on a real server: one run a node, which outlives it, and none beside an episode."""

from datetime import timedelta

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus

from tests.harness.temporal_server import dev_server
from tests.replay.entities import IDLE_NODES, record_validation
from workflows.contracts.messages import Opening
from workflows.model.identity import NodeRef, workflow_id
from workflows.validate_fleet import BEGUN_WITHIN, PLACE_WITHIN_S


async def opening_of(client: Client, node: NodeRef) -> tuple[Opening, str]:
    """What the newest run of a node was started with, and by which workflow."""
    handle = client.get_workflow_handle(workflow_id("test", node))
    found = await handle.describe()
    assert found.status is WorkflowExecutionStatus.RUNNING
    first = (await handle.fetch_history()).events[0]
    assert first.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED
    payloads = first.workflow_execution_started_event_attributes.input.payloads
    (opening,) = await client.data_converter.decode(payloads, [Opening])
    return opening, found.parent_id or ""


async def test_a_node_is_validated_in_its_own_run_and_one_with_an_episode_is_left_alone() -> None:
    """The dispatch itself, with what it says of both, is asserted where it is recorded."""
    busy, idle = IDLE_NODES
    async with dev_server() as client:
        await record_validation(client)
        opening, parent = await opening_of(client, idle)
        assert parent == "validate/test"
        assert (opening.node, opening.episode, opening.pool) == (
            idle,
            f"ep-{idle.name}",
            "training",
        )
        order = opening.validation
        assert order is not None
        assert (order.level, order.place_within_s) == (2, PLACE_WITHIN_S)
        described = await client.get_workflow_handle("validate/test").describe()
        assert described.status is WorkflowExecutionStatus.COMPLETED
        late = order.not_after - described.start_time - BEGUN_WITHIN
        assert timedelta() <= late < timedelta(minutes=1)
        opening, parent = await opening_of(client, busy)
        assert (opening.validation, parent) == (None, "")
