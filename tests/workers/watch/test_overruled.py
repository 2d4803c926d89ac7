"""What a person undid stays undone, and a machine in repair is known under its next Node object."""

from datetime import UTC, datetime

from activities.kube import paths
from tests.harness.waiting import stays_true, wait_until
from tests.workers.watch.recorder import Recorder
from tests.workers.watch.scene import Scene
from workflows.model.detection.fault import Fault
from workflows.model.detection.rules import read_findings
from workflows.model.remediation.marks import EPISODE, Marker, Quarantine

NOTHING_FOR_S = 1.5
MACHINE_RULE = "machine-quarantined"


def test_node_whose_marks_a_person_took_off_is_not_quarantined_again_for_the_same(
    scene: Scene, recorder: Recorder
) -> None:
    """In front of watch's eyes, before any record could be written: Temporal may be away."""
    (node,) = scene.add("a")
    scene.arm()
    scene.writing_watch()
    scene.break_node(node)
    scene.until_quarantined(node)
    scene.cluster.patch_node(
        node, {"metadata": {"annotations": {EPISODE: None}}, "spec": {"unschedulable": None}}
    )
    stays_true(
        lambda: not scene.node(node).unschedulable, NOTHING_FOR_S, "the person's word stands"
    )
    uid = scene.uids[node]
    wait_until(
        lambda: any(not f.marker_episode for f in recorder.facts(node, uid)),
        10,
        "the episode is told that its marker is gone",
        saw=scene.tails,
    )
    # The same on another GPU is something they did not see.
    scene.nodes.inject(node, "gpu-lost", gpu=3)
    scene.until_quarantined(node)


def test_fault_after_the_cordon_was_lifted_is_quarantined_though_the_marker_goes_later(
    scene: Scene, recorder: Recorder
) -> None:
    """A person lifts the cordon, and before the run takes its marker off, something is new."""
    (node,) = scene.add("a")
    scene.arm()
    scene.writing_watch()
    scene.break_node(node)
    scene.until_quarantined(node)
    scene.cluster.patch_node(node, {"spec": {"unschedulable": None}})
    uid = scene.uids[node]
    told = lambda: any(not f.unschedulable for f in recorder.facts(node, uid))  # noqa: E731
    wait_until(told, 10, "the episode is told of the lifted cordon", saw=scene.tails)
    scene.nodes.inject(node, "gpu-lost", gpu=3)
    wait_until(lambda: len(recorder.reports(node, uid)) >= 2, 10, "the new one is reported")
    assert [report.marked_at != "" for report in recorder.reports(node, uid)] == [True, False]
    scene.cluster.patch_node(node, {"metadata": {"annotations": {EPISODE: None}}})
    scene.until_quarantined(node)


def test_fault_behind_an_unreadable_mark_is_reported_again_once_the_mark_is_off(
    scene: Scene, recorder: Recorder
) -> None:
    """Its run has yielded to whoever wrote the mark; a full budget leaves the guard to be asked."""
    node, other = scene.add("a", "b")
    scene.arm()
    scene.cluster.patch_node(node, {"metadata": {"annotations": {EPISODE: "garbage"}}})
    scene.writing_watch(reflex=1)
    scene.break_node(other)
    scene.until_quarantined(other)
    scene.break_node(node)
    uid = scene.uids[node]
    wait_until(lambda: recorder.reports(node, uid), 10, "it is reported")

    def warnings() -> list[str]:
        return [str(e["message"]) for e in scene.events_about(node) if e["type"] == "Warning"]

    (message,) = wait_until(warnings, 10, "people are told", saw=scene.tails)
    assert "see who wrote it and remove it with kubectl" in message
    # Once for each change: what else the node reports is no news of its mark.
    scene.cluster.patch_node(node, {"metadata": {"annotations": {"example.com/other": "x"}}})
    scene.cluster.patch_node(node, {"metadata": {"annotations": {EPISODE: '{"v": 9}'}}})
    wait_until(lambda: len(scene.watches[0].logged("marker_unreadable")) == 2, 10, "it is told")
    scene.cluster.patch_node(node, {"metadata": {"annotations": {EPISODE: None}}})
    wait_until(
        lambda: len(recorder.reports(node, uid)) >= 2, 10, "it is reported again", saw=scene.tails
    )


def test_handed_over_node_that_a_person_uncordons_loses_its_mark_and_is_watched_again(
    scene: Scene,
) -> None:
    well, sick = scene.add("well", "sick")
    scene.arm()
    scene.writing_watch()
    for node in (well, sick):
        hand_over(scene, node)
    scene.break_node(sick)
    for node in (well, sick):
        scene.cluster.patch_node(node, {"spec": {"unschedulable": None}})
        wait_until(
            lambda node=node: scene.cluster.marker(node) is None,  # type: ignore[misc]  # mypy infers no default argument
            10,
            f"the mark of {node} is off",
            saw=scene.tails,
        )
    wait_until(lambda: "BackInService" in reasons(scene, well), 10, "it is told", saw=scene.tails)
    wait_until(lambda: "LeftAlone" in reasons(scene, sick), 10, "it is told", saw=scene.tails)
    assert "LeftAlone" not in reasons(scene, well)
    stays_true(lambda: not scene.node(sick).unschedulable, NOTHING_FOR_S, "they saw this fault")
    for node in (well, sick):
        # What they did not see counts at once.
        scene.nodes.inject(node, "gpu-lost", gpu=3)
        scene.until_quarantined(node)


def test_handed_over_mark_stays_where_fleetmend_may_not_write(scene: Scene) -> None:
    """A pool that only observes, a paused node, and one that is still cordoned."""
    cordoned, paused = scene.add("cordoned", "paused")
    for node in (cordoned, paused):
        hand_over(scene, node)
    scene.writing_watch()
    scene.cluster.patch_node(paused, {"spec": {"unschedulable": None}})
    stays_true(lambda: scene.cluster.marker(paused), NOTHING_FOR_S, "it only observes")
    scene.cluster.annotate(paused, pause="wait")
    scene.arm()
    stays_true(
        lambda: scene.cluster.marker(paused) and scene.cluster.marker(cordoned),
        NOTHING_FOR_S,
        "one is paused and one is not back",
    )
    scene.cluster.annotate(paused, pause=None)
    wait_until(lambda: scene.cluster.marker(paused) is None, 10, "it is off", saw=scene.tails)


def hand_over(scene: Scene, node: str) -> None:
    """As a retirement leaves a node."""
    marker = Marker(
        "ep-1",
        scene.uids[node],
        datetime.now(UTC),
        "gpu-lost",
        "gpu-lost",
        Quarantine.CONFIRMED,
        handed_over="operator:its fan is due",
    )
    marks = {"annotations": {EPISODE: marker.encode()}}
    scene.cluster.patch_node(node, {"metadata": marks, "spec": {"unschedulable": True}})


def reasons(scene: Scene, node: str) -> list[str]:
    return [str(event["reason"]) for event in scene.events_about(node)]


def test_record_of_an_overruled_fault_holds_until_the_next_boot(
    scene: Scene, recorder: Recorder
) -> None:
    left_alone, booted_since = scene.add("a", "b")
    for node, boot in ((left_alone, scene.node(left_alone).boot_id), (booted_since, "older-boot")):
        overruled = {
            "fault": "gpu-lost",
            "bootID": boot,
            "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "episode": "e1",
        }
        device = {} if node == booted_since else {"device": _device(scene, node)}
        scene.write_machine(node, {"phase": "closed", "overruled": [{**overruled, **device}]})
    scene.arm()
    scene.writing_watch()
    for node in (left_alone, booted_since):
        scene.break_node(node)
    scene.until_quarantined(booted_since)
    stays_true(
        lambda: not scene.cordons(left_alone), NOTHING_FOR_S, "the overruled node is left alone"
    )
    assert not recorder.runs(left_alone, scene.uids[left_alone])

    # Resume: the worker takes the entry off the record.
    machine = paths.gpu_machine_status(scene.machines[0])
    record = scene.cluster.kube.get(paths.gpu_machine(scene.machines[0]))
    record["status"]["overruled"] = []
    scene.cluster.kube.replace(machine, record)
    scene.until_quarantined(left_alone)


def test_machine_in_repair_is_quarantined_on_sight_under_another_node_object(
    scene: Scene, recorder: Recorder
) -> None:
    in_repair, closed, same = scene.add("a", "b", "c")
    scene.write_machine(in_repair, {"phase": "drained", "episode": "e1"}, node_uid="former-uid")
    scene.write_machine(closed, {"phase": "closed", "episode": "e2"}, node_uid="former-uid")
    scene.write_machine(same, {"phase": "drained", "episode": "e3"})
    scene.arm()
    scene.writing_watch()
    scene.until_quarantined(in_repair)
    marker = scene.cluster.marker(in_repair)
    assert marker is not None
    assert (marker.rule, marker.fault) == (MACHINE_RULE, Fault.OPERATOR)
    uid = scene.uids[in_repair]
    wait_until(lambda: recorder.reports(in_repair, uid), 10, "it is reported", saw=scene.tails)
    (report,) = recorder.reports(in_repair, uid)
    assert [match.rule for match in report.matches] == [MACHINE_RULE]
    stays_true(
        lambda: scene.quarantined([closed, same]) == [], NOTHING_FOR_S, "the others are in service"
    )


def _device(scene: Scene, node: str) -> str:
    """The device that the agent of the simulated node will name: the first GPU's UUID."""
    scene.break_node(node)
    findings, _ = read_findings(scene.node(node))
    scene.nodes.clear(node, "gpu-lost")
    wait_until(
        lambda: scene.node(node).conditions["GPUHealthy"].status == "True", 10, "it is healthy"
    )
    return findings[0].device
