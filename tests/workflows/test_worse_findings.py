"""A worse finding that comes between two steps is heard there, not swallowed by the next look."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.workflows.world import NODE, Run, World, lost_gpu, report_of, started, word
from workflows.contracts.messages import Command
from workflows.inbox import Inbox
from workflows.memory_runtime import START
from workflows.model.remediation.marks import Marker, Quarantine, entry_marker

UNKNOWN = ("GPUHealthy", "DiagnosticUnknown", "Unknown")


def steps_until_held() -> list[str]:
    """The steps of an unknown fault that nobody hears more of, up to its first reminder."""
    world = World()
    world.fail(*UNKNOWN)
    run = Run(world)
    run.inbox.take_report(report_of(world, "ep-1"), START)
    run.say(timedelta(hours=1), lambda inbox, now: setattr(world, "gone", True))
    run.say(timedelta(hours=1), lambda inbox, now: world.touch())
    run.finish()
    names = [name for name, _ in run.runtime.steps]
    return names[: names.index("inventory") + 1] if "inventory" in names else names[:14]


STEPS = steps_until_held()


@pytest.mark.parametrize("index", range(len(STEPS)), ids=lambda i: f"{i}-{STEPS[i]}")
def test_a_worse_finding_in_any_step_is_repaired_without_waiting_for_a_recovery(index: int) -> None:
    world = World()
    world.fail(*UNKNOWN)
    run = Run(world)
    run.inbox.take_report(report_of(world, "ep-1"), START)
    answer, count = world.answer, [0]
    heard = [START]

    def worse_at(name, request, now):  # type: ignore[no-untyped-def]
        if count[0] == index:
            world.fail("GPUHealthy", "GpuLost")
            run.inbox.take_report(report_of(world, "ep-1"), now)
            heard[0] = now
        count[0] += 1
        return answer(name, request, now)

    world.answer = worse_at  # type: ignore[method-assign]
    closing = run.finish()
    assert (closing.outcome, closing.fault, world.boots) == ("returned", "gpu-lost", 1)
    repaired = next(at for phase, at in closing.phases if phase == "rebooted")
    assert repaired - heard[0] < timedelta(minutes=5), "it waited for a lost GPU to recover"


def rebooted_after_an_overruling(*, watch_marks_again: bool) -> tuple[Run, Any]:
    """A lost GPU, uncordoned, resumed; then the node is reported as absent while it reboots."""
    world = lost_gpu(blocked=True)
    run = started(world)

    def uncordon(inbox: Inbox, now: datetime) -> None:
        world.unschedulable = False
        world.touch()

    def resume(inbox: Inbox, now: datetime) -> None:
        world.blocked = False
        inbox.take_command(Command.RESUME, word(), now)

    def mark_again() -> None:
        """Its reflex, once the machine record says that the overruling was taken back."""
        now = run.runtime.now()
        draft = Marker("ep-2", NODE.uid, now, "gpu-lost", "gpu-lost", Quarantine.REFLEX)
        world.marker, world.unschedulable = entry_marker(world.view(now), draft), True
        world.touch()
        run.inbox.take_report(report_of(world, "ep-2", now), now)

    def fall_silent() -> None:
        absent = run.runtime.now() - START + timedelta(seconds=60)
        run.say(absent, lambda inbox, now: inbox.take_report(report_of(world, "ep-2", now), now))

    run.say(timedelta(hours=1), uncordon)
    run.say(timedelta(hours=2), resume)
    if watch_marks_again:
        answer = world.answer

        def told(name: str, request: Any, now: datetime) -> Any:
            if name == "record_phase" and request.resumed:
                world.answer = answer  # type: ignore[method-assign]
                mark_again()
            return answer(name, request, now)

        world.answer = told  # type: ignore[method-assign]
    world.hooks["reboot"] = fall_silent
    return run, run.finish()


@pytest.mark.parametrize("watch_marks_again", [True, False])
def test_our_own_reboot_is_no_worse_finding_after_an_overruling(watch_marks_again: bool) -> None:
    """Seen: the node's absence became the episode's fault, and the reboot was not proven."""
    run, closing = rebooted_after_an_overruling(watch_marks_again=watch_marks_again)
    assert any("reported: host-unreachable" in line for line in run.inbox.story)
    assert (closing.outcome, closing.fault) == ("returned", "gpu-lost"), run.inbox.story
    assert not [line for line in run.inbox.story if "worse finding" in line]
    assert run.world.boots == 1
