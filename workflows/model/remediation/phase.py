"""Phases, outcomes and held: the words for where an episode stands and how it ended.

Owns the closed sets. A phase says what the episode has achieved, a step what is running now
(steps are named after their contracts). Talks to nothing.
"""

from enum import StrEnum


class Phase(StrEnum):
    """What an episode has achieved."""

    SUSPECT = "suspect"
    QUARANTINED = "quarantined"
    DRAINED = "drained"
    REBOOTED = "rebooted"
    AWAITING_CAPACITY = "awaiting-capacity"
    """The machine is gone, and another has not come or not passed yet."""
    VALIDATED = "validated"
    PROBATION = "probation"
    CLOSED = "closed"


class Outcome(StrEnum):
    """How an episode ended."""

    DISMISSED = "dismissed"
    RETURNED = "returned"
    REPLACED = "replaced"
    RETIRED = "retired"
    YIELDED = "yielded"
    VANISHED = "vanished"
