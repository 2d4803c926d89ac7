"""The runbook in memory: every outcome, and every interruption in every step."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.workflows.world import NODE, Run, World, lost_gpu, report_of, started, word
from workflows.contracts.guard import Asked
from workflows.contracts.kube import Marked
from workflows.contracts.messages import Ask, Command
from workflows.inbox import Inbox
from workflows.memory_runtime import START
from workflows.model.policy import FaultPolicy, StepOptions
from workflows.model.remediation.marks import Marker, Quarantine
from workflows.model.remediation.phase import Outcome


def test_a_lost_gpu_is_rebooted_validated_and_returned() -> None:
    world = lost_gpu()
    run = started(world)
    closing = run.finish()
    assert closing.outcome == "returned"
    assert world.boots == 1
    assert (world.marker, world.unschedulable) == (None, False)
    assert [phase for phase, _ in closing.phases] == [
        "suspect",
        "quarantined",
        "drained",
        "rebooted",
        "validated",
        "probation",
        "closed",
    ]
    assert run.steps.count("reboot") == 1


def test_the_policys_options_of_steps_are_laid_over_the_table() -> None:
    steps = {"await_reboot": StepOptions(retry_initial_s=3)}
    world = World(policy=World().policy.model_copy(update={"steps": steps}))
    run = started(world)
    run.finish()
    assert run.runtime.overrides == steps


def test_a_node_that_recovers_before_its_debounce_is_dismissed_and_never_marked() -> None:
    world = World()
    world.fail("GPUHealthy", "DiagnosticUnknown", "Unknown")
    run = started(world)
    run.say(timedelta(seconds=30), lambda inbox, now: world.bad.clear())
    run.say(timedelta(seconds=30), lambda inbox, now: world.touch())
    closing = run.finish()
    assert closing.outcome == "dismissed"
    assert "quarantine" not in run.steps
    assert run.runtime.now() - START < timedelta(seconds=60)


def test_a_fault_that_is_left_when_a_worse_one_has_passed_must_last_its_own_time() -> None:
    """Seen: a node that was away for a moment was quarantined for what it was only suspected of."""
    world = World()
    world.fail("GPUHealthy", "DiagnosticUnknown", "Unknown")
    run = started(world)

    def worse(inbox: Inbox, now: datetime) -> None:
        world.fail("InterconnectHealthy", "NvlinkDown")
        inbox.take_report(report_of(world, "ep-1", now), now)

    def passes(inbox: Inbox, now: datetime) -> None:
        del world.bad["InterconnectHealthy"]
        world.touch()

    def recovers(inbox: Inbox, now: datetime) -> None:
        world.bad.clear()
        world.touch()

    run.say(timedelta(seconds=4), worse)
    run.say(timedelta(seconds=6), passes)
    run.say(timedelta(seconds=20), recovers)
    closing = run.finish()
    assert closing.outcome == "dismissed", run.runtime.inbox.story
    assert "quarantine" not in run.steps


def test_r32b_a_fault_whose_reason_alternates_lasts_from_our_first_sight_of_it() -> None:
    """karpenter#2833: each change of the reason began the wait anew, so nothing was ever repaired."""
    world = World()
    world.fail("InterconnectHealthy", "NvlinkDown")
    run = started(world)

    def alternate(inbox: Inbox, now: datetime) -> None:
        if "quarantine" in run.steps:
            return
        reason = world.bad["InterconnectHealthy"][1]
        other = "NvlinkError" if reason == "NvlinkDown" else "NvlinkDown"
        world.fail("InterconnectHealthy", other)
        inbox.take_report(report_of(world, "ep-1", now), now)

    for second in range(4, 120, 4):
        run.say(timedelta(seconds=second), alternate)
    closing = run.finish()
    assert closing.outcome == "returned"
    assert dict(closing.phases)["quarantined"] - START < timedelta(seconds=45)


def test_unknown_health_is_quarantined_waited_for_and_held_without_eviction_or_reboot() -> None:
    world = World()
    world.fail("GPUHealthy", "DiagnosticUnknown", "Unknown")
    run = started(world)
    run.say(timedelta(hours=2), lambda inbox, now: inbox.take_command(Command.RETIRE, word(), now))
    held = []
    run.say(timedelta(hours=1), lambda inbox, now: held.append((world.pods, world.boots)))
    closing = run.finish()
    assert held == [(3, 0)]
    assert closing.outcome == "retired"


def test_a_gpu_missing_after_the_reboot_is_held_and_resume_tries_the_gate_again() -> None:
    world = lost_gpu(gpus_after_boot=tuple(f"GPU-{n}" for n in range(7)))
    run = started(world)

    def repaired_by_hand(inbox: object, now: object) -> None:
        assert run.runtime.published[-1][1].record.held
        world.gpus = tuple(f"GPU-{n}" for n in range(8))
        run.inbox.take_command(Command.RESUME, word(), run.runtime.now())

    run.say(timedelta(hours=3), repaired_by_hand)
    closing = run.finish()
    assert closing.outcome == "returned"
    assert world.boots == 1


def test_a_reboot_that_does_not_happen_is_held_and_never_asked_for_twice() -> None:
    world = lost_gpu(listens=False)
    run = started(world)
    run.say(timedelta(hours=3), lambda inbox, now: inbox.take_command(Command.RETIRE, word(), now))
    closing = run.finish()
    assert closing.outcome == "retired"
    assert run.steps.count("reboot") == 1
    assert any("not-done" in line for line in run.inbox.story)


def test_a_blocked_drain_holds_and_names_the_blocker() -> None:
    world = lost_gpu(blocked=True)
    run = started(world)

    def unblock(inbox: object, now: object) -> None:
        assert "ns/pod" in run.runtime.published[-1][1].record.detail
        assert world.marker is not None
        assert world.marker.slot is None
        world.blocked = False
        run.inbox.take_command(Command.APPROVE, word(), run.runtime.now())

    run.say(timedelta(hours=1), unblock)
    assert run.finish().outcome == "returned"


def test_another_healer_is_left_alone() -> None:
    world = World(taints=("karpenter.sh/disrupted:NoSchedule",))
    world.fail("GPUHealthy", "GpuLost")
    run = started(world)
    assert run.finish().outcome == "yielded"
    assert world.marker is None


def test_a_deleted_node_ends_as_vanished_at_every_step() -> None:
    names = [name for name in _steps_of(lost_gpu()) if name != "release_place"]
    for index, name in enumerate(names):
        world = lost_gpu()
        run = started(world)
        _at_step(run, index, lambda world=world: setattr(world, "gone", True))
        assert run.finish().outcome == "vanished", name


def _steps_of(world: World) -> list[str]:
    run = started(world)
    run.finish()
    return run.steps


def _at_step(run: Run, index: int, action) -> None:  # type: ignore[no-untyped-def]
    """Runs `action` right before the `index`-th step is answered."""
    answer, count = run.world.answer, [0]

    def counted(name, request, now):  # type: ignore[no-untyped-def]
        if name != "record_phase":
            if count[0] == index:
                action()
            count[0] += 1
        return answer(name, request, now)

    run.world.answer = counted  # type: ignore[method-assign]


RETURNING = _steps_of(lost_gpu())


@pytest.mark.parametrize("index", range(len(RETURNING)), ids=lambda i: f"{i}-{RETURNING[i]}")
def test_retire_in_any_step_ends_handed_over_with_at_most_one_reboot(index: int) -> None:
    world = lost_gpu()
    run = started(world)
    _at_step(run, index, lambda: run.inbox.take_command(Command.RETIRE, word(), run.runtime.now()))
    closing = run.finish()
    assert closing.outcome == "retired"
    assert world.marker is not None
    assert world.marker.handed_over.startswith("operator:alice@host")
    assert world.unschedulable
    assert run.steps.count("reboot") <= 1


@pytest.mark.parametrize("index", range(len(RETURNING)), ids=lambda i: f"{i}-{RETURNING[i]}")
def test_a_cordon_removed_in_any_step_stays_removed(index: int) -> None:
    world = lost_gpu()
    run = started(world)
    touched = []

    def overrule() -> None:
        if world.marker is None:
            return
        world.unschedulable, world.marker = False, None
        world.touch()
        touched.append(len(run.steps))

    _at_step(run, index, overrule)
    run.say(timedelta(days=2), lambda inbox, now: setattr(world, "boots", 9))
    run.say(timedelta(days=2), lambda inbox, now: world.touch())
    closing = run.finish()
    if not touched:
        assert closing.outcome == "returned"
        return
    after = run.steps[touched[0] :]
    assert "quarantine" not in after
    assert "reboot" not in after
    assert "drain" not in after[1:]
    assert not world.unschedulable
    assert closing.outcome in ("yielded", "returned")


def test_a_finding_at_the_close_opens_the_episode_again() -> None:
    world = lost_gpu()
    run = started(world)

    def relapse(name: str) -> None:
        world.fail("GPUHealthy", "GpuLost")
        world.marker = Marker("ep-2", NODE.uid, START, "gpu-lost", "gpu-lost", Quarantine.REFLEX)
        world.unschedulable = True
        run.inbox.take_report(report_of(world, "ep-2"), run.runtime.now())

    answer = world.answer

    def at_close(name, request, now):  # type: ignore[no-untyped-def]
        if name == "record_phase" and request.outcome == "returned":
            world.answer = answer  # type: ignore[method-assign]
            relapse(name)
        return answer(name, request, now)

    world.answer = at_close  # type: ignore[method-assign]
    run.say(timedelta(days=1), lambda inbox, now: inbox.take_command(Command.RETIRE, word(), now))
    closing = run.finish()
    assert closing.outcome == "retired"
    assert world.boots == 1, "a relapse goes one rung up: it is not rebooted again"
    assert run.inbox.current == "ep-2"


def test_a_relapse_in_probation_is_held_after_the_ladder_is_used_up() -> None:
    world = lost_gpu()
    run = started(world)

    def relapse(inbox: object, now: object) -> None:
        world.fail("GPUHealthy", "GpuLost")
        run.inbox.take_report(report_of(world, "ep-2"), run.runtime.now())

    run.say(timedelta(minutes=8), relapse)
    run.say(timedelta(days=1), lambda inbox, now: inbox.take_command(Command.RETIRE, word(), now))
    assert run.finish().outcome == "retired"
    assert world.boots == 1


@pytest.mark.parametrize("seen_s", [0, 5], ids=["gone-when-looked-at", "gone-in-the-debounce"])
def test_a_false_alarm_in_probation_leaves_the_episode_returned(seen_s: int) -> None:
    world = lost_gpu()
    run = started(world)

    def alarm(inbox: object, now: object) -> None:
        world.fail("Ready", "NodeStatusUnknown", "Unknown")
        run.inbox.take_report(report_of(world, "ep-2"), run.runtime.now())
        if not seen_s:
            world.bad.clear()

    run.say(timedelta(minutes=8), alarm)
    if seen_s:
        run.say(timedelta(minutes=8, seconds=seen_s), lambda inbox, now: world.bad.clear())
    closing = run.finish()
    assert (closing.outcome, closing.fault) == ("returned", "gpu-lost")
    assert world.boots == 1
    last = [story.record for _, story in run.runtime.published][-1]
    assert (last.owner.episode, last.outcome) == ("ep-1", "returned")


def test_a_worse_finding_in_the_wait_changes_the_class_and_repairs() -> None:
    world = World()
    world.fail("GPUHealthy", "DiagnosticUnknown", "Unknown")
    run = started(world)

    def worse(inbox: object, now: object) -> None:
        world.fail("GPUHealthy", "GpuLost")
        run.inbox.take_report(report_of(world, "ep-1"), run.runtime.now())

    run.say(timedelta(minutes=10), worse)
    closing = run.finish()
    assert (closing.outcome, closing.fault) == ("returned", "gpu-lost")
    assert world.boots == 1


def test_a_soft_class_that_recovered_after_its_quarantine_is_only_gated() -> None:
    world = World(policy=World().policy.model_copy(update={}))
    world.fail("InterconnectHealthy", "Interconnect")
    run = started(world)

    def recover() -> None:
        world.bad.clear()

    world.hooks["quarantine"] = recover
    closing = run.finish()
    assert closing.outcome == "returned"
    assert world.boots == 0
    assert world.pods == 3


def test_a_hard_class_is_not_let_go_because_the_agent_forgot_it() -> None:
    world = lost_gpu()
    run = started(world)
    world.bad.clear()
    assert run.finish().outcome == "returned"
    assert world.boots == 1


def test_without_a_baseline_the_gate_cannot_tell_and_the_node_is_held() -> None:
    world = lost_gpu(baseline=None)
    run = started(world)
    run.say(timedelta(days=1), lambda inbox, now: inbox.take_command(Command.RETIRE, word(), now))
    assert run.finish().outcome == "retired"
    assert any("no baseline" in line for line in run.inbox.story)


def test_finish_work_waits_first_and_then_evicts() -> None:
    world = World()
    world.fail("NetworkHealthy", "Network")
    assert world.policy.faults is not None
    run = started(world)
    closing = run.finish()
    assert closing.outcome == "returned"
    drains = [request.way for name, request in run.runtime.steps if name == "drain"]
    assert drains == ["finish-work"]
    assert FaultPolicy().drain == "now"


def test_a_fault_reported_between_the_gate_and_the_return_is_judged_before_it() -> None:
    world = lost_gpu()
    run = started(world)
    answer = world.answer

    def at_inventory(name, request, now):  # type: ignore[no-untyped-def]
        result = answer(name, request, now)
        if name == "inventory":
            world.answer = answer  # type: ignore[method-assign]
            world.fail("GPUHealthy", "GpuLost")
            run.inbox.take_report(report_of(world, "ep-1", now), now)
        return result

    world.answer = at_inventory  # type: ignore[method-assign]
    run.say(timedelta(days=1), lambda inbox, now: inbox.take_command(Command.RETIRE, word(), now))
    assert run.finish().outcome == "retired"
    assert "give_back" not in run.steps


def test_a_guard_that_is_not_the_one_of_the_cluster_is_told_and_asked_without_haste() -> None:
    """Every grant is refused for an hour; then the guard has counted anew."""
    world = lost_gpu()
    asked: list[Ask] = []
    granted_by = world.ask_guard

    def ask_guard(request: Ask, now: datetime) -> Asked:
        asked.append(request)
        return granted_by(request, now)

    def note_slot(request: Any, now: datetime) -> Marked:
        if now < START + timedelta(hours=1):
            return Marked(world.marker, str(world.version), refused="the guard is now another")
        return World.note_slot(world, request, now)

    world.ask_guard = ask_guard  # type: ignore[method-assign]
    world.note_slot = note_slot  # type: ignore[method-assign]
    closing = started(world).finish()
    assert closing.outcome == Outcome.RETURNED
    assert [ask.refused for ask in asked[:2]] == ["", "epoch"]
    assert len(asked) <= 130
