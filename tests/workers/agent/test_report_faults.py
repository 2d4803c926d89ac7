"""The way to the API server broken: nothing is lost, and the truth of the moment is what arrives."""

import json
from pathlib import Path

import pytest

from activities.kube import paths
from activities.kube.client import PatchKind
from tests.harness.processes import Running
from tests.harness.proxy import FaultProxy
from tests.harness.proxy_faults import Answer, Drop, Fault, Hang, Rewrite
from tests.harness.waiting import stays_true, wait_until
from tests.workers.agent.stage import ALL, LIMIT_S, Stage, reading
from tests.workers.agent.test_small import metrics_of
from workers.lab.address import LabAddress

STATUS = r"/status\b"


@pytest.mark.parametrize(
    "fault",
    [
        Answer(401),
        Answer(403),
        Answer(409),
        Answer(429, retry_after_s=1),
        Answer(500),
        Answer(503, forwarded=True),
        Answer(200, body=b"not JSON"),
        Answer(200, body=b'["no Node"]'),
        Hang(),
        Hang(forwarded=True),
        Drop(),
        Drop(forwarded=True),
    ],
    ids=lambda fault: (
        f"{type(fault).__name__}-{getattr(fault, 'status', '')}"
        f"-{'forwarded' if getattr(fault, 'forwarded', False) else 'lost'}"
    ),
)
def test_a_failed_report_is_repeated_until_it_stands(
    stage: Stage, proxy: FaultProxy, fault: Fault
) -> None:
    """A write that failed once must not be forgotten (N15)."""
    stage.start_healthy()
    times = 1 if isinstance(fault, Hang) else 2  # each silence costs the agent its 5 s of patience
    rule = proxy.add(fault, method="PATCH", path=STATUS, times=times)
    stage.polled(reading())
    assert rule.wait_fired(LIMIT_S, times=times)
    stage.until_reason("GPUHealthy", "GpuLost")
    rule = proxy.add(fault, method="PATCH", path=STATUS, times=1)
    stage.polled()
    assert rule.wait_fired(LIMIT_S)
    stage.until({"GPUHealthy": "True"})


@pytest.mark.parametrize("fault", [Answer(404), Answer(503), Hang(), Drop()], ids=repr)
def test_an_agent_that_starts_without_the_api_server_goes_on_by_itself(
    stage: Stage, proxy: FaultProxy, fault: Fault
) -> None:
    rule = proxy.add(fault, method="GET", times=2)
    stage.polled(reading())
    stage.start()
    assert rule.wait_fired(LIMIT_S, times=2)
    stage.until_reason("GPUHealthy", "GpuLost")


def test_a_fault_during_an_outage_is_reported_when_it_ends(stage: Stage, proxy: FaultProxy) -> None:
    stage.start_healthy()
    proxy.refuse()
    stage.stream(reading(lasting=True))
    stage.polled(reading("nvml-hot", fault="thermal"))
    agent = stage.agents[-1]
    wait_until(lambda: len(agent.logged("report_failed")) > 3, LIMIT_S, "it tries again and again")
    assert "xid-79" not in stage.codes()
    stage.polled()
    wait_until(lambda: "thermal" not in metrics_of(agent), LIMIT_S, "the agent knows what is over")
    proxy.accept()
    stage.until_reason("GPUHealthy", "GpuLost")
    # What was true only meanwhile is not told afterwards.
    assert stage.codes() == {"xid-79"}


def test_a_hung_api_server_stalls_no_source(stage: Stage, proxy: FaultProxy) -> None:
    stage.start_healthy()
    rule = proxy.add(Hang(), method="PATCH", path=STATUS, times=None)
    stage.polled(reading())
    assert rule.wait_fired(LIMIT_S)
    agent = stage.agents[-1]
    stage.polled(do="segv")
    wait_until(
        lambda: len(agent.logged("source_cannot_tell")) > 0,
        LIMIT_S,
        "the crash is noticed meanwhile",
    )
    stage.polled()
    rule.remove()
    wait_until(lambda: stage.statuses()["GPUHealthy"] == "True", LIMIT_S, "all is well again")
    assert stage.codes() == set()


def test_a_new_token_is_used_as_soon_as_it_is_there(stage: Stage, proxy: FaultProxy) -> None:
    stage.start_healthy()
    token = Path(stage.environment["FLEETMEND_SERVICEACCOUNT"]) / "token"
    good = token.read_text()
    token.write_text("expired")
    stage.polled(reading())
    agent = stage.agents[-1]
    _until_failed(agent, "unauthorized", "the old token is refused")
    token.unlink()
    _until_failed(agent, "FileNotFound", "none is there")
    token.write_text(good)
    stage.until_reason("GPUHealthy", "GpuLost")


def test_a_server_of_another_authority_is_not_told_the_token(
    stage: Stage, proxy: FaultProxy, lab: LabAddress
) -> None:
    account = Path(stage.environment["FLEETMEND_SERVICEACCOUNT"])
    (account / "ca.crt").write_text(lab.ca_file.read_text())
    agent = stage.start()
    _until_failed(agent, "CERTIFICATE_VERIFY_FAILED", "it refuses to speak")
    assert proxy.seen() == []


def test_a_recreated_node_of_the_same_name_is_not_written(stage: Stage, proxy: FaultProxy) -> None:
    stage.start_healthy()
    uid = stage.object()["metadata"]["uid"]
    body = stage.object()
    stage.cluster.kube.delete(paths.node(stage.node), uid=uid)
    meta = {"name": stage.node, "labels": body["metadata"]["labels"]}
    fresh = {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": body["spec"]}
    wait_until(lambda: _create(stage, fresh), LIMIT_S, "a Node of the name is there again")
    assert stage.object()["metadata"]["uid"] != uid
    stage.polled(reading())
    agent = stage.agents[-1]
    _until_failed(agent, "metadata.uid", "the report is refused")
    # With the new uid the admission policy refuses it: its token is bound to the old Node.
    _until_failed(agent, "fleetmend-agent/4", "the report is refused again")
    stays_true(lambda: stage.conditions() == {}, 1.0, "nothing is written on the other Node")


def test_a_node_that_carries_much_is_read_and_written(stage: Stage) -> None:
    stage.cluster.patch_node(
        stage.node, {"metadata": {"annotations": {"example.com/much": "x" * 200_000}}}
    )
    stage.start_healthy()
    stage.polled(reading())
    stage.until_reason("GPUHealthy", "GpuLost")


def test_unreadable_findings_of_a_forerunner_are_replaced(stage: Stage) -> None:
    stage.cluster.kube.patch(
        paths.node_status(stage.node),
        {"metadata": {"annotations": {"fleetmend.io/findings": "{" * 5000}}},
        kind=PatchKind.MERGE,
    )
    stage.start_healthy()
    assert stage.findings() == ()


def test_a_forged_forerunner_does_not_pass_its_bounds(stage: Stage) -> None:
    """The annotation is hostile: rows of another form are left out, the others keep their ids."""
    boot = stage.nodes.view(stage.node).boot_id
    row = {
        "id": "0123456789abcdef",
        "source": "stream",
        "device": "GPU-1",
        "code": "xid-79",
        "fault": "gpu-lost",
        "at": "2026-01-01T00:00:00Z",
        "certainty": "certain",
        "text": "lost",
        "condition": "GPUHealthy",
        "status": "False",
        "lasting": True,
    }
    rows = [
        row,
        {**row, "id": "1", "code": "a", "condition": "Ready"},
        {**row, "id": "2", "code": "b", "status": "True"},
        {**row, "id": "3", "code": "c", "count": "many"},
        {**row, "id": "4", "code": "d", "key": "x" * 5000},
    ]
    text = json.dumps({"v": 1, "boot": boot, "findings": rows[:4]})
    stage.cluster.kube.patch(
        paths.node_status(stage.node),
        {"metadata": {"annotations": {"fleetmend.io/findings": text}}},
        kind=PatchKind.MERGE,
    )
    stage.start()
    stage.until({"GPUHealthy": "False", "HostHealthy": "True"})
    wait_until(lambda: len(stage.findings()) == 1, LIMIT_S, "only the good row is left")
    assert stage.findings()[0].id == "0123456789abcdef"


def test_an_agent_takes_nothing_over_that_the_server_garbles(
    stage: Stage, proxy: FaultProxy
) -> None:
    proxy.add(Rewrite(lambda body: body[: len(body) // 2]), method="GET", times=2)
    stage.start_healthy()
    assert set(stage.statuses()) == set(ALL)


def _until_failed(agent: Running, problem: str, what: str) -> None:
    """Returns when a report has failed of this, before or after it failed of something else."""
    wait_until(
        lambda: [row for row in agent.logged("report_failed") if problem in row["error"]],
        LIMIT_S,
        what,
        saw=agent.tail,
    )


def _create(stage: Stage, body: dict[str, object]) -> bool:
    """Either ours, or its kubelet's own registration."""
    try:
        stage.cluster.kube.create(paths.nodes(), body)
    except Exception:  # noqa: BLE001 - it is there already, or not yet away
        return bool(stage.object())
    return True
