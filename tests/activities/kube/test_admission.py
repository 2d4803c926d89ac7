"""Letting a new node in: one patch under the fence of UID, boot, mark and version, or none."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.kube import paths
from activities.kube.client import PatchKind
from tests.activities.conftest import BareNodes, failure_type
from tests.activities.desk import Desk
from tests.harness.audit import whole_audit
from tests.harness.cluster import Cluster
from tests.harness.proxy import FaultProxy
from tests.harness.proxy_faults import Answer, Drop, Fault, Hang
from workers.lab.address import LabAddress
from workflows.contracts.errors import BAD_REQUEST, NODE_GONE, NOT_PERMITTED
from workflows.contracts.kube import ADMIT_NODE, QUARANTINE, AdmitRequest, Owner, QuarantineRequest
from workflows.model.detection.finding import FINDINGS_ANNOTATION
from workflows.model.identity import NodeRef
from workflows.model.node import EPOCH
from workflows.model.policy import GatePolicy
from workflows.model.remediation.admission import STARTUP_TAINT
from workflows.model.remediation.marks import PAUSE, Marker, Quarantine

STARTUP = {"key": "fleetmend.io/unvalidated", "effect": "NoSchedule"}
OTHER = {"key": "example.com/burn-in", "effect": "NoSchedule", "value": "until-noon"}
MAX_CALLS = 12


@pytest.fixture
def newcomer(bare: BareNodes) -> Callable[[str], Owner]:
    """A new node with a taint of others beside ours."""

    def add(name: str = "n", **changes: Any) -> Owner:
        known = {FINDINGS_ANNOTATION: json.dumps({"v": 1, "boot": "boot-1", "findings": []})}
        known |= changes.get("annotations", {})
        owner = bare.add(name, spec={"taints": [OTHER, STARTUP]}, annotations=known)
        report(bare.cluster, owner)
        return owner

    return add


def report(cluster: Cluster, owner: Owner, **changed: str) -> None:
    """What kubelet and agent say of the node just now: good, but for what has changed."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [
        {
            "type": name,
            "status": changed.get(name, "True"),
            "reason": "Said",
            "message": "",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        for name in ("Ready", *GatePolicy().conditions)
    ]
    body = {"status": {"conditions": conditions}}
    cluster.kube.patch(paths.node_status(owner.node.name), body, kind=PatchKind.MERGE)


def taints_of(cluster: Cluster, owner: Owner) -> list[dict[str, str]]:
    """Without those of the node controller, which come when they like."""
    found: list[dict[str, str]] = (
        cluster.kube.get(paths.node(owner.node.name))["spec"].get("taints") or []
    )
    return [taint for taint in found if not taint["key"].startswith("node.kubernetes.io/")]


def writes(lab: LabAddress, owner: Owner) -> int:
    return len(whole_audit(lab).node_writes(owner.node.name))


def test_our_taint_goes_and_that_of_others_stays_as_it_was(
    desk: Desk, newcomer: Callable[[], Owner], cluster: Cluster, lab: LabAddress
) -> None:
    owner = newcomer()
    assert desk.do(ADMIT_NODE, AdmitRequest(owner, "boot-1")).refused == ""
    assert taints_of(cluster, owner) == [OTHER]
    assert writes(lab, owner) == 1


def test_a_second_run_writes_nothing(
    desk: Desk, newcomer: Callable[[], Owner], lab: LabAddress
) -> None:
    owner = newcomer()
    for _ in range(2):
        assert desk.do(ADMIT_NODE, AdmitRequest(owner, "boot-1")).refused == ""
    assert writes(lab, owner) == 1


def test_r35_before_karpenter_has_registered_the_node_its_taint_stays(
    desk: Desk, bare: BareNodes, cluster: Cluster, lab: LabAddress
) -> None:
    """karpenter#1772: registration puts the startup taints on, also one that was taken off."""
    unregistered = {"key": "karpenter.sh/unregistered", "effect": "NoExecute"}
    owner = bare.add("n", spec={"taints": [STARTUP, unregistered]})
    refused = desk.do(ADMIT_NODE, AdmitRequest(owner, "boot-1")).refused
    assert "has not registered it yet" in refused
    assert taints_of(cluster, owner) == [STARTUP, unregistered]
    assert writes(lab, owner) == 0


def test_a_node_that_booted_since_is_not_let_in(
    desk: Desk, newcomer: Callable[[], Owner], bare: BareNodes, cluster: Cluster
) -> None:
    owner = newcomer()
    bare.set_boot_id(owner, "boot-2")
    refused = desk.do(ADMIT_NODE, AdmitRequest(owner, "boot-1")).refused
    assert "boot-1" in refused
    assert STARTUP in taints_of(cluster, owner)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("NetworkHealthy", "Unknown"),
        ("GPUHealthy", "False"),
        ("Ready", "False"),
    ],
    ids=["cannot-tell", "bad", "not-ready"],
)
def test_a_node_whose_conditions_are_not_good_any_more_is_not_let_in(
    name: str,
    status: str,
    desk: Desk,
    newcomer: Callable[[], Owner],
    cluster: Cluster,
    lab: LabAddress,
) -> None:
    owner = newcomer()
    report(cluster, owner, **{name: status})
    for _ in range(2):
        refused = desk.do(ADMIT_NODE, AdmitRequest(owner, "boot-1")).refused
        assert "conditions are not good any more" in refused
        assert name in refused
    assert STARTUP in taints_of(cluster, owner)
    assert writes(lab, owner) == 0
    report(cluster, owner)
    assert desk.do(ADMIT_NODE, AdmitRequest(owner, "boot-1")).refused == ""
    assert taints_of(cluster, owner) == [OTHER]


def test_a_node_that_was_taken_out_of_service_is_not_let_in(
    desk: Desk, newcomer: Callable[[], Owner], cluster: Cluster
) -> None:
    owner = newcomer()
    marker = Marker(owner.episode, owner.node.uid, EPOCH, "r", "gpu-lost", Quarantine.OPERATOR)
    desk.do(QUARANTINE, QuarantineRequest(owner, marker))
    assert "out of service" in desk.do(ADMIT_NODE, AdmitRequest(owner, "boot-1")).refused
    assert STARTUP in taints_of(cluster, owner)


@pytest.mark.parametrize("why", ["not armed", "paused by annotation"])
def test_what_people_forbid_is_not_written(
    why: str, desk: Desk, newcomer: Callable[..., Owner], cluster: Cluster, pool: str
) -> None:
    owner = newcomer(annotations={PAUSE: "wait"} if why != "not armed" else {})
    if why == "not armed":
        cluster.disarm(pool)
    with pytest.raises(ApplicationError) as caught:
        desk.do(ADMIT_NODE, AdmitRequest(owner, "boot-1"))
    assert failure_type(caught.value) == NOT_PERMITTED
    assert STARTUP in taints_of(cluster, owner)


def test_another_node_of_the_name_is_not_let_in(
    desk: Desk, newcomer: Callable[[], Owner], cluster: Cluster
) -> None:
    owner = newcomer()
    stranger = Owner(NodeRef(owner.node.name, "another-uid"), owner.episode)
    with pytest.raises(ApplicationError) as caught:
        desk.do(ADMIT_NODE, AdmitRequest(stranger, "boot-1"))
    assert failure_type(caught.value) == NODE_GONE
    assert STARTUP in taints_of(cluster, owner)


def test_without_a_boot_id_nothing_is_certified(desk: Desk, newcomer: Callable[[], Owner]) -> None:
    with pytest.raises(ApplicationError) as caught:
        desk.do(ADMIT_NODE, AdmitRequest(newcomer(), ""))
    assert failure_type(caught.value) == BAD_REQUEST


FAULTS: dict[str, Fault] = {
    "dropped-after": Drop(forwarded=True),
    "dropped-before": Drop(),
    "conflict": Answer(409),
    "error-after": Answer(500, forwarded=True),
    "silent-after": Hang(forwarded=True),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_at_any_call_leaves_one_write_and_our_taint_off(
    fault: Fault,
    faulty_desk: Desk,
    newcomer: Callable[[str], Owner],
    cluster: Cluster,
    lab: LabAddress,
    worker_proxy: FaultProxy,
) -> None:
    for number in range(1, MAX_CALLS):
        owner = newcomer(f"n{number}")
        rule = worker_proxy.add(fault, nth=number)
        done = faulty_desk.do_as_temporal(ADMIT_NODE, AdmitRequest(owner, "boot-1"))
        worker_proxy.clear()
        assert done.result.refused == ""
        assert taints_of(cluster, owner) == [OTHER]
        assert writes(lab, owner) == 1
        if rule.fired == 0:
            assert number > 3
            return
    raise AssertionError(f"more than {MAX_CALLS} calls")


def test_a_taint_that_was_added_meanwhile_is_not_lost(
    desk: Desk, newcomer: Callable[[], Owner], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = newcomer()
    late = {"key": "example.com/late", "effect": "NoSchedule"}
    path = paths.node(owner.node.name)
    asked = iter([True])
    real = desk.dependencies.kube.patch

    def patch(*args: Any, **more: Any) -> Any:
        if next(asked, False):
            body = {"spec": {"taints": [OTHER, STARTUP, late]}}
            cluster.kube.patch(path, body, kind=PatchKind.MERGE)
        return real(*args, **more)

    monkeypatch.setattr(desk.dependencies.kube, "patch", patch)
    desk.do(ADMIT_NODE, AdmitRequest(owner, "boot-1"))
    assert taints_of(cluster, owner) == [OTHER, late]
    assert STARTUP_TAINT not in cluster.node(owner.node.name).taints
