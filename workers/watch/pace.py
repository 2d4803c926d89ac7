"""How soon a node's open episode may be told of the next change.

Owns one node's pace: a burst at once, then seldom, and over hours very seldom, except for what must
not wait. Every signal stays in the history of the run and is paid for, and an episode is to stay
small and cheap on a node that flaps for days; nothing is lost by waiting, as the newest facts
count. Pure.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

COALESCE_S: Final = 0.05
"""A kubelet writes several conditions in a row; one signal for all of them is not felt by any
wait."""
SPACING_S: Final = 0.25
"""Between two signals for one node."""
BURST: Final = 12
"""Signals of a whole repair with a reboot are some ten."""
REFILL_S: Final = 5.0
"""After a burst, one more for each of these."""
LONG_BURST: Final = 60
"""Signals of a repair that meets every obstacle, held and resumed several times."""
LONG_REFILL_S: Final = 120.0
"""After a long burst: 720 signals a day, so that a history holds weeks of flapping."""
REPORT_BURST: Final = 12
"""Reports that go at once: each opens an episode or tells an open one of something new."""
REPORT_REFILL_S: Final = 120.0
"""After that many: what flaps is quarantined by now, and the newest report is the one that counts."""


class Haste(StrEnum):
    """What facts are to be held back by."""

    NOW = "now"
    """By the burst alone: the Node is gone, somebody changed a mark, Ready or the boot is another.
    Such facts take their places in the long burst all the same."""
    MAY_WAIT = "may-wait"
    """By both bursts; what waits for it looks again by itself, only later."""


@dataclass
class Bucket:
    """Tokens that come back with time; times are monotonic seconds."""

    size: int
    refill_s: float
    tokens: float = field(init=False)
    counted_at: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = self.size

    def wait_s(self, now: float) -> float:
        """Until one token is there."""
        tokens = self.left(now)
        return 0.0 if tokens >= 1 else (1 - tokens) * self.refill_s

    def take(self, now: float) -> None:
        """One token less; never less than none, so that nobody waits longer for it."""
        self.tokens = max(0.0, self.left(now) - 1)
        self.counted_at = now

    def left(self, now: float) -> float:
        """How many there are."""
        return min(float(self.size), self.tokens + (now - self.counted_at) / self.refill_s)


@dataclass
class Pace:
    """One node's pace; times are monotonic seconds."""

    burst: Bucket = field(default_factory=lambda: Bucket(BURST, REFILL_S))
    long_burst: Bucket = field(default_factory=lambda: Bucket(LONG_BURST, LONG_REFILL_S))
    reports: Bucket = field(default_factory=lambda: Bucket(REPORT_BURST, REPORT_REFILL_S))
    sent_at: float = float("-inf")

    def delay_s(self, now: float, haste: Haste) -> float:
        """How long from now the next signal is to wait, COALESCE_S at least."""
        held_s = self.held_s(now) if haste is Haste.MAY_WAIT else 0.0
        return max(COALESCE_S, self.sent_at + SPACING_S - now, self.burst.wait_s(now), held_s)

    def held_s(self, now: float) -> float:
        """How long the long burst alone holds facts back that may wait."""
        return self.long_burst.wait_s(now)

    def is_scarce(self, now: float) -> bool:
        """True if the long burst is used up: one more signal must be worth its place."""
        return self.long_burst.left(now) < 2

    def note_sent(self, now: float) -> None:
        """A signal was sent."""
        self.burst.take(now)
        self.long_burst.take(now)
        self.sent_at = now

    def is_rested(self, now: float) -> bool:
        """True if nothing of earlier signals counts any more."""
        return all(b.left(now) >= b.size for b in (self.burst, self.long_burst, self.reports))
