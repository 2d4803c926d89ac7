"""Validation: which idle nodes are validated now, and why another one is not.

Owns what idle means, the reasons that keep a node from being validated, and the choice among those
that remain: the longest unvalidated first, within a share of the pool's idle nodes. What is looked
at was read by the caller. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from workflows.model.amounts import nodes_of_share
from workflows.model.identity import NodeRef
from workflows.model.node import EPOCH, NodeView, PodView
from workflows.model.policy import Policy, Pool
from workflows.model.remediation.admission import is_newcomer
from workflows.model.remediation.arming import Arming
from workflows.model.remediation.gate import Verdict, judge_conditions
from workflows.model.remediation.marks import is_marked, other_healer
from workflows.model.remediation.permit import Effect, may_mark
from workflows.model.remediation.protection import ENDED, decide_protection
from workflows.model.upkeep import ValidationPolicy

DUE_AT = 0.9
"""Part of the period after which a node is due: the rest is room for ticks, places and jobs."""


@dataclass(frozen=True)
class Sight:
    """One node as it is now.

    `worker` and `claimant` are pods (`namespace/name`) that use its GPUs, or wait for them; "" =
    none. `protecting` are pods of protected namespaces on any node; None = cannot tell.
    """

    node: NodeView
    worker: str = ""
    claimant: str = ""
    has_baseline: bool = True
    has_episode: bool = False
    protecting: tuple[PodView, ...] | None = ()


@dataclass(frozen=True)
class IdleNode:
    """A node that may be validated; `validated_at` None = never passed at the level asked for."""

    node: NodeRef
    validated_at: datetime | None


def gpu_user_among(pods: Iterable[PodView]) -> str:
    """`namespace/name` of a pod that requests GPUs and has not ended; "" = the node is idle."""
    using = (f"{p.namespace}/{p.name}" for p in pods if p.requests_gpu and p.phase not in ENDED)
    return min(using, default="")


def why_not(sight: Sight, policy: Policy, arming: Arming, now: datetime) -> str:
    """What keeps the node from being validated now, for people; "" = nothing does."""
    node = sight.node
    permit = may_mark(node, arming, policy)
    if permit.refusal is not None:
        return permit.detail
    pool = policy.pool_of(node.labels)
    pause = arming.pause_of(pool.name if pool else "")
    if pause is not None:
        return f"{pause.what} is paused by {pause.by}"
    return _not_in_service(sight) or _not_idle(sight) or _not_certain(sight, policy, now)


def _not_in_service(sight: Sight) -> str:
    node = sight.node
    if sight.has_episode:
        return "it has an open episode"
    if is_marked(node):
        return "it is marked already"
    if is_newcomer(node):
        return "it is new and waits for its admission"
    if node.unschedulable:
        return "somebody has cordoned it"
    healer = other_healer(node)
    return f"left to another healer: {healer}" if healer else ""


def _not_idle(sight: Sight) -> str:
    if sight.worker:
        return f"it is not idle: pod {sight.worker} requests its GPUs"
    if sight.claimant:
        return f"pod {sight.claimant} waits for such a node"
    return ""


def _not_certain(sight: Sight, policy: Policy, now: datetime) -> str:
    protection = decide_protection(Effect.MARK, sight.node, sight.protecting, policy)
    if protection.refusal is not None:
        return protection.detail
    if not sight.has_baseline:
        unproven = _unproven(policy.pool_of(sight.node.labels))
        if unproven:
            return unproven
    judged = judge_conditions(sight.node, policy, now)
    if judged.verdict is not Verdict.PASSED:
        return f"its conditions are not good: {'; '.join(judged.reasons[:2])}"
    return ""


def _unproven(pool: Pool | None) -> str:
    """Why a machine without a baseline is not examined; "" = it is, as a new one."""
    if pool is None or not pool.admission.untainted:
        return "its machine has no baseline yet: the sweep records one of a healthy node"
    if pool.expected_gpus is None:
        return f"it is new, and nobody says how many GPUs it has: set expected_gpus of {pool.name}"
    return ""


def is_due(idle: IdleNode, rule: ValidationPolicy, now: datetime) -> bool:
    """True if its last validation is so old that it is time for another."""
    age = timedelta(seconds=rule.period_s * DUE_AT)
    return idle.validated_at is None or now - idle.validated_at >= age


def rests(taken_back_at: datetime | None, rule: ValidationPolicy, now: datetime) -> str:
    """Why the schedule leaves the node to the person who took it back last; "" = it does not."""
    age = timedelta(seconds=rule.period_s * DUE_AT)
    if taken_back_at is None or now - taken_back_at >= age:
        return ""
    return (
        f"a person took it back from its validation at {taken_back_at:%Y-%m-%d %H:%M:%S}: "
        f"left alone until {taken_back_at + age:%Y-%m-%d %H:%M:%S}"
    )


def pick(
    idle: Sequence[IdleNode], rule: ValidationPolicy, under_way: int, now: datetime
) -> tuple[IdleNode, ...]:
    """Those whose turn it is, the longest unvalidated first and never validated ones before all.

    With the `under_way`, which were idle before, at most the share of the pool's idle nodes.
    """
    room = nodes_of_share(rule.share, len(idle) + under_way) - under_way
    due = [one for one in idle if is_due(one, rule, now)]
    return in_order(due)[: max(0, room)]


def in_order(idle: Iterable[IdleNode]) -> tuple[IdleNode, ...]:
    """The longest unvalidated first; the name decides among equals."""
    return tuple(sorted(idle, key=lambda one: (one.validated_at or EPOCH, one.node.name)))
