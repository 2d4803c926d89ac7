"""Contracts on Karpenter: whose NodeClaim, its deletion, its end, and who comes after it.

Owns requests, results and contracts that `activities/karpenter` implements. Only `delete_claim`
changes anything; the Node and the claim may be gone while the others ask, so those never fail for
it. What the answers mean is `workflows/model/remediation/replacement.py` and `removal.py`.
"""

from dataclasses import dataclass

from workflows.contracts import Contract
from workflows.contracts.kube import Owner
from workflows.model.remediation.permit import Effect
from workflows.model.remediation.removal import Blocker
from workflows.model.remediation.replacement import ClaimRef, Horizon, Standing, Successor


@dataclass(frozen=True)
class Resolved:
    """Whose claim the node is, and what its NodePool had then.

    `claim`, `horizon` and what follows are there if it was found; `gpus` is what its machine type has
    (0 = it does not say); `detail` is for people. `lost_new` = if the machine was never proven: how
    many of its pool were given away unproven in the last day. `boot_id` is that of the Node.
    """

    standing: Standing
    detail: str = ""
    claim: ClaimRef | None = None
    node_pool: str = ""
    is_static: bool = False
    horizon: Horizon | None = None
    gpus: int = 0
    lost_new: int = 0
    boot_id: str = ""


RESOLVE_CLAIM = Contract("resolve_claim", Effect.READ, Owner, Resolved, "find the node's NodeClaim")


@dataclass(frozen=True)
class DeleteClaimRequest:
    """Delete exactly this claim of the owner's node."""

    owner: Owner
    claim: ClaimRef


@dataclass(frozen=True)
class ClaimDeleted:
    """The claim is being deleted, or gone; `detail` says which.

    `yielded_to` = somebody else acts on it (but a deletion), and nothing was deleted.
    """

    detail: str
    yielded_to: str = ""


DELETE_CLAIM = Contract(
    "delete_claim", Effect.DISRUPT, DeleteClaimRequest, ClaimDeleted, "delete the NodeClaim"
)


@dataclass(frozen=True)
class ClaimWatch:
    """Look at what is left of this claim and of the owner's node."""

    owner: Owner
    claim: ClaimRef


@dataclass(frozen=True)
class ClaimEnd:
    """`gone` = both objects are gone (by UID); else what stands in the way."""

    gone: bool
    blockers: tuple[Blocker, ...] = ()


READ_CLAIM_END = Contract(
    "read_claim_end", Effect.READ, ClaimWatch, ClaimEnd, "what is left of node and NodeClaim"
)
AWAIT_CLAIM_GONE = Contract(
    "await_claim_gone", Effect.READ, ClaimWatch, ClaimEnd, "wait until node and NodeClaim are gone"
)
"""Answers only when both are gone; until then `not-yet`."""


@dataclass(frozen=True)
class SuccessorRequest:
    """Look for a claim of `node_pool` that is beyond the horizon."""

    owner: Owner
    node_pool: str
    horizon: Horizon


@dataclass(frozen=True)
class Succession:
    """The successor, once it is a Node and Ready; `reason` says why there is none yet.

    `is_coming` = a claim has been made; `waiting` = how many pods that request GPUs wait for a node
    (of whatever pool: the server cannot say which).
    """

    successor: Successor | None
    reason: str = ""
    is_coming: bool = True
    waiting: int = 0


LOOK_FOR_SUCCESSOR = Contract(
    "look_for_successor", Effect.READ, SuccessorRequest, Succession, "look for the successor"
)
FIND_SUCCESSOR = Contract(
    "find_successor", Effect.READ, SuccessorRequest, Succession, "wait for the successor"
)
"""Answers only with a successor; until then `not-yet`."""
