"""NodeView and PodView: what fleetmend needs of a Node and a Pod, as values.

Owns the reading of the API's JSON into total values: absent is "", 0, None or an empty mapping,
never an exception; an object without a name or UID is refused with `BadObject`, which the reader
counts and skips. Does not judge. Talks to nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

GPU_RESOURCE_PREFIX = "nvidia.com/"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COUNT = re.compile(r"[0-9]{1,9}")
_UNREADABLE = (AttributeError, TypeError, KeyError, ValueError, RecursionError)
"""What reading an object of another shape can raise."""
CONTROL_PLANE_LABELS = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")


class BadObject(ValueError):
    """The API answered with an object that cannot be a Node or Pod; it is counted and skipped."""


@dataclass(frozen=True)
class Condition:
    """One Node condition; `heartbeat` and `changed` are the writer's clock."""

    type: str
    status: str
    reason: str
    message: str
    heartbeat: datetime
    changed: datetime


@dataclass(frozen=True)
class NodeView:
    """One Node as it was at `resource_version`.

    `gpus` maps each GPU resource name to its allocatable count, `capacity` likewise.
    """

    name: str
    uid: str
    resource_version: str
    created: datetime
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    unschedulable: bool
    provider_id: str
    boot_id: str
    system_uuid: str
    machine_uuid: str
    conditions: Mapping[str, Condition]
    gpus: Mapping[str, int]
    capacity: Mapping[str, int]
    deleting: bool = False
    taints: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """True only if the condition Ready is exactly True."""
        ready = self.conditions.get("Ready")
        return ready is not None and ready.status == "True"

    @property
    def is_control_plane(self) -> bool:
        """True for nodes that carry a control-plane role label."""
        return any(label in self.labels for label in CONTROL_PLANE_LABELS)


@dataclass(frozen=True)
class PodView:
    """One Pod on a node, with what drain filters and the idle check look at."""

    namespace: str
    name: str
    uid: str
    phase: str
    deleting: bool
    running_containers: int
    requests_gpu: bool
    owner_kind: str
    owner_name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    tolerates_all: bool = False
    node_name: str = ""


def parse_node(body: Any) -> NodeView:
    """A Node of the API as a view.

    Raises:
        BadObject: no name or UID, or a field of another type than the API's schema says.
    """
    try:
        return _node(body)
    except _UNREADABLE as error:
        name = _name_of(body)
        raise BadObject(
            f"Node {name!r} cannot be read: {error}; look at it with kubectl"
        ) from error


def _node(body: Any) -> NodeView:
    meta = body["metadata"]
    spec = body.get("spec") or {}
    status = body.get("status") or {}
    system = status.get("nodeInfo") or {}
    return NodeView(
        name=_identity(meta, "name"),
        uid=_identity(meta, "uid"),
        resource_version=str(meta.get("resourceVersion", "")),
        created=parse_instant(meta.get("creationTimestamp")),
        labels=_texts(meta, "labels"),
        annotations=_texts(meta, "annotations"),
        unschedulable=spec.get("unschedulable") is True,
        provider_id=str(spec.get("providerID") or ""),
        boot_id=str(system.get("bootID") or ""),
        system_uuid=str(system.get("systemUUID") or ""),
        machine_uuid=str(system.get("machineID") or ""),
        conditions={c["type"]: _condition(c) for c in status.get("conditions") or []},
        gpus=_counts(status.get("allocatable") or {}),
        capacity=_counts(status.get("capacity") or {}),
        deleting=bool(meta.get("deletionTimestamp")),
        taints=tuple(f"{t['key']}:{t.get('effect', '')}" for t in spec.get("taints") or []),
    )


def _identity(meta: Mapping[str, Any], field: str) -> str:
    value = meta.get(field)
    if not isinstance(value, str) or not value:
        raise ValueError(f"metadata.{field} is missing or no text")
    return value


def _texts(meta: Mapping[str, Any], field: str) -> dict[str, str]:
    found = dict(meta.get(field) or {})
    if not all(isinstance(value, str) for value in found.values()):
        raise ValueError(f"metadata.{field} holds a value that is no text")
    return found


def _condition(body: Mapping[str, Any]) -> Condition:
    return Condition(
        type=str(body["type"]),
        status=str(body.get("status", "Unknown")),
        reason=str(body.get("reason", ""))[:128],
        message=str(body.get("message", ""))[:1024],
        heartbeat=parse_instant(body.get("lastHeartbeatTime")),
        changed=parse_instant(body.get("lastTransitionTime")),
    )


def _counts(resources: Mapping[str, Any]) -> dict[str, int]:
    return {
        name: int(str(count))
        for name, count in resources.items()
        if name.startswith(GPU_RESOURCE_PREFIX) and _COUNT.fullmatch(str(count))
    }


def parse_instant(value: Any) -> datetime:
    """An RFC 3339 time; absent or unreadable is the epoch (older than anything)."""
    if not isinstance(value, str):
        return EPOCH
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return EPOCH
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def parse_pod(body: Any) -> PodView:
    """A Pod of the API as a view.

    Raises:
        BadObject: no name or UID, or a field of another type than the API's schema says.
    """
    try:
        return _pod(body)
    except _UNREADABLE as error:
        raise BadObject(f"Pod {_name_of(body)!r} cannot be read: {error}") from error


def _pod(body: Any) -> PodView:
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    owners = [o for o in meta.get("ownerReferences") or [] if o.get("controller")]
    owner: Mapping[str, Any] = owners[0] if owners else {}
    statuses = (status.get("containerStatuses") or []) + (status.get("initContainerStatuses") or [])
    return PodView(
        namespace=_identity(meta, "namespace"),
        name=_identity(meta, "name"),
        uid=_identity(meta, "uid"),
        phase=str(status.get("phase", "Unknown")),
        deleting=bool(meta.get("deletionTimestamp")),
        running_containers=sum(1 for s in statuses if "running" in (s.get("state") or {})),
        requests_gpu=_may_use_gpus(spec),
        owner_kind=str(owner.get("kind", "")),
        owner_name=str(owner.get("name", "")),
        labels=_texts(meta, "labels"),
        annotations=_texts(meta, "annotations"),
        tolerates_all=any(
            t.get("operator") == "Exists" and not t.get("key")
            for t in spec.get("tolerations") or []
        ),
        node_name=str(spec.get("nodeName") or ""),
    )


def _may_use_gpus(spec: Mapping[str, Any]) -> bool:
    """By a request of any container, sidecars and init containers too.

    What a resource claim (DRA) stands for is not told here; it may be a GPU.
    """
    containers = (spec.get("containers") or []) + (spec.get("initContainers") or [])
    return bool(spec.get("resourceClaims")) or any(_requests_gpu(c) for c in containers)


def _requests_gpu(container: Mapping[str, Any]) -> bool:
    resources = container.get("resources") or {}
    names = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return any(name.startswith(GPU_RESOURCE_PREFIX) for name in names)


def _name_of(body: Any) -> str:
    try:
        name = body["metadata"]["name"]
    except (TypeError, KeyError):
        name = None
    return name[:253] if isinstance(name, str) else f"without a name ({type(body).__name__})"
