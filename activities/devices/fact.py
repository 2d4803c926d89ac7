"""Facts: what a source found out, before it is dated and told as a reading.

Owns the way from a verdict to a reading (key, condition, bounded text), and the memory of when a
polled source saw a fact first. Used by every source of this package. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from activities.devices.reading import MAX_READING_TEXT, Certainty, ConditionType, Reading
from workflows.model.detection.finding import printable
from workflows.model.detection.verdict import NONE, Verdict


@dataclass(frozen=True)
class Fact:
    """One thing about one device ("" = the host).

    Attributes:
        code: what was seen; with `unit`, a part of the device, it makes the key.
        is_event: it stands until the next boot, whatever the source says later.
    """

    device: str
    code: str
    verdict: Verdict
    text: str
    unit: str = ""
    is_event: bool = False

    @property
    def key(self) -> str:
        """The same for the same thing on the same device."""
        return "/".join(part for part in (self.device or "host", self.code, self.unit) if part)

    def reading(self, at: datetime) -> Reading:
        """The fact as the agent is told it; `at`: when it was seen first."""
        verdict = self.verdict
        return Reading(
            key=self.key,
            device=self.device,
            code=self.code,
            fault=verdict.fault,
            condition=None if verdict.condition is None else ConditionType(verdict.condition),
            status=verdict.status,
            certainty=Certainty(verdict.certainty),
            at=at,
            text=printable(self.text, MAX_READING_TEXT),
            lasting=self.is_event,
        )


class FirstSeen:
    """When each fact of a polled source was seen first, as long as each poll repeats it."""

    def __init__(self) -> None:
        self._at: dict[str, datetime] = {}

    def dated(self, facts: Iterable[Fact], now: datetime) -> tuple[Reading, ...]:
        """The readings of one poll, one a key; facts that cost nothing and nobody are left out."""
        told = {fact.key: fact for fact in facts if fact.verdict.fault != NONE}
        self._at = {key: self._at.get(key, now) for key in told}
        return tuple(fact.reading(self._at[key]) for key, fact in told.items())


def utc_now() -> datetime:
    """The wall clock, as sources read it."""
    return datetime.now(UTC)
