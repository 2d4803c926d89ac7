"""What never ends by itself on the way to another machine: people can always go on from there."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.workflows.karpenter_world import NEWCOMER, KarpenterWorld, broken_for_good
from tests.workflows.test_replacing import details, say, with_pool
from tests.workflows.world import GPUS, Run, World, lost_gpu, report_of, started
from workflows.contracts.messages import Command
from workflows.inbox import Inbox
from workflows.memory_runtime import START
from workflows.model.identity import NodeRef
from workflows.model.node_task import Health
from workflows.model.policy import Posture
from workflows.model.remediation.budget import Budget
from workflows.runtime import Story

HOUR = timedelta(hours=1)
ANOTHER = NodeRef("node-3", "uid-3")


def held(run: Run) -> list[Story]:
    return [story for _, story in run.runtime.published if story.record.held]


def ended(run: Run) -> Any:
    """The closing; a run that is still open after days never ends."""

    def never(inbox: Inbox, now: datetime) -> None:
        raise AssertionError(f"still open: {inbox.story[-4:]}")

    run.say(timedelta(days=9), never)
    return run.finish()


def approved(run: Run) -> Any:
    """Retired while the kubelet is dead; the drain is tried twice, then a person approves."""
    say(run, timedelta(seconds=3), Command.RETIRE)
    say(run, HOUR, Command.RESUME)
    say(run, 2 * HOUR, Command.APPROVE)
    return ended(run)


# ---------------------------------------------------------------- pods that never end


def test_a_retired_machine_whose_pods_never_end_is_replaced_once_a_person_approves() -> None:
    world = broken_for_good(blocked=True)
    run = started(world)
    closing = approved(run)
    assert closing.outcome == "replaced"
    assert (world.boots, world.deletions) == (0, 1)
    assert closing.actions == ("drain: 0 pods evicted, 1 left on it as a person said", "replace")
    words = "approve = give it away though these pods have not ended; deny"
    asks = [story.asks for story in held(run)]
    assert [words in text for text in asks] == [True, True]
    assert "not drained: ns/pod" in held(run)[-1].record.detail


def test_it_is_given_away_in_a_slot_of_its_own_and_its_claim_is_looked_for_again() -> None:
    world = broken_for_good(blocked=True)
    run = started(world)
    noted = []
    world.hooks["delete_claim"] = lambda: noted.append(world.marker and world.marker.slot)
    approved(run)
    assert noted[0] is not None, "the question has freed the slot"
    until_deletion = run.steps[: run.steps.index("delete_claim")]
    asked = len(until_deletion) - 1 - until_deletion[::-1].index("drain")
    after = until_deletion[asked:]
    assert [s for s in after if s in ("drop_slot", "note_slot", "resolve_claim")] == [
        "drop_slot",
        "note_slot",
        "resolve_claim",
    ]


@pytest.mark.parametrize(
    "build",
    [
        lambda: lost_gpu(blocked=True),
        lambda: broken_for_good(blocked=True, claim=None),
        lambda: with_pool(broken_for_good(blocked=True), posture=Posture.EXTERNAL),
    ],
    ids=["not-karpenters", "no-claim", "external"],
)
def test_a_retired_machine_that_nobody_replaces_is_handed_over_with_the_pods_on_it(
    build: Callable[[], World],
) -> None:
    world = build()
    run = started(world)
    assert approved(run).outcome == "retired"
    assert "approve = hand it over though these pods have not ended" in held(run)[-1].asks
    assert world.marker is not None
    assert world.marker.handed_over.startswith("operator:alice@host")
    assert world.unschedulable


# ---------------------------------------------------------------- a newcomer that goes, or never comes


def test_a_successor_that_vanished_while_it_was_held_is_followed_by_another() -> None:
    world = broken_for_good(new_health=Health.UNKNOWN)
    run = started(world)

    def vanishes(inbox: Inbox, now: datetime) -> None:
        assert f"Node {NEWCOMER.name} came and is not admitted" in held(run)[-1].record.detail
        world.newcomer, world.new_health = ANOTHER, Health.HEALTHY

    run.say(5 * HOUR, vanishes)
    say(run, 6 * HOUR, Command.RESUME)
    closing = ended(run)
    assert (closing.outcome, closing.detail) == ("replaced", f"replaced by Node {ANOTHER.name}")
    assert any(f"Node {NEWCOMER.name} vanished" in line for line in run.inbox.story)


@pytest.mark.parametrize("is_static", [True, False], ids=["static", "elastic"])
def test_a_newcomer_that_is_never_ready_is_held_without_a_slot_until_it_is(is_static: bool) -> None:
    world = broken_for_good(new_is_ready=False, is_static=is_static)
    run = started(world)
    deadline = timedelta(seconds=world.policy.timing.boot_deadline_s)
    begun: list[datetime] = []
    world.hooks["look_for_successor"] = lambda: begun.append(run.runtime.now())

    def is_stuck(inbox: Inbox, now: datetime) -> None:
        stuck = [
            s for s in held(run) if "the successor is not Ready within 0:10:00" in s.record.detail
        ]
        assert [s.record.at - begun[0] >= deadline for s in stuck] == [True]
        assert stuck[0].record.at - begun[0] < 2 * deadline
        assert f"Node {NEWCOMER.name} is not Ready" in stuck[0].record.detail
        assert "delete its NodeClaim" in stuck[0].record.detail
        assert stuck[0].asks == "resume = look again; retire = close"
        assert stuck[0] is run.runtime.published[-1][1]
        assert Budget.DISRUPTION not in inbox.grants
        assert "release_place" in run.steps

    def gets_ready(inbox: Inbox, now: datetime) -> None:
        world.new_is_ready = True

    run.say(20 * HOUR, is_stuck)
    run.say(22 * HOUR, gets_ready)
    closing = ended(run)
    assert closing.detail == f"replaced by Node {NEWCOMER.name}"
    assert len(run.steps) < 200, "a wait of a day is not a history of looks"


def test_a_newcomer_that_vanishes_before_it_is_ready_leaves_time_for_another() -> None:
    """In an elastic pool: it was coming for longer than Karpenter is given to make one."""
    world = broken_for_good(new_is_ready=False)
    run = started(world)

    looks: list[datetime] = []

    def vanishes(inbox: Inbox, now: datetime) -> None:
        world.comes = None
        world.hooks["look_for_successor"] = look

    def look() -> None:
        looks.append(run.runtime.now())
        world.hooks["look_for_successor"] = look
        if len(looks) == 3:
            world.comes, world.newcomer, world.new_is_ready = timedelta(), ANOTHER, True

    run.say(2 * HOUR, vanishes)
    assert ended(run).detail == f"replaced by Node {ANOTHER.name}"


def test_people_are_reminded_of_a_newcomer_that_is_never_ready_and_may_close() -> None:
    world = broken_for_good(new_is_ready=False)
    run = started(world)
    say(run, 3 * timedelta(days=1), Command.RESUME)
    say(run, 3 * timedelta(days=1) + HOUR, Command.RETIRE)
    closing = ended(run)
    assert closing.outcome == "replaced"
    assert "closed by a person" in closing.detail
    days = [(s.record.at - START).days for s in held(run) if "not Ready" in s.record.detail]
    assert days == [0, 1, 2]


def test_a_newcomer_that_is_ready_in_time_keeps_the_slot() -> None:
    world = broken_for_good(new_is_ready=False)
    run = started(world)
    run.say(timedelta(minutes=10), lambda inbox, now: setattr(world, "new_is_ready", True))
    assert ended(run).outcome == "replaced"
    assert held(run) == []
    assert run.steps[-1] == "release_place"
    assert run.steps.count("release_place") == 1


# ---------------------------------------------------------------- refusals that a person may lift


def near_the_end_of_its_block(**more: Any) -> KarpenterWorld:
    ends = datetime.fromisoformat("2026-01-01T00:30:00+00:00")
    world = with_pool(broken_for_good(**more), posture=Posture.RESERVED, capacity_ends=ends)
    assert isinstance(world, KarpenterWorld)
    return world


def test_a_person_may_give_a_machine_away_near_the_end_of_its_capacity_block() -> None:
    world = near_the_end_of_its_block()
    run = started(world)
    say(run, 3 * HOUR, Command.APPROVE)
    assert ended(run).outcome == "replaced"
    assert world.deletions == 1
    assert "approve = replace;" in held(run)[-1].asks


def test_a_word_for_the_reboot_is_none_for_the_replacement_after_it() -> None:
    world = near_the_end_of_its_block(blocked=True)
    run = started(world)
    run.say(HOUR, lambda inbox, now: setattr(world, "blocked", False))
    say(run, 2 * HOUR, Command.APPROVE)
    run.say(9 * HOUR, lambda inbox, now: setattr(world, "gone", True))
    run.say(9 * HOUR, lambda inbox, now: world.touch())
    assert ended(run).outcome == "vanished"
    assert (world.boots, world.deletions) == (1, 0)
    assert any("the capacity block of pool training ends" in line for line in details(run))


def test_approve_is_not_taken_where_no_claim_is_surely_the_nodes() -> None:
    world = broken_for_good(claim=None)
    run = started(world)
    say(run, 3 * HOUR, Command.APPROVE)
    say(run, 4 * HOUR, Command.RETIRE)
    assert ended(run).outcome == "retired"
    assert "approve: stays held" in "".join(run.inbox.story)


def test_a_word_for_the_replacement_is_none_after_the_node_was_given_back() -> None:
    """Approved, but it had booted and was well; when it relapses, the block still ends."""
    world = near_the_end_of_its_block()
    run = started(world)

    def booted(inbox: Inbox, now: datetime) -> None:
        world.boots, world.gpus = world.boots + 1, GPUS
        world.touch()

    def relapses(inbox: Inbox, now: datetime) -> None:
        assert "probation" in [phase.value for phase, _ in run.runtime.published]
        world.gpus = GPUS[:7]
        world.fail("GPUHealthy", "GpuLost")
        inbox.take_report(report_of(world, "ep-2", now), now)

    run.say(3 * HOUR, booted)
    say(run, 3 * HOUR, Command.APPROVE)
    run.say(3 * HOUR + timedelta(minutes=8), relapses)
    run.say(9 * HOUR, lambda inbox, now: setattr(world, "gone", True))
    run.say(9 * HOUR, lambda inbox, now: world.touch())
    assert ended(run).outcome == "vanished"
    assert world.deletions == 0
