"""What an open episode is told of its node: soon, in order, seldom, and never as a start."""

from collections import Counter

from tests.harness.waiting import stays_true, wait_until
from tests.workers.watch.recorder import Recorder
from tests.workers.watch.scene import Scene

NOTHING_FOR_S = 1.0
REPEATED = 2
"""Signals that a loaded server may take and answer too late."""
SIGNALS_LIMIT = 20
"""Half of what a whole episode may cost."""


def test_changes_that_matter_are_told_and_heartbeats_are_not(
    scene: Scene, recorder: Recorder
) -> None:
    (node,) = scene.add("a")
    scene.arm()
    scene.writing_watch()
    scene.break_node(node)
    scene.until_quarantined(node)
    uid = scene.uids[node]
    wait_until(lambda: recorder.reports(node, uid), 10, "it is reported", saw=scene.tails)
    # The run was started by what watch saw, and reads the rest by itself.
    assert recorder.facts(node, uid) == []
    scene.cluster.annotate(node, note="nothing an episode waits for")
    stays_true(lambda: not recorder.facts(node, uid), NOTHING_FOR_S, "that is not told")

    scene.cluster.annotate(node, pause="a person looks")
    wait_until(
        lambda: [f.paused for f in recorder.facts(node, uid)][-1:] == [True],
        10,
        "the pause is told",
        saw=scene.tails,
    )
    scene.nodes.clear(node, "gpu-lost")
    wait_until(
        lambda: [f.conditions["GPUHealthy"] for f in recorder.facts(node, uid)][-1:] == ["True"],
        10,
        "the recovery is told",
        saw=scene.tails,
    )
    scene.cluster.uncordon(node)
    wait_until(
        lambda: [f.unschedulable for f in recorder.facts(node, uid)][-1:] == [False],
        10,
        "the lifted cordon is told",
        saw=scene.tails,
    )
    versions = [int(f.resource_version) for f in recorder.facts(node, uid)]
    assert versions == sorted(versions)
    counts = Counter(recorder.signals(node, uid))
    assert set(counts) == {"report", "node_changed"}
    # Three changes, once each; a signal that was not answered in time is sent again.
    assert 3 <= counts["node_changed"] <= 3 + REPEATED
    assert counts["report"] <= 1 + REPEATED


def test_new_match_is_reported_to_the_same_run_and_an_old_one_is_not(
    scene: Scene, recorder: Recorder
) -> None:
    (node,) = scene.add("a")
    scene.arm()
    scene.writing_watch()
    scene.break_node(node, "unknown")
    uid = scene.uids[node]
    wait_until(lambda: recorder.reports(node, uid), 10, "it is reported", saw=scene.tails)
    scene.nodes.clear(node, "unknown")
    scene.break_node(node)
    wait_until(
        lambda: len(recorder.reports(node, uid)) >= 2, 10, "the worse is reported", saw=scene.tails
    )
    first, *_, second = recorder.reports(node, uid)
    assert first.matches[0].rule == "gpu-unknown"
    assert second.matches[0].rule == "gpu-lost"
    marker = scene.cluster.marker(node)
    assert marker is not None
    assert (first.marked_at, second.episode) == ("", marker.episode)
    assert len(recorder.runs(node, uid)) == 1


def test_a_recovery_while_watch_was_dead_is_told_by_the_next_watch(
    scene: Scene, recorder: Recorder
) -> None:
    """Without it a suspect waits its whole debounce for what is over."""
    (node,) = scene.add("a")
    scene.arm()
    first = scene.writing_watch()
    scene.break_node(node, "unknown")
    uid = scene.uids[node]
    wait_until(lambda: recorder.reports(node, uid), 10, "it is reported", saw=scene.tails)
    scene.write_machine(node, {"phase": "suspect"})
    first.kill()
    scene.nodes.clear(node, "unknown")
    scene.writing_watch()
    wait_until(
        lambda: [f.conditions["GPUHealthy"] for f in recorder.facts(node, uid)][-1:] == ["True"],
        10,
        "the recovery is told",
        saw=scene.tails,
    )


def test_recovery_before_any_mark_is_told_and_then_the_node_is_forgotten(
    scene: Scene, recorder: Recorder
) -> None:
    (node,) = scene.add("a")
    scene.arm()
    scene.writing_watch()
    scene.break_node(node, "unknown")
    uid = scene.uids[node]
    wait_until(lambda: recorder.reports(node, uid), 10, "it is reported", saw=scene.tails)
    scene.nodes.clear(node, "unknown")
    wait_until(lambda: recorder.facts(node, uid), 10, "the recovery is told", saw=scene.tails)
    recorder.finish(node, uid)
    # Nobody is there to be told; no run is started for it.
    scene.cluster.annotate(node, pause="x")
    stays_true(lambda: len(recorder.runs(node, uid)) == 1, NOTHING_FOR_S, "no run is started")

    # The same again is a new episode, though the run before had seen one like it.
    scene.cluster.annotate(node, pause=None)
    scene.break_node(node, "unknown")
    wait_until(
        lambda: len(recorder.runs(node, uid)) == 2, 10, "a new run is started", saw=scene.tails
    )


def test_deleted_node_is_told_as_gone_and_its_name_starts_anew(
    scene: Scene, recorder: Recorder
) -> None:
    (node,) = scene.add("a")
    scene.arm()
    scene.writing_watch()
    scene.break_node(node)
    scene.until_quarantined(node)
    uid = scene.uids[node]
    wait_until(lambda: recorder.reports(node, uid), 10, "it is reported", saw=scene.tails)
    scene.nodes.inject(node, "node-recreated-same-name")
    wait_until(
        lambda: any(f.gone for f in recorder.facts(node, uid)), 10, "it is told", saw=scene.tails
    )
    fresh = wait_until(lambda: scene.node(node).uid, 10, "the name is there again")
    assert fresh != uid
    stays_true(
        lambda: scene.cluster.marker(node) is None, NOTHING_FOR_S, "the new Node is in service"
    )
    assert not recorder.runs(node, fresh)


def test_flapping_node_costs_few_signals(scene: Scene, recorder: Recorder) -> None:
    """What comes within one moment travels once."""
    (node,) = scene.add("a")
    scene.arm()
    scene.writing_watch()
    scene.break_node(node)
    scene.until_quarantined(node)
    uid = scene.uids[node]
    wait_until(lambda: recorder.reports(node, uid), 10, "it is reported", saw=scene.tails)
    for turn in range(60):
        scene.cluster.patch_node(node, {"spec": {"unschedulable": turn % 2 == 1}, "metadata": {}})
    scene.cluster.annotate(node, pause="last")
    wait_until(
        lambda: any(f.paused for f in recorder.facts(node, uid)), 10, "the last word is told"
    )
    assert [f.unschedulable for f in recorder.facts(node, uid)][-1:] == [True]
    assert len(recorder.signals(node, uid)) < SIGNALS_LIMIT
