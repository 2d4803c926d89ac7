"""Admission in memory: a new node is proven before its first job, or never gets one."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from tests.workflows.karpenter_world import broken_for_good
from tests.workflows.newcomer_world import bought, plain
from tests.workflows.world import GPUS, NODE, Run, World, diagnosed, report_of, started, word
from workflows.contracts.messages import Command, Grant
from workflows.inbox import Inbox
from workflows.memory_runtime import START
from workflows.model.node_task import Failure, Health
from workflows.model.remediation.admission import STARTUP_TAINT, UNREGISTERED
from workflows.model.remediation.budget import Budget
from workflows.model.remediation.marks import Marker, Quarantine


def say(run: Run, at: timedelta, command: Command) -> None:
    def action(inbox: Inbox, now: datetime) -> None:
        inbox.take_command(command, word(f"{command}-{at}"), now)

    run.say(at, action)


def details(run: Run) -> list[str]:
    return [story.record.detail for _, story in run.runtime.published]


def test_a_good_node_is_counted_diagnosed_recorded_and_let_in() -> None:
    world = plain()
    run = started(world)
    closing = run.finish()
    assert closing.outcome == "returned"
    assert closing.actions == ("admit",)
    assert "admitted at level 2" in closing.detail
    assert world.taints == ()
    assert world.recorded == 1
    steps = run.steps
    order = ("ask_guard", "inventory", "diagnose", "record_baseline", "admit_node", "release_place")
    assert [step for step in steps if step in order] == list(order)
    assert "quarantine" not in steps
    assert world.marker is None


def test_it_is_examined_at_the_level_of_its_pool() -> None:
    world = plain()
    pool = world.policy.pools[0]
    rule = pool.admission.model_copy(update={"level": 3})
    changed = pool.model_copy(update={"admission": rule})
    world.policy = world.policy.model_copy(update={"pools": (changed,)})
    run = started(world)
    run.finish()
    asked = [request for name, request in run.runtime.steps if name == "diagnose"]
    assert [request.level for request in asked] == [3]


def test_one_that_lacks_a_gpu_is_replaced_and_never_rebooted() -> None:
    world = bought(gpus=GPUS[:7])
    run = started(world)
    closing = run.finish()
    assert closing.outcome == "replaced"
    assert closing.fault == "gpu-lost"
    assert (world.boots, world.deletions) == (0, 1)
    assert "admit_node" not in run.steps
    assert STARTUP_TAINT in world.taints
    assert world.recorded == 0


@pytest.mark.parametrize(
    ("failure", "fault", "outcome"),
    [
        pytest.param(Failure("x", fault="interconnect"), "interconnect", "replaced", id="known"),
    ],
)
def test_one_that_fails_its_diagnosis_is_replaced(
    failure: Failure, fault: str, outcome: str
) -> None:
    world = bought(diagnoses=[diagnosed(Health.FAULTY, failure)])
    closing = started(world).finish()
    assert (closing.fault, closing.outcome) == (fault, outcome)
    assert world.boots == 0


UNNAMED = diagnosed(Health.FAULTY, Failure("x", fault="diagnostic-unknown"))


def test_a_diagnosis_that_fails_twice_in_words_of_no_class_is_a_class_and_replaced() -> None:
    world = bought(diagnoses=[UNNAMED])
    run = started(world)
    closing = run.finish()
    assert (closing.fault, closing.outcome) == ("diagnostic-failed", "replaced")
    before = run.steps[: run.steps.index("quarantine")]
    assert before.count("diagnose") == 2
    assert world.boots == 0


def test_one_failure_of_no_class_that_does_not_come_again_is_none() -> None:
    world = bought(diagnoses=[UNNAMED, diagnosed(Health.HEALTHY)])
    assert started(world).finish().actions == ("admit",)


def test_without_a_node_claim_a_refused_node_is_held_for_people() -> None:
    world = plain(gpus=GPUS[:7])
    run = started(world)
    say(run, timedelta(hours=3), Command.RETIRE)
    closing = run.finish()
    assert closing.outcome == "retired"
    assert world.boots == 0
    assert any(s.record.held for _, s in run.runtime.published)
    assert world.marker is not None
    assert world.marker.handed_over


def test_a_refused_node_that_was_mended_is_examined_again_and_let_in() -> None:
    world = plain(gpus=GPUS[:7])
    run = started(world)

    def mend(inbox: Inbox, now: datetime) -> None:
        world.gpus = GPUS
        world.touch()
        inbox.take_command(Command.RESUME, word("mended"), now)

    run.say(timedelta(hours=1), mend)
    closing = run.finish()
    assert closing.outcome == "returned"
    assert (world.marker, world.unschedulable, world.taints) == (None, False, ())


def test_more_gpus_than_the_policy_says_is_no_fault_of_the_machine() -> None:
    world = bought(gpus=(*GPUS, "GPU-8"))
    run = started(world)
    say(run, timedelta(hours=3), Command.RETIRE)
    run.finish()
    held = [s.record.detail for _, s in run.runtime.published if s.record.held]
    assert "it counts 9 GPUs of 8" in held[0]


def test_a_policy_that_expects_more_than_the_machine_type_has_replaces_nothing() -> None:
    world = bought(gpus=GPUS[:4])
    assert world.claim is not None
    world.claim = replace(world.claim, gpus=4)
    run = started(world)
    say(run, timedelta(hours=3), Command.RETIRE)
    run.finish()
    held = [s.record.detail for _, s in run.runtime.published if s.record.held]
    assert "expected_gpus of the pool is too high" in held[0]
    before_the_person = run.steps[: run.steps.index("quarantine")]
    assert "delete_claim" not in before_the_person


def test_a_device_plugin_that_the_taint_keeps_away_is_asked_about() -> None:
    world = bought(offered=0)
    run = started(world)

    def tolerate(inbox: Inbox, now: datetime) -> None:
        world.offered = 8
        inbox.take_command(Command.RESUME, word("tolerated"), now)

    run.say(timedelta(hours=1), tolerate)
    assert run.finish().outcome == "returned"
    held = [s.record.detail for _, s in run.runtime.published if s.record.held]
    assert "does its device plugin tolerate" in held[0]
    assert world.deletions == 0


def test_conditions_that_are_not_there_yet_are_waited_for_without_a_place() -> None:
    world = plain()
    world.bad["GPUHealthy"] = ("Unknown", "Starting")
    run = started(world)

    def begin(_inbox: Inbox, _now: datetime) -> None:
        assert "ask_guard" not in run.steps
        world.bad.clear()
        world.touch()

    run.say(timedelta(minutes=2), begin)
    assert run.finish().outcome == "returned"
    assert any("condition GPUHealthy is Unknown" in line for line in details(run))


def test_a_condition_that_turns_unknown_during_the_diagnosis_keeps_the_taint_on() -> None:
    world = plain()
    run = started(world)
    world.hooks["diagnose"] = lambda: world.fail("NetworkHealthy", "Silent", "Unknown")

    def speaks(_inbox: Inbox, _now: datetime) -> None:
        assert STARTUP_TAINT in world.taints
        assert run.steps.count("diagnose") == 1, "it waits for the condition first"
        assert [s.record.validation for _, s in run.runtime.published if s.record.validation] == []
        world.bad.clear()
        world.touch()

    run.say(timedelta(minutes=20), speaks)
    closing = run.finish()
    assert (closing.outcome, closing.actions, world.taints) == ("returned", ("admit",), ())
    assert run.steps.count("diagnose") == 2
    assert any("condition NetworkHealthy is Unknown" in line for line in details(run))
    assert not any(s.record.held for _, s in run.runtime.published)


def test_a_policy_that_has_become_stricter_is_waited_for_and_not_examined_against_for_ever() -> (
    None
):
    world = plain()
    run = started(world)
    before = world.policy
    gate = before.gate.model_copy(update={"conditions": (*before.gate.conditions, "Fabric")})
    stricter = before.model_copy(update={"gate": gate})
    world.hooks["admit_node"] = lambda: setattr(world, "policy", stricter)

    def take_back(inbox: Inbox, now: datetime) -> None:
        assert run.steps.count("diagnose") == 1
        assert any(s.record.held for _, s in run.runtime.published)
        world.policy = before
        inbox.take_command(Command.RESUME, word("the old one"), now)

    run.say(timedelta(hours=1), take_back)
    assert run.finish().outcome == "returned"


def test_unknown_until_the_deadline_asks_people_and_destroys_nothing() -> None:
    world = bought(diagnoses=[diagnosed(Health.UNKNOWN)])
    run = started(world)
    say(run, timedelta(hours=2), Command.DENY)

    def heal(inbox: Inbox, now: datetime) -> None:
        world.diagnoses.clear()
        inbox.take_command(Command.RESUME, word("again"), now)

    run.say(timedelta(hours=3), heal)
    assert run.finish().outcome == "returned"
    assert world.deletions == 0
    assert world.marker is None


def test_a_taint_that_a_person_takes_off_ends_even_a_held_admission() -> None:
    world = plain(diagnoses=[diagnosed(Health.UNKNOWN)])
    run = started(world)

    def by_hand(_inbox: Inbox, _now: datetime) -> None:
        world.taints = ()
        world.touch()

    run.say(timedelta(hours=2), by_hand)
    closing = run.finish()
    assert closing.outcome == "dismissed"
    assert "somebody took" in closing.detail


def test_who_waits_for_a_turn_says_so_and_is_not_late() -> None:
    world = plain()
    world.gated = (Budget.ADMISSION,)
    run = started(world)

    def grant(inbox: Inbox, now: datetime) -> None:
        world.gated = ()
        number = inbox.wanted[Budget.ADMISSION]
        inbox.take_grant(Grant(Budget.ADMISSION, "epoch", "ep-1", now, number), now)

    run.say(timedelta(hours=5), grant)
    assert run.finish().outcome == "returned"
    assert any("others of its pool are being examined" in line for line in details(run))
    assert not any(s.record.held for _, s in run.runtime.published)


def test_a_fault_reported_while_it_is_examined_makes_it_an_episode_from_replace_on() -> None:
    world = bought()
    run = started(world)

    def fall(inbox: Inbox, now: datetime) -> None:
        world.fail("GPUHealthy", "GpuLost")
        inbox.take_report(report_of(world, "ep-1", now), now)

    world.hooks["diagnose"] = lambda: fall(run.inbox, run.runtime.now())
    closing = run.finish()
    assert closing.outcome == "replaced"
    assert (closing.fault, world.boots) == ("gpu-lost", 0)
    assert "admit_node" not in run.steps


def test_a_node_in_service_is_no_newcomer() -> None:
    run = started(World())
    assert run.finish().outcome == "dismissed"
    assert "admit_node" not in run.steps
    assert NODE.name == run.opening.node.name


def test_a_replacing_run_leaves_the_taint_of_its_successor_to_that_ones_own_run() -> None:
    world = broken_for_good(new_taints=(STARTUP_TAINT,))
    run = started(world)

    def let_in(_inbox: Inbox, _now: datetime) -> None:
        assert world.baselines == []
        world.new_taints = ()

    run.say(timedelta(hours=5), let_in)
    assert run.finish().outcome == "replaced"
    assert "admit_node" not in run.steps
    assert world.baselines == ["machine-2"]
    assert any("its own run examines it" in line for line in details(run))


def test_a_replacing_run_gives_its_slot_up_for_the_successor_that_failed() -> None:
    world = broken_for_good(new_taints=(STARTUP_TAINT,))
    run = started(world)

    def fail(_inbox: Inbox, _now: datetime) -> None:
        world.new_marker = Marker("ep-2", "uid-2", START, "r", "gpu-lost", Quarantine.OPERATOR)

    def vanish(_inbox: Inbox, _now: datetime) -> None:
        assert "release_place" in run.steps
        world.newcomer_is_gone = True
        world.comes = None

    run.say(timedelta(hours=1), fail)
    run.say(timedelta(hours=4), vanish)
    say(run, timedelta(hours=6), Command.RETIRE)
    assert run.finish().outcome == "replaced"


@pytest.mark.parametrize("step", ["release_place", "record_phase"])
def test_r35_a_taint_that_comes_back_while_the_run_closes_is_examined_again(step: str) -> None:
    """karpenter#1772: its registration puts the startup taint on after it was taken off."""
    world = plain()
    run = started(world)

    def comes_back() -> None:
        world.taints = (STARTUP_TAINT,)
        world.touch()
        run.inbox.take_report(report_of(world, "ep-2", run.runtime.now()), run.runtime.now())

    def after_it_was_let_in() -> None:
        world.hooks[step] = comes_back

    world.hooks["admit_node"] = after_it_was_let_in
    closing = run.finish()
    assert (closing.outcome, closing.actions) == ("returned", ("admit", "admit"))
    assert world.taints == ()


def test_a_report_that_is_older_than_the_end_of_the_taint_changes_no_outcome() -> None:
    world = plain()
    run = started(world)
    late = report_of(world, "ep-1")
    world.hooks["release_place"] = lambda: run.inbox.take_report(late, run.runtime.now())
    closing = run.finish()
    assert (closing.outcome, closing.actions) == ("returned", ("admit",))


def test_a_node_that_karpenter_has_not_registered_yet_is_not_let_in() -> None:
    world = bought()
    world.taints = (*world.taints, UNREGISTERED)
    run = started(world)

    def register(_inbox: Inbox, _now: datetime) -> None:
        assert "ask_guard" not in run.steps
        world.taints = (STARTUP_TAINT,)
        world.touch()

    run.say(timedelta(minutes=3), register)
    assert run.finish().outcome == "returned"


def test_a_pool_whose_newcomers_all_fail_is_not_replaced_for_ever() -> None:
    world = bought(gpus=GPUS[:7], lost_new=5)
    run = started(world)
    say(run, timedelta(hours=3), Command.DENY)

    def approve(inbox: Inbox, now: datetime) -> None:
        assert world.deletions == 0
        inbox.take_command(Command.APPROVE, word("the batch is known"), now)

    run.say(timedelta(hours=5), approve)
    assert run.finish().outcome == "replaced"
    held = [s.record.detail for _, s in run.runtime.published if s.record.held]
    assert "5 new machines of pool training were given away within a day" in held[0]
    assert world.deletions == 1


def test_a_person_may_have_the_fifth_newcomer_replaced_and_a_machine_in_service_is_none() -> None:
    below = bought(gpus=GPUS[:7], lost_new=4)
    assert started(below).finish().outcome == "replaced"
    in_service = broken_for_good(lost_new=9)
    assert started(in_service).finish().outcome == "replaced"
