"""The pod of a node task: its name, its body, and whether a pod that was found is ours.

Owns the shape that the admission policy `fleetmend-worker-pods` (deploy/chart) lets through.
Pinned by `spec.nodeName`: no scheduler is asked, and no taint or cordon keeps it away. Pure; used by
`runner.py`.
"""

import hashlib
import math
import re
from dataclasses import dataclass
from typing import Any, Final

from activities.kube.own_namespace import OWN_NAMESPACE
from workflows.contracts.node_tasks import NodeTaskRequest
from workflows.model.host_engine import HOST_ENGINE_VARIABLE
from workflows.model.node_task import TASK_ENV, TaskKind, TaskOrder, write_wire

NAMESPACE: Final = OWN_NAMESPACE
SERVICE_ACCOUNT: Final = "fleetmend-node-task"
TASK_LABEL: Final = "fleetmend.io/task"
EPISODE_LABEL: Final = "fleetmend.io/episode"
EPISODE_ANNOTATION: Final = "fleetmend.io/task-episode"
NODE_UID_ANNOTATION: Final = "fleetmend.io/task-node-uid"
MAX_ACTIVE_S: Final = 15_000
"""The admission policy refuses a longer active deadline; DCGM's level 4 takes hours."""
HOST_MOUNT: Final = "/host"
PRIVILEGED: Final = frozenset({TaskKind.REBOOT, TaskKind.KERNEL_LOG})
RUNTIME_ENV: Final = (
    ("NVIDIA_VISIBLE_DEVICES", "all"),
    ("NVIDIA_DRIVER_CAPABILITIES", "compute,utility"),
)
"""What NVIDIA's container runtime gives a container its GPUs by (container toolkit 1.17)."""

_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@dataclass(frozen=True)
class GpuAccess:
    """How a diagnosis comes to the GPUs, by the release; "" = not that way."""

    runtime_class: str = ""
    host_engine: str = ""


def task_name(request: NodeTaskRequest) -> str:
    """The pod's name: the same for the same episode, node and step, and a DNS label (<= 63)."""
    owner = request.owner
    key = f"{owner.node.uid}|{owner.episode}|{request.kind}|{request.step}"
    return f"fleetmend-{request.kind}-{hashlib.sha256(key.encode()).hexdigest()[:20]}"


def order_of(request: NodeTaskRequest, name: str) -> TaskOrder:
    """What the task is told."""
    return TaskOrder(
        kind=request.kind,
        episode=request.owner.episode,
        task=name,
        node=request.owner.node.name,
        expected_boot_id=request.expected_boot_id,
        not_after=request.not_after,
        refuse_if_gpu_in_use=request.refuse_if_gpu_in_use,
        level=request.level,
        expected_gpus=request.expected_gpus,
        limit_s=request.limit_s or None,
        since=request.since,
    )


def task_pod(
    request: NodeTaskRequest, name: str, image: str, access: GpuAccess = GpuAccess()
) -> dict[str, Any]:
    """The manifest. Only a reboot may write below the host's root.

    Privileged are the reboot, and the reader of /dev/kmsg (a device that no container may open).
    """
    if request.kind is not TaskKind.DIAGNOSE:
        # A runtime that wants a working driver would start no reboot where one is needed most.
        access = GpuAccess()
    is_reboot = request.kind is TaskKind.REBOOT
    is_privileged = request.kind in PRIVILEGED
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {
                TASK_LABEL: request.kind.value,
                EPISODE_LABEL: _label_value(request.owner.episode),
                "app.kubernetes.io/part-of": "fleetmend",
            },
            "annotations": {
                EPISODE_ANNOTATION: request.owner.episode,
                NODE_UID_ANNOTATION: request.owner.node.uid,
            },
        },
        "spec": {
            "nodeName": request.owner.node.name,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": min(MAX_ACTIVE_S, max(1, math.ceil(request.deadline_s))),
            "serviceAccountName": SERVICE_ACCOUNT,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 5,
            "tolerations": [{"operator": "Exists"}],
            **({"runtimeClassName": access.runtime_class} if access.runtime_class else {}),
            "containers": [
                {
                    "name": "task",
                    "image": image,
                    "command": ["fleetmend", "node-task", request.kind.value],
                    "env": [
                        {"name": TASK_ENV, "value": write_wire(order_of(request, name)).decode()},
                        *_access_env(access),
                    ],
                    "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
                    "securityContext": {"privileged": is_privileged, "runAsUser": 0},
                    "volumeMounts": [
                        {"name": "host", "mountPath": HOST_MOUNT, "readOnly": not is_reboot}
                    ],
                    "terminationMessagePolicy": "File",
                }
            ],
            "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
        },
    }


def _access_env(access: GpuAccess) -> list[dict[str, str]]:
    """The variables that the admission policy lets a diagnosis of the release have."""
    told = list(RUNTIME_ENV) if access.runtime_class else []
    if access.host_engine:
        told.append((HOST_ENGINE_VARIABLE, access.host_engine))
    return [{"name": name, "value": value} for name, value in told]


def _label_value(episode: str) -> str:
    if len(episode) <= 63 and _LABEL_VALUE.fullmatch(episode):
        return episode
    return hashlib.sha256(episode.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class TaskPod:
    """A task's pod as it was read."""

    name: str
    uid: str
    phase: str
    deleting: bool
    has_started: bool
    message: str | None
    """The termination message; None while the container has not ended."""
    reason: str
    """Why the pod failed or waits, in the kubelet's words; hostile, for people only."""


def read_task_pod(body: dict[str, Any]) -> TaskPod:
    """What matters of a pod; total, as status comes from a node.

    Raises:
        KeyError, TypeError: there is no metadata.name or metadata.uid.
    """
    meta = body["metadata"]
    status = _mapping(body.get("status"))
    statuses = status.get("containerStatuses")
    first = _mapping(statuses[0]) if isinstance(statuses, list) and statuses else {}
    state = _mapping(first.get("state"))
    ended, waiting = state.get("terminated"), _mapping(state.get("waiting"))
    phase = str(status.get("phase", ""))
    message = None
    if isinstance(ended, dict):
        message = str(ended.get("message", ""))
    elif phase in ("Succeeded", "Failed"):
        message = ""
    told = [status.get("reason"), status.get("message")]
    told += [waiting.get("reason"), waiting.get("message")]
    return TaskPod(
        name=str(meta["name"]),
        uid=str(meta["uid"]),
        phase=phase,
        deleting=bool(meta.get("deletionTimestamp")),
        has_started="running" in state or "terminated" in state,
        message=message,
        reason=": ".join(str(part) for part in told if part),
    )


def foreign(body: dict[str, Any], request: NodeTaskRequest) -> str:
    """Why a pod of the task's name is not this task; "" = it is."""
    meta = _mapping(body.get("metadata"))
    annotations, labels = _mapping(meta.get("annotations")), _mapping(meta.get("labels"))
    asked = (request.owner.node.uid, request.owner.episode, request.kind.value)
    found = (
        annotations.get(NODE_UID_ANNOTATION),
        annotations.get(EPISODE_ANNOTATION),
        labels.get(TASK_LABEL),
    )
    if found == asked:
        return ""
    return (
        f"pod {NAMESPACE}/{meta.get('name', '?')} has this task's name but is about "
        f"{found[2]} of episode {found[1]} on Node UID {found[0]}; delete it if nobody needs it"
    )


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
