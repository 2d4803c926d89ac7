"""The inbox: what is recorded, what is refused, and what stops a running step."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.workflows.world import NODE, Run, World, report_of, word
from workflows.contracts.messages import Command, Grant, NodeFacts
from workflows.inbox import MAX_ANSWERS, MAX_SEEN, MAX_STORY, Expectation, Inbox, Interruption
from workflows.memory_runtime import START
from workflows.model.detection.fault import Fault
from workflows.model.remediation.budget import Budget
from workflows.model.remediation.marks import MAX_MARKER_BYTES, Marker, Quarantine, parse_marker

FACTS = NodeFacts(
    uid=NODE.uid,
    resource_version="10",
    ready=True,
    boot_id="boot-0",
    unschedulable=True,
    marker_episode="ep-1",
    gpus={},
    conditions={},
    paused=False,
    at=START,
)


def inbox() -> Inbox:
    return Inbox(episodes=["ep-1"], node_uid=NODE.uid)


def grant(number: int, episode: str = "ep-1") -> Grant:
    return Grant(Budget.DISRUPTION, "epoch", episode, START, number)


def test_a_grant_that_was_on_its_way_when_the_place_was_given_up_is_refused() -> None:
    """P5: the guard has freed that place, so it may be another node's by now."""
    box = inbox()
    first = box.want(Budget.DISRUPTION)
    box.give_up(Budget.DISRUPTION)
    box.take_grant(grant(first), START)
    assert not box.grants
    second = box.want(Budget.DISRUPTION)
    box.take_grant(grant(first), START)
    assert not box.grants
    box.take_grant(grant(second), START)
    assert Budget.DISRUPTION in box.grants


def test_repeated_asks_of_one_want_have_one_number() -> None:
    box = inbox()
    assert box.want(Budget.DISRUPTION) == box.want(Budget.DISRUPTION)
    assert box.want(Budget.QUARANTINE) != box.want(Budget.DISRUPTION)


def test_a_grant_for_a_foreign_episode_is_refused() -> None:
    box = inbox()
    box.take_grant(grant(box.want(Budget.DISRUPTION), "ep-0"), START)
    assert not box.grants


def test_a_late_grant_gives_no_slot_after_an_overruling() -> None:
    """Overruled while it waited for a slot; the grant arrives after the release."""
    world = World()
    world.fail("GPUHealthy", "GpuLost")
    world.marker = Marker("ep-1", NODE.uid, START, "gpu-lost", "gpu-lost", Quarantine.REFLEX)
    world.unschedulable = True
    run = Run(world)
    run.inbox.take_report(report_of(world, "ep-1"), START)
    answer, asked = world.answer, []

    def silent_guard(name, request, now):  # type: ignore[no-untyped-def]
        if name == "ask_guard":
            asked.append(request.number)
            if len(asked) == 1:
                return answer("release_place", request, now)
        return answer(name, request, now)

    def overrule() -> None:
        world.marker, world.unschedulable = None, False
        world.touch()

    def late() -> None:
        run.inbox.take_grant(grant(asked[0]), run.runtime.now())
        run.inbox.take_command(Command.RESUME, word(), run.runtime.now())

    world.answer = silent_guard  # type: ignore[method-assign]
    run.runtime.at(timedelta(seconds=30), overrule)
    run.runtime.at(timedelta(minutes=10), late)
    assert run.finish().outcome == "returned"
    assert len(asked) > 1, "it went on with a place that the guard had freed"


def test_an_endless_reason_leaves_the_marker_readable() -> None:
    world = World()
    world.fail("GPUHealthy", "GpuLost")
    run = Run(world)
    run.inbox.take_report(report_of(world, "ep-1"), START)
    said = replace(word(), by="mallory\n" * 1000, reason="because\u202e <b>" * 10_000)
    run.inbox.take_command(Command.RETIRE, said, START)
    assert run.finish().outcome == "retired"
    assert world.marker is not None
    text = world.marker.encode()
    assert len(text) < MAX_MARKER_BYTES
    assert parse_marker(text).handed_over.isprintable()


@pytest.mark.parametrize(
    ("facts", "interruption"),
    [
        pytest.param({}, None, id="as-expected"),
        pytest.param({"marker_episode": ""}, Interruption.OVERRULED, id="marker-gone"),
        pytest.param({"marker_episode": "ep-2"}, Interruption.OVERRULED, id="another-marker"),
        pytest.param({"unschedulable": False}, Interruption.OVERRULED, id="uncordoned"),
        pytest.param({"gone": True}, Interruption.GONE, id="deleted"),
        pytest.param(
            {"marker_episode": "", "resource_version": "4"}, None, id="older-than-our-patch"
        ),
        pytest.param(
            {"marker_episode": "", "resource_version": "5"}, None, id="as-old-as-our-patch"
        ),
    ],
)
def test_what_is_seen_on_the_node_stops_a_step(
    facts: dict[str, object], interruption: Interruption | None
) -> None:
    box = inbox()
    box.expectation = Expectation("ep-1", "5")
    box.take_facts(replace(FACTS, **facts))  # type: ignore[arg-type]  # a table of fields
    assert box.interruption() is interruption


def test_facts_of_a_recreated_node_change_nothing() -> None:
    box = inbox()
    box.take_facts(replace(FACTS, uid="uid-2", gone=True))
    assert box.facts is None


def test_older_facts_do_not_replace_newer_ones() -> None:
    box = inbox()
    box.take_facts(FACTS)
    box.take_facts(replace(FACTS, resource_version="9", boot_id="old"))
    assert box.facts is not None
    assert box.facts.boot_id == "boot-0"


def test_nothing_interrupts_a_close() -> None:
    box = inbox()
    box.take_command(Command.RETIRE, word(), START)
    assert box.interruption() is Interruption.RETIRE
    box.heeding = False
    assert box.interruption() is None
    assert box.has_unheard()


def test_a_repeated_report_is_heard_once() -> None:
    world = World()
    world.fail("GPUHealthy", "GpuLost")
    box = inbox()
    for _ in range(3):
        box.take_report(report_of(world, "ep-1"), START)
    assert len(box.fresh) == 1
    assert box.interruption() is Interruption.WORSE
    box.fault = Fault.GPU_LOST
    assert box.interruption() is None


def test_a_message_is_taken_once_by_its_request_id() -> None:
    box = inbox()
    box.take_command(Command.PAUSE, word("same"), START)
    box.take_command(Command.RESUME, word("other"), START)
    box.take_command(Command.PAUSE, word("same"), START)
    assert box.paused is None


@pytest.mark.parametrize("command", [Command.APPROVE, Command.DENY])
def test_an_answer_needs_an_open_question(command: Command) -> None:
    box = inbox()
    box.take_command(command, word("a"), START)
    assert box.take_answer() is None
    box.question = "ep-1-q2"
    box.take_command(command, word("b", question="ep-1-q1"), START)
    assert box.take_answer() is None
    box.take_command(command, word("c", question="ep-1-q2"), START)
    assert box.take_answer() is command


def test_everything_that_grows_is_bounded() -> None:
    box = inbox()
    box.question = "q"
    for number in range(MAX_SEEN + 100):
        box.take_command(Command.DENY, word(str(number)), START)
    assert len(box.answers) == MAX_ANSWERS
    assert len(box.story) == MAX_STORY
    assert len(box._seen) == MAX_SEEN
