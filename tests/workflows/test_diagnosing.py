"""The diagnosis in the gate and the kernel log as second source: every answer, and what follows."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.workflows.world import (
    GPUS,
    Run,
    World,
    diagnosed,
    lost_gpu,
    started,
    word,
    xid,
)
from workflows.contracts.messages import Command
from workflows.contracts.node_tasks import NodeTaskRequest, TaskAnswer
from workflows.memory_runtime import START
from workflows.model.detection.fault import Fault
from workflows.model.node_task import Failure, Health, Result
from workflows.model.policy import DrainWay, FaultPolicy, Rung
from workflows.model.remediation.overrule import Overrule

BAD = Failure(what="pcie", device="GPU 3", words="replays")
UNREADABLE = TaskAnswer(Result.UNKNOWN, "the task did not start in time")


def unknown(**more: Any) -> World:
    """A node whose diagnostic gives no answer, not marked yet."""
    world = World(**more)
    world.fail("GPUHealthy", "DiagnosticUnknown", "Unknown")
    return world


def asked(run: Run, step: str) -> list[NodeTaskRequest]:
    return [request for name, request in run.runtime.steps if name == step]


def retire_at(run: Run, moment: timedelta) -> None:
    run.say(moment, lambda inbox, now: inbox.take_command(Command.RETIRE, word(), now))


def held(run: Run) -> list[str]:
    """What the run said when it was held."""
    records = [story.record for _, story in run.runtime.published]
    return [record.detail for record in records if record.held]


def recovers(run: Run, moment: timedelta) -> None:
    """The diagnostic answers again, and the agent says so."""

    def well(inbox: object, now: object) -> None:
        run.world.bad.clear()
        run.world.touch()

    run.say(moment, well)


# ---- the gate


def test_a_rebooted_node_is_diagnosed_at_its_class_level_before_it_returns() -> None:
    run = started(lost_gpu())
    assert run.finish().outcome == "returned"
    request = asked(run, "diagnose")[0]
    assert (request.level, request.expected_gpus, request.expected_boot_id) == (2, 8, "boot-1")
    assert request.limit_s == 600
    assert request.deadline_s > request.limit_s
    assert run.steps.index("inventory") < run.steps.index("diagnose") < run.steps.index("give_back")


def test_the_answer_of_the_gate_goes_into_the_machine_record() -> None:
    run = started(lost_gpu())
    run.finish()
    told = [s.record.validation for _, s in run.runtime.published if s.record.phase == "validated"]
    assert told[0] is not None
    assert (told[0].result, told[0].level, told[0].detail) == ("passed", 2, "healthy")


def test_a_faulty_diagnosis_after_the_last_rung_is_held_with_dcgms_words() -> None:
    run = started(lost_gpu(diagnoses=[diagnosed(Health.FAULTY, BAD)]))
    retire_at(run, timedelta(days=1))
    assert run.finish().outcome == "retired"
    assert held(run)[0] == "failed: diagnosis: pcie on GPU 3: replays"
    assert "give_back" not in run.steps
    records = [s.record for _, s in run.runtime.published if s.record.held]
    assert records[0].validation is not None
    assert (records[0].validation.result, records[0].validation.level) == ("failed", 2)


def test_a_faulty_diagnosis_of_a_node_found_well_takes_the_next_rung() -> None:
    world = World()
    world.fail("InterconnectHealthy", "Interconnect")
    world.diagnoses = [diagnosed(Health.FAULTY, BAD), diagnosed(Health.HEALTHY)]
    run = started(world)
    world.hooks["quarantine"] = world.bad.clear
    assert run.finish().outcome == "returned"
    assert world.boots == 1
    assert [request.level for request in asked(run, "diagnose")] == [1, 2]


@pytest.mark.parametrize(
    "answer",
    [
        diagnosed(Health.UNKNOWN),
        TaskAnswer(Result.UNKNOWN, "no verdict"),
        TaskAnswer(Result.REFUSED, "pods are on the node again"),
        TaskAnswer(Result.REFUSED, "refused", health=Health.HEALTHY),
    ],
    ids=["unknown", "no-verdict", "refused", "refused-and-healthy"],
)
def test_an_unknown_diagnosis_is_asked_again_until_the_deadline_and_then_held(
    answer: TaskAnswer,
) -> None:
    run = started(lost_gpu(diagnoses=[answer]))
    retire_at(run, timedelta(days=1))
    assert run.finish().outcome == "retired"
    assert held(run)[0].startswith("diagnosis: ")
    assert len(asked(run, "diagnose")) > 3
    assert "give_back" not in run.steps
    steps = [request.step for request in asked(run, "diagnose")]
    assert len(set(steps)) == len(steps), "each look is a pod of its own"


def test_a_diagnosis_that_answers_in_the_end_returns_the_node() -> None:
    answers = [diagnosed(Health.UNKNOWN), diagnosed(Health.UNKNOWN), diagnosed(Health.HEALTHY)]
    run = started(lost_gpu(diagnoses=answers))
    assert run.finish().outcome == "returned"
    assert len(asked(run, "diagnose")) == 3


def test_a_diagnosis_made_in_another_boot_proves_nothing() -> None:
    world = lost_gpu()
    run = started(world)
    answer = world.answer

    def old_boot(name, request, now):  # type: ignore[no-untyped-def]
        if name == "diagnose":
            return diagnosed(Health.HEALTHY, boot_id="boot-0")
        return answer(name, request, now)

    world.answer = old_boot  # type: ignore[method-assign]
    retire_at(run, timedelta(days=1))
    assert run.finish().outcome == "retired"
    assert "another boot" in held(run)[0]


def test_what_fails_earlier_is_not_diagnosed() -> None:
    run = started(lost_gpu(gpus_after_boot=GPUS[:7]))
    retire_at(run, timedelta(days=1))
    run.finish()
    assert asked(run, "diagnose") == []


def with_fault(fault: Fault, **changes: Any) -> Any:
    policy = World().policy
    row = FaultPolicy(**changes)
    return policy.model_copy(update={"faults": {**policy.faults, fault: row}})


def test_level_0_asks_for_no_diagnosis() -> None:
    run = started(lost_gpu(policy=with_fault(Fault.GPU_LOST, diagnose_level=0)))
    assert run.finish().outcome == "returned"
    assert asked(run, "diagnose") == []


@pytest.mark.parametrize("recover", [True, False], ids=["found-well", "drain-none"])
def test_load_is_put_only_on_a_node_that_the_episode_has_drained(recover: bool) -> None:
    if recover:
        world = World()
        world.fail("InterconnectHealthy", "Interconnect")
        world.hooks["quarantine"] = world.bad.clear
    else:
        row = {"drain": DrainWay.NONE, "ladder": (Rung.REBOOT,), "diagnose_level": 3}
        world = lost_gpu(policy=with_fault(Fault.GPU_LOST, **row))
    run = started(world)
    assert run.finish().outcome == "returned"
    assert [request.level for request in asked(run, "diagnose")] == [1]
    assert world.pods == 3


# ---- the second source


def test_a_hardware_xid_behind_a_hung_diagnostic_makes_it_that_class() -> None:
    failures = (xid(94, "gpu-memory-contained"), xid(79, "gpu-lost"), xid(13, "application"))
    world = unknown(kernel_log_says=diagnosed(Health.FAULTY, *failures))
    run = started(world)
    closing = run.finish()
    assert (closing.outcome, closing.fault) == ("returned", "gpu-lost")
    assert world.boots == 1
    phases = [(s.record.phase, s.record.fault) for _, s in run.runtime.published]
    assert ("quarantined", "gpu-lost") in phases
    assert run.steps.index("quarantine") < run.steps.index("kernel_log") < run.steps.index("drain")
    since = asked(run, "kernel_log")[0].since
    assert since is not None
    assert since <= START - timedelta(hours=1)


def test_a_clean_log_and_a_diagnostic_that_passes_later_return_it_untouched() -> None:
    world = unknown()
    run = started(world)
    recovers(run, timedelta(minutes=12))
    assert run.finish().outcome == "returned"
    assert (world.boots, world.pods) == (0, 3)
    assert run.steps.count("kernel_log") == 1
    assert [request.level for request in asked(run, "diagnose")] == [1]


def test_a_clean_log_and_a_diagnostic_that_never_answers_are_held() -> None:
    world = unknown(diagnoses=[diagnosed(Health.UNKNOWN)])
    run = started(world)
    recovers(run, timedelta(minutes=6))
    retire_at(run, timedelta(days=1))
    before: list[tuple[int, int]] = []
    run.say(timedelta(hours=23), lambda inbox, now: before.append((world.boots, world.pods)))
    assert run.finish().outcome == "retired"
    assert before == [(0, 3)], "unknown neither reboots nor evicts"
    assert held(run)[0].startswith("diagnosis")


def test_a_faulty_diagnosis_of_unknown_health_is_held_and_destroys_nothing() -> None:
    world = unknown(diagnoses=[diagnosed(Health.FAULTY, BAD)])
    run = started(world)
    recovers(run, timedelta(minutes=6))
    retire_at(run, timedelta(days=1))
    before: list[tuple[int, int]] = []
    run.say(timedelta(hours=23), lambda inbox, now: before.append((world.boots, world.pods)))
    assert run.finish().outcome == "retired"
    assert before == [(0, 3)]
    assert "replays" in held(run)[0]


SEEN = Overrule("gpu-lost", ("0000:1b:00",), "boot-0", START)


@pytest.mark.parametrize(
    ("overrule", "boots"),
    [(SEEN, 0), (replace(SEEN, boot_id="boot-9"), 1), (replace(SEEN, devices=("other",)), 1)],
    ids=["seen", "in-another-boot", "on-another-device"],
)
def test_what_a_person_undid_is_not_done_again_for_the_kernels_old_line(
    overrule: Overrule, boots: int
) -> None:
    says = diagnosed(Health.FAULTY, xid(79, "gpu-lost"))
    world = unknown(kernel_log_says=says, overruled=(overrule,))
    run = started(world)
    recovers(run, timedelta(minutes=12))
    assert run.finish().outcome == "returned"
    assert world.boots == boots


def test_an_uncordon_after_the_kernel_log_undoes_what_the_person_saw_reported() -> None:
    world = learned()
    run = started(world)

    def uncordon() -> None:
        world.unschedulable, world.marker = False, None
        world.touch()

    world.hooks["drain"] = uncordon
    retire_at(run, timedelta(days=1))
    assert run.finish().outcome == "retired"
    undone = [s.record.overruled for _, s in run.runtime.published if s.record.overruled]
    assert [one.fault for one in undone] == ["diagnostic-unknown"]
    assert "reboot" not in run.steps


UNCLEAR: dict[str, TaskAnswer] = {
    "unreadable": diagnosed(Health.UNKNOWN),
    "no-verdict": UNREADABLE,
    "not-whole": diagnosed(Health.UNKNOWN, xid(79, "gpu-lost")),
    "unknown-class": diagnosed(Health.FAULTY, xid(999, "a-class-of-a-later-release")),
    "unknown-kind": diagnosed(Health.FAULTY, xid(999, "diagnostic-unknown")),
    "a-persons-class": diagnosed(Health.FAULTY, xid(1, "operator")),
    "refused": TaskAnswer(Result.REFUSED, "too late"),
}


@pytest.mark.parametrize("answer", UNCLEAR.values(), ids=UNCLEAR)
def test_a_log_that_says_nothing_clear_is_held(answer: TaskAnswer) -> None:
    world = unknown(kernel_log_says=answer)
    run = started(world)
    recovers(run, timedelta(minutes=30))
    retire_at(run, timedelta(days=1))
    before: list[tuple[int, int]] = []
    run.say(timedelta(hours=23), lambda inbox, now: before.append((world.boots, world.pods)))
    assert run.finish().outcome == "retired"
    assert before == [(0, 3)]
    assert held(run)[0].startswith("kernel log: ")


def test_a_person_may_send_a_held_unknown_to_the_gate() -> None:
    world = unknown(kernel_log_says=UNREADABLE)
    run = started(world)
    recovers(run, timedelta(minutes=30))
    run.say(timedelta(hours=2), lambda inbox, now: inbox.take_command(Command.RESUME, word(), now))
    assert run.finish().outcome == "returned"
    assert asked(run, "diagnose")


def test_other_classes_ask_no_kernel_log() -> None:
    run = started(lost_gpu())
    run.finish()
    assert "kernel_log" not in run.steps


def steps_of(make: Callable[[], World]) -> list[str]:
    run = started(make())
    run.finish()
    return run.steps


def learned() -> World:
    return unknown(kernel_log_says=diagnosed(Health.FAULTY, xid(79, "gpu-lost")))


LEARNED = steps_of(learned)


@pytest.mark.parametrize("index", range(len(LEARNED)), ids=lambda i: f"{i}-{LEARNED[i]}")
def test_a_retire_in_any_step_after_the_kernel_log_is_one_reboot_at_most(index: int) -> None:
    world = learned()
    run = started(world)
    answer, count = world.answer, [0]

    def counted(name, request, now):  # type: ignore[no-untyped-def]
        if name != "record_phase":
            if count[0] == index:
                run.inbox.take_command(Command.RETIRE, word(), now)
            count[0] += 1
        return answer(name, request, now)

    world.answer = counted  # type: ignore[method-assign]
    assert run.finish().outcome == "retired"
    assert run.steps.count("reboot") <= 1
