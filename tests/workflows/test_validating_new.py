"""The examination of a new node in service: an order like a validation's, of a machine never proven."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.workflows.newcomer_world import untainted
from tests.workflows.test_validating import (
    BAD,
    NEW,
    TIMED_OUT,
    WAY,
    asked,
    last_validation,
    ordered,
)
from tests.workflows.world import GPUS, diagnosed, word
from workflows.contracts.messages import Command
from workflows.inbox import Inbox
from workflows.model.node_task import Health


def test_a_new_node_without_the_taint_is_counted_against_the_pool_and_gets_its_baseline() -> None:
    world = untainted()
    run = ordered(world, NEW)
    closing = run.finish()
    assert closing.outcome == "returned"
    assert world.recorded == 1
    steps = ("quarantine", "inventory", "diagnose", "record_baseline", "give_back")
    assert [step for step in run.steps if step in steps] == list(steps)
    assert (world.marker, world.unschedulable) == (None, False)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        pytest.param({"gpus": GPUS[:7]}, "gpu-lost", id="it lacks a GPU"),
        pytest.param(
            {"diagnoses": [diagnosed(Health.FAULTY, BAD)]}, "diagnostic-failed", id="it fails"
        ),
    ],
)
def test_a_new_node_without_the_taint_that_fails_is_replaced_and_never_rebooted(
    changes: dict[str, Any], fault: str
) -> None:
    world = untainted(**changes)
    closing = ordered(world, NEW).finish()
    assert (closing.outcome, closing.fault) == ("replaced", fault)
    assert (world.boots, world.deletions, world.recorded) == (0, 1, 0)


def test_a_new_node_of_which_it_cannot_be_told_is_held() -> None:
    world = untainted(diagnoses=[TIMED_OUT])
    run = ordered(world, NEW)
    run.say(timedelta(hours=5), lambda inbox, now: inbox.take_command(Command.RETIRE, word(), now))
    run.finish()
    held = [s.record for _, s in run.runtime.published if s.record.held]
    assert held[0].fault == "diagnostic-unknown"
    assert run.runtime.steps[-1][0] == "record_phase"


def test_a_new_node_that_was_mended_is_examined_again_and_only_then_given_back() -> None:
    world = untainted(gpus=GPUS[:7], lost_new=9)
    run = ordered(world, NEW)

    def mend(inbox: Inbox, now: datetime) -> None:
        assert world.marker is not None
        world.gpus = GPUS
        world.touch()
        inbox.take_command(Command.RESUME, word(), now)

    run.say(timedelta(hours=5), mend)
    assert run.finish().outcome == "returned"
    assert (world.marker, world.deletions, world.recorded) == (None, 0, 1)
    assert run.steps.index("record_baseline") < run.steps.index("give_back")


@pytest.mark.parametrize("step", ["inventory", "diagnose"])
def test_a_pod_that_waits_has_a_new_node_without_the_taint_at_once(step: str) -> None:
    world = untainted()
    run = ordered(world, NEW)
    world.hooks[step] = lambda: setattr(world, "gives_way", WAY)
    closing = run.finish()
    assert (closing.outcome, run.steps.count(step)) == ("returned", 1)
    assert "gave way to pod ns/late" in closing.detail
    assert (world.marker, world.recorded, last_validation(run)) == (None, 0, None)


def test_a_new_node_without_the_taint_needs_to_be_idle_and_not_drained() -> None:
    world = untainted()
    run = ordered(world, NEW)
    world.pods = 1  # that requests no GPU
    assert run.finish().outcome == "returned"
    for request in (*asked(run, "inventory"), *asked(run, "diagnose")):
        assert (request.needs_idle, request.gives_way, request.needs_drained) == (True, True, False)
    assert (run.steps.count("diagnose"), world.recorded) == (1, 1)


def test_a_new_node_of_which_it_could_not_be_told_is_examined_again_when_a_person_resumes() -> None:
    world = untainted(diagnoses=[TIMED_OUT])
    run = ordered(world, NEW)

    def mend(inbox: Inbox, now: datetime) -> None:
        assert run.runtime.published[-1][1].record.held
        world.diagnoses.clear()
        inbox.take_command(Command.RESUME, word(), now)

    run.say(timedelta(hours=5), mend)
    assert run.finish().outcome == "returned"
    assert (world.marker, world.unschedulable, world.recorded) == (None, False, 1)
    assert last_validation(run).result == "passed"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"diagnoses": [TIMED_OUT]}, id="unknown"),
        pytest.param({"gpus": GPUS[:7], "lost_new": 9}, id="refused"),
    ],
)
def test_a_new_node_with_a_doubt_against_it_makes_way_for_no_pod(changes: dict[str, Any]) -> None:
    world = untainted(**changes)
    run = ordered(world, NEW)

    def resume(inbox: Inbox, now: datetime) -> None:
        world.work, world.gives_way = "ns/late", WAY
        inbox.take_command(Command.RESUME, word(), now)

    def retire(inbox: Inbox, now: datetime) -> None:
        assert world.unschedulable
        assert run.runtime.published[-1][1].record.held
        inbox.take_command(Command.RETIRE, word("enough"), now)

    run.say(timedelta(hours=5), resume)
    run.say(timedelta(hours=10), retire)
    run.finish()
    assert "give_back" not in run.steps
    assert world.recorded == 0
