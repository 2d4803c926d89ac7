"""One source under supervision: asked, timed, killed, started again.

Owns when a source counts as "cannot tell" (silent past its deadline, died, spoke garbage, said so)
and the back-off of its restarts. What follows for conditions is the ledger's; processes are
`children.py`'s. All times are by the monotonic clock: a step of the wall clock changes nothing.
"""

import asyncio
import logging
import os
import random
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from activities.devices.reading import Reading
from workers.agent.answer import BadAnswer, decode_answer
from workers.agent.children import Child, Ears, Kill, Source

KILL_S: Final = 2.0
"""A child that SIGKILL has not ended by then sits in the kernel (D state)."""
STEADY_S: Final = 60.0
"""A child that has lived so long is restarted as if it had never failed."""
RESTART_FIRST_S: Final = 0.5
RESTART_LAST_S: Final = 60.0
JITTER: Final = 0.2

_log = logging.getLogger(__name__)


class Silence(StrEnum):
    """Why a source cannot tell; the code of the finding."""

    NO_ANSWER = "no-answer"
    CRASHED = "crashed"
    GARBAGE = "garbage"
    CANNOT_TELL = "cannot-tell"


class Listener(Protocol):
    """Who is told what a source says."""

    def answered(self, source: Source, readings: tuple[Reading, ...]) -> None: ...
    def silent(self, source: Source, why: Silence, text: str) -> None: ...
    def unkillable(self, source: Source, *, is_so: bool) -> None: ...


@dataclass
class Counts:
    """Totals for the metrics."""

    answers: int = 0
    restarts: int = 0
    silences: dict[Silence, int] = field(default_factory=dict)


class Supervisor:
    """Keeps one source's child alive and judged; `start` begins, `stop` ends it."""

    def __init__(self, source: Source, listener: Listener, kill: Kill = os.killpg) -> None:
        self.source = source
        self.counts = Counts()
        self.is_unkillable = False
        self._listener = listener
        self._kill = kill
        self._child: Child | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._next: asyncio.TimerHandle | None = None
        self._failures = 0
        self._started_at = 0.0
        self._asked_at = 0.0
        self._said: Silence | None = None
        self._is_stopping = False
        self._is_killed = False
        self._released_until = 0.0
        self.gone = asyncio.Event()
        """Set while no child lives."""
        self.gone.set()

    @property
    def is_running(self) -> bool:
        """True while a child of it lives."""
        return self._child is not None

    @property
    def is_polled(self) -> bool:
        return hasattr(self.source, "poll")

    def start(self) -> None:
        """Fork a child and wait for its first answer."""
        self._next = None
        if self._child is not None or self._is_stopping:
            return
        ears = Ears(self._on_line, self._on_garbage, self._on_end)
        self._is_killed = False
        self._started_at = time.monotonic()
        try:
            self._child = Child.start(self.source, ears)
        except OSError as error:
            self._say_silent(Silence.CRASHED, f"cannot be started: {error}")
            self._start_later()
            return
        self.gone.clear()
        if self.is_polled:
            self._ask()
        else:
            self._await_answer()

    def release(self, for_s: float) -> None:
        """End the child and start none for so long; its last answer stands meanwhile."""
        self._released_until = time.monotonic() + for_s
        _log.info("source_released", extra={"source": self.source.name, "for_s": for_s})
        if self._child is None:
            self._start_later()
        else:
            self._end_child()

    def stop(self) -> None:
        """End the child for good; `gone` is set when that is so."""
        self._is_stopping = True
        self._cancel(self._next)
        if self._child is not None:
            self._end_child()

    def _ask(self) -> None:
        self._next = None
        if self._child is not None:
            self._asked_at = time.monotonic()
            self._child.ask()
            self._await_answer()

    def _await_answer(self) -> None:
        self._cancel(self._deadline)
        limit_s = self.source.deadline_s
        self._deadline = asyncio.get_running_loop().call_later(limit_s, self._on_deadline)

    def _on_line(self, line: bytes) -> None:
        try:
            answer = decode_answer(line)
        except BadAnswer as error:
            self._on_garbage(str(error))
            return
        self._cancel(self._deadline)
        self.counts.answers += 1
        if answer.cannot_tell is None:
            self._said = None
            self._listener.answered(self.source, answer.readings)
        else:
            self._say_silent(Silence.CANNOT_TELL, answer.cannot_tell)
        if self.is_polled:
            self._ask_later()
        else:
            self._await_answer()

    def _ask_later(self) -> None:
        if self._next is not None:  # it said more than it was asked for
            return
        period_s = getattr(self.source, "period_s", 0.0)
        wait_s = max(0.0, self._asked_at + period_s - time.monotonic())
        self._next = asyncio.get_running_loop().call_later(wait_s, self._ask)

    def _on_garbage(self, why: str) -> None:
        self._say_silent(Silence.GARBAGE, f"its answer cannot be read: {why}")
        self._end_child()

    def _on_deadline(self) -> None:
        self._deadline = None
        if self._child is None:
            return
        # After a stop of the whole agent the answer may be there already, unread.
        answers = self.counts.answers
        self._child.look()
        if self._is_killed or self.counts.answers > answers:
            return
        limit_s = self.source.deadline_s
        self._say_silent(Silence.NO_ANSWER, f"no answer within {limit_s:g} s")
        self._end_child()

    def _end_child(self) -> None:
        self._cancel(self._deadline)
        self._cancel(self._next)
        self._next = None
        if self._child is None or self._is_killed:
            return
        self._is_killed = True
        self._child.kill(self._kill)
        self._deadline = asyncio.get_running_loop().call_later(KILL_S, self._on_undead)

    def _on_undead(self) -> None:
        self._deadline = None
        if self._child is not None:
            self.is_unkillable = True
            _log.error("child_cannot_be_killed", extra=self._fields())
            self._listener.unkillable(self.source, is_so=True)

    def _on_end(self, how: str) -> None:
        self._cancel(self._deadline)
        self._cancel(self._next)
        self._next = None
        was_ours = self._is_killed
        self._child = None
        self.gone.set()
        if self.is_unkillable:
            self.is_unkillable = False
            self._listener.unkillable(self.source, is_so=False)
        if self._is_stopping:
            return
        # A stream ends by itself after it has said that it cannot tell.
        if not was_ours and not (self._said is Silence.CANNOT_TELL and not self.is_polled):
            self._say_silent(Silence.CRASHED, f"its process ended: {how}")
        self._start_later()

    def _start_later(self) -> None:
        now = time.monotonic()
        if now - self._started_at > STEADY_S:
            self._failures = 0
        base_s = min(RESTART_LAST_S, RESTART_FIRST_S * 2 ** min(self._failures, 10))
        wait_s = base_s * random.uniform(1 - JITTER, 1 + JITTER)
        if now < self._released_until:
            wait_s = self._released_until - now
        else:
            self._failures += 1
        self.counts.restarts += 1
        self._cancel(self._next)
        self._next = asyncio.get_running_loop().call_later(wait_s, self.start)

    def _say_silent(self, why: Silence, text: str) -> None:
        self.counts.silences[why] = self.counts.silences.get(why, 0) + 1
        level = logging.DEBUG if why is self._said else logging.WARNING
        self._said = why
        _log.log(level, "source_cannot_tell", extra={**self._fields(), "why": why, "text": text})
        self._listener.silent(self.source, why, text)

    def _fields(self) -> dict[str, object]:
        pid = None if self._child is None else self._child.pid
        return {"source": self.source.name, "child": pid}

    def _cancel(self, timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
