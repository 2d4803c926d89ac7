"""Who comes after a node that was given away.

Owns the activities `look_for_successor` and `find_successor`: the newest claims of the NodePool, the
Node that one of them has become, and why there is none. Their order is that of
`workflows/model/remediation/replacement.py`; that no two episodes take the same one is kept in the
machine records, which the worker hands in. Writes no Node and no NodeClaim.
"""

from typing import Final, Protocol

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
    limits_reached,
    newcomers_of,
    progress_of,
)

PENDING = Selector(field="status.phase=Pending")
MAX_LOOKED_AT: Final = 64
"""Newcomers that one look goes through: a scale-up may make hundreds, all but a few of them others'."""


class Takings(Protocol):
    """Who succeeds whom, written where two episodes cannot both write: the machine records."""

    def successors_of(self, episode: str) -> frozenset[str]:
        """UIDs of the NodeClaims that this episode has taken."""

    def is_anothers(self, node: NodeView, claim: str, episode: str) -> bool:
        """True if another episode has taken this NodeClaim's machine."""

    def take(self, node: NodeView, claim: str, episode: str) -> bool:
        """True if it is this episode's from now on, or was before."""


class SuccessionActivities:
    """Reads, and takes one newcomer for an episode."""

    def __init__(self, kube: KubeClient, takings: Takings) -> None:
        self._kube = kube
        self._takings = takings

    def look_for_successor(self, request: SuccessorRequest) -> Succession:
        """Implements `look_for_successor`: the successor, or why there is none yet.

        A newcomer is one episode's only: it is taken in its machine's record, under that record's
        version. Idempotent: a second run finds the one that the first has taken.
        """
        claims = claims_of(self._kube, request.node_pool)
        episode = request.owner.episode
        newcomers = newcomers_of(claims, request.horizon)
        if newcomers:
            mine = self._takings.successors_of(episode)
            newcomers = newcomers_of(claims, request.horizon, mine)
        coming = ""
        for claim in newcomers[:MAX_LOOKED_AT]:
            node = self._node_of(claim)
            if node is None:
                coming = coming or progress_of(claim)
            elif self._takings.is_anothers(node, claim.uid, episode):
                continue
            elif not node.ready:
                coming = coming or f"{progress_of(claim)}; Node {node.name} is not Ready"
            elif self._takings.take(node, claim.uid, episode):
                return Succession(Successor(claim.ref, NodeRef(node.name, node.uid), claim.gpus))
        return Succession(None, coming) if coming else self._nobody(request.node_pool)

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
