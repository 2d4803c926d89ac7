"""A year of looks at the product's own interval, over pools that come and go idle by chance.

The decisions alone, without a server: `tests/workers/control/test_validation_year.py` lives one
year of one pool on a real one, at a longer interval.
"""

from datetime import timedelta
from functools import cache

import pytest

from tests.model.views import NOW
from tests.workflows.idle_fleet import Habits, IdleFleet
from workers.control.settings import WorkerSettings
from workflows.model.amounts import nodes_of_share
from workflows.model.upkeep import ValidationPolicy

TICK = timedelta(seconds=WorkerSettings(cluster="c").validation_interval_s)
RULE = ValidationPolicy(enabled=True, period_s=7 * 86_400, share="10%")
PERIOD = timedelta(seconds=RULE.period_s)
YEAR = NOW + timedelta(days=365)
AWAY = (NOW + timedelta(days=100), NOW + timedelta(days=103))
HABITS = Habits(nodes=16, job=timedelta(hours=6), takes=timedelta(minutes=30))
SETTLED = AWAY[1] + timedelta(days=1)
SEEDS = (1, 2)


@cache
def lived(seed: int) -> IdleFleet:
    """Every tick of the year, as the dispatcher decides it."""
    fleet, now = IdleFleet(seed, RULE, HABITS, NOW), NOW
    while now < YEAR:
        now += TICK
        fleet.live_to(now)
        if not AWAY[0] <= now < AWAY[1]:  # what is missed is left out
            fleet.pick(now)
    return fleet


@pytest.mark.parametrize("seed", SEEDS)
def test_each_node_is_validated_within_its_period_but_for_the_outage(seed: int) -> None:
    fleet = lived(seed)
    assert fleet.oldest(NOW, AWAY[0]) <= PERIOD
    assert fleet.oldest(AWAY[1], SETTLED) <= PERIOD + (AWAY[1] - AWAY[0])
    assert fleet.oldest(SETTLED, YEAR) <= PERIOD
    assert sum(look.picked for look in fleet.looks) < 2 * HABITS.nodes * 365 / 7


@pytest.mark.parametrize("seed", SEEDS)
def test_after_an_outage_no_tick_starts_more_than_any_other(seed: int) -> None:
    fleet = lived(seed)
    before = max(look.picked for look in fleet.looks if look.at < AWAY[0])
    after = max(look.picked for look in fleet.looks if look.at >= AWAY[1])
    assert after <= max(before, nodes_of_share(RULE.share, HABITS.nodes))


def test_no_more_than_one_missed_tick_is_caught_up() -> None:
    settings = WorkerSettings(cluster="c")
    assert settings.validation_catch_up_s < settings.validation_interval_s
