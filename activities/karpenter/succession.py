"""Who comes after a node that was given away.

Owns the activities `look_for_successor` and `find_successor`: the newest claims of the NodePool, the
Node that one of them has become, and why there is none. The choice is made by
`workflows/model/remediation/replacement.py`. Reads only.
"""

from activities import errors
from activities.karpenter.reading import claims_of, read_node_pool
from activities.kube import paths
from activities.kube.client import KubeClient, Selector
from activities.kube.errors import NotFound
from activities.kube.node_pods import view_of
from workflows.contracts.karpenter import Succession, SuccessorRequest
from workflows.model.identity import NodeRef
from workflows.model.node import NodeView, parse_node
from workflows.model.remediation.replacement import (
    ClaimView,
    Successor,
    choose_successor,
    limits_reached,
    progress_of,
)

PENDING = Selector(field="status.phase=Pending")


class SuccessionActivities:
    """Reads only."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube

    def look_for_successor(self, request: SuccessorRequest) -> Succession:
        """Implements `look_for_successor`: the successor, or why there is none yet."""
        claims = claims_of(self._kube, request.node_pool)
        claim = choose_successor(claims, request.horizon)
        if claim is None:
            return self._nobody(request.node_pool)
        node = self._node_of(claim)
        if node is None:
            return Succession(None, progress_of(claim))
        if not node.ready:
            return Succession(None, f"{progress_of(claim)}; Node {node.name} is not Ready")
        return Succession(Successor(claim.ref, NodeRef(node.name, node.uid), claim.gpus))

    def find_successor(self, request: SuccessorRequest) -> Succession:
        """Implements `find_successor`: the successor.

        Raises:
            ApplicationError: not-yet until there is one.
        """
        found = self.look_for_successor(request)
        if found.successor is None:
            raise errors.not_yet(found.reason)
        return found

    def _node_of(self, claim: ClaimView) -> NodeView | None:
        """The Node that says it is the claim's machine."""
        if not claim.node_name:
            return None
        try:
            node = parse_node(self._kube.get(paths.node(claim.node_name)))
        except NotFound:
            return None
        return node if node.provider_id == claim.provider_id else None

    def _nobody(self, node_pool: str) -> Succession:
        waiting = self._pods_in_wait()
        full = limits_reached(read_node_pool(self._kube, node_pool))
        parts = [f"NodePool {node_pool} has made no NodeClaim since"]
        if full:
            parts.append(f"it is at its limits ({full})")
        parts.append(f"{waiting} pods that request GPUs wait for a node")
        return Succession(None, "; ".join(parts), is_coming=False, waiting=waiting)

    def _pods_in_wait(self) -> int:
        waiting = 0
        for page in self._kube.pages(paths.pods(), selector=PENDING):
            views = [view_of(item) for item in page.items if isinstance(item, dict)]
            waiting += sum(1 for pod in views if pod.requests_gpu and not pod.node_name)
        return waiting
