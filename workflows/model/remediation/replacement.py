"""Replacement: which NodeClaim is this node's, who already acts on it, and who comes after it.

Owns the views of Karpenter's objects, the resolution of a Node to its NodeClaim (by providerID, and
refused unless everything else agrees), and the choice of a successor (Karpenter keeps no link from
old to new). What stands in the way of a deletion is `removal.py`. Pure; field names are those of
`karpenter.sh/v1` in Karpenter 1.15.0.
"""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from workflows.model.identity import NodeRef
from workflows.model.node import BadObject, NodeView, parse_instant
from workflows.model.policy import Pool, Posture
from workflows.model.remediation.marks import KARPENTER_NODEPOOL_LABEL, other_healer

TERMINATION_TIMESTAMP = "karpenter.sh/nodeclaim-termination-timestamp"
"""Set by Karpenter when it ends a NodeClaim by force (Karpenter 1.15.0, node.health)."""
REBOOTING = "Rebooting"
"""NodeClaim condition: True while Karpenter reboots the node (Karpenter 1.15.0)."""
GPU_RESOURCE = "nvidia.com/gpu"
BLOCK_MARGIN = timedelta(minutes=60)
"""EC2 takes the machines of a capacity block back 30 minutes before its end, of an UltraServer 60
(EC2 user guide, "Capacity Blocks for ML"); Karpenter deletes their claims 10 minutes earlier."""
MAX_NAMES = 64
_COUNT = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class ClaimRef:
    """One NodeClaim: the name is for people, the UID is the identity."""

    name: str
    uid: str


@dataclass(frozen=True)
class ClaimView:
    """One NodeClaim as it was read; `conditions` are type and status, `gpus` its capacity."""

    name: str
    uid: str
    created: datetime
    node_pool: str
    provider_id: str
    node_name: str
    conditions: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    deleting: bool = False
    terminating_at: str = ""
    finalizers: tuple[str, ...] = ()

    @property
    def ref(self) -> ClaimRef:
        """Its name and UID."""
        return ClaimRef(self.name, self.uid)

    def has(self, condition: str) -> bool:
        """True if the condition is exactly True."""
        return self.conditions.get(condition) == "True"


@dataclass(frozen=True)
class NodePoolView:
    """One NodePool; `replicas` None = dynamic. Limits and use as their quantities are written."""

    name: str
    replicas: int | None = None
    limits: Mapping[str, str] = field(default_factory=dict)
    used: Mapping[str, str] = field(default_factory=dict)


_UNREADABLE = (AttributeError, TypeError, KeyError, ValueError, RecursionError)


def parse_claim(body: Any) -> ClaimView:
    """A NodeClaim of the API as a view.

    Raises:
        BadObject: no name or UID, or a field of another type than its schema says.
    """
    try:
        meta, status = body["metadata"], body.get("status") or {}
        capacity = str((status.get("capacity") or {}).get(GPU_RESOURCE, "0"))
        return ClaimView(
            name=_word(meta["name"]),
            uid=_word(meta["uid"]),
            created=parse_instant(meta.get("creationTimestamp")),
            node_pool=str((meta.get("labels") or {}).get(KARPENTER_NODEPOOL_LABEL, "")),
            provider_id=str(status.get("providerID") or ""),
            node_name=str(status.get("nodeName") or ""),
            conditions={
                str(c["type"]): str(c.get("status", "Unknown"))
                for c in (status.get("conditions") or [])[:MAX_NAMES]
            },
            gpus=int(capacity) if _COUNT.fullmatch(capacity) else 0,
            deleting=bool(meta.get("deletionTimestamp")),
            terminating_at=str((meta.get("annotations") or {}).get(TERMINATION_TIMESTAMP, "")),
            finalizers=tuple(str(f) for f in (meta.get("finalizers") or [])[:MAX_NAMES]),
        )
    except _UNREADABLE as error:
        raise BadObject(f"a NodeClaim cannot be read: {error}; look at it with kubectl") from error


def parse_node_pool(body: Any) -> NodePoolView:
    """A NodePool of the API as a view.

    Raises:
        BadObject: no name, or a field of another type than its schema says.
    """
    try:
        spec, status = body.get("spec") or {}, body.get("status") or {}
        replicas = spec.get("replicas")
        return NodePoolView(
            name=_word(body["metadata"]["name"]),
            replicas=replicas if isinstance(replicas, int) else None,
            limits={str(k): str(v) for k, v in (spec.get("limits") or {}).items()},
            used={str(k): str(v) for k, v in (status.get("resources") or {}).items()},
        )
    except _UNREADABLE as error:
        raise BadObject(f"a NodePool cannot be read: {error}; look at it with kubectl") from error


def owning_claim_uid(node_body: Any) -> str:
    """UID of the NodeClaim that a Node's owner references name; "" = they name none."""
    try:
        owners = node_body["metadata"].get("ownerReferences") or []
        found = [o["uid"] for o in owners if o.get("kind") == "NodeClaim"]
    except _UNREADABLE:
        return ""
    return str(found[0]) if found else ""


def _word(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("name or uid is missing or no text")
    return value


# ---------------------------------------------------------------- whose claim


class Standing(StrEnum):
    """What is known of a node's NodeClaim."""

    FOUND = "found"
    NONE = "none"
    MISMATCH = "mismatch"
    ACTING = "acting"
    """Karpenter, or whoever told it to, has begun to act on the node."""


@dataclass(frozen=True)
class Resolution:
    """The claim, if it is FOUND or somebody is ACTING on it; `detail` says what is wrong."""

    standing: Standing
    claim: ClaimView | None = None
    detail: str = ""


def resolve(node: NodeView, owner_uid: str, claims: Sequence[ClaimView]) -> Resolution:
    """The one NodeClaim with the Node's providerID, if nothing speaks against it.

    Args:
        node: as it was read just now.
        owner_uid: UID of the claim that the Node's owner references name; "" = none.
        claims: those of its NodePool.
    """
    healer = other_healer(node)
    if healer:
        return Resolution(Standing.ACTING, None, healer)
    if not node.provider_id:
        return Resolution(Standing.MISMATCH, None, f"Node {node.name} has no providerID")
    found = [claim for claim in claims if claim.provider_id == node.provider_id]
    if not found:
        return Resolution(
            Standing.NONE, None, f"no NodeClaim has the providerID of Node {node.name}"
        )
    if len(found) > 1:
        names = ", ".join(sorted(claim.name for claim in found)[:4])
        return Resolution(Standing.MISMATCH, None, f"several NodeClaims have it: {names}")
    claim = found[0]
    problem = mismatch(node, claim, owner_uid)
    if problem:
        return Resolution(Standing.MISMATCH, None, problem)
    acting = acts_on(claim)
    if acting:
        return Resolution(Standing.ACTING, claim, acting)
    return Resolution(Standing.FOUND, claim)


def mismatch(node: NodeView, claim: ClaimView, owner_uid: str) -> str:
    """Why this claim is not, or may not be, this Node's; "" = all that they say agrees."""
    pool = node.labels.get(KARPENTER_NODEPOOL_LABEL, "")
    if claim.provider_id != node.provider_id:
        return f"NodeClaim {claim.name} is another machine than Node {node.name} (providerID)"
    if claim.node_name != node.name:
        named = claim.node_name or "no Node"
        return f"NodeClaim {claim.name} names {named}, not Node {node.name}"
    if owner_uid and owner_uid != claim.uid:
        return f"Node {node.name} is owned by another NodeClaim than {claim.name} (UID)"
    if claim.node_pool != pool:
        return f"NodeClaim {claim.name} is of NodePool {claim.node_pool}, the Node of {pool}"
    return ""


def acts_on(claim: ClaimView) -> str:
    """Who has begun to act on a claim; "" = nobody."""
    if claim.deleting:
        return f"NodeClaim {claim.name} is being deleted"
    if claim.terminating_at:
        return f"Karpenter ends NodeClaim {claim.name} at {claim.terminating_at[:40]}"
    if claim.has(REBOOTING):
        return f"Karpenter reboots NodeClaim {claim.name}"
    return ""


# ---------------------------------------------------------------- may it be replaced


def may_replace(pool: Pool | None, *, is_on_karpenter: bool) -> bool:
    """True if the rung `replace` means anything on this node (it may mean: hand it over)."""
    return is_on_karpenter or (pool is not None and pool.posture is not None)


def is_by_hand(pool: Pool | None, *, is_on_karpenter: bool) -> bool:
    """True if people replace the machine: Karpenter did not make it, or policy says so."""
    return not is_on_karpenter or (pool is not None and pool.posture is Posture.EXTERNAL)


def refusal_by_capacity(pool: Pool | None, now: datetime) -> str:
    """Why nothing would come after this machine; "" = something may."""
    ends = pool.capacity_ends if pool else None
    if ends is None or now < ends - BLOCK_MARGIN:
        return ""
    return f"the capacity block of pool {pool.name if pool else ''} ends at {ends:%Y-%m-%d %H:%M}Z"


def must_be_refilled(pool: Pool | None, *, is_static: bool) -> bool:
    """True if another machine must come; False = only if pods need one."""
    posture = pool.posture if pool else None
    if posture is None:
        return is_static
    return posture is not Posture.ELASTIC


# ---------------------------------------------------------------- who comes after it


@dataclass(frozen=True)
class Horizon:
    """The claims of a NodePool that were there before our first eviction.

    By the API server's own clock: the newest second, and who was created in it.
    """

    newest: datetime
    uids: tuple[str, ...]


def horizon_of(claims: Sequence[ClaimView]) -> Horizon:
    """Of the claims as they are now; there is at least the node's own."""
    newest = max(claim.created for claim in claims)
    uids = sorted(claim.uid for claim in claims if claim.created == newest)
    return Horizon(newest, tuple(uids))


def is_beyond(claim: ClaimView, horizon: Horizon) -> bool:
    """True if the claim was not there when the horizon was taken."""
    if claim.created == horizon.newest:
        return claim.uid not in horizon.uids
    return claim.created > horizon.newest


@dataclass(frozen=True)
class Successor:
    """The claim that came after, the Node it has become, and the GPUs it says it has."""

    claim: ClaimRef
    node: NodeRef
    gpus: int


def newcomers_of(
    claims: Sequence[ClaimView], horizon: Horizon, taken: Container[str] = ()
) -> list[ClaimView]:
    """The claims that came after, the furthest first, and the eldest of equals.

    Args:
        claims: those of the NodePool.
        horizon: what was there before our first eviction.
        taken: UIDs of those that are this episode's already, which come before all others.
    """
    return sorted(
        (c for c in claims if is_beyond(c, horizon) and not c.deleting),
        key=lambda c: (
            c.uid not in taken,
            not c.has("Registered"),
            not c.has("Launched"),
            c.created,
            c.uid,
        ),
    )


def progress_of(claim: ClaimView) -> str:
    """How far a newcomer is, for people."""
    reached = [step for step in ("Launched", "Registered", "Initialized") if claim.has(step)]
    return f"NodeClaim {claim.name} is {reached[-1] if reached else 'not launched yet'}"


def limits_reached(pool: NodePoolView) -> str:
    """Which limits of a NodePool leave no room for one more; "" = none, as far as can be told."""
    full = [
        f"{name} {pool.used[name]} of {limit}"
        for name, limit in sorted(pool.limits.items())
        if _COUNT.fullmatch(limit)
        and _COUNT.fullmatch(pool.used.get(name, ""))
        and int(pool.used[name]) >= int(limit)
    ]
    return ", ".join(full[:4])
