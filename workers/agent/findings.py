"""The ledger: what stands on this machine in this boot, as findings with stable ids.

Owns which readings stand (a poll's set replaces the last one; an event stands until the next boot),
their ids, what a silent source leaves behind, and what an agent takes over from its forerunner. The
ledger lives in memory and in the Node's annotation, never on a disk. `conditions.py` makes words of
it. Pure: time comes in as a `Moment`.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from activities.devices.reading import Certainty, ConditionType, Reading
from workflows.model.detection.fault import SEVERITY, Fault
from workflows.model.detection.finding import MAX_TEXT, printable

MAX_STANDING: Final = 256
"""More than the annotation can show by ten times; the worst and newest are kept."""
STALE_S: Final = 900.0
"""How long a silent source's last readings stand beside "cannot tell"; as long as a silent node's
conditions do (design section 3: 15 min)."""
FADE_S: Final = 900.0
"""How long an event stands that is not lasting and that nothing repeats."""
BURST_GAP: Final = timedelta(minutes=10)
"""An event that costs no node is a new finding when its first line is so much later."""
SUPERVISION: Final = "agent"
"""The source of findings about the agent's own children."""
UNKILLABLE: Final = "unkillable-child"
SILENCE: Final = "cannot-tell/"
"""Begins the keys under which a source's silence stands."""


@dataclass(frozen=True)
class Moment:
    """One instant on both clocks: the wall's for people, the monotonic one for durations."""

    wall: datetime
    mono: float


@dataclass(frozen=True, kw_only=True)
class Standing(Reading):
    """A reading that stands as a finding, with all that a later agent needs to take it over."""

    id: str
    source: str

    @property
    def severity(self) -> int:
        """How grave; below every class for what costs no node."""
        return SEVERITY[Fault(self.fault)] if self.fault in set(Fault) else -1

    @property
    def grave_first(self) -> tuple[bool, int, float]:
        """Sorts the worst and newest first."""
        is_bad = self.status == "False" and self.condition is not None
        return (not is_bad, -self.severity, -self.at.timestamp())


class Voice(StrEnum):
    """What a source does at this moment."""

    PENDING = "pending"
    """It has not answered yet in this agent's life, and its deadline is not over."""
    ANSWERS = "answers"
    SILENT = "silent"


@dataclass
class _Mark:
    """What is known of one source beside its readings."""

    answered: bool = False
    silent_since: float | None = None

    @property
    def voice(self) -> Voice:
        if self.silent_since is not None:
            return Voice.SILENT
        return Voice.ANSWERS if self.answered else Voice.PENDING


class Ledger:
    """Findings of one boot."""

    def __init__(self, boot_id: str, answering: Iterable[tuple[str, frozenset[ConditionType]]]):
        """An empty ledger.

        Args:
            boot_id: of the boot in which it is kept.
            answering: each source with the conditions it answers for.
        """
        self.boot_id = boot_id
        self.forgotten = 0
        """Findings that found no place; counted in the annotation."""
        self._answering = dict(answering)
        self._marks = {name: _Mark() for name in self._answering}
        self._standing: dict[tuple[str, str], Standing] = {}
        self._fading: dict[tuple[str, str], float] = {}

    def standing(self) -> list[Standing]:
        """Everything that stands, worst and newest first."""
        return sorted(self._standing.values(), key=lambda item: item.grave_first)

    def voices(self, condition: ConditionType) -> dict[str, Voice]:
        """The sources that answer for a condition, and what each does now."""
        return {
            name: self._marks[name].voice
            for name, conditions in self._answering.items()
            if condition in conditions
        }

    def polled(self, source: str, readings: Sequence[Reading]) -> None:
        """All that a polled source says is wrong now."""
        self._heard(source)
        said = {reading.key for reading in readings}
        for name, key in list(self._standing):
            if name == source and key not in said and not self._standing[name, key].lasting:
                self._drop((name, key))
        for reading in readings:
            self._put(source, reading)
            self._fading.pop((source, reading.key), None)

    def news(self, source: str, readings: Sequence[Reading], now: Moment) -> None:
        """New events of a streamed source; empty = it lives."""
        self._heard(source)
        for reading in readings:
            self._put(source, reading)
            if not reading.lasting:
                self._fading[source, reading.key] = now.mono + FADE_S

    def silent(self, source: str, code: str, text: str, now: Moment) -> None:
        """A source cannot tell: unknown on each of its conditions until it answers again."""
        mark = self._marks[source]
        if mark.silent_since is not None:
            return  # the first cause stands, under one id
        mark.silent_since = now.mono
        for condition in self._answering[source]:
            key = silence_key(condition)
            kept = self._standing.get((source, key))
            if kept is None:
                line = f"{source}: {text}"
                self._add(_unknown(condition, key, code, line, now), source)

    def unkillable(self, source: str, text: str, now: Moment, *, is_so: bool) -> None:
        """A child of that source sits in the kernel, or does so no longer."""
        key = f"{UNKILLABLE}/{source}"
        if not is_so:
            self._drop((SUPERVISION, key))
        elif (SUPERVISION, key) not in self._standing:
            self._add(_unknown(ConditionType.GPU, key, UNKILLABLE, text, now), SUPERVISION)

    def expire(self, now: Moment) -> None:
        """Let go of what has stood too long: events that fade, and what a silent source said."""
        for place, until in list(self._fading.items()):
            if now.mono > until:
                self._drop(place)
        for source, mark in self._marks.items():
            if mark.silent_since is not None and now.mono > mark.silent_since + STALE_S:
                for place, item in list(self._standing.items()):
                    is_own = place[0] == source and not item.lasting
                    if is_own and not place[1].startswith(SILENCE):
                        self._drop(place)

    def take_over(self, findings: Iterable[Standing], now: Moment) -> None:
        """Findings of this boot that the agent before this one had written.

        They keep their ids. What is not lasting stands until its source has answered.
        """
        for item in findings:
            place = (item.source, item.key)
            own = self._standing.get(place)
            if own is not None:
                self._standing[place] = replace(own, id=item.id, at=item.at)
                continue
            mark = self._marks.get(item.source)
            is_settled = mark is None or mark.answered
            if item.lasting or not is_settled:
                self._standing[place] = item
            if not item.lasting and not is_settled and not item.key.startswith(SILENCE):
                self._fading[place] = now.mono + FADE_S
        self._bound()

    def _heard(self, source: str) -> None:
        mark = self._marks[source]
        mark.answered, mark.silent_since = True, None
        for condition in ConditionType:
            self._drop((source, silence_key(condition)))

    def _put(self, source: str, reading: Reading) -> None:
        old = self._standing.get((source, reading.key))
        if old is None or self._is_new_burst(old, reading):
            self._add(reading, source)
            return
        self._standing[source, reading.key] = replace(
            old,
            fault=reading.fault,
            condition=reading.condition,
            status=reading.status,
            certainty=reading.certainty,
            text=printable(reading.text, MAX_TEXT),
            lasting=old.lasting or reading.lasting,
            count=max(old.count, reading.count),
        )

    def _is_new_burst(self, old: Standing, reading: Reading) -> bool:
        return old.condition is None and reading.at - old.at > BURST_GAP

    def _add(self, reading: Reading, source: str) -> None:
        self._standing[source, reading.key] = Standing(
            id=finding_id(self.boot_id, source, reading.key, reading.at),
            source=source,
            **vars(replace(reading, text=printable(reading.text, MAX_TEXT))),
        )
        self._bound()

    def _bound(self) -> None:
        while len(self._standing) > MAX_STANDING:
            least = self.standing()[-1]
            self._drop((least.source, least.key))
            self.forgotten += 1

    def _drop(self, place: tuple[str, str]) -> None:
        self._standing.pop(place, None)
        self._fading.pop(place, None)


def silence_key(condition: ConditionType) -> str:
    """The key under which a source's silence stands for one of its conditions."""
    return f"{SILENCE}{condition}"


def finding_id(boot_id: str, source: str, key: str, at: datetime) -> str:
    """The same for the same burst, whichever agent of the boot computes it."""
    first = at.astimezone(UTC).isoformat(timespec="microseconds")
    return hashlib.sha256(f"{boot_id}|{source}|{key}|{first}".encode()).hexdigest()[:16]


def _unknown(condition: ConditionType, key: str, code: str, text: str, now: Moment) -> Reading:
    return Reading(
        key=key,
        device="",
        code=code,
        fault=Fault.DIAGNOSTIC_UNKNOWN,
        condition=condition,
        status="Unknown",
        certainty=Certainty.UNKNOWN,
        at=now.wall,
        text=text,
        lasting=False,
    )
