"""One scene for each contract that changes anything: what is there before, what is asked, what must be.

Owns the scenes on real Nodes, each with its check by the API server's own record: what must be there
after any number of attempts, and that nothing was done twice. What is done to the attempts is the
tests' own (`test_faults_at_each_call.py`). Contracts that change nothing are named here too, with
the reason.
"""

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest

from activities.kube import errors as api
from activities.kube import paths
from activities.kube.client import PatchKind
from activities.node_tasks.pod import task_name
from tests.activities.desk import Desk
from tests.harness.audit import WORKER, AuditLog, Wanted
from tests.harness.cluster import Cluster
from workflows.contracts import Contract, fleet, guard, karpenter, kube, node_tasks
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

AT = datetime(2026, 11, 29, 12, tzinfo=UTC)


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
    effect: tuple[str, str] = ("PATCH", r"/api/v1/nodes/")
    """Method and path of the request that changes the world."""

    def prepare(self, scene: Scene) -> None:
        """What is there before."""

    def request(self, scene: Scene) -> Any:
        raise NotImplementedError

    def check(self, scene: Scene, result: Any) -> None:
        raise NotImplementedError

    def check_once(self, scene: Scene) -> None:
        """More that holds after two attempts without a fault: what must not be asked for twice."""


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
    effect = ("POST", "/eviction")

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
        # A retry may come before an eviction shows whose answer was lost: the same pod again.
        assert set(self._evicted(scene)) == {f"{scene.name}-0", f"{scene.name}-1"}

    def check_once(self, scene: Scene) -> None:
        assert len(self._evicted(scene)) == 2

    def _evicted(self, scene: Scene) -> list[str]:
        wanted = Wanted(who=WORKER, resource="pods/eviction")
        return [e.name for e in scene.witness.events(wanted) if scene.name in e.name]


class Recording(Scenario):
    contract = RECORD_PHASE
    effect = ("POST|PUT|PATCH", "/gpumachines")

    def request(self, scene: Scene) -> Any:
        passed = PhaseRecord(
            owner=scene.owner,
            machine_id=scene.machine(),
            pool=scene.pool,
            workflow_id="w",
            run_id="r",
            sequence=1,
            phase="validated",
            fault="gpu-lost",
            detail="d",
            at=AT,
            attempt=Attempt("reboot", AT, "done", "a", "b"),
        )
        at = AT + timedelta(seconds=1)
        return replace(passed, sequence=2, phase="closed", at=at, outcome="returned", passed=passed)

    def check(self, scene: Scene, result: Any) -> None:
        assert result.refused == ""
        status = scene.cluster.kube.get(paths.gpu_machine(scene.machine()))["status"]
        assert (status["phase"], status["strikeCount"]) == ("closed", 1)
        assert (len(status["strikes"]), len(status["attempts"])) == (1, 1)
        created = scene.witness.events(Wanted(who=WORKER, verb="create", resource="events"))
        about = [e for e in created if e.body["involvedObject"]["name"] == scene.name]
        assert sorted(e.body["reason"] for e in about) == ["Returned", "Validated"]


class RecordingABaseline(Scenario):
    contract = RECORD_BASELINE
    effect = ("POST|PUT|PATCH", "/gpumachines")

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
    effect = ("PATCH", "/configmaps/fleetmend-guard")

    def request(self, scene: Scene) -> Any:
        return RebuildRequest(f"epoch-of-{scene.name}")

    def check(self, scene: Scene, result: Any) -> None:
        found = scene.cluster.kube.get(paths.config_map("fleetmend", "fleetmend-guard"))
        assert found["data"]["epoch"] == f"epoch-of-{scene.name}"


class Counting(Scenario):
    """The kubelet's part is played by hand: the pod ends as soon as it is there."""

    contract = node_tasks.INVENTORY
    effect = ("POST", "/namespaces/fleetmend/pods")
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

CHANGES_NOTHING: Mapping[str, str] = MappingProxyType(
    {
        kube.OPEN_EPISODE.name: "reads Node, record and policy",
        kube.READ_NODE.name: "reads Node and record",
        kube.PROVE_REBOOT.name: "reads the Node",
        kube.AWAIT_REBOOT.name: "reads the Node until it has booted",
        kube.AWAIT_PERMIT.name: "reads Node and arming until the step is permitted",
        guard.SURVEY_MARKS.name: "reads every Node",
        fleet.PICK_IDLE.name: "reads Nodes, pods and records",
        fleet.READ_IDLENESS.name: "reads the Node and its pods",
        karpenter.RESOLVE_CLAIM.name: "reads Node and NodeClaims",
        karpenter.READ_CLAIM_END.name: "reads what is left of Node and NodeClaim",
        karpenter.AWAIT_CLAIM_GONE.name: "reads Node and NodeClaim until they are gone",
        karpenter.LOOK_FOR_SUCCESSOR.name: "reads NodeClaims, their Nodes and waiting pods",
        karpenter.FIND_SUCCESSOR.name: "the same, until there is one",
    }
)
"""Contracts without a scene: twice or once is the same to the world."""
OF_KARPENTER = (karpenter.DELETE_CLAIM.name, kube.ASSERT_VETOES.name)
"""Their scenes need NodeClaims: `karpenter/test_faults.py`."""
OF_NEWCOMERS = (kube.ADMIT_NODE.name,)
"""Its scene is a Node that is not in service yet: `kube/test_admission.py`."""
TELLS_TEMPORAL: Mapping[str, str] = MappingProxyType(
    {
        guard.ASK_GUARD.name: "test_an_ask_starts_the_guard_and_names_the_asker",
        guard.RELEASE_PLACE.name: "test_a_release_without_a_guard_is_no_failure",
        guard.SWEEP_CLUSTER.name: "test_an_orphaned_mark_gets_one_workflow",
    }
)
"""Contracts whose effect is in Temporal, and who runs each of them twice in `test_guard.py`."""
