"""People and other owners in the runbook, in memory: messages, overrulings, the sweep."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from tests.workflows.world import NODE, Run, World, lost_gpu, report_of, started, word
from workflows.contracts.messages import Command, Opening
from workflows.inbox import Inbox
from workflows.memory_runtime import START, Deadlocked
from workflows.model.remediation.marks import Marker, Quarantine
from workflows.model.remediation.overrule import Overrule


def test_resume_after_an_overruling_quarantines_and_repairs_again() -> None:
    world = lost_gpu(blocked=True)
    run = started(world)

    def overrule(inbox: object, now: object) -> None:
        world.unschedulable, world.marker = False, None
        world.touch()

    def resume(inbox: object, now: object) -> None:
        world.blocked = False
        run.inbox.take_command(Command.RESUME, word(), run.runtime.now())

    run.say(timedelta(hours=1), overrule)
    run.say(timedelta(hours=2), resume)
    closing = run.finish()
    assert closing.outcome == "returned"
    assert world.boots == 1
    assert "quarantine" in run.steps


def test_what_a_person_undid_stays_undone_when_something_else_is_reported() -> None:
    """Seen: uncordoned while it rebooted; its absence brought the overruled fault's cordon back."""
    world = lost_gpu(blocked=True)
    run = started(world)

    def overrule(inbox: object, now: object) -> None:
        world.unschedulable, world.marker = False, None
        world.touch()

    def fall_silent(inbox: Inbox, now: datetime) -> None:
        world.fail("Ready", "NodeStatusUnknown", "Unknown")
        inbox.take_report(report_of(world, "ep-2", now), now)

    def come_back(inbox: object, now: object) -> None:
        del world.bad["Ready"]
        world.touch()

    run.say(timedelta(hours=1), overrule)
    run.say(timedelta(hours=2), fall_silent)
    run.say(timedelta(hours=2, seconds=60), come_back)
    run.say(timedelta(hours=3), lambda inbox, now: inbox.take_command(Command.RETIRE, word(), now))
    world.hooks["quarantine"] = lambda: quarantined_at.append(run.runtime.now() - START)
    quarantined_at: list[timedelta] = []
    run.say(timedelta(hours=2, minutes=30), lambda inbox, now: setattr(world, "blocked", False))
    assert run.finish().outcome == "retired"
    assert [at >= timedelta(hours=3) for at in quarantined_at] == [True]
    assert world.boots == 0


def test_the_sweeps_episode_only_diagnoses_and_gates() -> None:
    world = lost_gpu()
    world.marker = Marker("dead", NODE.uid, START, "gpu-lost", "gpu-lost", Quarantine.REFLEX)
    run = Run(world, Opening(NODE, "test", "ep-9", "training", "sweep", recover=True))
    run.say(timedelta(days=1), lambda inbox, now: inbox.take_command(Command.RETIRE, word(), now))
    run.say(timedelta(hours=12), lambda inbox, now: world.touch())
    closing = run.finish()
    assert closing.outcome == "retired"
    assert world.boots == 0
    healthy = World()
    healthy.marker = world.marker.__class__(
        "dead", NODE.uid, START, "gpu-lost", "gpu-lost", Quarantine.REFLEX
    )
    healthy.unschedulable = True
    run = Run(healthy, Opening(NODE, "test", "ep-9", "training", "sweep", recover=True))
    assert run.finish().outcome == "returned"
    assert healthy.boots == 0
    assert not healthy.unschedulable


def test_a_run_of_a_restored_backup_whose_episode_was_closed_does_nothing() -> None:
    world = lost_gpu()
    run = started(world)

    def restored() -> None:
        world.closed_outcome, world.marker, world.unschedulable = "returned", None, False

    world.hooks["drain"] = restored
    assert run.finish().outcome == "yielded"
    assert world.marker is None
    assert world.boots == 0


def test_a_fault_under_the_id_of_a_closed_episode_is_another_episode() -> None:
    world = World(closed_outcome="dismissed")
    world.fail("GPUHealthy", "GpuLost")
    run = started(world)
    assert run.finish().outcome == "returned"
    assert world.boots == 1


def test_a_message_for_another_episode_is_recorded_and_ignored() -> None:
    world = lost_gpu()
    run = started(world)
    run.say(
        timedelta(seconds=5),
        lambda inbox, now: inbox.take_command(Command.RETIRE, word(episode="old"), now),
    )
    assert run.finish().outcome == "returned"
    assert any("ignored retire" in line for line in run.inbox.story)


def test_an_expired_message_is_ignored() -> None:
    world = lost_gpu()
    run = started(world)
    run.say(
        timedelta(seconds=5),
        lambda inbox, now: inbox.take_command(
            Command.RETIRE, word(expires=START + timedelta(seconds=1)), now
        ),
    )
    assert run.finish().outcome == "returned"


def test_retire_while_paused_lifts_the_pause() -> None:
    world = lost_gpu()
    run = started(world)
    run.say(timedelta(0), lambda inbox, now: inbox.take_command(Command.PAUSE, word("p"), now))
    run.say(
        timedelta(hours=1), lambda inbox, now: inbox.take_command(Command.RETIRE, word("r"), now)
    )
    run.inbox.take_command(Command.PAUSE, word("p0"), START)
    assert run.finish().outcome == "retired"
    assert world.boots == 0


def test_a_pause_without_resume_stops_everything() -> None:
    world = lost_gpu()
    run = started(world)
    run.inbox.take_command(Command.PAUSE, word("p0"), START)
    with pytest.raises(Deadlocked):
        run.finish()
    assert world.boots == 0
    assert "drain" not in run.steps


def test_an_operators_retire_drains_and_hands_over() -> None:
    world = World()
    run = Run(
        world,
        Opening(NODE, "test", "ep-1", "training", "alice", operator_reason="replace a fan"),
    )
    run.inbox.take_command(Command.RETIRE, word(episode="ep-1"), START)
    closing = run.finish()
    assert closing.outcome == "retired"
    assert world.pods == 0
    assert world.marker is not None
    assert world.marker.quarantine is Quarantine.OPERATOR


def test_a_cordon_lifted_under_our_marker_takes_the_marker_off_and_resume_starts_anew() -> None:
    world = lost_gpu(blocked=True)
    run = started(world)

    def uncordon(inbox: object, now: object) -> None:
        world.unschedulable = False
        world.touch()

    def resume(inbox: object, now: object) -> None:
        assert world.marker is None
        assert not world.unschedulable
        world.blocked = False
        run.inbox.take_command(Command.RESUME, word(), run.runtime.now())

    run.say(timedelta(hours=1), uncordon)
    run.say(timedelta(hours=2), resume)
    closing = run.finish()
    assert closing.outcome == "returned", run.inbox.story
    assert world.boots == 1


def test_a_marker_of_watch_that_comes_before_its_report_is_waited_for() -> None:
    world = World()
    world.fail("InterconnectHealthy", "Interconnect")
    run = started(world)

    def watch_was_quicker() -> None:
        world.fail("GPUHealthy", "GpuLost")
        world.marker = Marker("ep-2", NODE.uid, START, "gpu-lost", "gpu-lost", Quarantine.REFLEX)
        world.unschedulable = True
        late = run.runtime.now() - START + timedelta(seconds=5)
        run.say(late, lambda inbox, now: inbox.take_report(report_of(world, "ep-2", now), now))

    world.hooks["quarantine"] = watch_was_quicker
    closing = run.finish()
    assert closing.outcome == "returned", run.inbox.story
    assert world.boots == 1
    assert not world.unschedulable


def test_a_node_that_a_pause_keeps_from_its_return_is_recorded_as_validated() -> None:
    world = lost_gpu()
    run = started(world)
    world.hooks["diagnose"] = lambda: run.inbox.take_command(
        Command.PAUSE, word(), run.runtime.now()
    )
    seen: list[str] = []

    def recorded() -> list[str]:
        told = [record for name, record in run.runtime.steps if name == "record_phase"]
        return [one.phase for record in told for one in record.in_order]

    def resume(inbox: Inbox, now: datetime) -> None:
        seen.extend(recorded())
        inbox.take_command(Command.RESUME, word("r2"), now)

    run.say(timedelta(hours=1), resume)
    assert run.finish().outcome == "returned"
    assert seen[-1] == "validated", "while it waits"
    assert recorded()[-3:] == ["validated", "probation", "closed"]


def test_the_sweeps_episode_marks_no_node_whose_mark_is_gone() -> None:
    world = World()
    run = Run(world, Opening(NODE, "test", "ep-9", "training", "sweep", recover=True))
    assert run.finish().outcome == "dismissed"
    assert world.marker is None
    assert not world.unschedulable


def test_a_cordon_lifted_right_before_a_read_is_seen_by_the_read() -> None:
    world = World()
    world.fail("GPUHealthy", "DiagnosticUnknown", "Unknown")
    run = started(world)
    answer = world.answer

    def uncordon(name, request, now):  # type: ignore[no-untyped-def]
        if name == "record_phase" and request.phase == "quarantined":
            world.answer = answer  # type: ignore[method-assign]
            world.unschedulable = False
            world.version += 1  # and the signal comes later than the next read
        return answer(name, request, now)

    world.answer = uncordon  # type: ignore[method-assign]
    seen: list[str] = []
    run.say(timedelta(minutes=10), lambda inbox, now: seen.append(inbox.question))
    run.say(timedelta(days=1), lambda inbox, now: inbox.take_command(Command.RETIRE, word(), now))
    assert run.finish().outcome == "retired"
    assert seen != [""], "it stands aside at once, not after its wait for recovery"
    overruled = [s.record for _, s in run.runtime.published if s.record.overruled]
    assert [record.fault for record in overruled] == ["diagnostic-unknown"], "and says it once"


def test_a_new_fault_while_the_overruling_is_told_is_quarantined_and_not_taken_for_it() -> None:
    world = World()
    world.fail("GPUHealthy", "DiagnosticUnknown", "Unknown")
    run = started(world)
    answer = world.answer

    def at_held(name, request, now):  # type: ignore[no-untyped-def]
        if name == "record_phase" and request.overruled:
            world.answer = answer  # type: ignore[method-assign]
            world.fail("GPUHealthy", "GpuLost")
            run.inbox.take_report(report_of(world, "ep-1", now), now)
        return answer(name, request, now)

    def uncordon(inbox: object, now: object) -> None:
        world.answer = at_held  # type: ignore[method-assign]
        world.unschedulable = False
        world.touch()

    run.say(timedelta(minutes=8), uncordon)
    closing = run.finish()
    assert (closing.outcome, closing.fault) == ("returned", "gpu-lost"), run.inbox.story
    assert world.boots == 1


def test_a_late_report_of_a_mark_that_is_off_again_is_no_second_overruling() -> None:
    world = World()
    world.fail("GPUHealthy", "DiagnosticUnknown", "Unknown")
    run = started(world)
    answer = world.answer

    def at_leftover(name, request, now):  # type: ignore[no-untyped-def]
        if name == "give_back":
            world.answer = answer  # type: ignore[method-assign]
            world.fail("GPUHealthy", "GpuLost")
            late = replace(report_of(world, "ep-1", now), marked_at=str(world.version))
            run.inbox.take_report(late, now)
        return answer(name, request, now)

    def uncordon(inbox: object, now: object) -> None:
        world.answer = at_leftover  # type: ignore[method-assign]
        world.unschedulable = False
        world.touch()

    run.say(timedelta(minutes=8), uncordon)
    closing = run.finish()
    assert (closing.outcome, closing.fault) == ("returned", "gpu-lost"), run.inbox.story
    assert world.boots == 1


def test_what_an_earlier_run_recorded_as_undone_stays_undone() -> None:
    world = World()
    world.fail("GPUHealthy", "DiagnosticUnknown", "Unknown")
    world.overruled = (Overrule("diagnostic-unknown", (), "boot-0", START),)
    run = started(world)
    closing = run.finish()
    assert closing.outcome == "dismissed", run.inbox.story
    assert "quarantine" not in run.steps


def test_what_was_undone_in_an_earlier_boot_counts_again() -> None:
    world = World()
    world.fail("GPUHealthy", "DiagnosticUnknown", "Unknown")
    world.overruled = (Overrule("diagnostic-unknown", (), "boot-before", START),)
    run = started(world)
    run.say(timedelta(days=1), lambda inbox, now: inbox.take_command(Command.RETIRE, word(), now))
    assert run.finish().outcome == "retired"
    assert "quarantine" in run.steps


def test_a_hold_says_what_is_in_the_way_and_what_each_answer_does() -> None:
    world = lost_gpu(blocked=True)
    run = started(world)
    run.say(timedelta(hours=1), lambda inbox, now: inbox.take_command(Command.RETIRE, word(), now))
    run.say(timedelta(hours=2), lambda inbox, now: setattr(world, "blocked", False))
    run.say(
        timedelta(hours=3), lambda inbox, now: inbox.take_command(Command.RESUME, word("r2"), now)
    )
    assert run.finish().outcome == "retired"
    held = [story for _, story in run.runtime.published if story.record.held]
    assert held[0].record.detail == "not drained: ns/pod (Job/x): PDB x"
    assert "approve = drain again, then reboot;" in held[0].asks
    assert "resume = drain again, then hand over;" in held[-1].asks
    told = [story for _, story in run.runtime.published]
    after = told[told.index(held[0]) + 1]
    assert (after.record.held, after.plan[0]) == (False, "drain"), "a retire is told at once"


def test_what_is_over_plans_nothing_and_a_passed_gate_gives_no_reasons() -> None:
    run = started(lost_gpu())
    assert run.finish().outcome == "returned"
    assert run.runtime.published[-1][1].plan == ()
    assert "gate passed" in [line[20:] for line in run.inbox.story]
