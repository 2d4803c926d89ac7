"""Demand: which pod that cannot be scheduled could run on a node that we keep out of service.

Owns the reading of a pending pod (what it asks for, where it may go) and the one question whether a
given node would do. In doubt it would: a validation then makes way. Taints, volumes and memory are
not looked at. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workflows.model.node import GPU_RESOURCE_PREFIX, BadObject, NodeView

MAX_NAME = 253
_UNREADABLE = (AttributeError, TypeError, KeyError, ValueError, RecursionError)


@dataclass(frozen=True)
class Requirement:
    """One expression of a required node affinity; `key` "metadata.name" is the Node's name."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class WaitingPod:
    """A pod that the scheduler found no node for.

    `gpus` maps each GPU resource to the count that it asks for; `terms` are the alternatives of its
    required node affinity, () = it has none.
    """

    namespace: str
    name: str
    gpus: Mapping[str, int] = field(default_factory=dict)
    selector: Mapping[str, str] = field(default_factory=dict)
    terms: tuple[tuple[Requirement, ...], ...] = ()


def parse_waiting_pod(body: Any) -> WaitingPod | None:
    """The pod, if it asks for GPUs and the scheduler found no node for it; else None.

    Raises:
        BadObject: it cannot be read.
    """
    try:
        meta, spec = body["metadata"], body.get("spec") or {}
        gpus = _gpus(spec)
        is_bound = bool(spec.get("nodeName")) or bool(meta.get("deletionTimestamp"))
        if is_bound or not gpus or not _is_unschedulable(body.get("status") or {}):
            return None
        return WaitingPod(
            namespace=str(meta.get("namespace", ""))[:MAX_NAME],
            name=str(meta["name"])[:MAX_NAME],
            gpus=gpus,
            selector={str(k): str(v) for k, v in (spec.get("nodeSelector") or {}).items()},
            terms=_terms(spec),
        )
    except _UNREADABLE as error:
        raise BadObject(f"a pending pod cannot be read: {str(error)[:200]}") from error


def _is_unschedulable(status: Mapping[str, Any]) -> bool:
    """The scheduler has said so: a pod that it has not looked at yet may have another node."""
    return any(
        c.get("type") == "PodScheduled"
        and c.get("status") == "False"
        and c.get("reason") == "Unschedulable"
        for c in status.get("conditions") or []
    )


def _gpus(spec: Mapping[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for container in spec.get("containers") or []:
        for name, count in _asked(container).items():
            found[name] = found.get(name, 0) + count
    for container in spec.get("initContainers") or []:
        for name, count in _asked(container).items():
            found[name] = max(found.get(name, 0), count)
    return found


def _asked(container: Mapping[str, Any]) -> dict[str, int]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {
        str(name): int(str(count))
        for name, count in asked.items()
        if str(name).startswith(GPU_RESOURCE_PREFIX) and str(count) != "0"
    }


def _terms(spec: Mapping[str, Any]) -> tuple[tuple[Requirement, ...], ...]:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return tuple(
        tuple(
            Requirement(str(e["key"]), str(e["operator"]), tuple(map(str, e.get("values") or ())))
            for e in [*(term.get("matchExpressions") or []), *(term.get("matchFields") or [])]
        )
        for term in required.get("nodeSelectorTerms") or []
    )


def may_use(pod: WaitingPod, node: NodeView) -> bool:
    """True if the node has what the pod asks for, and is one that it may go to."""
    has_gpus = all(node.gpus.get(name, 0) >= count for name, count in pod.gpus.items())
    is_selected = all(node.labels.get(key) == value for key, value in pod.selector.items())
    fits = not pod.terms or any(_fits(term, node) for term in pod.terms)
    return bool(pod.gpus) and has_gpus and is_selected and fits


def claimant_of(node: NodeView, pods: Iterable[WaitingPod]) -> str:
    """`namespace/name` of a pod that waits and could use the node; "" = none does."""
    found = (f"{pod.namespace}/{pod.name}" for pod in pods if may_use(pod, node))
    return min(found, default="")


def _fits(term: tuple[Requirement, ...], node: NodeView) -> bool:
    """An empty term fits no node (Kubernetes' API reference, NodeSelectorTerm)."""
    return bool(term) and all(_is_met(one, node) for one in term)


def _is_met(one: Requirement, node: NodeView) -> bool:
    value = node.name if one.key == "metadata.name" else node.labels.get(one.key)
    match one.operator:
        case "In":
            return value in one.values
        case "NotIn":
            return value not in one.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:  # Gt, Lt, and what a later release knows: it may well fit
            return True
