"""Karpenter gives up what our run gave way to: the fault that still stands is somebody's again."""

from tests.harness.waiting import stays_true, wait_until
from tests.workers.watch.recorder import Recorder
from tests.workers.watch.scene import Scene
from workflows.model.remediation.marks import EPISODE

NOTHING_FOR_S = 1.5
DISRUPTED = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}


def test_a_fault_under_karpenters_taint_is_reported_again_when_the_taint_goes(
    scene: Scene, recorder: Recorder
) -> None:
    """Its replacement did not come (karpenter#2905): it takes its taint off, in the same boot."""
    (node,) = scene.add("a")
    scene.arm()
    scene.writing_watch()
    taint(scene, node)
    scene.break_node(node, "unknown")
    uid = scene.uids[node]
    wait_until(lambda: recorder.reports(node, uid), 10, "it is reported", saw=scene.tails)
    recorder.finish(node, uid)  # as a run that yields
    stays_true(lambda: len(recorder.runs(node, uid)) == 1, NOTHING_FOR_S, "Karpenter has it")
    untaint(scene, node)
    wait_until(
        lambda: len(recorder.runs(node, uid)) == 2, 10, "a new run is started", saw=scene.tails
    )
    assert not scene.node_writes()


def test_a_quarantine_that_gave_way_is_made_again_when_the_taint_goes(scene: Scene) -> None:
    (node,) = scene.add("a")
    scene.arm()
    scene.writing_watch()
    scene.break_node(node)
    scene.until_quarantined(node)
    taint(scene, node)
    # As a run that yields gives it back.
    scene.cluster.patch_node(
        node, {"metadata": {"annotations": {EPISODE: None}}, "spec": {"unschedulable": None}}
    )
    stays_true(lambda: not scene.node(node).unschedulable, NOTHING_FOR_S, "Karpenter has it")
    untaint(scene, node)
    scene.until_quarantined(node)


def taint(scene: Scene, node: str) -> None:
    scene.cluster.patch_node(node, {"spec": {"taints": [DISRUPTED]}})


def untaint(scene: Scene, node: str) -> None:
    """What else the node controller has put there, it puts back."""
    scene.cluster.patch_node(node, {"spec": {"taints": None}})
