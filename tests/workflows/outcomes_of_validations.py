"""How a validation can end, as scenes that can be played again: alone, or as an episode.

Owns the scenes that begin with a dispatcher's order. As in `outcomes.py`, events come hours apart
or at a call of the runbook.
"""

from datetime import datetime, timedelta
from functools import partial
from typing import Any

from tests.workflows.outcomes import HELD, Play, Scene, is_step
from tests.workflows.world import NODE, POLICY, Run, World, diagnosed
from workflows.contracts.guard import Asked
from workflows.contracts.messages import Ask, Command, Opening, ValidationOrder
from workflows.contracts.node_tasks import TaskAnswer
from workflows.memory_runtime import START
from workflows.model.node_task import Failure, Health, Result
from workflows.model.policy import GatePolicy
from workflows.model.remediation.budget import Budget

ORDER = ValidationOrder(2, 120, START + timedelta(minutes=15))
_BAD = diagnosed(Health.FAULTY, Failure(what="memory", device="GPU 3", words="a comparison error"))
_TIMED_OUT = TaskAnswer(Result.UNKNOWN, "no end within 600 s")
_GIVES_WAY = TaskAnswer(Result.UNKNOWN, "ended for pod ns/late", gave_way_to="ns/late")


class _NoPlace(World):
    """The guard has places, but none for a validation."""

    def ask_guard(self, request: Ask, now: datetime) -> Asked:
        is_granted = request.budget is not Budget.VALIDATION
        return super().ask_guard(request, now) if is_granted else Asked("guard")


def _play(world: World | None = None, **more: Any) -> Play:
    world = world or World(**more)
    world.pods = 0
    return Play(Run(world, Opening(NODE, "test", "ep-1", "training", "schedule", validation=ORDER)))


def _changed_at(step: str, name: str, value: Any, **more: Any) -> Play:
    play = _play(**more)
    play.when(is_step(step), lambda: setattr(play.world, name, value))
    return play


def _mended_by_a_reboot() -> Play:
    return _changed_at("reboot", "diagnoses", [], diagnoses=[_BAD])


def _loses_a_gpu() -> Play:
    play = _play()
    play.when(is_step("diagnose"), lambda: play.news("GPUHealthy", "GpuLost", "ep-1"))
    return play


def _retired() -> Play:
    play = _play()
    play.when(is_step("diagnose"), lambda: play.say(Command.RETIRE, "retire"))
    return play


def _uncordoned() -> Play:
    play = _play()
    play.when(is_step("diagnose"), play.uncordon)
    return play


def _unknown() -> Play:
    """With a gate that is asked for minutes: half an hour is the same once more."""
    policy = POLICY.model_copy(update={"gate": GatePolicy(timeout_s=120)})
    return _play(policy=policy, diagnoses=[_TIMED_OUT])


def _without_a_place() -> Play:
    return _play(_NoPlace())


SCENES: tuple[Scene, ...] = (
    Scene("validated", "returned", 0, _play),
    Scene(
        "gave-way-before-the-cordon",
        "returned",
        0,
        partial(_changed_at, "quarantine", "work", "ns/early"),
    ),
    Scene(
        "gave-way-in-the-diagnosis",
        "returned",
        0,
        partial(_changed_at, "diagnose", "gives_way", _GIVES_WAY),
    ),
    Scene("validation-failed-and-rebooted", "returned", 1, _mended_by_a_reboot),
    Scene("validation-met-a-fault", "returned", 1, _loses_a_gpu),
    Scene("validation-retired", "retired", 0, _retired),
    Scene("validation-uncordoned", "dismissed", 0, _uncordoned),
    Scene("validation-of-a-busy-node", "dismissed", 0, partial(_play, why_not="not idle")),
    Scene("validation-without-a-place", "dismissed", 0, _without_a_place),
    Scene("validation-unknown", HELD, 0, _unknown),
)
