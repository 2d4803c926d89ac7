"""A worse finding that comes between two steps is heard there, not swallowed by the next look."""

from datetime import timedelta

import pytest

from tests.workflows.world import Run, World, report_of
from workflows.memory_runtime import START

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
