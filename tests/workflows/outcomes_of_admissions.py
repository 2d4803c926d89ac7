"""How an admission can end, as scenes that can be played again: let in, or an episode.

Owns the scenes of a node that carries the startup taint. As in `outcomes.py`, events come hours
apart or at a call of the runbook.
"""

from datetime import timedelta
from functools import partial
from typing import Any

from tests.workflows.newcomer_world import bought, plain
from tests.workflows.outcomes import HELD, HOUR, Play, Scene, is_step
from tests.workflows.world import GPUS, diagnosed, report_of, started
from workflows.contracts.messages import Command
from workflows.model.node_task import Failure, Health
from workflows.model.remediation.admission import STARTUP_TAINT

_UNNAMED = diagnosed(Health.FAULTY, Failure(what="memory", words="a comparison error"))


def _plain(**more: Any) -> Play:
    return Play(started(plain(**more)))


def _bought(**more: Any) -> Play:
    return Play(started(bought(**more)))


def _agent_speaks_later() -> Play:
    play = _plain(bad={"GPUHealthy": ("Unknown", "Starting")})
    play.at(timedelta(minutes=5), play.heal)
    return play


def _taint_comes_back() -> Play:
    play = _plain()

    def comes_back() -> None:
        play.world.taints = (STARTUP_TAINT,)
        play.world.touch()
        now = play.run.runtime.now()
        play.run.inbox.take_report(report_of(play.world, "ep-2", now), now)

    play.when(is_step("release_place"), comes_back)
    return play


def _taken_off_by_hand() -> Play:
    play = _plain(diagnoses=[diagnosed(Health.UNKNOWN)])

    def by_hand() -> None:
        play.world.taints = ()
        play.world.touch()

    play.at(5 * HOUR, by_hand)
    return play


def _mended() -> Play:
    play = _plain(gpus=GPUS[:7])

    def mend() -> None:
        play.world.gpus = GPUS
        play.world.touch()
        play.say(Command.RESUME, "mended")

    play.at(5 * HOUR, mend)
    return play


def _approved_in_a_storm() -> Play:
    play = _bought(gpus=GPUS[:7], lost_new=5)
    play.tell(5 * HOUR, Command.APPROVE)
    return play


SCENES: tuple[Scene, ...] = (
    Scene("admitted", "returned", 0, _plain),
    Scene("admitted-once-the-agent-spoke", "returned", 0, _agent_speaks_later),
    Scene("admitted-again-as-the-taint-came-back", "returned", 0, _taint_comes_back),
    Scene("admitted-by-hand", "dismissed", 0, _taken_off_by_hand),
    Scene("refused-and-replaced", "replaced", 0, partial(_bought, gpus=GPUS[:7])),
    Scene("refused-by-dcgm-and-replaced", "replaced", 0, partial(_bought, diagnoses=[_UNNAMED])),
    Scene("refused-mended-and-admitted", "returned", 0, _mended),
    Scene("refused-in-a-storm", HELD, 0, partial(_bought, gpus=GPUS[:7], lost_new=5)),
    Scene("refused-in-a-storm-and-approved", "replaced", 0, _approved_in_a_storm),
    Scene("admission-unknown", HELD, 0, partial(_plain, diagnoses=[diagnosed(Health.UNKNOWN)])),
)
