"""Temporal away: refused or hung, before or after the start of watch. Nothing waits, nothing is lost.

Each outage lasts as long as the test says because its length is what is tried.
"""

from collections.abc import Callable

import pytest

from tests.harness.waiting import stays_true, wait_until
from tests.workers.watch.recorder import Recorder
from tests.workers.watch.scene import Scene
from workers.lab.address import Component
from workers.lab.controlplane.lab import Lab

OUTAGE_S = 5.0
"""The shortest that is played: what waits for Temporal takes as long. What it takes else, the bench says."""
BACK_LIMIT_S = 30.0


def _refuse(hands: Lab) -> None:
    hands.kill(Component.TEMPORAL)


def _accept(hands: Lab) -> None:
    hands.start(Component.TEMPORAL)


def _hang(hands: Lab) -> None:
    hands.stop_signal(Component.TEMPORAL)


def _thaw(hands: Lab) -> None:
    hands.continue_signal(Component.TEMPORAL)


OUTAGES = pytest.mark.parametrize(
    ("begin", "end"), [(_refuse, _accept), (_hang, _thaw)], ids=["refused", "hung"]
)
Act = Callable[[Lab], None]


@OUTAGES
@pytest.mark.parametrize(
    "outage_s", [5.0, pytest.param(30.0, marks=[pytest.mark.long, pytest.mark.timeout(400)])]
)
def test_outage_delays_no_quarantine_and_loses_no_report(
    scene: Scene, recorder: Recorder, lab_hands: Lab, begin: Act, end: Act, outage_s: float
) -> None:
    before, during = scene.add("before", "during")
    scene.arm()
    scene.writing_watch()
    scene.break_node(before)
    wait_until(
        lambda: recorder.reports(before, scene.uids[before]),
        10,
        "Temporal is told",
        saw=scene.tails,
    )
    begin(lab_hands)
    try:
        scene.break_node(during)
        scene.until_quarantined(during)
        stays_true(scene.watches[0].is_alive, outage_s, "watch runs")
    finally:
        end(lab_hands)
    assert scene.reaction_s(during) < OUTAGE_S
    uid = scene.uids[during]
    wait_until(
        lambda: recorder.reports(during, uid),
        BACK_LIMIT_S,
        "it is told afterwards",
        saw=scene.tails,
    )
    assert len(recorder.runs(during, uid)) == 1
    # A signal that timed out may have arrived: the run knows the repetition by its ids.
    assert len({tuple(m.id for m in r.matches) for r in recorder.reports(during, uid)}) == 1
    assert len(scene.cordons(during)) == 1
    assert len(scene.node_writes()) == 2


@OUTAGES
def test_watch_starts_and_works_while_temporal_is_away(
    scene: Scene, recorder: Recorder, lab_hands: Lab, begin: Act, end: Act
) -> None:
    (node,) = scene.add("a")
    scene.arm()
    begin(lab_hands)
    try:
        scene.writing_watch()
        scene.break_node(node)
        scene.until_quarantined(node)
    finally:
        end(lab_hands)
    assert scene.reaction_s(node) < OUTAGE_S
    uid = scene.uids[node]
    wait_until(lambda: recorder.reports(node, uid), BACK_LIMIT_S, "it is told", saw=scene.tails)
    assert len(recorder.runs(node, uid)) == 1


def test_watch_killed_in_an_outage_loses_no_report(
    scene: Scene, recorder: Recorder, lab_hands: Lab
) -> None:
    """The outbox is in memory; what it held is in the cluster, and is found there again."""
    marked, matching = scene.add("marked", "matching")
    scene.arm()
    first = scene.writing_watch(reflex=1)
    _refuse(lab_hands)
    try:
        scene.break_node(marked)
        scene.until_quarantined(marked)
        scene.break_node(matching)
        wait_until(lambda: first.logged("reflex_budget_full"), 10, "it is seen", saw=scene.tails)
        first.kill()
    finally:
        _accept(lab_hands)
    scene.writing_watch(reflex=1)
    marker = scene.cluster.marker(marked)
    assert marker is not None
    for node in (marked, matching):
        wait_until(
            lambda node=node: recorder.reports(node, scene.uids[node]),  # type: ignore[misc]  # mypy infers no default argument
            BACK_LIMIT_S,
            f"{node} is told",
            saw=scene.tails,
        )
    opening = recorder.opening(marked, scene.uids[marked])
    assert opening is not None
    assert opening.episode == marker.episode
    assert len(scene.cordons(marked)) == 1
    assert not scene.cordons(matching)


def test_report_that_is_no_longer_true_is_dropped(
    scene: Scene, recorder: Recorder, lab_hands: Lab
) -> None:
    recovered, gone, still = scene.add("recovered", "gone", "still")
    scene.arm()
    watch = scene.writing_watch()
    _refuse(lab_hands)
    try:
        for node in (recovered, gone, still):
            scene.break_node(node, "unknown")
        scene.nodes.clear(recovered, "unknown")
        scene.nodes.client.remove_node(gone)
        wait_until(
            lambda: len(watch.logged("report_not_sent")) == 3, 20, "all were tried", saw=scene.tails
        )
    finally:
        _accept(lab_hands)
    wait_until(
        lambda: recorder.reports(still, scene.uids[still]),
        BACK_LIMIT_S,
        "what is still true is told",
        saw=scene.tails,
    )
    wait_until(
        lambda: {line["node"] for line in watch.logged("report_dropped")} == {recovered, gone},
        BACK_LIMIT_S,
        "the others are dropped",
        saw=scene.tails,
    )
    for node in (recovered, gone):
        assert not recorder.runs(node, scene.uids[node])
