"""Drain verdicts: for each pod on a node what a drain does with it, and why.

Owns an ordered list of small filters; the first that has an opinion decides. Does not evict
(`activities/kube/drain.py` does). Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from workflows.model.node import PodView

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


class PodVerdict(StrEnum):
    """What a drain does with a pod."""

    EXEMPT = "exempt"
    GONE = "gone"
    LEAVING = "leaving"
    EVICT = "evict"


@dataclass(frozen=True)
class Judged:
    """A pod with its verdict and the reason in words."""

    pod: PodView
    verdict: PodVerdict
    reason: str


@dataclass(frozen=True)
class Blocked:
    """A pod that could not be evicted, by whom it is owned and what stands in the way."""

    pod: str
    owner: str
    reason: str

    def __str__(self) -> str:
        return f"{self.pod} ({self.owner}): {self.reason}"


_Opinion = tuple[PodVerdict, str] | None


def _mirror(pod: PodView) -> _Opinion:
    if MIRROR_ANNOTATION in pod.annotations:
        return PodVerdict.EXEMPT, "mirror pod of the kubelet"
    return None


def _daemon(pod: PodView) -> _Opinion:
    if pod.owner_kind == "DaemonSet":
        return PodVerdict.EXEMPT, "belongs to a DaemonSet"
    return None


def _own_task(pod: PodView) -> _Opinion:
    if "fleetmend.io/task" in pod.labels:
        return PodVerdict.EXEMPT, "node task of fleetmend"
    return None


def _ended(pod: PodView) -> _Opinion:
    if pod.phase in TERMINAL_PHASES:
        return PodVerdict.GONE, f"ended ({pod.phase})"
    return None


def _without_containers(pod: PodView) -> _Opinion:
    if pod.deleting and pod.running_containers == 0:
        return PodVerdict.GONE, "no container runs; the object waits for a finalizer"
    return None


def _leaving(pod: PodView) -> _Opinion:
    if pod.deleting:
        return PodVerdict.LEAVING, "is terminating"
    return None


FILTERS: tuple[Callable[[PodView], _Opinion], ...] = (
    _mirror,
    _daemon,
    _own_task,
    _ended,
    _without_containers,
    _leaving,
)
"""In this order; the first opinion counts, and a pod without one is evicted."""


def judge_pod(pod: PodView) -> Judged:
    """The verdict on one pod."""
    for opinion in FILTERS:
        found = opinion(pod)
        if found is not None:
            return Judged(pod, *found)
    return Judged(pod, PodVerdict.EVICT, "work on the node")


def is_drained(pods: tuple[PodView, ...]) -> bool:
    """True if no pod that is not exempt may still have a running container."""
    done = (PodVerdict.EXEMPT, PodVerdict.GONE)
    return all(judge_pod(pod).verdict in done for pod in pods)


def is_idle(pods: tuple[PodView, ...]) -> bool:
    """True if no pod that requests GPUs is left on the node."""
    return not any(pod.requests_gpu and pod.phase not in TERMINAL_PHASES for pod in pods)
