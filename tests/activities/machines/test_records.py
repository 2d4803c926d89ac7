"""Records and Events in the real API server: written once, whatever is repeated."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from activities.kube import paths
from activities.kube.client import PatchKind, Selector
from activities.machines.records import event_of
from tests.activities.conftest import BareNodes
from tests.activities.desk import Desk
from tests.activities.machines.test_record import RECORD
from tests.harness.audit import AuditLog, Wanted
from tests.harness.cluster import Cluster
from workflows.contracts.kube import OPEN_EPISODE, READ_NODE, Owner
from workflows.contracts.machines import (
    RECORD_BASELINE,
    RECORD_PHASE,
    Attempt,
    BaselineRequest,
    PhaseRecord,
)
from workflows.model.identity import machine_id
from workflows.model.remediation.gate import Baseline

AT = datetime(2026, 11, 29, 12, tzinfo=UTC)


def recorded(cluster: Cluster, owner: Owner, pool: str) -> PhaseRecord:
    node = cluster.node(owner.node.name)
    return PhaseRecord(
        owner=owner,
        machine_id=machine_id(node.system_uuid, node.provider_id, node.uid),
        pool=pool,
        workflow_id="w",
        run_id="r",
        sequence=1,
        phase="quarantined",
        fault="gpu-lost",
        detail="GPU fell off the bus",
        at=AT,
        attempt=Attempt("reboot", AT, "unknown", "boot-1"),
    )


def events_about(cluster: Cluster, node: str) -> list[dict[str, object]]:
    about = Selector(field=f"involvedObject.name={node}")
    items = cluster.kube.list(paths.events("default"), selector=about).items
    return [e for e in items if e["source"].get("component") == "fleetmend"]


def test_a_phase_is_recorded_once(
    desk: Desk, bare: BareNodes, cluster: Cluster, pool: str, witness: AuditLog
) -> None:
    owner = bare.add("a")
    record = recorded(cluster, owner, pool)
    desk.do(RECORD_PHASE, record)
    first = cluster.machine_of(owner.node.name)
    desk.do(RECORD_PHASE, record)
    second = cluster.machine_of(owner.node.name)
    assert first is not None
    assert second is not None
    assert first["status"] == second["status"]
    assert first["status"]["phase"] == "quarantined"
    assert len(first["status"]["attempts"]) == 1
    events = events_about(cluster, owner.node.name)
    assert [(e["reason"], e["type"]) for e in events] == [("Quarantined", "Normal")]
    assert witness.node_writes(owner.node.name) == []


def test_a_phase_that_passed_at_once_is_recorded_before_the_one_it_comes_with(
    desk: Desk, bare: BareNodes, cluster: Cluster, pool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = bare.add("a")
    second = recorded(cluster, owner, pool)
    passed = replace(second, phase="validated", detail="the gate passed")
    second = replace(
        second, sequence=2, phase="probation", at=AT + timedelta(seconds=1), passed=passed
    )
    for _ in range(2):
        desk.do(RECORD_PHASE, second)
    machine = cluster.machine_of(owner.node.name)
    assert machine is not None
    assert machine["status"]["phase"] == "probation"
    reasons = sorted(str(event["reason"]) for event in events_about(cluster, owner.node.name))
    assert reasons == ["Probation", "Validated"]
    assert capsys.readouterr().out.count("phase_changed") == 2


def test_log_line_and_metric_come_once(
    desk: Desk, bare: BareNodes, cluster: Cluster, pool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record = recorded(cluster, bare.add("a"), pool)
    for _ in range(3):
        desk.do(RECORD_PHASE, record)
    assert capsys.readouterr().out.count("phase_changed") == 1


@pytest.mark.parametrize(
    ("held", "outcome", "reason", "kind"),
    [
        (True, "", "Held", "Warning"),
        (False, "retired", "Retired", "Warning"),
        (False, "yielded", "Yielded", "Warning"),
        (False, "returned", "Returned", "Normal"),
        (False, "", "Quarantined", "Normal"),
    ],
)
def test_the_event_says_what_happened(held: bool, outcome: str, reason: str, kind: str) -> None:
    record = replace(RECORD, phase="quarantined", held=held, outcome=outcome)
    event = event_of(record)
    assert (event["reason"], event["type"]) == (reason, kind)


def test_the_event_names_the_fault_once() -> None:
    bare, named = "GPU 0 fell off the bus", f"{RECORD.fault}: GPU 0 fell off the bus"
    messages = {event_of(replace(RECORD, detail=text))["message"] for text in (bare, named)}
    assert messages == {named}


def test_a_node_that_was_never_read_leaves_only_an_event(
    desk: Desk, bare: BareNodes, cluster: Cluster, pool: str
) -> None:
    owner = bare.add("a")
    record = replace(recorded(cluster, owner, pool), machine_id="")
    assert desk.do(RECORD_PHASE, record).refused
    assert cluster.machine_of(owner.node.name) is None
    assert len(events_about(cluster, owner.node.name)) == 1


def baseline(record: PhaseRecord, count: int = 8) -> BaselineRequest:
    gpus = tuple(f"GPU-{n}" for n in range(count))
    return BaselineRequest(
        owner=record.owner,
        machine_id=record.machine_id,
        pool=record.pool,
        provider_id="lab:///1",
        baseline=Baseline(gpus, (("nvidia.com/gpu", count),), AT),
        model="H100",
        boot_id="boot-1",
    )


def test_a_baseline_is_never_overwritten(
    desk: Desk, bare: BareNodes, cluster: Cluster, pool: str
) -> None:
    owner = bare.add("a")
    request = baseline(recorded(cluster, owner, pool))
    assert desk.do(RECORD_BASELINE, request).refused == ""
    other = replace(request, baseline=replace(request.baseline, gpus=("GPU-x",) * 8))
    desk.do(RECORD_BASELINE, other)
    found = desk.do(READ_NODE, owner).machine.baseline
    assert found == request.baseline


@pytest.mark.parametrize("count", [7, 9])
def test_a_baseline_that_the_pool_does_not_expect_is_refused(
    desk: Desk, bare: BareNodes, cluster: Cluster, pool: str, count: int
) -> None:
    owner = bare.add("a")
    answer = desk.do(RECORD_BASELINE, baseline(recorded(cluster, owner, pool), count))
    assert f"{count} GPUs were counted" in answer.refused
    assert cluster.machine_of(owner.node.name) is None


def test_a_phase_and_a_baseline_do_not_lose_each_other(
    desk: Desk, bare: BareNodes, cluster: Cluster, pool: str
) -> None:
    owner = bare.add("a")
    record = recorded(cluster, owner, pool)
    desk.do(RECORD_PHASE, record)
    desk.do(RECORD_BASELINE, baseline(record))
    desk.do(RECORD_PHASE, replace(record, sequence=2, phase="drained"))
    memory = desk.do(READ_NODE, owner).machine
    assert memory.baseline is not None
    assert memory.reboots_in_episode == 1


# ---- readings


def test_the_first_reading_brings_policy_and_pool(desk: Desk, bare: BareNodes, pool: str) -> None:
    owner = bare.add("a")
    bare.add("b")
    opened = desk.do(OPEN_EPISODE, owner)
    assert (opened.pool, opened.pool_size) == (pool, 2)
    assert opened.policy.pool_named(pool) is not None
    assert opened.reading.marker is None
    assert opened.reading.machine.machine_id.startswith("uuid-")


def test_a_reading_keeps_only_what_decisions_look_at(
    desk: Desk, bare: BareNodes, cluster: Cluster
) -> None:
    owner = bare.add(
        "a",
        labels={"example.com/x": "y"},
        annotations={"example.com/big": "z" * 9000, "fleetmend.io/episode": "{"},
    )
    cluster.kube.patch(
        paths.node_status(owner.node.name),
        {"status": {"conditions": [{"type": "X", "status": "True", "message": "m" * 900}]}},
        kind=PatchKind.STRATEGIC,
    )
    reading = desk.do(READ_NODE, owner)
    assert "example.com/x" not in reading.node.labels
    assert list(reading.node.annotations) == ["fleetmend.io/episode"]
    assert len(reading.node.conditions["X"].message) < 300
    assert "cannot be read" in reading.marker_problem


def test_a_node_outside_every_pool_has_none(desk: Desk, bare: BareNodes, cluster: Cluster) -> None:
    owner = bare.add("a")
    cluster.patch_node(owner.node.name, {"metadata": {"labels": {"fleetmend.io/pool": None}}})
    assert desk.do(OPEN_EPISODE, owner).pool == ""


def test_records_are_written_under_the_version_they_were_decided_on(
    desk: Desk, bare: BareNodes, cluster: Cluster, pool: str, witness: AuditLog
) -> None:
    record = recorded(cluster, bare.add("a"), pool)
    desk.do(RECORD_PHASE, record)
    patches = witness.events(Wanted(verb="patch", resource="gpumachines/status"))
    mine = [e for e in patches if e.name == record.machine_id]
    assert mine
    assert all(e.body["metadata"]["resourceVersion"] for e in mine)
