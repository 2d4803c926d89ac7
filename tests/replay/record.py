"""Records the histories that the replay tests hold today's code against.

    python -m tests.replay.record [NAME ...]

Owns the run of every scene on a dev server of its own and the form of the files (no machine, no
path, one event a line). When to record anew, and when not: README.md beside this file.
"""

import asyncio
import gc
import json
import logging
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Worker

from tests.harness.temporal_server import IDENTITY, dev_server, sandbox
from tests.replay.entities import record_guard, record_sweep, record_validation
from tests.replay.scenes import SCENES, Scene, lost_gpu
from tests.replay.size import HistorySize, size_of
from tests.replay.stage import LOOK_AGAIN_S, PATIENCE_S, Stage, activities_of
from workflows.remediate_node import RemediateNode

HISTORIES = Path(__file__).with_name("histories")
AT_ONCE = 6
ONE_ACTIVATION = Scene("completion-and-retire-in-one-activation", "retired", lost_gpu)
STICKY = timedelta(seconds=1)
NAMES = (*(scene.name for scene in SCENES), ONE_ACTIVATION.name, "guard", "sweep", "validate-fleet")


async def record(names: Sequence[str]) -> dict[str, WorkflowHistory]:
    """The histories of these scenes, each played to its end; an unexpected end fails."""
    async with dev_server({"limit.historyCount.suggestContinueAsNew": "100"}) as client:
        found = await play([scene for scene in SCENES if scene.name in names], client)
        if ONE_ACTIVATION.name in names:
            found[ONE_ACTIVATION.name] = await in_one_activation(client)
        if "guard" in names:
            found["guard"] = await record_guard(client)
        if "sweep" in names:
            found["sweep"] = await record_sweep(client)
        if "validate-fleet" in names:
            found["validate-fleet"] = await record_validation(client)
        return found


async def play(
    scenes: Sequence[Scene], client: Client, *, cached: int = 100
) -> dict[str, WorkflowHistory]:
    """Plays scenes, some at once; `cached` 0 = every workflow task starts from the history."""
    stages: dict[str, Stage] = {}
    found: dict[str, WorkflowHistory] = {}
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(scene: Scene) -> None:
        async with gate:
            stage = stage_of(client, scene, stages, "episodes")
            try:
                await stage.open(told=scene.told)
                await scene.play(stage)
                found[scene.name] = await ended(stage, scene)
            except TimeoutError as error:
                raise SceneStuck(f"{scene.name}: {await stage.story()}") from error

    async with worker(client, "episodes", stages, flows=True, acts=True, cached=cached):
        await asyncio.gather(*(one(scene) for scene in scenes))
    return found


class SceneStuck(Exception):
    """A scene did not come to its end in time; the message holds the run's story."""


def stage_of(client: Client, scene: Scene, stages: dict[str, Stage], queue: str) -> Stage:
    """A fresh stage, known to the activities."""
    stage = Stage(client, scene.name, scene.world(), scene.opening, queue)
    stage.forbidden.update(scene.forbidden)
    stage.broken.update(scene.broken)
    stages[stage.id] = stage
    return stage


async def ended(stage: Stage, scene: Scene) -> WorkflowHistory:
    """The history of a run that ended as its scene says."""
    async with asyncio.timeout(PATIENCE_S):
        closing = await stage.handle.result()
    assert closing.outcome == scene.outcome, f"{scene.name}: {closing}"
    return await stage.handle.fetch_history()


@asynccontextmanager
async def worker(
    client: Client,
    queue: str,
    stages: dict[str, Stage],
    *,
    flows: bool,
    acts: bool,
    cached: int = 100,
) -> AsyncIterator[Worker]:
    """A worker for workflows, activities or both."""
    async with Worker(
        client,
        task_queue=queue,
        workflows=[RemediateNode] if flows else [],
        activities=activities_of(stages) if acts else [],
        workflow_runner=sandbox(),
        identity=IDENTITY,
        max_cached_workflows=cached,
        max_heartbeat_throttle_interval=timedelta(seconds=0.2),
        sticky_queue_schedule_to_start_timeout=STICKY,
    ) as running:
        yield running


async def in_one_activation(client: Client) -> WorkflowHistory:
    """The drain's completion and a retire reach the run together: its worker was away."""
    stages: dict[str, Stage] = {}
    stage = stage_of(client, ONE_ACTIVATION, stages, "one-activation")
    go = stage.block("drain")
    async with worker(client, "one-activation", stages, flows=False, acts=True):
        async with worker(client, "one-activation", stages, flows=True, acts=False):
            await stage.open()
            await stage.until_called("drain")
        await stage.say("retire")
        go.set()
        completed = EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
        await until_last(stage, completed)
        async with worker(client, "one-activation", stages, flows=True, acts=False):
            return await ended(stage, ONE_ACTIVATION)


async def until_last(stage: Stage, kind: "EventType.ValueType") -> None:
    """Waits until an event of this kind is newer than every workflow task that was started."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            kinds = [event.event_type for event in (await stage.handle.fetch_history()).events]
            started = EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED
            if kind in kinds and kinds[::-1].index(kind) < kinds[::-1].index(started):
                return
            await asyncio.sleep(LOOK_AGAIN_S)


def clean(value: Any) -> Any:
    """Without what names a machine or a path: replay needs neither."""
    if isinstance(value, dict):
        return {k: clean(v) for k, v in value.items() if k not in ("stackTrace", "workerVersion")}
    return [clean(item) for item in value] if isinstance(value, list) else value


def write(name: str, history: WorkflowHistory) -> None:
    """One event a line, so that a change of a history can be read."""
    events = clean(json.loads(history.to_json()))["events"]
    lines = ",\n".join(json.dumps(event, sort_keys=True) for event in events)
    (HISTORIES / f"{name}.json").write_text(f'{{"events": [\n{lines}\n]}}\n')


def table(sizes: dict[str, HistorySize]) -> str:
    """Events and actions by scene."""
    rows = [f"{'scene':42} {'events':>6} {'actions':>7} {'retries':>7}"]
    rows += [f"{n:42} {s.events:6} {s.actions:7} {s.retries:7}" for n, s in sizes.items()]
    return "\n".join(rows)


def main() -> int:
    """Records, writes and shows sizes."""
    names = sys.argv[1:] or list(NAMES)
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        sys.stderr.write(f"no scene is called {unknown[0]}; there are: {', '.join(NAMES)}\n")
        return 2
    logging.getLogger("temporalio.activity").setLevel(logging.CRITICAL)  # scenes fail on purpose
    histories = asyncio.run(record(names))
    HISTORIES.mkdir(exist_ok=True)
    for name, history in histories.items():
        write(name, history)
    sys.stdout.write(table({n: size_of(h) for n, h in sorted(histories.items())}) + "\n")
    gc.collect()  # the SDK's runtime aborts now and then if it is torn down at interpreter exit
    return 0


if __name__ == "__main__":
    sys.exit(main())
