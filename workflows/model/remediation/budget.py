"""Budgets: integer arithmetic of how many nodes may be out at once, first come first served.

Owns the counting for the guard (slots and confirmed quarantines, one cap per pool) and for the
reflex (counted from marks). Rounding: a share is rounded down, never below 1 (`policy`). Pure and
property-tested.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from workflows.model.remediation.marks import Marker, Quarantine


class Budget(StrEnum):
    """What the guard grants."""

    QUARANTINE = "quarantine"
    DISRUPTION = "disruption"
    VALIDATION = "validation"
    ADMISSION = "admission"
    """Noted on no node: it disrupts nothing, and only keeps a scale-up from being a storm."""


def grantable(waiting: Sequence[str], holders: Iterable[str], cap: int) -> tuple[str, ...]:
    """Which of `waiting` (oldest first) may be granted now without exceeding `cap` holders.

    One who already holds is granted again at no cost (asking is idempotent).
    """
    held = set(holders)
    granted: list[str] = []
    for who in dict.fromkeys(waiting):
        if who in held:
            granted.append(who)
        elif len(held) < cap:
            held.add(who)
            granted.append(who)
    return tuple(granted)


def reflex_quarantines(markers: Iterable[Marker]) -> int:
    """How many of these marks count against the reflex budget (handed-over ones do not)."""
    return sum(1 for m in markers if m.quarantine is Quarantine.REFLEX and not m.handed_over)


@dataclass(frozen=True)
class Usage:
    """One pool's count of holders against its cap."""

    used: int
    cap: int

    @property
    def is_open(self) -> bool:
        """True if one more fits."""
        return self.used < self.cap
