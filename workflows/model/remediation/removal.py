"""Removal: what stands between the deletion of a NodeClaim and its end, by name.

Owns the list of blockers (pods, PodDisruptionBudgets, VolumeAttachments, finalizers, in the order
in which Karpenter 1.15.0 waits for them), so that no wait is silent. Removes nothing. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from workflows.model.detection.finding import printable
from workflows.model.node import PodView
from workflows.model.remediation.drain import PodVerdict, judge_pod
from workflows.model.remediation.replacement import ClaimView

MAX_BLOCKERS = 8
MAX_WORDS = 200


class BlockerKind(StrEnum):
    """What can hold a deletion up."""

    PDB = "PodDisruptionBudget"
    POD = "pod"
    VOLUME = "VolumeAttachment"
    FINALIZER = "finalizer"


@dataclass(frozen=True)
class Blocker:
    """One thing in the way, and what it does."""

    kind: BlockerKind
    name: str
    words: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name} {self.words}"


@dataclass(frozen=True)
class Remains:
    """What was read; None of `claim` or `node_finalizers` = that object is gone.

    `budgets` and `volumes` are the API's objects: PDBs of any namespace, and the VolumeAttachments
    of this node.
    """

    claim: ClaimView | None
    node_finalizers: tuple[str, ...] | None
    pods: tuple[PodView, ...] = ()
    budgets: tuple[Mapping[str, Any], ...] = ()
    volumes: tuple[str, ...] = ()

    @property
    def is_gone(self) -> bool:
        """True if nothing of the two is left."""
        return self.claim is None and self.node_finalizers is None


def blockers_of(remains: Remains) -> tuple[Blocker, ...]:
    """What the deletion waits for; the stage that comes first is named alone."""
    if remains.is_gone:
        return ()
    stages = (_pods(remains), _volumes(remains), _finalizers(remains))
    found = next((stage for stage in stages if stage), ())
    return found[:MAX_BLOCKERS]


def _pods(remains: Remains) -> tuple[Blocker, ...]:
    if remains.node_finalizers is None:
        return ()
    staying = [
        pod
        for pod in remains.pods
        if judge_pod(pod).verdict in (PodVerdict.EVICT, PodVerdict.LEAVING)
    ]
    return tuple(_pod(pod, remains.budgets) for pod in staying)


def _pod(pod: PodView, budgets: Sequence[Mapping[str, Any]]) -> Blocker:
    name = _printable(f"{pod.namespace}/{pod.name}")
    if pod.deleting:
        return Blocker(BlockerKind.POD, name, "is terminating")
    for budget in budgets:
        if _holds(budget, pod):
            pdb = f"{pod.namespace}/{budget['metadata'].get('name', '')}"
            return Blocker(BlockerKind.PDB, _printable(pdb), f"allows no eviction of pod {name}")
    return Blocker(BlockerKind.POD, name, "is still on the node")


def _holds(budget: Mapping[str, Any], pod: PodView) -> bool:
    """True if the budget selects the pod and allows nothing now; an odd one holds nothing."""
    try:
        meta, spec = budget["metadata"], budget.get("spec") or {}
        allowed = (budget.get("status") or {}).get("disruptionsAllowed", 0)
        if meta.get("namespace") != pod.namespace or allowed:
            return False
        return _selects(spec.get("selector"), pod.labels)
    except (AttributeError, TypeError, KeyError):
        return False


def _selects(selector: Any, labels: Mapping[str, str]) -> bool:
    """A label selector of policy/v1: absent selects nothing, empty selects everything."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(_fits(term, labels) for term in selector.get("matchExpressions") or [])


def _fits(term: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = term["key"], term.get("values") or []
    match term["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _volumes(remains: Remains) -> tuple[Blocker, ...]:
    if remains.node_finalizers is None:
        return ()
    return tuple(
        Blocker(BlockerKind.VOLUME, _printable(name), "is still attached")
        for name in remains.volumes
    )


def _finalizers(remains: Remains) -> tuple[Blocker, ...]:
    holding = [(f, "holds the Node") for f in remains.node_finalizers or ()]
    if remains.claim is not None:
        holding += [(f, f"holds NodeClaim {remains.claim.name}") for f in remains.claim.finalizers]
    return tuple(Blocker(BlockerKind.FINALIZER, _printable(f), words) for f, words in holding)


def _printable(text: str) -> str:
    return printable(text, MAX_WORDS)
