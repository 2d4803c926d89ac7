"""The status of a pod as its kubelet writes it, from what the runtime holds.

Pure: owns the shape of phase, conditions and container statuses. Does not decide when a pod ends
(`pod_worker`) and sends nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from workers.lab.faults.ailment import seconds
from workers.lab.kubelet.api import JsonObject
from workers.lab.kubelet.container import ContainerSlot, Exit, Sandbox
from workers.lab.kubelet.pod_fields import HOST_IP


class PodPhase(StrEnum):
    """The phases a kubelet writes."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True)
class Verdict:
    """How a pod ended."""

    phase: PodPhase
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Waiting:
    """Why a container has not started."""

    reason: str
    message: str


CREATING = Waiting("ContainerCreating", "")
INITIALIZING = Waiting("PodInitializing", "")


def is_terminal(pod: JsonObject) -> bool:
    """Whether the API server has the pod as ended already."""
    return pod.get("status", {}).get("phase") in (PodPhase.SUCCEEDED, PodPhase.FAILED)


def rejected_status(verdict: Verdict, at: datetime) -> JsonObject:
    """The status of a pod that the kubelet did not admit: nothing of it ever ran."""
    return {
        "phase": verdict.phase.value,
        "reason": verdict.reason,
        "message": verdict.message,
        "startTime": seconds(at),
    }


def pod_status(
    pod: JsonObject, sandbox: Sandbox, waiting: dict[str, Waiting], verdict: Verdict | None
) -> JsonObject:
    """The whole status for now; with a verdict, the last one."""
    slots = list(sandbox.slots.values())
    is_ready = verdict is None and all(slot.is_ready for slot in slots)
    if verdict is not None:
        phase = verdict.phase
    elif any(slot.running is not None or slot.last is not None for slot in slots):
        phase = PodPhase.RUNNING
    else:
        phase = PodPhase.PENDING
    not_yet = CREATING if sandbox.next_init is None else INITIALIZING
    status: JsonObject = {
        "phase": phase.value,
        "conditions": _conditions(pod, sandbox, is_ready=is_ready, verdict=verdict),
        "hostIP": HOST_IP,
        "podIP": sandbox.ip,
        "podIPs": [{"ip": sandbox.ip}],
        "startTime": seconds(sandbox.started_at),
        "containerStatuses": [
            _container_status(sandbox, slot, waiting.get(slot.name, not_yet)) for slot in slots
        ],
    }
    if sandbox.inits:
        status["initContainerStatuses"] = [
            _init_status(sandbox, slot, waiting.get(slot.name, INITIALIZING))
            for slot in sandbox.inits.values()
        ]
    if verdict is not None and verdict.reason:
        status["reason"] = verdict.reason
        status["message"] = verdict.message
    return status


def _conditions(
    pod: JsonObject, sandbox: Sandbox, *, is_ready: bool, verdict: Verdict | None
) -> list[JsonObject]:
    ended = "" if verdict is None else _ended_reason(verdict)
    wanted: list[JsonObject] = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Initialized", "status": "True" if sandbox.next_init is None else "False"},
        {"type": "ContainersReady", "status": "True" if is_ready else "False"},
        {"type": "Ready", "status": "True" if is_ready else "False"},
    ]
    before = {c["type"]: c for c in pod.get("status", {}).get("conditions") or []}
    changed_at = _last_change(sandbox)
    for condition in wanted:
        old = before.get(condition["type"], {})
        if old.get("status") == condition["status"]:
            condition["lastTransitionTime"] = old.get("lastTransitionTime")
        else:
            condition["lastTransitionTime"] = seconds(changed_at)
        if condition["status"] == "False":
            not_yet = "ContainersNotReady"
            if condition["type"] == "Initialized":
                not_yet = "ContainersNotInitialized"
            condition["reason"] = ended or not_yet
    return wanted


def _ended_reason(verdict: Verdict) -> str:
    return "PodCompleted" if verdict.phase is PodPhase.SUCCEEDED else "PodFailed"


def _last_change(sandbox: Sandbox) -> datetime:
    times = [sandbox.started_at]
    times += [slot.last.finished_at for slot in sandbox.slots.values() if slot.last is not None]
    times += [slot.health.changed_at for slot in sandbox.slots.values() if slot.health.changed_at]
    times += [slot.last.finished_at for slot in sandbox.inits.values() if slot.last is not None]
    times += [container.started_at for container in sandbox.running()]
    return max(times)


def _container_status(sandbox: Sandbox, slot: ContainerSlot, waiting: Waiting) -> JsonObject:
    status: JsonObject = {
        "name": slot.name,
        "image": slot.image,
        "imageID": "",
        "containerID": _container_id(sandbox, slot.name, slot.restarts),
        "restartCount": slot.restarts,
        "ready": slot.is_ready,
        "started": slot.running is not None and slot.health.is_started,
        "lastState": {},
    }
    if slot.running is not None:
        status["state"] = {"running": {"startedAt": seconds(slot.running.started_at)}}
        if slot.last is not None:
            previous = _container_id(sandbox, slot.name, slot.restarts - 1)
            status["lastState"] = {"terminated": _terminated(slot.last, previous)}
    elif slot.last is not None:
        status["state"] = {"terminated": _terminated(slot.last, status["containerID"])}
    else:
        status["containerID"] = ""
        status["state"] = {"waiting": {"reason": waiting.reason, "message": waiting.message}}
    return status


def _container_id(sandbox: Sandbox, name: str, restarts: int) -> str:
    return f"lab://{sandbox.uid}/{name}/{restarts}"


def _terminated(end: Exit, container_id: str) -> JsonObject:
    state: JsonObject = {
        "exitCode": end.code,
        "reason": end.reason,
        "startedAt": seconds(end.started_at),
        "finishedAt": seconds(end.finished_at),
        "containerID": container_id,
    }
    if end.message:
        state["message"] = end.message
    return state


def _init_status(sandbox: Sandbox, slot: ContainerSlot, waiting: Waiting) -> JsonObject:
    has_succeeded = slot.last is not None and slot.last.code == 0
    return {**_container_status(sandbox, slot, waiting), "ready": has_succeeded}
