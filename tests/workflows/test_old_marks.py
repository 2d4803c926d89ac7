"""Marks and signals that are not of the present: Temporal was away, or a backup was restored."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from tests.workflows.world import NODE, Run, World, lost_gpu, report_of, started, word
from workflows.contracts.messages import Command, Opening
from workflows.contracts.node_tasks import TaskAnswer
from workflows.inbox import Inbox
from workflows.memory_runtime import START
from workflows.model.node_task import Result


def marked(boot_id: str, age_s: float) -> World:
    """A node in boot-0 that lost a GPU, marked so long ago in that boot."""
    world = lost_gpu()
    assert world.marker is not None
    since = START - timedelta(seconds=age_s)
    world.marker = replace(world.marker, since=since, boot_id=boot_id)
    return world


def told_at_once(world: World) -> Run:
    """A run that watch reported the mark to when it had just written it."""
    run = Run(world)
    assert world.marker is not None
    run.inbox.take_report(report_of(world, "ep-1", world.marker.since), START)
    return run


def test_an_old_mark_of_the_present_boot_is_repaired_as_ever() -> None:
    world = marked("boot-0", 3600)
    assert started(world).finish().outcome == "returned"
    assert world.boots == 1


def test_an_old_mark_of_an_earlier_boot_is_only_gated() -> None:
    world = marked("boot-before", 3600)
    world.bad.clear()
    run = started(world)
    assert run.finish().outcome == "returned"
    assert world.boots == 0
    assert not {"note_slot", "drain", "reboot"} & set(run.steps)


def test_an_old_mark_on_a_machine_that_cannot_be_asked_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = marked("boot-0", 3600)
    silent = TaskAnswer(Result.UNKNOWN, "did not start in time")
    monkeypatch.setattr(world, "inventory", lambda request, now: silent)
    run = started(world)
    later = timedelta(hours=2)
    run.say(later, lambda inbox, now: inbox.take_command(Command.RETIRE, word(), now))
    assert run.finish().outcome == "retired"
    assert any(story.record.held for _, story in run.runtime.published)
    assert "reboot" not in run.steps


def test_a_young_mark_that_watch_told_at_once_is_not_asked_about() -> None:
    world = marked("boot-0", 5)
    run = told_at_once(world)
    assert run.finish().outcome == "returned"
    assert run.steps.index("inventory") > run.steps.index("reboot")


def test_a_young_mark_that_watch_tells_late_is_asked_about() -> None:
    """A backup of etcd was restored seconds after the mark: watch finds what it had written itself."""
    world = marked("boot-before", 5)
    world.bad.clear()
    run = started(world)
    assert run.finish().outcome == "returned", run.inbox.story
    assert world.boots == 0
    assert not {"note_slot", "drain", "reboot"} & set(run.steps)


def test_a_signal_from_a_time_that_a_restored_etcd_took_back_overrules_nothing() -> None:
    world = marked("boot-0", 5)
    run = told_at_once(world)

    def tell(inbox: Inbox, now: datetime) -> None:
        lost = replace(world.facts(), resource_version="999999", marker_episode="", at=now)
        inbox.take_facts(lost)

    run.say(timedelta(seconds=2), tell)
    assert run.finish().outcome == "returned"
    assert world.boots == 1


@pytest.mark.parametrize(
    ("boot_id", "ending", "boots"),
    [("boot-0", "returned", 1), ("boot-before", "retired", 0)],
    ids=["of-this-boot", "of-an-earlier-boot"],
)
def test_a_sweep_that_was_quicker_than_watch_repairs_once_watch_speaks(
    boot_id: str, ending: str, boots: int
) -> None:
    world = marked(boot_id, 3600)
    run = Run(world, Opening(NODE, "test", "ep-9", "training", "sweep", recover=True))
    run.say(
        timedelta(minutes=20),
        lambda inbox, now: inbox.take_report(report_of(world, "ep-1", now), now),
    )
    run.say(timedelta(days=1), lambda inbox, now: inbox.take_command(Command.RETIRE, word(), now))
    assert run.finish().outcome == ending, run.inbox.story
    assert world.boots == boots
