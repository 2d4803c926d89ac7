"""One eviction: the pod re-read, the permit asked, the request sent, and what its answer means.

Owns the meaning of each answer of the Eviction API (measured on 1.36: a failing UID
precondition is charged to the budget for two minutes, so a UID is only sent right after it was
read). Does not choose pods and does not wait: `drain.py` does. Thread-safe.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from activities.kube import paths
from activities.kube.client import KubeClient
from activities.kube.errors import ApiError, Conflict, NotFound, ServerError, TooMany, Unreachable
from activities.kube.node_pods import view_of
from activities.permit import StandingPermit
from workflows.model.node import PodView
from workflows.model.remediation.drain import PodVerdict, judge_pod

SLOW_DOWN_S: Final = 5.0
"""Pause of the whole drain after a 429 that no budget caused and that names no time."""
CONFIGURATION_AGAIN_S: Final = 15.0
"""Until a pod under two budgets is tried again: only a person's change can open it."""


class Ending(StrEnum):
    """What one try came to."""

    EVICTED = "evicted"
    GONE = "gone"
    BLOCKED = "blocked"
    MISCONFIGURED = "misconfigured"
    SLOW_DOWN = "slow-down"
    FAILED = "failed"
    UNANSWERED = "unanswered"


@dataclass(frozen=True)
class Tried:
    """The outcome of one try; `again_s` = when to try again at the earliest (0 = by back-off)."""

    pod: PodView
    ending: Ending
    reason: str = ""
    again_s: float = 0.0


class Evictor:
    """Evicts single pods of one node under one permit."""

    def __init__(self, kube: KubeClient, permit: StandingPermit, node_name: str) -> None:
        self._kube = kube
        self._permit = permit
        self._node_name = node_name

    def try_once(self, pod: PodView) -> Tried:
        """One try.

        Raises:
            ApplicationError: the permit is refused; nothing was sent.
        """
        try:
            fresh = view_of(self._kube.get(paths.pod(pod.namespace, pod.name)))
            if fresh.uid != pod.uid or fresh.node_name != self._node_name:
                return Tried(pod, Ending.GONE)
            if judge_pod(fresh).verdict is not PodVerdict.EVICT:
                return Tried(pod, Ending.GONE)
            self._permit.check()
            self._kube.evict(fresh.namespace, fresh.name, uid=fresh.uid)
        except (NotFound, Conflict):
            return Tried(pod, Ending.GONE)
        except ApiError as error:
            return _meaning(pod, error)
        return Tried(pod, Ending.EVICTED)


def _meaning(pod: PodView, error: ApiError) -> Tried:
    again_s = error.retry_after_s or 0.0
    if isinstance(error, TooMany):
        if error.is_budget_pending:
            return Tried(pod, Ending.BLOCKED, str(error.budget))
        if error.is_disruption_budget:
            return Tried(pod, Ending.BLOCKED, str(error.budget), again_s)
        return Tried(pod, Ending.SLOW_DOWN, "the API server asks to slow down", again_s)
    if isinstance(error, ServerError) and error.is_two_budgets:
        reason = "blocked by configuration: more than one PodDisruptionBudget selects it"
        return Tried(pod, Ending.MISCONFIGURED, reason, CONFIGURATION_AGAIN_S)
    ending = Ending.UNANSWERED if isinstance(error, Unreachable) else Ending.FAILED
    return Tried(pod, ending, str(error), again_s)
