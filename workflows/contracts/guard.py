"""Contracts on the guard and the sweep: asking for a place, rebuilding, looking for orphans.

Owns requests, results and contracts that `activities/kube/marks_survey.py` and the worker's
Temporal-facing activities implement.
"""

from dataclasses import dataclass
from datetime import datetime

from workflows.contracts import Contract
from workflows.contracts.messages import Ask, Release
from workflows.model.identity import NodeRef
from workflows.model.remediation.permit import Effect


@dataclass(frozen=True)
class Asked:
    """The ask reached the guard; the grant comes as a signal."""

    guard: str


ASK_GUARD = Contract("ask_guard", Effect.READ, Ask, Asked, "ask the guard for a place")
"""Signal-with-start of the guard; idempotent (the guard knows the asker by node and budget)."""


RELEASE_PLACE = Contract(
    "release_place", Effect.READ, Release, Asked, "tell the guard that a place is free"
)
"""Signal to the guard (it need not run: a fresh one counts the marks); idempotent."""


@dataclass(frozen=True)
class RebuildRequest:
    """A fresh guard makes its epoch the only valid one, then counts what is noted."""

    epoch: str


@dataclass(frozen=True)
class NotedPlace:
    """One place that is noted on a node."""

    budget: str
    pool: str
    node: NodeRef
    episode: str
    at: datetime


@dataclass(frozen=True)
class Rebuilt:
    """Everything noted on nodes, and every pause that stands."""

    places: tuple[NotedPlace, ...]
    paused: tuple[str, ...]


CLAIM_EPOCH = Contract(
    "claim_epoch", Effect.READ, RebuildRequest, Asked, "make this guard the only one"
)
SURVEY_MARKS = Contract(
    "survey_marks", Effect.READ, RebuildRequest, Rebuilt, "count the places noted on nodes"
)


@dataclass(frozen=True)
class SweepRequest:
    """Look for marks without an owner in `cluster`."""

    cluster: str


@dataclass(frozen=True)
class Unbaselined:
    """A healthy node whose machine has no baseline yet."""

    node: NodeRef
    machine_id: str
    pool: str


@dataclass(frozen=True)
class Swept:
    """Episodes started for orphaned marks, stale records mended, and nodes without baseline."""

    adopted: tuple[str, ...]
    cleaned: tuple[str, ...]
    unbaselined: tuple[Unbaselined, ...]


SWEEP_CLUSTER = Contract(
    "sweep_cluster", Effect.READ, SweepRequest, Swept, "find marks without an open episode"
)
