"""Temporal is away, refused or hung: new work is kept off a faulty node all the same (P10).

On a lab of its own. One node is in the middle of its episode when Temporal goes, another fails while
it is away; afterwards both go on by themselves, and nothing is done twice.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.chaos.stage import Ending, OwnLab, Stage, own_lab
from tests.harness.audit import AGENT, WATCH, Wanted
from tests.harness.processes import until_working
from tests.harness.waiting import stays_true, wait_until
from workers.lab.address import Component
from workers.lab.controlplane.lab import Lab
from workers.lab.kubelet.spec import Power

POOL = "away"
SHORT_S = 5.0
LONG_S = 120.0
START_S = 30.0
"""Some rounds of a start's attempts: what lives through an outage is what the long ones are for."""
WITHIN_S = 10.0
"""P10: from the agent's report to the cordon."""
CHANGES = {"timing": {"boot_deadline_s": 400}, "gate": {"timeout_s": 120, "settle_s": 60}}
RETURNED = Ending("returned", reboots=1)


@dataclass(frozen=True)
class Outage:
    """A way in which Temporal is away."""

    name: str
    begin: Callable[[Lab], None]
    end: Callable[[Lab], None]


REFUSED = Outage(
    "refused", lambda lab: lab.kill(Component.TEMPORAL), lambda lab: lab.start(Component.TEMPORAL)
)
HUNG = Outage(
    "hung",
    lambda lab: lab.stop_signal(Component.TEMPORAL),
    lambda lab: lab.continue_signal(Component.TEMPORAL),
)
OUTAGES = (REFUSED, HUNG)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnLab]:
    with own_lab(tmp_path_factory.mktemp("away"), [POOL], CHANGES) as started:
        yield started


@pytest.fixture
def two(own: OwnLab) -> Iterator[tuple[Stage, list[str]]]:
    stage = own.stage()
    names = own.nodes.add_many(["amid", "fresh"], POOL)
    stage.settle(*names)
    yield stage, names
    own.nodes.remove_all()


def cordon_delay_s(stage: Stage, node: str) -> float:
    """Seconds from the agent's patch that reported the fault to the patch that cordoned."""
    cordon = stage.until_cordoned(node, deadline_s=20)
    reports = stage.witness.events(
        Wanted(who=AGENT, verb="patch", resource="nodes/status", name=node)
    )
    told = [event for event in reports if event.received_at < cordon.received_at]
    assert cordon.who == WATCH
    return (cordon.answered_at - told[-1].answered_at).total_seconds()


def live_through(own: OwnLab, stage: Stage, names: list[str], outage: Outage, for_s: float) -> None:
    amid, fresh = names
    stage.inject(amid, "reboot-hangs")
    stage.inject(amid, "gpu-lost")
    wait_until(lambda: own.nodes.view(amid).power is Power.HUNG, 90, f"{amid} is down")
    outage.begin(own.hands)
    try:
        stage.inject(fresh, "gpu-lost")
        assert cordon_delay_s(stage, fresh) < WITHIN_S
        own.nodes.clear(amid, "reboot-hangs")
        stays_true(
            lambda: stage.cluster.node(fresh).unschedulable, for_s, f"{fresh} stays quarantined"
        )
    finally:
        outage.end(own.hands)
    judge_once(stage, names)


def judge_once(stage: Stage, names: list[str]) -> None:
    """Each node was rebooted and given back, by one run."""
    for node in names:
        stage.judge(node, RETURNED)
        assert len(stage.struck(node)) == 1, stage.shown(node)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: outage.name)
def test_a_fault_in_a_short_outage_is_quarantined_at_once_and_healed_afterwards(
    own: OwnLab, two: tuple[Stage, list[str]], outage: Outage
) -> None:
    live_through(own, *two, outage, SHORT_S)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: outage.name)
def test_a_fault_in_a_long_outage_is_quarantined_at_once_and_healed_afterwards(
    own: OwnLab, two: tuple[Stage, list[str]], outage: Outage
) -> None:
    live_through(own, *two, outage, LONG_S)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: outage.name)
def test_watch_and_worker_started_while_temporal_is_away_do_their_work(
    own: OwnLab, two: tuple[Stage, list[str]], outage: Outage
) -> None:
    stage, names = two
    own.fleet.watch.end()
    own.fleet.worker.end()
    outage.begin(own.hands)
    try:
        own.fleet.restart_watch()
        worker = own.fleet.processes.start("worker")
        wait_until(lambda: own.fleet.watch.logged("writing"), 90, "watch may write")
        for node in names:
            stage.inject(node, "gpu-lost")
            assert cordon_delay_s(stage, node) < WITHIN_S
        stays_true(
            lambda: all(stage.cluster.node(node).unschedulable for node in names),
            START_S,
            "both stay quarantined",
        )
        assert worker.is_alive(), worker.tail()
    finally:
        outage.end(own.hands)
    own.fleet.worker = until_working(worker)
    judge_once(stage, names)
