"""The permit: whether one request to the cluster may be made now, by its effect.

Owns the one decision that watch and every activity ask before every single request: scope,
observe mode, pauses, the fence (this episode owns this very Node) and the slot. Pure: what is
live (Node, arming) is read by the caller, at most `FRESH_S` seconds before. Whether the node runs
what must not go down with it is `protection.py`'s, asked after this.
"""

from dataclasses import dataclass
from enum import StrEnum

from workflows.model.node import NodeView
from workflows.model.policy import Policy
from workflows.model.remediation.arming import Arming
from workflows.model.remediation.marks import (
    IGNORE,
    PAUSE,
    Marker,
    MarkerError,
    is_on_karpenter,
    marker_of,
    other_healer,
)

FRESH_S = 2.0
"""How old the read behind a permit may be (design section 3)."""


class Effect(StrEnum):
    """What a contract does to the world."""

    READ = "read"
    MARK = "mark"
    DISRUPT = "disrupt"
    RESTORE = "restore"


class Refusal(StrEnum):
    """Why a request may not be made."""

    NODE_GONE = "node-gone"
    NOT_OWNER = "not-owner"
    OVERRULED = "overruled"
    OUT_OF_SCOPE = "out-of-scope"
    OBSERVING = "observing"
    PAUSED_NODE = "paused-node"
    PAUSED = "paused"
    NO_SLOT = "no-slot"
    OTHER_HEALER = "other-healer"
    """Karpenter has begun on the node: one of both disrupts it, and not both."""
    PROTECTED = "protected"
    """The node runs a pod of a protected namespace (`protection.py`)."""
    PROTECTION_UNKNOWN = "protection-unknown"
    """It is not known whether it does."""


PASSING = frozenset(
    {
        Refusal.OBSERVING,
        Refusal.PAUSED_NODE,
        Refusal.PAUSED,
        Refusal.OUT_OF_SCOPE,
        Refusal.PROTECTED,
        Refusal.PROTECTION_UNKNOWN,
    }
)
"""Refusals that a person may lift: the episode waits and asks again."""


@dataclass(frozen=True)
class Claim:
    """Who asks: this episode, for the Node with this UID. `episode` "" = no mark is expected."""

    episode: str
    node_uid: str


@dataclass(frozen=True)
class Permit:
    """The answer; `refusal` None = allowed. `detail` is for people."""

    refusal: Refusal | None
    detail: str = ""


ALLOWED = Permit(None)


def decide_permit(
    effect: Effect, node: NodeView, claim: Claim, arming: Arming, policy: Policy
) -> Permit:
    """Whether `claim` may make one request with `effect` on `node` now."""
    if node.uid != claim.node_uid:
        return Permit(
            Refusal.NODE_GONE, f"Node {node.name} was recreated: its UID is now {node.uid}"
        )
    if effect is Effect.READ:
        return ALLOWED
    refused = _scope(node, policy) or _people(effect, node, arming, policy)
    if refused is None and effect is not Effect.MARK:
        refused = fence(effect, node, claim)
    return refused or ALLOWED


def may_mark(node: NodeView, arming: Arming, policy: Policy) -> Permit:
    """Whether somebody who has no mark on the node yet may put one there, or may change it."""
    return decide_permit(Effect.MARK, node, Claim("", node.uid), arming, policy)


def _scope(node: NodeView, policy: Policy) -> Permit | None:
    if node.is_control_plane:
        return Permit(Refusal.OUT_OF_SCOPE, f"Node {node.name} is a control-plane node")
    if IGNORE in node.annotations:
        return Permit(Refusal.OUT_OF_SCOPE, f"Node {node.name} has the annotation {IGNORE}")
    if policy.pool_of(node.labels) is None:
        return Permit(Refusal.OUT_OF_SCOPE, f"Node {node.name} is in no pool of the policy")
    return None


def _people(effect: Effect, node: NodeView, arming: Arming, policy: Policy) -> Permit | None:
    pool = policy.pool_of(node.labels)
    name = pool.name if pool else ""
    if not arming.is_armed(name):
        why = arming.problem or f"pool {name} is not armed: fleetmend only observes it"
        return Permit(Refusal.OBSERVING, why)
    if PAUSE in node.annotations:
        return Permit(Refusal.PAUSED_NODE, f"Node {node.name} has the annotation {PAUSE}")
    pause = arming.pause_of(name)
    if pause is not None and effect is Effect.DISRUPT:
        return Permit(Refusal.PAUSED, f"{pause.what} is paused by {pause.by}: {pause.reason}")
    return None


def fence(effect: Effect, node: NodeView, claim: Claim) -> Permit | None:
    """The refusal of a request whose episode does not own this Node; None = it does."""
    try:
        marker = marker_of(node)
    except MarkerError as error:
        return Permit(Refusal.NOT_OWNER, str(error))
    if marker is None:
        return Permit(Refusal.OVERRULED, f"the marker is gone from Node {node.name}")
    if marker.episode != claim.episode or marker.handed_over:
        owner = marker.handed_over or f"episode {marker.episode}"
        return Permit(Refusal.NOT_OWNER, f"Node {node.name} belongs to {owner}")
    if effect is Effect.DISRUPT:
        return _disruptable(node, marker)
    return None


def _disruptable(node: NodeView, marker: Marker) -> Permit | None:
    if not node.unschedulable:
        return Permit(Refusal.OVERRULED, f"somebody removed the cordon of Node {node.name}")
    healer = other_healer(node) if is_on_karpenter(node) else ""
    if healer:
        return Permit(Refusal.OTHER_HEALER, healer)
    if marker.slot is None:
        return Permit(Refusal.NO_SLOT, f"no slot is noted on Node {node.name}")
    return None
