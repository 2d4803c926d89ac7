"""A year of ticks over a pool of nodes that come and go idle, with three days without Temporal."""

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache

from tests.model.views import NOW
from workers.control.settings import WorkerSettings
from workflows.model.amounts import nodes_of_share
from workflows.model.identity import NodeRef
from workflows.model.remediation.validation import IdleNode, pick
from workflows.model.upkeep import ValidationPolicy

TICK = timedelta(seconds=WorkerSettings(cluster="c").validation_interval_s)
RULE = ValidationPolicy(enabled=True, period_s=7 * 86_400, share="10%")
PERIOD = timedelta(seconds=RULE.period_s)
TAKES = timedelta(minutes=30)
YEAR = NOW + timedelta(days=365)
AWAY = (NOW + timedelta(days=100), NOW + timedelta(days=103))
NODES = 16
SEED = 1
JOB = timedelta(hours=6)
"""A node is busy and idle in turns of about this length."""


@dataclass
class Node:
    """`free_at` is when its validation ends; `turn_at` when it turns busy or idle."""

    ref: NodeRef
    idle: bool = True
    turn_at: datetime = NOW
    validated_at: datetime = NOW
    free_at: datetime | None = None


@dataclass
class Year:
    """What a year showed."""

    started: list[tuple[datetime, int]] = field(default_factory=list)
    oldest: timedelta = timedelta()
    oldest_after_outage: timedelta = timedelta()


@cache
def lived(seed: int) -> Year:
    """Every tick of the year, as the dispatcher decides it."""
    chance = random.Random(seed)
    nodes = [Node(NodeRef(f"n{n:02}", f"u{n}")) for n in range(NODES)]
    year, now = Year(), NOW
    while now < YEAR:
        now += TICK
        for node in nodes:
            if node.free_at is not None and node.free_at <= now:
                node.validated_at, node.free_at = node.free_at, None
            if node.free_at is None and node.turn_at <= now:
                node.idle = not node.idle
                node.turn_at = now + JOB * chance.uniform(0.5, 1.5)
        if AWAY[0] <= now < AWAY[1]:
            continue  # what is missed is left out: the catch-up window is shorter than a tick
        under_way = [node for node in nodes if node.free_at is not None]
        idle = {node.ref.name: node for node in nodes if node.idle and node.free_at is None}
        seen = [IdleNode(node.ref, node.validated_at) for node in idle.values()]
        picked = pick(seen, RULE, len(under_way), now)
        room = nodes_of_share(RULE.share, len(idle) + len(under_way))
        assert len(picked) + len(under_way) <= max(room, len(under_way))
        for one in picked:
            idle[one.node.name].free_at = now + TAKES
        year.started.append((now, len(picked)))
        ages = [now - node.validated_at for node in nodes]
        if now < AWAY[0] or now > AWAY[1] + timedelta(days=1):
            year.oldest = max(year.oldest, *ages)
        else:
            year.oldest_after_outage = max(year.oldest_after_outage, *ages)
    return year


def test_each_node_is_validated_within_its_period_but_for_the_outage() -> None:
    year = lived(SEED)
    assert year.oldest <= PERIOD, year.oldest
    assert year.oldest_after_outage <= PERIOD + (AWAY[1] - AWAY[0])
    assert sum(count for _, count in year.started) < 2 * NODES * 365 / 7


def test_after_an_outage_no_tick_starts_more_than_any_other() -> None:
    year = lived(SEED)
    before = max(count for at, count in year.started if at < AWAY[0])
    after = max(count for at, count in year.started if at >= AWAY[1])
    assert after <= max(before, nodes_of_share(RULE.share, NODES))


def test_no_more_than_one_missed_tick_is_caught_up() -> None:
    settings = WorkerSettings(cluster="c")
    assert settings.validation_catch_up_s < settings.validation_interval_s
