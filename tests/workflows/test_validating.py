"""A validation in the node's own run: what it does to an idle node, and how it becomes an episode."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.workflows.newcomer_world import untainted
from tests.workflows.world import NODE, Run, World, diagnosed, report_of, word, xid
from workflows.contracts.fleet import Idleness
from workflows.contracts.messages import Ask, Command, Opening, ValidationOrder
from workflows.contracts.node_tasks import NodeTaskRequest, TaskAnswer
from workflows.inbox import Inbox
from workflows.memory_runtime import START
from workflows.model.node_task import Failure, Health, Result
from workflows.model.remediation.budget import Budget
from workflows.model.remediation.marks import Marker, Quarantine
from workflows.model.remediation.phase import Phase

ORDER = ValidationOrder(2, 120, START + timedelta(minutes=15))
BAD = Failure(what="memory", device="GPU 3", words="a comparison error")
NEW = ValidationOrder(2, 120, START + timedelta(minutes=15), is_new=True)
TIMED_OUT = TaskAnswer(Result.UNKNOWN, "no end within 600 s")
WAY = TaskAnswer(Result.UNKNOWN, "ended for pod ns/late", gave_way_to="ns/late")


def ordered(world: World, order: ValidationOrder = ORDER) -> Run:
    world.pods = 0
    return Run(world, Opening(NODE, "test", "ep-1", "training", "schedule", validation=order))


def asked(run: Run, step: str) -> list[NodeTaskRequest]:
    return [request for name, request in run.runtime.steps if name == step]


def phases(run: Run) -> list[str]:
    return [str(phase) for phase, _ in run.runtime.published]


def last_validation(run: Run) -> Any:
    told = [s.record.validation for _, s in run.runtime.published if s.record.validation]
    return told[-1] if told else None


def test_an_idle_node_is_cordoned_counted_diagnosed_and_given_back() -> None:
    run = ordered(World())
    closing = run.finish()
    assert (closing.outcome, closing.fault) == ("returned", "operator")
    assert [s for s in run.steps if s not in ("read_node", "read_idleness")] == [
        "open_episode",
        "ask_guard",
        "quarantine",
        "inventory",
        "diagnose",
        "give_back",
        "release_place",
    ]
    assert phases(run) == [Phase.QUARANTINED, Phase.VALIDATED, Phase.CLOSED]
    assert (last_validation(run).result, last_validation(run).level) == ("passed", 2)
    assert not run.world.unschedulable
    assert run.world.marker is None


def test_its_mark_is_of_its_own_kind_and_its_place_of_its_own_budget() -> None:
    run = ordered(World())
    marks: list[Marker | None] = []
    run.world.hooks["diagnose"] = lambda: marks.append(run.world.marker)
    run.finish()
    assert marks[0] is not None
    assert marks[0].quarantine is Quarantine.VALIDATION
    asks = [r for name, r in run.runtime.steps if name in ("ask_guard", "release_place")]
    assert [ask.budget for ask in asks] == [Budget.VALIDATION, Budget.VALIDATION]


def test_the_diagnosis_needs_an_idle_node_not_a_drained_one_and_gives_way() -> None:
    run = ordered(World())
    run.finish()
    for request in (*asked(run, "inventory"), *asked(run, "diagnose")):
        assert request.gives_way
        assert request.needs_idle
    assert not asked(run, "diagnose")[0].needs_drained
    assert asked(run, "diagnose")[0].level == 2


@pytest.mark.parametrize(
    ("world", "why"),
    [
        (World(why_not="it is not idle: pod ns/job requests its GPUs"), "pod ns/job"),
        (World(closed_outcome="returned"), "it was closed before as returned"),
        (World(grants=False), "gave no place within 0:02:00"),
    ],
    ids=["not-idle", "closed-before", "no-place"],
)
def test_a_node_that_may_not_be_validated_is_never_marked(world: World, why: str) -> None:
    run = ordered(world)
    closing = run.finish()
    assert closing.outcome == "dismissed"
    assert why in closing.detail
    assert not {"quarantine", "inventory", "diagnose"} & set(run.steps)


def test_a_place_that_did_not_come_is_not_wanted_any_more() -> None:
    run = ordered(World(grants=False))
    run.finish()
    assert run.steps[-1] == "release_place"
    assert Budget.VALIDATION not in run.inbox.wanted


def test_an_order_of_long_ago_is_not_carried_out() -> None:
    old = ValidationOrder(2, 120, START - timedelta(seconds=1))
    run = ordered(World(), old)
    assert run.finish().outcome == "dismissed"
    assert "ask_guard" not in run.steps


def test_a_node_that_got_work_before_the_cordon_is_given_back_at_once() -> None:
    world = World()
    run = ordered(world)
    world.hooks["quarantine"] = lambda: setattr(world, "work", "ns/early")
    closing = run.finish()
    assert (closing.outcome, closing.detail) == (
        "returned",
        "gave way to pod ns/early; not validated",
    )
    assert not {"inventory", "diagnose"} & set(run.steps)
    assert not world.unschedulable


@pytest.mark.parametrize("step", ["inventory", "diagnose"])
def test_a_pod_that_waits_ends_the_task_and_has_the_node(step: str) -> None:
    world = World()
    run = ordered(world)
    world.hooks[step] = lambda: setattr(world, "gives_way", WAY)
    closing = run.finish()
    assert closing.outcome == "returned"
    assert "gave way to pod ns/late" in closing.detail
    assert run.world.marker is None
    assert last_validation(run) is None


def test_a_diagnosis_that_fails_twice_is_repaired_under_the_same_mark() -> None:
    world = World(diagnoses=[diagnosed(Health.FAULTY, BAD)] * 2 + [diagnosed(Health.HEALTHY)])
    run = ordered(world)
    closing = run.finish()
    assert (closing.outcome, closing.fault) == ("returned", "diagnostic-failed")
    assert run.steps.count("quarantine") == run.steps.count("give_back") == 1
    assert world.issued == ["boot-0"]
    assert [request.level for request in asked(run, "diagnose")] == [2, 2, 2]
    assert run.steps.index("give_back") > run.steps.index("reboot")


def test_a_failed_diagnosis_that_is_not_confirmed_at_its_level_returns() -> None:
    world = World(diagnoses=[diagnosed(Health.FAULTY, BAD), diagnosed(Health.HEALTHY)])
    run = ordered(world)
    assert run.finish().outcome == "returned"
    assert world.issued == []
    again = asked(run, "diagnose")[1]
    assert (again.level, again.needs_idle, again.needs_drained, again.gives_way) == (
        2,
        True,
        False,
        False,
    )


def test_what_dcgm_names_by_its_class_goes_that_classs_way() -> None:
    world = World(
        diagnoses=[diagnosed(Health.FAULTY, xid(79, "gpu-lost")), diagnosed(Health.HEALTHY)]
    )
    run = ordered(world)
    closing = run.finish()
    assert (closing.outcome, closing.fault) == ("returned", "gpu-lost")
    assert world.issued == ["boot-0"]


def test_an_unknown_answer_keeps_the_node_out_and_destroys_nothing() -> None:
    world = World(diagnoses=[TIMED_OUT])
    run = ordered(world)
    run.say(timedelta(days=1), lambda box, now: box.take_command(Command.RETIRE, word(), now))
    closing = run.finish()
    assert (closing.outcome, closing.fault) == ("retired", "diagnostic-unknown")
    assert world.issued == []
    assert "give_back" not in run.steps
    assert {r.level for r in asked(run, "diagnose")} == {2}
    assert last_validation(run).result == "unknown"
    assert [s for _, s in run.runtime.published if s.record.held]


def test_an_answer_that_comes_late_certifies() -> None:
    world = World(diagnoses=[TIMED_OUT, diagnosed(Health.HEALTHY)])
    run = ordered(world)
    assert run.finish().outcome == "returned"
    assert last_validation(run).result == "passed"


def test_a_pod_does_not_wait_for_an_answer_that_is_asked_again() -> None:
    world = World(diagnoses=[TIMED_OUT])
    run = ordered(world)
    run.say(timedelta(seconds=60), lambda box, now: setattr(world, "work", "ns/late"))
    closing = run.finish()
    assert closing.outcome == "returned"
    assert run.runtime.now() - START < timedelta(seconds=60 + 15)


def test_a_gpu_that_is_missing_is_not_given_back() -> None:
    world = World(gpus=tuple(f"GPU-{n}" for n in range(7)), gpus_after_boot=())
    run = ordered(world)
    run.say(timedelta(days=1), lambda box, now: box.take_command(Command.RETIRE, word(), now))
    closing = run.finish()
    assert (closing.outcome, closing.fault) == ("retired", "diagnostic-unknown")
    assert "give_back" not in run.steps


def test_a_fault_that_is_reported_meanwhile_makes_it_that_faults_episode() -> None:
    world = World()
    run = ordered(world)

    def loses_a_gpu() -> None:
        world.fail("GPUHealthy", "GpuLost")
        run.inbox.take_report(report_of(world, "ep-1", run.runtime.now()), run.runtime.now())

    world.hooks["diagnose"] = loses_a_gpu
    closing = run.finish()
    assert (closing.outcome, closing.fault) == ("returned", "gpu-lost")
    assert world.issued == ["boot-0"]
    assert run.steps.count("quarantine") == 1


def test_a_report_before_the_cordon_makes_it_an_ordinary_episode_from_the_start() -> None:
    world = World()
    world.fail("GPUHealthy", "GpuLost")
    run = ordered(world)
    run.inbox.take_report(report_of(world, "ep-2"), START)
    closing = run.finish()
    assert (closing.outcome, closing.fault) == ("returned", "gpu-lost")
    asks = [r for _, r in run.runtime.steps if isinstance(r, Ask)]
    assert asks[0].budget is Budget.QUARANTINE


def test_a_person_who_uncordons_has_the_node_back() -> None:
    world = World()
    run = ordered(world)

    def uncordons() -> None:
        world.unschedulable = False
        world.touch()

    world.hooks["diagnose"] = uncordons
    closing = run.finish()
    assert closing.outcome == "dismissed"
    assert "a person took the node back" in closing.detail
    assert world.marker is None
    assert not world.unschedulable
    assert (last_validation(run).result, last_validation(run).level) == ("taken-back", 2)


def test_n32_a_mark_that_another_writer_wipes_leaves_no_cordon_that_nobody_is_told_of() -> None:
    """NVSentinel#1854: nodes stayed cordoned for ever once their session's annotation was lost."""
    world = World()
    run = ordered(world)

    def wipes() -> None:
        world.marker = None
        world.touch()

    def uncordons(inbox: Inbox, now: datetime) -> None:
        assert world.unschedulable, "it may be a person's by now: not ours to lift"
        assert run.runtime.published[-1][1].record.held
        world.unschedulable = False
        world.touch()
        inbox.take_command(Command.RESUME, word(), now)

    world.hooks["diagnose"] = wipes
    run.say(timedelta(hours=5), uncordons)
    assert run.finish().outcome == "dismissed"
    assert (world.marker, world.unschedulable) == (None, False)


def test_a_person_who_retires_it_gets_it_retired() -> None:
    world = World()
    run = ordered(world)
    world.hooks["diagnose"] = lambda: run.inbox.take_command(
        Command.RETIRE, word(), run.runtime.now()
    )
    assert run.finish().outcome == "retired"
    assert world.unschedulable


def test_a_foreign_mark_is_left_alone() -> None:
    world = World(why_not="it is marked already")
    world.marker = Marker("other", NODE.uid, START, "gpu-lost", "gpu-lost", Quarantine.REFLEX)
    world.unschedulable = True
    run = ordered(world)
    assert run.finish().outcome == "dismissed"
    assert world.marker.episode == "other"
    assert "give_back" not in run.steps


def test_the_world_answers_as_the_contract_says() -> None:
    assert World().read_idleness(None, START) == Idleness()


@pytest.mark.parametrize("is_new", [False, True], ids=["proven before", "new"])
def test_a_condition_that_turns_unknown_during_the_diagnosis_is_no_validation(
    *, is_new: bool
) -> None:
    world = untainted() if is_new else World()
    run = ordered(world, NEW if is_new else ORDER)
    world.hooks["diagnose"] = lambda: world.fail("NetworkHealthy", "Silent", "Unknown")

    def speaks(_inbox: Inbox, _now: datetime) -> None:
        assert world.marker is not None
        assert run.steps.count("diagnose") == 1
        world.bad.clear()
        world.touch()

    run.say(timedelta(minutes=10), speaks)
    assert run.finish().outcome == "returned"
    assert run.steps.count("diagnose") == 2
    assert last_validation(run).result == "passed"


def test_a_condition_that_stays_unknown_after_the_diagnosis_is_held_and_never_passed() -> None:
    world = World()
    run = ordered(world)
    world.hooks["diagnose"] = lambda: world.fail("NetworkHealthy", "Silent", "Unknown")
    run.say(timedelta(days=1), lambda box, now: box.take_command(Command.RETIRE, word(), now))
    closing = run.finish()
    assert (closing.outcome, closing.fault) == ("retired", "diagnostic-unknown")
    assert "give_back" not in run.steps
    assert last_validation(run).result == "unknown"


def test_a_node_that_gave_way_after_its_conditions_turned_unknown_has_passed_nothing() -> None:
    world = World()
    run = ordered(world)
    world.hooks["diagnose"] = lambda: world.fail("NetworkHealthy", "Silent", "Unknown")
    run.say(timedelta(minutes=5), lambda _inbox, _now: setattr(world, "work", "ns/late"))
    closing = run.finish()
    assert (closing.outcome, last_validation(run)) == ("returned", None)
    assert "gave way to pod ns/late" in closing.detail
