"""Contracts on validating idle nodes: which ones now, and whether one is idle.

Owns the order of a dispatcher (by schedule, or by a person) and the answers of the activities in
`activities/validation.py`. The order to one node is `ValidationOrder` in `messages.py`.
"""

from dataclasses import dataclass
from datetime import datetime

from workflows.contracts import Contract
from workflows.contracts.kube import Owner
from workflows.model.identity import NodeRef
from workflows.model.remediation.permit import Effect

BY_SCHEDULE = "schedule"
MAX_PICKS = 100
"""Nodes that one dispatcher starts; more are for the next tick."""
MAX_LEFT = 200
"""Nodes that are named with the reason why they are left alone."""


@dataclass(frozen=True)
class FleetOrder:
    """Validate idle nodes of `cluster`.

    With neither `node` nor `pool`, those that are due by the policy of their pools. A person names
    a node or a pool, and needs no policy that enables it; `level` 0 = the policy's.
    """

    cluster: str
    by: str = BY_SCHEDULE
    node: str = ""
    pool: str = ""
    level: int = 0

    @property
    def is_by_hand(self) -> bool:
        """True if a person has named what is to be validated."""
        return bool(self.node or self.pool)


@dataclass(frozen=True)
class Picked:
    """One node whose turn it is, and the id of the episode in which it is validated.

    `is_new` = its machine was never proven, and policy wants new nodes without the taint examined.
    """

    node: NodeRef
    pool: str
    episode: str
    level: int
    is_new: bool = False


@dataclass(frozen=True)
class LeftAlone:
    """A node that is not validated now, and why."""

    node: str
    why: str


@dataclass(frozen=True)
class Picks:
    """Who is validated now, who not; `at` is the moment of the look."""

    at: datetime
    picked: tuple[Picked, ...]
    left: tuple[LeftAlone, ...] = ()


@dataclass(frozen=True)
class Dispatched:
    """What a dispatcher did: nodes whose validation was started, and those left alone."""

    started: tuple[str, ...]
    left: tuple[LeftAlone, ...] = ()


PICK_IDLE = Contract(
    "pick_idle", Effect.READ, FleetOrder, Picks, "pick the idle nodes to be validated"
)


@dataclass(frozen=True)
class Idleness:
    """`why_not` keeps it from being validated; `work` uses its GPUs or waits for them ("" = no)."""

    why_not: str = ""
    work: str = ""


READ_IDLENESS = Contract(
    "read_idleness", Effect.READ, Owner, Idleness, "look whether the node is idle"
)
