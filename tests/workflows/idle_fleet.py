"""A simulated pool of nodes that turn busy and idle, and what a dispatcher of validations picks.

Owns the nodes' turns (from a seed), their validations, and how old each node's last one became. The
choice is the product's own `pick`; whose clock moves, and who starts the validations, is the
test's. Talks to nothing.
"""

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from workflows.model.amounts import nodes_of_share
from workflows.model.identity import NodeRef
from workflows.model.remediation.validation import IdleNode, pick
from workflows.model.upkeep import ValidationPolicy


@dataclass(frozen=True)
class Habits:
    """Of a pool: how many nodes, how long each stays busy or idle (about), how long one takes.

    `is_staggered` = the last validations lie all over the period at first, instead of all at the
    start.
    """

    nodes: int
    job: timedelta
    takes: timedelta
    is_staggered: bool = False


@dataclass
class Node:
    """`free_at` is when its validation ends; `turn_at` when it turns busy or idle."""

    ref: NodeRef
    turn_at: datetime
    validated_at: datetime
    idle: bool = True
    free_at: datetime | None = None


@dataclass(frozen=True)
class Look:
    """One look of the dispatcher: how many it picked, and how old the oldest validation was."""

    at: datetime
    picked: int
    oldest: timedelta


@dataclass
class IdleFleet:
    """One pool from `start` on; `looks` are those that were taken."""

    seed: int
    rule: ValidationPolicy
    habits: Habits
    start: datetime
    nodes: dict[str, Node] = field(default_factory=dict)
    looks: list[Look] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        for number in range(self.habits.nodes):
            age = self._chance.uniform(0, 0.9) if self.habits.is_staggered else 0.0
            validated_at = self.start - age * timedelta(seconds=self.rule.period_s)
            ref = NodeRef(f"n{number:02}", f"u{number}")
            self.nodes[ref.name] = Node(ref, self.start, validated_at)

    def live_to(self, now: datetime) -> None:
        """Validations end, and nodes turn busy or idle."""
        for node in self.nodes.values():
            if node.free_at is not None and node.free_at <= now:
                node.validated_at, node.free_at = node.free_at, None
            if node.free_at is None and node.turn_at <= now:
                node.idle = not node.idle
                node.turn_at = now + self.habits.job * self._chance.uniform(0.5, 1.5)

    def pick(self, now: datetime) -> tuple[NodeRef, ...]:
        """Whom the product picks; their validation begins now."""
        under_way = [node for node in self.nodes.values() if node.free_at is not None]
        idle = [node for node in self.nodes.values() if node.idle and node.free_at is None]
        seen = [IdleNode(node.ref, node.validated_at) for node in idle]
        chosen = pick(seen, self.rule, len(under_way), now)
        room = nodes_of_share(self.rule.share, len(idle) + len(under_way))
        assert len(chosen) + len(under_way) <= max(room, len(under_way))
        for one in chosen:
            self.nodes[one.node.name].free_at = now + self.habits.takes
        oldest = max(now - node.validated_at for node in self.nodes.values())
        self.looks.append(Look(now, len(chosen), oldest))
        return tuple(one.node for one in chosen)

    def oldest(self, since: datetime, until: datetime) -> timedelta:
        """The oldest validation that was seen in that time."""
        return max(look.oldest for look in self.looks if since <= look.at <= until)
