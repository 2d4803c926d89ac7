"""The node's NodeClaim: found, and deleted once.

Owns the activities `resolve_claim` and `delete_claim`. Whether the claim is the node's, and whether
somebody acts on it, is judged by `workflows/model/remediation/replacement.py`; whether it may be
deleted now, by the permit.
"""

from collections.abc import Callable
from typing import Final

from activities import errors
from activities.karpenter.reading import (
    claims_of,
    read_claim,
    read_node_pool,
    read_owned_node,
)
from activities.kube import paths
from activities.kube.client import KubeClient
from activities.kube.errors import Conflict, NotFound
from activities.permit import Authority
from workflows.contracts.karpenter import ClaimDeleted, DeleteClaimRequest, Resolved
from workflows.contracts.kube import Owner
from workflows.model.node import NodeView
from workflows.model.remediation.marks import KARPENTER_NODEPOOL_LABEL, other_healer
from workflows.model.remediation.permit import Effect
from workflows.model.remediation.replacement import (
    Standing,
    acts_on,
    horizon_of,
    mismatch,
    resolve,
)

ROUNDS: Final = 4
"""Times a deletion that met a conflict reads and decides anew before its retry."""


class ClaimActivities:
    """Finds and deletes NodeClaims."""

    def __init__(
        self, kube: KubeClient, authority: Authority, count_lost_new: Callable[[NodeView], int]
    ) -> None:
        """`count_lost_new` gives what `Resolved.lost_new` says of a Node."""
        self._kube = kube
        self._authority = authority
        self._count_lost_new = count_lost_new

    def resolve_claim(self, owner: Owner) -> Resolved:
        """Implements `resolve_claim`: the claim by providerID, or why there is none to act on.

        Reads only; a second run sees what is there then.

        Raises:
            ApplicationError: node-gone.
        """
        node = read_owned_node(self._kube, owner.node)
        if node is None:
            raise errors.node_gone(f"Node {owner.node.name} does not exist any more")
        pool = node.view.labels.get(KARPENTER_NODEPOOL_LABEL, "")
        if not pool:
            return Resolved(Standing.NONE, f"Node {owner.node.name} is of no NodePool")
        claims = claims_of(self._kube, pool)
        found = resolve(node.view, node.owner_uid, claims)
        if found.claim is None:
            return Resolved(found.standing, found.detail, node_pool=pool)
        return Resolved(
            found.standing,
            found.detail,
            found.claim.ref,
            pool,
            read_node_pool(self._kube, pool).replicas is not None,
            horizon_of(claims),
            found.claim.gpus,
            self._count_lost_new(node.view),
            node.view.boot_id,
        )

    def delete_claim(self, request: DeleteClaimRequest) -> ClaimDeleted:
        """Implements `delete_claim`: the claim with this UID is being deleted, or gone.

        Each round reads the claim, and then, unless it is leaving already, the Node under the
        fence, and sends one delete bound to the UID. Idempotent: a second run finds the deletion
        timestamp, or nothing; another claim of that name is not touched, nor one that Karpenter
        reboots or ends.

        Raises:
            ApplicationError: bad-request: claim and Node do not belong together (any more);
                overruled, not-owner, no slot, not-permitted, node-gone. Nothing was deleted.
        """
        ref = request.claim
        for _ in range(ROUNDS):
            claim = read_claim(self._kube, ref)
            if claim is None:
                return ClaimDeleted(f"NodeClaim {ref.name} is gone")
            if claim.deleting:
                return ClaimDeleted(f"NodeClaim {ref.name} is being deleted")
            node = read_owned_node(self._kube, request.owner.node)
            if node is None:
                raise errors.node_gone(f"Node {request.owner.node.name} does not exist any more")
            healer = other_healer(node.view) or acts_on(claim)
            if healer:
                return ClaimDeleted(f"NodeClaim {ref.name} was left", yielded_to=healer)
            problem = mismatch(node.view, claim, node.owner_uid)
            if problem:
                raise errors.bad_request(f"{problem}; nothing was deleted")
            self._authority.demand_on(node.view, request.owner, Effect.DISRUPT)
            try:
                self._kube.delete(paths.node_claim(ref.name), uid=ref.uid)
            except (NotFound, Conflict):
                continue  # gone, or another one by now: the next look says which
            return ClaimDeleted(f"NodeClaim {ref.name} is being deleted")
        raise errors.try_again(f"NodeClaim {ref.name} changed {ROUNDS} times in a row")
