"""Asking the guard and sweeping the cluster, against a real Temporal server."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError
from temporalio.testing import ActivityEnvironment

from activities.kube import paths
from activities.kube.client import PatchKind
from activities.registry import Dependencies, build_activities
from tests.activities.conftest import BareNodes
from tests.activities.desk import Desk, name_of
from tests.harness.audit import WORKER, AuditLog
from tests.harness.cluster import Cluster
from tests.harness.episodes import Episodes
from workers.lab.address import LabAddress
from workers.lab.kubelet.spec import POOL_LABEL
from workflows.contracts.fleet import PICK_IDLE, FleetOrder
from workflows.contracts.guard import (
    ASK_GUARD,
    CLAIM_EPOCH,
    RELEASE_PLACE,
    SURVEY_MARKS,
    SWEEP_CLUSTER,
    RebuildRequest,
    SweepRequest,
    Swept,
)
from workflows.contracts.kube import (
    HAND_OVER,
    NOTE_SLOT,
    QUARANTINE,
    HandOverRequest,
    Owner,
    QuarantineRequest,
    SlotRequest,
)
from workflows.contracts.machines import RECORD_PHASE, PhaseRecord
from workflows.contracts.messages import Ask, Release
from workflows.model.identity import guard_workflow_id, task_queue, workflow_id
from workflows.model.remediation.admission import TAINT_EFFECT, TAINT_KEY
from workflows.model.remediation.budget import Budget
from workflows.model.remediation.marks import Marker, Quarantine

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Temporal:
    """The async activities of a cluster of its own, so that tests meet no other guard."""

    episodes: Episodes
    cluster: str
    activities: dict[str, Any]

    def do(self, name: str, request: Any) -> Any:
        async def run() -> Any:
            environment = ActivityEnvironment()
            return await environment.run(self.activities[name], request)

        return self.episodes.call(run())

    def guard(self) -> WorkflowHandle[Any, Any]:
        return self.episodes.client().get_workflow_handle(guard_workflow_id(self.cluster))

    def signals(self, handle: WorkflowHandle[Any, Any]) -> list[tuple[str, Any]]:
        async def fetch() -> list[tuple[str, Any]]:
            return [
                (
                    event.workflow_execution_signaled_event_attributes.signal_name,
                    json.loads(
                        event.workflow_execution_signaled_event_attributes.input.payloads[0].data
                    ),
                )
                async for event in handle.fetch_history_events()
                if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
            ]

        return self.episodes.call(fetch())

    def is_running(self, owner: Owner) -> bool:
        handle = self.episodes.client().get_workflow_handle(workflow_id(self.cluster, owner.node))
        try:
            self.episodes.call(handle.describe())
        except RPCError:
            return False
        return True


@pytest.fixture
def temporal(lab: LabAddress, desk: Desk, pool: str) -> Iterator[Temporal]:
    episodes = Episodes(lab)
    client: Client = episodes.client()
    deps = Dependencies(desk.dependencies.kube, client, desk.dependencies.policies, pool)
    wired = {name_of(one): one for one in build_activities(deps)}
    yield Temporal(episodes, pool, wired)
    asyncio.run_coroutine_threadsafe(_terminate(client, pool), episodes._loop).result(20)
    episodes.close()


async def _terminate(client: Client, cluster: str) -> None:
    async for run in client.list_workflows(
        f"TaskQueue = '{task_queue(cluster)}' AND ExecutionStatus='Running'"
    ):
        if cluster in run.id:
            await client.get_workflow_handle(run.id).terminate("end of the test")


def marker(owner: Owner, since: datetime = LONG_AGO) -> Marker:
    return Marker(owner.episode, owner.node.uid, since, "r", "gpu-lost", Quarantine.CONFIRMED)


def mark(desk: Desk, owner: Owner, since: datetime = LONG_AGO) -> Owner:
    desk.do(QUARANTINE, QuarantineRequest(owner, marker(owner, since)))
    return owner


def ask(owner: Owner, pool: str) -> Ask:
    return Ask(Budget.DISRUPTION, pool, 1, owner.node, owner.episode, "", "")


# ---- the guard


def test_an_ask_starts_the_guard_and_names_the_asker(
    temporal: Temporal, bare: BareNodes, pool: str
) -> None:
    owner = bare.add("a")
    for _ in range(2):
        assert temporal.do(ASK_GUARD.name, ask(owner, pool)).guard == guard_workflow_id(pool)
    signals = temporal.signals(temporal.guard())
    assert [name for name, _ in signals] == ["ask", "ask"]
    assert signals[0][1]["workflow_id"] == "test"  # the activity's own context
    assert signals[0][1]["run_id"] == "test-run"


def test_a_release_without_a_guard_is_no_failure(
    temporal: Temporal, bare: BareNodes, pool: str
) -> None:
    owner = bare.add("a")
    release = Release(Budget.DISRUPTION, pool, owner.node.uid, owner.episode)
    temporal.do(RELEASE_PLACE.name, release)
    temporal.do(ASK_GUARD.name, ask(owner, pool))
    temporal.do(RELEASE_PLACE.name, release)
    assert [name for name, _ in temporal.signals(temporal.guard())] == ["ask", "release"]


def test_the_newest_guard_has_the_epoch(desk: Desk, cluster: Cluster, epoch: str) -> None:
    desk.do(CLAIM_EPOCH, RebuildRequest("epoch-2"))
    desk.do(CLAIM_EPOCH, RebuildRequest("epoch-2"))
    found = cluster.kube.get(paths.config_map("fleetmend", "fleetmend-guard"))
    assert found["data"]["epoch"] == "epoch-2"


def test_a_survey_counts_what_is_noted(
    desk: Desk, bare: BareNodes, cluster: Cluster, pool: str, epoch: str
) -> None:
    noted, plain, given = (mark(desk, bare.add(name)) for name in ("noted", "plain", "given"))
    desk.do(NOTE_SLOT, SlotRequest(noted, epoch))
    desk.do(HAND_OVER, HandOverRequest(given, "operator", "why"))
    bare.add("bad", annotations={"fleetmend.io/episode": "{"})
    idle = bare.add("idle")
    asked = Marker(
        idle.episode, idle.node.uid, LONG_AGO, "validation", "operator", Quarantine.VALIDATION
    )
    desk.do(QUARANTINE, QuarantineRequest(idle, asked))
    cluster.pause(pool)
    try:
        rebuilt = desk.do(SURVEY_MARKS, RebuildRequest(epoch))
    finally:
        cluster.resume(pool)
    places = {(p.budget, p.node.uid, p.episode) for p in rebuilt.places if p.pool == pool}
    assert places == {
        (Budget.QUARANTINE, noted.node.uid, noted.episode),
        (Budget.DISRUPTION, noted.node.uid, noted.episode),
        (Budget.QUARANTINE, plain.node.uid, plain.episode),
        (Budget.VALIDATION, idle.node.uid, idle.episode),
    }
    assert pool in rebuilt.paused


# ---- the sweep


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.sweep.REPORT_GRACE_S", 0.1)


def sweep(temporal: Temporal) -> Swept:
    swept: Swept = temporal.do(SWEEP_CLUSTER.name, SweepRequest(temporal.cluster))
    return swept


def test_an_orphaned_mark_gets_one_workflow(
    temporal: Temporal, desk: Desk, bare: BareNodes, witness: AuditLog
) -> None:
    orphan = mark(desk, bare.add("orphan"))
    young = mark(desk, bare.add("young"), datetime.now(UTC))
    given = mark(desk, bare.add("given"))
    desk.do(HAND_OVER, HandOverRequest(given, "operator", "why"))
    free = bare.add("free")
    written = len(witness.writes(WORKER))
    assert sweep(temporal).adopted == (orphan.node.name,)
    assert sweep(temporal).adopted == ()
    running = [owner for owner in (orphan, young, given, free) if temporal.is_running(owner)]
    assert running == [orphan]
    assert len(witness.writes(WORKER)) == written


def test_a_mark_that_watch_reports_a_moment_later_is_not_adopted(
    temporal: Temporal, desk: Desk, bare: BareNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen after an outage of two minutes: the sweep was first, and a run of its own repairs nothing."""
    orphan = mark(desk, bare.add("orphan"))

    async def reports(_count: int) -> None:
        await temporal.episodes.client().start_workflow(
            "RemediateNode",
            id=workflow_id(temporal.cluster, orphan.node),
            task_queue=task_queue(temporal.cluster),
        )

    monkeypatch.setattr("activities.sweep._give_watch_time", reports)
    assert sweep(temporal).adopted == ()


def test_a_new_node_whose_run_was_lost_is_admitted_by_another(
    temporal: Temporal, bare: BareNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.sweep.YOUNG", timedelta(0))
    taints = [{"key": TAINT_KEY, "effect": TAINT_EFFECT}]
    new, ignored = (bare.add(name, spec={"taints": taints}) for name in ("new", "ignored"))
    bare.cluster.annotate(ignored.node.name, ignore="mine")
    bare.add("in-service")
    assert sweep(temporal).adopted == (new.node.name,)
    assert sweep(temporal).adopted == ()
    handle = temporal.episodes.client().get_workflow_handle(workflow_id(temporal.cluster, new.node))
    temporal.episodes.call(handle.terminate("lost"))
    assert sweep(temporal).adopted == (new.node.name,)
    assert temporal.is_running(new)
    assert not temporal.is_running(ignored)


def test_the_guard_is_told_what_is_noted(
    temporal: Temporal, desk: Desk, bare: BareNodes, pool: str
) -> None:
    owner = mark(desk, bare.add("a"))
    temporal.do(ASK_GUARD.name, ask(owner, pool))
    sweep(temporal)
    name, told = temporal.signals(temporal.guard())[-1]
    assert name == "reconcile"
    assert ["quarantine", owner.node.uid] in told["noted"]


def recorded(desk: Desk, owner: Owner, cluster: str) -> PhaseRecord:
    """The machine's record says that an episode is under way in the node's run."""
    record = PhaseRecord(
        owner=owner,
        machine_id=f"uuid-{owner.node.name}",
        pool=cluster,
        workflow_id=workflow_id(cluster, owner.node),
        run_id="r",
        sequence=1,
        phase="quarantined",
        fault="gpu-lost",
        detail="",
        at=LONG_AGO,
    )
    desk.do(RECORD_PHASE, record)
    return record


def test_a_node_in_service_whose_run_was_lost_may_be_validated_again(
    temporal: Temporal, desk: Desk, bare: BareNodes
) -> None:
    """Nobody else says that there is no such episode: its record would for ever."""
    owner = bare.add("a")
    record = recorded(desk, owner, temporal.cluster)
    order = FleetOrder(desk.dependencies.cluster, by="ada", node=owner.node.name)

    def why_not() -> str:
        return desk.do(PICK_IDLE, order).left[0].why

    handle = temporal.episodes.call(
        temporal.episodes.client().start_workflow(
            "RemediateNode", id=record.workflow_id, task_queue=task_queue(temporal.cluster)
        )
    )
    assert record.machine_id not in sweep(temporal).cleaned
    assert why_not() == "it has an open episode"
    temporal.episodes.call(handle.terminate("lost"))
    assert record.machine_id in sweep(temporal).cleaned
    assert "no baseline" in why_not()
    assert record.machine_id not in sweep(temporal).cleaned


def test_the_record_of_a_machine_without_a_node_loses_it_and_keeps_the_rest(
    temporal: Temporal,
    desk: Desk,
    bare: BareNodes,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("activities.sweep.LONG_GONE", timedelta(0))
    owner = mark(desk, bare.add("a"), datetime.now(UTC))
    record = recorded(desk, owner, temporal.cluster)
    assert record.machine_id not in sweep(temporal).cleaned
    bare.remove(owner.node.name)
    assert record.machine_id in sweep(temporal).cleaned
    found = cluster.kube.get(paths.gpu_machine(record.machine_id))
    assert "node" not in found["spec"]
    assert found["status"]["phase"] == "quarantined"
    assert found["status"]["workflowID"] == ""
    assert record.machine_id not in sweep(temporal).cleaned


def _make_healthy(cluster: Cluster, owner: Owner, gpus: int = 8) -> None:
    names = ("Ready", "GPUHealthy", "InterconnectHealthy", "NetworkHealthy", "HostHealthy")
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    conditions = [
        {"type": n, "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}
        for n in names
    ]
    count = {"nvidia.com/gpu": str(gpus)}
    status = {"conditions": conditions, "capacity": count, "allocatable": count}
    cluster.kube.patch(paths.node_status(owner.node.name), {"status": status}, kind=PatchKind.MERGE)
    cluster.annotate(owner.node.name, findings='{"v":1,"boot":"boot-1","findings":[]}')


def test_only_healthy_armed_nodes_without_baseline_are_named(
    temporal: Temporal, desk: Desk, bare: BareNodes, cluster: Cluster
) -> None:
    good, short, _sick, paused, marked = (
        bare.add(name) for name in ("good", "short", "sick", "paused", "marked")
    )
    for owner in (good, paused, marked):
        _make_healthy(cluster, owner)
    _make_healthy(cluster, short, gpus=7)
    cluster.annotate(paused.node.name, pause="mine")
    mark(desk, marked)
    unarmed = bare.add("unarmed")
    _make_healthy(cluster, unarmed)
    cluster.patch_node(unarmed.node.name, {"metadata": {"labels": {POOL_LABEL: "unarmed"}}})
    found = sweep(temporal).unbaselined
    assert [(u.node, u.machine_id, u.pool) for u in found] == [
        (good.node, f"uuid-{good.node.name}", temporal.cluster)
    ]


def test_a_sweep_of_another_cluster_is_refused(temporal: Temporal) -> None:
    with pytest.raises(Exception, match="this worker serves"):
        temporal.do(SWEEP_CLUSTER.name, SweepRequest("another"))


def test_marks_of_another_uid_are_not_adopted(
    temporal: Temporal, bare: BareNodes, desk: Desk
) -> None:
    owner = bare.add("a")
    copied = replace(marker(owner), node_uid="another").encode()
    other = bare.add("b", annotations={"fleetmend.io/episode": copied})
    assert sweep(temporal).adopted == ()
    assert not temporal.is_running(other)
