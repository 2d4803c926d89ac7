"""What people see of an episode between two phase changes: on a real Temporal server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from temporalio.api.sdk.v1 import WorkflowMetadata

from tests.harness.temporal_server import dev_server
from tests.replay.record import stage_of, worker
from tests.replay.scenes import Scene, lost_gpu
from tests.replay.stage import LOOK_AGAIN_S, PATIENCE_S, Stage
from workflows.search_attributes import HELD, STEP


@asynccontextmanager
async def playing(scene: Scene) -> AsyncIterator[Stage]:
    """The scene's run, open and not at its end."""
    stages: dict[str, Stage] = {}
    async with dev_server() as client:
        stage = stage_of(client, scene, stages, "shown")
        async with worker(client, "shown", stages, flows=True, acts=True):
            yield stage
            for gate in stage.blocked.values():
                gate.set()
            await stage.handle.terminate("the test is over")


async def details_of(stage: Stage) -> str:
    """The current details, as the Temporal UI asks for them."""
    found = await stage.handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return str(found.current_details)


async def until(seen: Callable[[], Awaitable[object]], *wanted: object) -> None:
    """Until what is seen is one of these; visibility is written a moment later."""
    last: object = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while (last := await seen()) not in wanted:
                await asyncio.sleep(LOOK_AGAIN_S)
    except TimeoutError:
        raise AssertionError(f"last seen: {last!r}, wanted: {wanted}") from None


async def step_of(stage: Stage) -> str | None:
    return (await stage.handle.describe()).typed_search_attributes.get(STEP)


async def test_a_running_drain_is_shown_as_the_step_that_runs() -> None:
    """Seen: "take a slot" for as long as a budget stopped the drain."""
    async with playing(Scene("shown-drain", "returned", lost_gpu)) as stage:
        stage.block("drain")
        await stage.open()
        await stage.until_called("drain")
        await until(lambda: step_of(stage), "drain")
        assert "Now: drain (evict the node's pods)" in await details_of(stage)


async def test_a_retired_node_is_not_shown_as_held_while_it_drains() -> None:
    """Seen: held, and "reboot; gate" as its plan, until the last pod was gone."""
    held = Scene("shown-retire", "retired", lambda: lost_gpu(blocked=True))
    async with playing(held) as stage:
        await stage.open()
        await stage.until_held()
        calls = stage.calls.count("drain")
        stage.block("drain")
        await stage.say("retire")
        await stage.until(lambda now: now.calls.count("drain") > calls)
        await until(lambda: step_of(stage), "drain")
        found = (await stage.handle.describe()).typed_search_attributes
        assert found.get(HELD) is False
        assert not stage.records[-1].held
        plan = await stage.handle.query("plan")
        assert plan[0] == "drain"
        assert "hand over to people" in plan[1]


async def test_a_pause_of_a_held_node_is_shown_and_its_end_too() -> None:
    held = Scene("shown-pause", "retired", lambda: lost_gpu(blocked=True))
    async with playing(held) as stage:
        await stage.open()
        await stage.until_held()
        await stage.say("pause")
        await stage.until_story("pause by")
        assert "**paused by alice@host: why**" in await details_of(stage)
        plan = await stage.handle.query("plan")
        assert plan[0].startswith("paused by alice@host: why")
        await stage.say("resume")
        await stage.until_story("resume by")
        assert "**paused" not in await details_of(stage)


async def test_a_run_that_is_paused_before_a_step_says_which_one_waits() -> None:
    async with playing(Scene("shown-wait", "returned", lost_gpu)) as stage:
        go = stage.block("note_slot")
        await stage.open()
        await stage.until_called("note_slot")
        await stage.say("pause")
        go.set()
        await until(lambda: step_of(stage), "drain waits")
        assert "Now: drain waits: paused by alice@host: why" in await details_of(stage)
        stage.block("drain")
        await stage.say("resume")
        await until(lambda: step_of(stage), "drain")
