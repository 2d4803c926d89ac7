"""The end of a NodeClaim: both objects gone, or what stands in the way.

Owns the activities `read_claim_end` and `await_claim_gone`. One fresh look for each attempt; the
waiting is Temporal's (retries of a `not-yet`). The Node is expected to go, so its absence is an
answer and not an error. What blocks is judged by `workflows/model/remediation/removal.py`.
"""

from activities import errors
from activities.karpenter.reading import OwnedNode, read_claim, read_owned_node
from activities.kube import paths
from activities.kube.client import KubeClient
from activities.kube.node_pods import list_pods_on
from workflows.contracts.karpenter import ClaimEnd, ClaimWatch
from workflows.model.remediation.removal import Remains, blockers_of


class RemovalActivities:
    """Reads only."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube

    def read_claim_end(self, request: ClaimWatch) -> ClaimEnd:
        """Implements `read_claim_end`: whether both are gone, else who is in the way."""
        claim = read_claim(self._kube, request.claim)
        node = read_owned_node(self._kube, request.owner.node)
        if node is None:
            remains = Remains(claim, None)
        else:
            remains = Remains(
                claim,
                node.finalizers,
                list_pods_on(self._kube, node.view.name),
                tuple(self._kube.list(paths.pod_disruption_budgets()).items),
                self._volumes_of(node),
            )
        return ClaimEnd(remains.is_gone, blockers_of(remains))

    def await_claim_gone(self, request: ClaimWatch) -> ClaimEnd:
        """Implements `await_claim_gone`: both are gone.

        Raises:
            ApplicationError: not-yet until then.
        """
        is_there = read_claim(self._kube, request.claim) or read_owned_node(
            self._kube, request.owner.node
        )
        if is_there:
            raise errors.not_yet(f"NodeClaim {request.claim.name} or its Node is still there")
        return ClaimEnd(gone=True)

    def _volumes_of(self, node: OwnedNode) -> tuple[str, ...]:
        attachments = self._kube.list(paths.volume_attachments()).items
        return tuple(
            str(item["metadata"].get("name", ""))
            for item in attachments
            if (item.get("spec") or {}).get("nodeName") == node.view.name
        )
