"""Every activity with a fault at each of its calls: before the server, after it, or in its place.

Owns the matrix: for each scenario the fault is put on the first, second, ... call until a run has
no such call any more. The step is then retried as Temporal would; the world must be as ever after it.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.kube import errors as api
from activities.kube import paths
from activities.kube.client import PatchKind
from activities.node_tasks.pod import task_name
from tests.activities.conftest import BareNodes
from tests.activities.desk import Desk
from tests.harness.audit import WORKER, AuditLog, Wanted, audit
from tests.harness.cluster import Cluster
from tests.harness.proxy import FaultProxy
from tests.harness.proxy_faults import Answer, Drop, Fault, Hang
from workers.lab.address import LabAddress
from workflows.contracts import Contract, node_tasks
from workflows.contracts.guard import CLAIM_EPOCH, RebuildRequest
from workflows.contracts.kube import (
    DRAIN,
    DROP_SLOT,
    GIVE_BACK,
    HAND_OVER,
    NOTE_SLOT,
    QUARANTINE,
    DrainRequest,
    GiveBackRequest,
    HandOverRequest,
    Owner,
    QuarantineRequest,
    SlotRequest,
)
from workflows.contracts.machines import (
    RECORD_BASELINE,
    RECORD_PHASE,
    Attempt,
    BaselineRequest,
    PhaseRecord,
)
from workflows.contracts.node_tasks import NodeTaskRequest
from workflows.model.identity import machine_id
from workflows.model.node_task import Result, TaskKind
from workflows.model.policy import DrainWay
from workflows.model.remediation.gate import Baseline
from workflows.model.remediation.marks import Marker, Quarantine

MAX_CALLS = 40
AT = datetime(2026, 11, 29, 12, tzinfo=UTC)

FAULTS: dict[str, Fault] = {"dropped-after": Drop(forwarded=True)}
"""The hardest: it was done, and nobody said so."""
MORE_FAULTS: dict[str, Fault] = {
    "dropped-before": Drop(),
    "conflict": Answer(409),
    "error-after": Answer(500, forwarded=True),
    "gone": Answer(410),
    "slow-down": Answer(429, retry_after_s=1),
    "unavailable": Answer(503),
    "garbage": Answer(200, body=b"<html>"),
    "silent": Hang(),
    "silent-after": Hang(forwarded=True),
}


@dataclass
class Scene:
    """One node, and hands on the world around it."""

    desk: Desk
    faulty: Desk
    cluster: Cluster
    owner: Owner
    pool: str
    witness: AuditLog

    @property
    def name(self) -> str:
        return self.owner.node.name

    def marker(self) -> Marker:
        return Marker(
            self.owner.episode, self.owner.node.uid, AT, "r", "gpu-lost", Quarantine.CONFIRMED
        )

    def quarantined(self) -> None:
        self.desk.do(QUARANTINE, QuarantineRequest(self.owner, self.marker()))

    def with_slot(self) -> None:
        self.quarantined()
        self.desk.do(NOTE_SLOT, SlotRequest(self.owner, "epoch-1"))

    def patches(self) -> int:
        return len(self.witness.node_writes(self.name))

    def machine(self) -> str:
        node = self.cluster.node(self.name)
        return machine_id(node.system_uuid, node.provider_id, node.uid)


class Scenario:
    """One contract: what is there before, what is asked, what must be there after."""

    contract: Contract[Any, Any]

    def prepare(self, scene: Scene) -> None:
        """What is there before."""

    def request(self, scene: Scene) -> Any:
        raise NotImplementedError

    def check(self, scene: Scene, result: Any) -> None:
        raise NotImplementedError


class Quarantining(Scenario):
    contract = QUARANTINE

    def request(self, scene: Scene) -> Any:
        return QuarantineRequest(scene.owner, scene.marker(), epoch="epoch-1")

    def check(self, scene: Scene, result: Any) -> None:
        node = scene.cluster.node(scene.name)
        assert result.marker == scene.cluster.marker(scene.name)
        assert node.unschedulable
        assert result.marker.was_unschedulable is False
        assert scene.patches() == 1


class NotingASlot(Scenario):
    contract = NOTE_SLOT

    def prepare(self, scene: Scene) -> None:
        scene.quarantined()

    def request(self, scene: Scene) -> Any:
        return SlotRequest(scene.owner, "epoch-1")

    def check(self, scene: Scene, result: Any) -> None:
        assert result.marker == scene.cluster.marker(scene.name)
        assert result.marker.slot.epoch == "epoch-1"
        assert scene.patches() == 2


class DroppingASlot(Scenario):
    contract = DROP_SLOT

    def prepare(self, scene: Scene) -> None:
        scene.with_slot()

    def request(self, scene: Scene) -> Any:
        return SlotRequest(scene.owner, "")

    def check(self, scene: Scene, result: Any) -> None:
        assert result.marker == scene.cluster.marker(scene.name)
        assert result.marker.slot is None
        assert scene.patches() == 3


class GivingBack(Scenario):
    contract = GIVE_BACK

    def prepare(self, scene: Scene) -> None:
        scene.quarantined()

    def request(self, scene: Scene) -> Any:
        return GiveBackRequest(scene.owner)

    def check(self, scene: Scene, result: Any) -> None:
        assert result.marker is None
        assert scene.cluster.marker(scene.name) is None
        assert not scene.cluster.node(scene.name).unschedulable
        assert scene.patches() == 2


class GivingBackAPersonsCordon(GivingBack):
    """The cordon was there before: absent marker and cordoned node are then both right."""

    def prepare(self, scene: Scene) -> None:
        scene.cluster.patch_node(scene.name, {"spec": {"unschedulable": True}})
        scene.quarantined()

    def check(self, scene: Scene, result: Any) -> None:
        assert result.marker is None
        assert scene.cluster.marker(scene.name) is None
        assert scene.cluster.node(scene.name).unschedulable
        assert scene.patches() == 2


class HandingOver(Scenario):
    contract = HAND_OVER

    def prepare(self, scene: Scene) -> None:
        scene.with_slot()

    def request(self, scene: Scene) -> Any:
        return HandOverRequest(scene.owner, "operator", "why")

    def check(self, scene: Scene, result: Any) -> None:
        assert result.marker == scene.cluster.marker(scene.name)
        assert (result.marker.handed_over, result.marker.slot) == ("operator:why", None)
        assert scene.cluster.node(scene.name).unschedulable
        assert scene.patches() == 3


class Draining(Scenario):
    contract = DRAIN

    def prepare(self, scene: Scene) -> None:
        scene.with_slot()
        for number in range(2):
            body = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"{scene.name}-{number}"},
                "spec": {
                    "nodeName": scene.name,
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{"name": "c", "image": "i"}],
                },
            }
            scene.cluster.kube.create(paths.pods("default"), body)

    def request(self, scene: Scene) -> Any:
        return DrainRequest(scene.owner, DrainWay.NOW, 60)

    def check(self, scene: Scene, result: Any) -> None:
        assert (result.done, result.remaining) == (True, 0)
        for number in range(2):
            with suppress(api.NotFound):
                pod = scene.cluster.kube.get(paths.pod("default", f"{scene.name}-{number}"))
                assert pod["metadata"]["deletionTimestamp"]
        wanted = Wanted(who=WORKER, resource="pods/eviction")
        names = [e.name for e in scene.witness.events(wanted) if scene.name in e.name]
        assert sorted(names) == [f"{scene.name}-0", f"{scene.name}-1"]


class Recording(Scenario):
    contract = RECORD_PHASE

    def request(self, scene: Scene) -> Any:
        return PhaseRecord(
            owner=scene.owner,
            machine_id=scene.machine(),
            pool=scene.pool,
            workflow_id="w",
            run_id="r",
            sequence=1,
            phase="closed",
            fault="gpu-lost",
            detail="d",
            at=AT,
            outcome="returned",
            attempt=Attempt("reboot", AT, "done", "a", "b"),
        )

    def check(self, scene: Scene, result: Any) -> None:
        assert result.refused == ""
        status = scene.cluster.kube.get(paths.gpu_machine(scene.machine()))["status"]
        assert (status["phase"], status["strikeCount"]) == ("closed", 1)
        assert (len(status["strikes"]), len(status["attempts"])) == (1, 1)
        created = scene.witness.events(Wanted(who=WORKER, verb="create", resource="events"))
        about = [e for e in created if e.body["involvedObject"]["name"] == scene.name]
        assert len(about) == 1


class RecordingABaseline(Scenario):
    contract = RECORD_BASELINE

    def request(self, scene: Scene) -> Any:
        gpus = tuple(f"GPU-{n}" for n in range(8))
        baseline = Baseline(gpus, (("nvidia.com/gpu", 8),), AT)
        return BaselineRequest(
            scene.owner, scene.machine(), scene.pool, "lab:///1", baseline, "H100", "boot-1"
        )

    def check(self, scene: Scene, result: Any) -> None:
        assert result.refused == ""
        status = scene.cluster.kube.get(paths.gpu_machine(scene.machine()))["status"]
        assert status["baseline"]["gpuCount"] == 8


class ClaimingTheEpoch(Scenario):
    contract = CLAIM_EPOCH

    def request(self, scene: Scene) -> Any:
        return RebuildRequest(f"epoch-of-{scene.name}")

    def check(self, scene: Scene, result: Any) -> None:
        found = scene.cluster.kube.get(paths.config_map("fleetmend", "fleetmend-guard"))
        assert found["data"]["epoch"] == f"epoch-of-{scene.name}"


class Counting(Scenario):
    """The kubelet's part is played by hand: the pod ends as soon as it is there."""

    contract = node_tasks.INVENTORY
    kind = TaskKind.INVENTORY

    def prepare(self, scene: Scene) -> None:
        hand = threading.Thread(target=_end_task, args=(scene, self.request(scene)), daemon=True)
        hand.start()

    def request(self, scene: Scene) -> Any:
        late = datetime.now(UTC) + timedelta(seconds=60)
        return NodeTaskRequest(scene.owner, self.kind, "s", 60, "boot-1", late, level=1)

    def check(self, scene: Scene, result: Any) -> None:
        assert result.result is Result.DONE
        assert len(scene.witness.node_tasks(scene.name)) == 1
        with pytest.raises(api.NotFound):
            scene.cluster.kube.get(paths.pod("fleetmend", task_name(self.request(scene))))


class Diagnosing(Counting):
    contract = node_tasks.DIAGNOSE
    kind = TaskKind.DIAGNOSE


class ReadingTheKernelLog(Counting):
    contract = node_tasks.KERNEL_LOG
    kind = TaskKind.KERNEL_LOG


class Rebooting(Counting):
    contract = node_tasks.REBOOT
    kind = TaskKind.REBOOT

    def prepare(self, scene: Scene) -> None:
        scene.with_slot()
        super().prepare(scene)


def _end_task(scene: Scene, request: NodeTaskRequest) -> None:
    name = task_name(request)
    verdict = {
        "schema": "fleetmend.io/node-task/v1",
        "kind": request.kind.value,
        "episode": request.owner.episode,
        "task": name,
        "boot_id": "boot-1",
        "result": "done",
        "health": "healthy",
    }
    container = {
        "name": "task",
        "image": "i",
        "imageID": "i",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": {"exitCode": 0, "message": json.dumps(verdict)}},
    }
    status = {"status": {"phase": "Succeeded", "containerStatuses": [container]}}
    path = paths.pod_status("fleetmend", name)
    until = datetime.now(UTC) + timedelta(seconds=60)
    while datetime.now(UTC) < until:
        with suppress(api.NotFound):
            scene.cluster.kube.patch(path, status, kind=PatchKind.MERGE)
            return
        threading.Event().wait(0.05)


SCENARIOS: list[Scenario] = [
    Quarantining(),
    NotingASlot(),
    DroppingASlot(),
    GivingBack(),
    GivingBackAPersonsCordon(),
    HandingOver(),
    Draining(),
    Recording(),
    RecordingABaseline(),
    ClaimingTheEpoch(),
    Counting(),
    Diagnosing(),
    ReadingTheKernelLog(),
    Rebooting(),
]


@pytest.fixture
def stage(
    desk: Desk,
    faulty_desk: Desk,
    cluster: Cluster,
    bare: BareNodes,
    pool: str,
    lab: LabAddress,
    epoch: str,
) -> Iterator[Callable[[int], Scene]]:
    """A fresh scene for each number."""

    def scene(number: int) -> Scene:
        owner = bare.add(str(number))
        return Scene(desk, faulty_desk, cluster, owner, pool, audit(lab))

    yield scene
    for name in bare.added:
        cluster.delete_pods_of(name)


def _run_through(
    scenario: Scenario, fault: Fault, stage: Callable[[int], Scene], proxy: FaultProxy
) -> int:
    """The fault at each call in turn; how many calls there were."""
    for number in range(1, MAX_CALLS):
        scene = stage(number)
        scenario.prepare(scene)
        rule = proxy.add(fault, nth=number)
        attempts = scene.faulty.do_as_temporal(scenario.contract, scenario.request(scene))
        proxy.clear()
        scenario.check(scene, attempts.result)
        if rule.fired == 0:
            return number - 1
    return MAX_CALLS


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: type(s).__name__)
def test_a_fault_at_any_call_changes_nothing_in_the_end(
    scenario: Scenario,
    fault: Fault,
    stage: Callable[[int], Scene],
    worker_proxy: FaultProxy,
) -> None:
    assert _run_through(scenario, fault, stage, worker_proxy) >= 2


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", MORE_FAULTS.values(), ids=MORE_FAULTS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: type(s).__name__)
def test_another_fault_at_any_call_changes_nothing_in_the_end(
    scenario: Scenario,
    fault: Fault,
    stage: Callable[[int], Scene],
    worker_proxy: FaultProxy,
) -> None:
    assert _run_through(scenario, fault, stage, worker_proxy) >= 2
