"""A container of any image the lab cannot run: it lasts a while and ends with an exit code.

Owns the three annotations that say how long, how it ends and how slowly it stops. Started by the
pod's worker; light nodes use the reading of the annotations only.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from workers.lab.kubelet.container import Exit, now

DURATION: Final = "lab.fleetmend.io/duration"
EXIT_CODE: Final = "lab.fleetmend.io/exit-code"
TERMINATION: Final = "lab.fleetmend.io/termination-seconds"

EXIT_BY_SIGTERM: Final = 143
EXIT_BY_SIGKILL: Final = 137


@dataclass(frozen=True)
class TimerPlan:
    """Times in seconds; `duration_s` None: it runs until it is stopped."""

    duration_s: float | None = None
    exit_code: int = 0
    stopping_s: float = 0.0


def read_timer_plan(annotations: Mapping[str, str]) -> TimerPlan:
    """The plan that a pod's annotations ask for.

    Raises:
        ValueError: an annotation is no number in range; the message names it.
    """
    duration = annotations.get(DURATION)
    return TimerPlan(
        duration_s=None if duration is None else _seconds(DURATION, duration),
        exit_code=_exit_code(annotations.get(EXIT_CODE, "0")),
        stopping_s=_seconds(TERMINATION, annotations.get(TERMINATION, "0")),
    )


def _seconds(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"annotation {key}: {text[:40]!r} is no number of seconds >= 0")
    return value


def _exit_code(text: str) -> int:
    if not text.isdecimal() or int(text) > 255:
        raise ValueError(f"annotation {EXIT_CODE}: {text[:40]!r} is no exit code of 0 to 255")
    return int(text)


class TimerContainer:
    """Runs nothing; `done` resolves by the clock or when it is stopped."""

    def __init__(self, plan: TimerPlan) -> None:
        loop = asyncio.get_running_loop()
        self.started_at = now()
        self.done: asyncio.Future[Exit] = loop.create_future()
        self._plan = plan
        self._timers: list[asyncio.TimerHandle] = []
        if plan.duration_s is not None:
            self._timers.append(loop.call_later(plan.duration_s, self._end, plan.exit_code))

    def stop(self, grace_s: float) -> None:
        loop = asyncio.get_running_loop()
        code = EXIT_BY_SIGTERM if self._plan.stopping_s <= grace_s else EXIT_BY_SIGKILL
        wait_s = min(self._plan.stopping_s, grace_s)
        self._timers.append(loop.call_later(wait_s, self._end, code))

    def kill(self) -> None:
        self._end(EXIT_BY_SIGKILL)

    def termination_message(self) -> str:
        return ""

    def _end(self, code: int) -> None:
        for timer in self._timers:
            timer.cancel()
        if not self.done.done():
            reason = "Completed" if code == 0 else "Error"
            self.done.set_result(Exit(code, reason, "", self.started_at, now()))
