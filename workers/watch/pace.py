"""How soon a node's open episode may be told of the next change.

Owns one node's pace: a burst at once, then seldom. Every signal is paid for, and an episode is to
stay cheap on a node that flaps for hours; nothing is lost by waiting, as the newest facts count.
Pure.
"""

from dataclasses import dataclass
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


@dataclass
class Pace:
    """One node's pace; times are monotonic seconds."""

    tokens: float = BURST
    counted_at: float = 0.0
    sent_at: float = float("-inf")

    def delay_s(self, now: float) -> float:
        """How long from now the next signal is to wait, COALESCE_S at least."""
        tokens = self._tokens(now)
        for_token = 0.0 if tokens >= 1 else (1 - tokens) * REFILL_S
        return max(COALESCE_S, self.sent_at + SPACING_S - now, for_token)

    def note_sent(self, now: float) -> None:
        """A signal was sent."""
        self.tokens = max(0.0, self._tokens(now) - 1)
        self.counted_at = self.sent_at = now

    def is_rested(self, now: float) -> bool:
        """True if nothing of earlier signals counts any more."""
        return self._tokens(now) >= BURST

    def _tokens(self, now: float) -> float:
        return min(float(BURST), self.tokens + (now - self.counted_at) / REFILL_S)
