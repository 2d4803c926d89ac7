"""The API server answers wrongly, late or not at all: the reflex is done once, or again, or not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.processes import Processes
from tests.harness.proxy import FaultProxy
from tests.harness.proxy_faults import GARBAGE_FRAME, Answer, Delay, Drop, Fault, Hang
from tests.harness.proxy_kubeconfig import kubeconfig_through_proxy
from tests.harness.waiting import wait_until
from tests.workers.watch.recorder import Recorder
from tests.workers.watch.scene import Scene
from workers.lab.address import LabAccount, LabAddress
from workers.watch.reflex import TIMEOUT

RETRY_AFTER_S = 30
"""What a busy API server asks for; a quarantine does not wait for it."""


@pytest.fixture
def proxy(lab: LabAddress, tmp_path: Path, started: Processes) -> Iterator[FaultProxy]:
    with FaultProxy(lab.kubeconfig(LabAccount.ADMIN), tmp_path) as own:
        yield own
        # While it still has its way to the API server, so that it gives its Lease back.
        started.end_all()


@pytest.fixture
def behind(lab: LabAddress, proxy: FaultProxy, tmp_path: Path) -> dict[str, str]:
    """The environment of a watch that reaches the API server through the proxy."""
    own = lab.kubeconfig(LabAccount.WATCH)
    return {"KUBECONFIG": str(kubeconfig_through_proxy(proxy, own, tmp_path / "watch.kubeconfig"))}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Answer(409), id="conflict"),
        pytest.param(Answer(500), id="error", marks=pytest.mark.long),
        pytest.param(Answer(500, forwarded=True), id="error-though-done"),
        pytest.param(Answer(200, body=b"<html>"), id="no-json", marks=pytest.mark.long),
        pytest.param(Hang(), id="silence", marks=pytest.mark.long),
        pytest.param(Hang(forwarded=True), id="silence-though-done"),
        pytest.param(Delay(TIMEOUT.read_s + 0.4), id="arrives-after-it-was-given-up"),
        pytest.param(Drop(), id="reset", marks=pytest.mark.long),
        pytest.param(Drop(forwarded=True), id="reset-though-done"),
    ],
)
def test_quarantine_is_done_once_whatever_its_answer_was(
    scene: Scene, recorder: Recorder, proxy: FaultProxy, behind: dict[str, str], fault: Fault
) -> None:
    """And a mark that may have been written takes its place in the budget until that is known."""
    first, second = scene.add("a", "b")
    scene.arm()
    scene.writing_watch(reflex=1, **behind)
    rule = proxy.add(fault, method="PATCH", path=rf"/nodes/{first}\?", times=1)
    scene.break_node(first)
    assert rule.wait_fired(10)
    scene.break_node(second)
    scene.until_quarantined(first)
    for node in (first, second):
        wait_until(
            lambda node=node: recorder.reports(node, scene.uids[node]),  # type: ignore[misc]  # mypy infers no default argument
            15,
            f"{node} is reported",
            saw=scene.tails,
        )
    marks = [e for e in scene.node_writes() if e.sets_unschedulable]
    assert [e.name for e in marks] == [first]
    marker = scene.cluster.marker(first)
    assert marker is not None
    # An answer that came late leaves the first report under another episode: the next one says which.
    wait_until(
        lambda: (
            [report.episode for report in recorder.reports(first, scene.uids[first])][-1:]
            == [marker.episode]
        ),
        15,
        "the newest report is of the mark's episode",
        saw=scene.tails,
    )


def test_refused_quarantine_is_tried_again_sooner_than_the_server_asks(
    scene: Scene, proxy: FaultProxy, behind: dict[str, str]
) -> None:
    (node,) = scene.add("a")
    scene.arm()
    watch = scene.writing_watch(**behind)
    proxy.add(
        Answer(429, retry_after_s=RETRY_AFTER_S), method="PATCH", path=rf"/nodes/{node}\?", times=1
    )
    scene.break_node(node)
    scene.until_quarantined(node)
    assert scene.reaction_s(node) < RETRY_AFTER_S / 3
    assert len(watch.logged("quarantine_not_done")) == 1


def test_node_that_changes_under_the_patch_is_judged_again(
    scene: Scene, recorder: Recorder, proxy: FaultProxy, behind: dict[str, str]
) -> None:
    """A person pauses the node in the last moment: the version does not fit, and they are heard."""
    (node,) = scene.add("a")
    scene.arm()
    watch = scene.writing_watch(**behind)
    # Until the pause stands: a watch that gave up the re-read in the meantime tries both again.
    rule = proxy.add(Answer(409), method="PATCH", path=rf"/nodes/{node}\?", times=None)
    reread = proxy.add(Hang(), method="GET", path=rf"/nodes/{node}$", times=None)
    scene.break_node(node)
    assert rule.wait_fired(10)
    assert reread.wait_fired(10)
    scene.cluster.annotate(node, pause="last moment")
    rule.remove()
    reread.remove()
    proxy.cut()
    wait_until(
        lambda: recorder.facts(node, scene.uids[node]) or recorder.reports(node, scene.uids[node]),
        20,
        "the node is reported",
        saw=scene.tails,
    )
    assert watch.is_alive()
    assert not scene.node_writes()


def test_cut_and_garbled_watches_lose_no_fault(
    scene: Scene, recorder: Recorder, proxy: FaultProxy, behind: dict[str, str]
) -> None:
    nodes = scene.add("a", "b", "c")
    scene.arm()
    scene.writing_watch(**behind)
    proxy.cut()
    scene.break_node(nodes[0])
    scene.until_quarantined(nodes[0])
    wait_until(
        lambda: proxy.insert_frame(r"/api/v1/nodes", GARBAGE_FRAME), 10, "a watch is told garbage"
    )
    scene.break_node(nodes[1])
    scene.until_quarantined(nodes[1])
    proxy.refuse()
    scene.break_node(nodes[2])
    proxy.accept()
    scene.until_quarantined(nodes[2], deadline_s=20)
    assert len(scene.node_writes()) == 3


def test_node_that_cannot_be_read_is_passed_over(
    scene: Scene, proxy: FaultProxy, behind: dict[str, str]
) -> None:
    (node,) = scene.add("a")
    scene.arm()
    watch = scene.writing_watch(**behind)
    bad = (
        b'{"type":"MODIFIED","object":{"metadata":{"name":"odd","uid":"u","resourceVersion":"'
        + scene.node(node).resource_version.encode()
        + b'","labels":["no","mapping"]}}}\n'
    )
    wait_until(lambda: proxy.insert_frame(r"/api/v1/nodes", bad), 10, "a watch is told it")
    wait_until(lambda: watch.logged("object_passed_over"), 10, "it is said", saw=scene.tails)
    scene.break_node(node)
    scene.until_quarantined(node)
