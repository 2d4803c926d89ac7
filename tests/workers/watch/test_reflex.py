"""The quarantine at once: what it writes, within which budget, and where it does not write."""

import json

import pytest

from tests.harness.waiting import stays_true, wait_until
from tests.workers.watch.recorder import Recorder
from tests.workers.watch.scene import Scene
from workflows.model.identity import task_queue
from workflows.model.remediation.marks import EPISODE, Quarantine, parse_marker

NOTHING_FOR_S = 1.5
"""How long a test looks on where nothing may happen; a reaction takes some 10 ms."""


def test_fault_is_quarantined_at_once_in_one_patch_and_reported(
    scene: Scene, recorder: Recorder
) -> None:
    (node,) = scene.add("a")
    scene.arm()
    scene.writing_watch()
    scene.break_node(node)
    scene.until_quarantined(node)

    marker = scene.cluster.marker(node)
    assert marker is not None
    assert (marker.rule, marker.fault, marker.quarantine) == (
        "gpu-lost",
        "gpu-lost",
        Quarantine.REFLEX,
    )
    assert marker.node_uid == scene.uids[node]
    (write,) = scene.node_writes()
    assert write.sets_unschedulable
    assert write.body["metadata"]["resourceVersion"]

    uid = scene.uids[node]
    wait_until(lambda: recorder.reports(node, uid), 10, "the report arrives", saw=scene.tails)
    opening = recorder.opening(node, uid)
    assert opening is not None
    assert (opening.episode, opening.opened_by) == (marker.episode, "watch")
    (report,) = recorder.reports(node, uid)
    assert report.episode == marker.episode
    assert int(report.marked_at) > int(write.body["metadata"]["resourceVersion"])
    assert [match.rule for match in report.matches] == ["gpu-lost"]
    (run,) = recorder.runs(node, uid)
    assert run.task_queue == task_queue(recorder.cluster)


def test_budget_is_never_exceeded_however_many_fail_at_once(
    scene: Scene, recorder: Recorder
) -> None:
    """Judged by the order of the resourceVersions of the marks, as the API server recorded them."""
    nodes = scene.add(*"abcdefghij")
    scene.arm()
    scene.writing_watch(reflex=3)
    for node in nodes:
        scene.break_node(node)
    wait_until(
        lambda: all(recorder.reports(node, scene.uids[node]) for node in nodes),
        20,
        "every node is reported, quarantined or not",
        saw=scene.tails,
    )
    assert len(scene.quarantined(nodes)) == 3
    assert len(scene.node_writes()) == 3
    assert len(scene.watches[0].logged("reflex_budget_full")) == 7


def test_a_new_watch_counts_the_marks_that_the_last_one_made(
    scene: Scene, recorder: Recorder
) -> None:
    nodes = scene.add(*"abcd")
    scene.arm()
    first = scene.writing_watch(reflex=2)
    for node in nodes[:2]:
        scene.break_node(node)
        scene.until_quarantined(node)
    first.kill()
    scene.writing_watch(reflex=2)
    for node in nodes[2:]:
        scene.break_node(node)
        wait_until(
            lambda node=node: recorder.reports(node, scene.uids[node]),  # type: ignore[misc]  # mypy infers no default argument
            10,
            "the node without a place is reported",
            saw=scene.tails,
        )
    assert scene.quarantined(nodes) == nodes[:2]


def test_handed_over_nodes_take_no_place_and_are_left_alone(
    scene: Scene, recorder: Recorder
) -> None:
    handed, other = scene.add("a", "b")
    scene.arm()
    scene.writing_watch(reflex=1)
    scene.break_node(handed)
    scene.until_quarantined(handed)
    marker = json.loads(scene.node(handed).annotations[EPISODE])
    marker["handed-over"] = "hands-on:gpu-lost"
    scene.cluster.patch_node(handed, {"metadata": {"annotations": {EPISODE: json.dumps(marker)}}})
    uid = scene.uids[handed]
    wait_until(lambda: recorder.reports(handed, uid), 10, "it was reported", saw=scene.tails)
    recorder.finish(handed, uid)
    scene.nodes.clear(handed, "gpu-lost")
    scene.break_node(handed, "gpu-memory")

    scene.break_node(other)
    scene.until_quarantined(other)
    assert len(recorder.runs(handed, uid)) == 1
    assert parse_marker(scene.node(handed).annotations[EPISODE]).handed_over


@pytest.mark.parametrize("why", ["not-armed", "ignored", "paused-node"])
def test_nothing_is_written_on_a_node_that_may_not_be_touched(
    scene: Scene, recorder: Recorder, why: str
) -> None:
    touched, untouched = scene.add("a", "b")
    if why != "not-armed":
        scene.arm()
        scene.cluster.annotate(untouched, **{"ignored": {"ignore": "x"}}.get(why, {"pause": "x"}))
    watch = scene.writing_watch()
    scene.break_node(untouched)
    if why == "not-armed":
        wait_until(lambda: watch.logged("would_quarantine"), 10, "it is said", saw=scene.tails)
        stays_true(lambda: not scene.node_writes(), NOTHING_FOR_S, "no Node is written")
        assert not recorder.runs(untouched, scene.uids[untouched])
        return
    scene.break_node(touched)
    scene.until_quarantined(touched)
    stays_true(
        lambda: [e.name for e in scene.node_writes()] == [touched],
        NOTHING_FOR_S,
        "only the other node is written",
    )


def test_observing_says_once_what_it_would_do_and_arming_does_it(
    scene: Scene, recorder: Recorder
) -> None:
    (node,) = scene.add("a")
    watch = scene.writing_watch()
    scene.break_node(node)
    wait_until(lambda: scene.events_about(node), 10, "an Event says so", saw=scene.tails)
    (event,) = scene.events_about(node)
    assert event["reason"] == "WouldQuarantine"
    assert "if pool" in event["message"]
    # Repetitions of the same fact are the same fact.
    scene.cluster.annotate(node, note="x")
    stays_true(lambda: len(watch.logged("would_quarantine")) == 1, NOTHING_FOR_S, "it is said once")
    assert not scene.node_writes()

    scene.arm()
    scene.until_quarantined(node)
    wait_until(
        lambda: recorder.reports(node, scene.uids[node]), 10, "it is reported", saw=scene.tails
    )


@pytest.mark.parametrize("scope", ["pool", "*"])
def test_pause_of_pool_or_fleet_stops_disruption_and_not_marks(scene: Scene, scope: str) -> None:
    """Design, P8: work is kept off a faulty node while disruption is paused."""
    (node,) = scene.add("a")
    scene.arm()
    named = scene.pool if scope == "pool" else scope
    scene.cluster.pause(named)
    try:
        scene.writing_watch()
        scene.break_node(node)
        scene.until_quarantined(node)
    finally:
        scene.cluster.resume(named)
    assert [e.sets_unschedulable for e in scene.node_writes()] == [True]


def test_annotation_of_garbage_neither_hides_its_node_nor_stops_others(
    scene: Scene, recorder: Recorder
) -> None:
    hostile, odd, other = scene.add("a", "b", "c")
    scene.arm()
    watch = scene.writing_watch(reflex=3)
    deep = "[" * 4000
    scene.cluster.annotate(hostile, findings=deep)
    scene.cluster.annotate(odd, episode="{\x00" + deep[:2000])
    for node in (odd, hostile, other):
        scene.break_node(node)
    scene.until_quarantined(other)
    scene.until_quarantined(hostile)
    # Its marker is somebody's, though nobody can say whose: it is not written over.
    assert scene.node(odd).annotations[EPISODE].startswith("{")
    assert not scene.cordons(odd)
    wait_until(
        lambda: recorder.reports(odd, scene.uids[odd]), 10, "it is reported", saw=scene.tails
    )
    assert not watch.logged("sink_failed")


def test_person_who_cordoned_before_us_is_remembered_in_the_marker(scene: Scene) -> None:
    (node,) = scene.add("a")
    scene.cluster.patch_node(node, {"spec": {"unschedulable": True}})
    scene.arm()
    scene.writing_watch()
    scene.break_node(node)
    scene.until_quarantined(node)
    marker = scene.cluster.marker(node)
    assert marker is not None
    assert marker.was_unschedulable


def test_unknown_and_stale_are_reported_and_never_quarantined_at_once(
    scene: Scene, recorder: Recorder
) -> None:
    unknown, silent = scene.add("a", "b")
    scene.arm()
    scene.policy_changes = {"timing": {"silence_s": 2}}
    # So short a silence that the other node, refreshed each 300 s, falls silent too.
    scene.writing_watch()
    scene.break_node(unknown, "unknown")
    for node in (unknown, silent):
        wait_until(
            lambda node=node: recorder.reports(node, scene.uids[node]),  # type: ignore[misc]  # as above
            15,
            f"{node} is reported",
            saw=scene.tails,
        )
    (first, *_) = recorder.reports(silent, scene.uids[silent])
    assert {match.status for match in first.matches} == {"Stale"}
    assert not scene.node_writes()
