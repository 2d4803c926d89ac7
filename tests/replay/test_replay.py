"""Today's workflows replay every recorded history; and the replay would notice if they didn't."""

import json
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from tests.harness.temporal_server import sandbox
from tests.replay.record import HISTORIES, NAMES
from tests.replay.size import size_of
from workers.payloads import DATA_CONVERTER
from workflows.contracts.messages import Closing, Opening
from workflows.fleet_guard import FleetGuard
from workflows.remediate_node import RemediateNode
from workflows.sweep import Sweep
from workflows.validate_fleet import ValidateFleet

RECORDED = sorted(HISTORIES.glob("*.json"))
MAX_EVENTS, MAX_ACTIONS = 160, 40
"""Of a reboot-and-return, retries and heartbeats counted apart."""


def history_of(path: Path, change: Any = None) -> WorkflowHistory:
    body = json.loads(path.read_text())
    if change is not None:
        change(body["events"])
    return WorkflowHistory.from_json(path.stem, body)


async def failure_of(history: WorkflowHistory, *flows: type) -> Exception | None:
    replayer = Replayer(
        workflows=flows or (RemediateNode, FleetGuard, Sweep, ValidateFleet),
        data_converter=DATA_CONVERTER,
        workflow_runner=sandbox(),
    )
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    return result.replay_failure


def test_every_scene_has_its_history_and_nothing_else_is_there() -> None:
    """A scene without one: python -m tests.replay.record NAME."""
    assert [path.stem for path in RECORDED] == sorted(NAMES)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
async def test_history_replays(path: Path) -> None:
    """If this fails, read README.md beside this file before recording anything anew."""
    assert await failure_of(history_of(path)) is None


def swap_the_first_two_steps(events: list[dict[str, Any]]) -> None:
    """The record of a run that asked for its slot before it read the node."""
    attributes = "activityTaskScheduledEventAttributes"
    steps = [event[attributes]["activityType"] for event in events if attributes in event]
    steps[0]["name"], steps[1]["name"] = steps[1]["name"], steps[0]["name"]


def drop_the_last_timer(events: list[dict[str, Any]]) -> None:
    """The record of a run that did not watch the node after it was given back."""
    last = max(n for n, event in enumerate(events) if event["eventType"].endswith("TIMER_STARTED"))
    events[last]["eventType"] = "EVENT_TYPE_MARKER_RECORDED"
    events[last]["markerRecordedEventAttributes"] = {"markerName": "x"}
    del events[last]["timerStartedEventAttributes"]


@pytest.mark.parametrize("change", [swap_the_first_two_steps, drop_the_last_timer])
async def test_a_history_of_another_order_is_noticed(change: Any) -> None:
    failure = await failure_of(history_of(HISTORIES / "returned.json", change))
    assert isinstance(failure, workflow.NondeterminismError)


@workflow.defn(name="RemediateNode")
class Hasty:
    """A changed runbook: gives the node back without any step."""

    @workflow.run
    async def run(self, opening: Opening) -> Closing:
        return Closing("returned", "gpu-lost", "", (), ())


async def test_a_changed_workflow_is_noticed() -> None:
    failure = await failure_of(history_of(HISTORIES / "returned.json"), Hasty)
    assert isinstance(failure, workflow.NondeterminismError)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_history_names_no_machine(path: Path) -> None:
    """Hosts and paths of the recorder are nobody's business."""
    body = json.loads(path.read_text())
    identities = {i for i in _values(body, "identity") if i}
    assert identities <= {"tests", "history-service", "temporal-history"}
    assert not list(_values(body, "stackTrace"))


def test_a_reboot_and_return_costs_what_was_promised() -> None:
    size = size_of(history_of(HISTORIES / "returned.json"))
    assert size.events <= MAX_EVENTS, size
    assert size.actions <= MAX_ACTIONS, size


def _values(body: Any, key: str) -> Any:
    if isinstance(body, dict):
        if key in body:
            yield body[key]
        for item in body.values():
            yield from _values(item, key)
    elif isinstance(body, list):
        for item in body:
            yield from _values(item, key)
