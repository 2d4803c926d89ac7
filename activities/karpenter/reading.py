"""Reading Karpenter's objects: claims by name and by pool, pools, and a Node with its owner.

Owns what "not there" means for each (gone, another UID, Karpenter not installed) and that one
unreadable claim does not hide the others. Judges nothing; the views are the model's.
"""

from dataclasses import dataclass

import structlog

from activities.kube import paths
from activities.kube.client import KubeClient, Selector
from activities.kube.errors import NotFound
from workflows.model.identity import NodeRef
from workflows.model.node import BadObject, NodeView, parse_node
from workflows.model.remediation.marks import KARPENTER_NODEPOOL_LABEL
from workflows.model.remediation.replacement import (
    ClaimRef,
    ClaimView,
    NodePoolView,
    owning_claim_uid,
    parse_claim,
    parse_node_pool,
)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class OwnedNode:
    """A Node, the claim that owns it by UID ("" = none is named), and what holds its deletion."""

    view: NodeView
    owner_uid: str
    finalizers: tuple[str, ...]


def read_owned_node(kube: KubeClient, ref: NodeRef) -> OwnedNode | None:
    """The Node with this UID; None = it is gone, or another has its name."""
    try:
        body = kube.get(paths.node(ref.name))
    except NotFound:
        return None
    view = parse_node(body)
    if view.uid != ref.uid:
        return None
    finalizers = body["metadata"].get("finalizers") or []
    return OwnedNode(view, owning_claim_uid(body), tuple(str(f) for f in finalizers))


def read_claim(kube: KubeClient, ref: ClaimRef) -> ClaimView | None:
    """The NodeClaim with this UID; None = it is gone, or another has its name."""
    try:
        claim = parse_claim(kube.get(paths.node_claim(ref.name)))
    except NotFound:
        return None
    return claim if claim.uid == ref.uid else None


def claims_of(kube: KubeClient, node_pool: str) -> tuple[ClaimView, ...]:
    """The NodeClaims of a NodePool, as of one moment; none if Karpenter is not installed."""
    selector = Selector(label=f"{KARPENTER_NODEPOOL_LABEL}={node_pool}")
    found = []
    try:
        for page in kube.pages(paths.node_claims(), selector=selector):
            for item in page.items:
                try:
                    found.append(parse_claim(item))
                except BadObject as error:
                    _log.warning("bad_node_claim", problem=str(error))
    except NotFound:
        return ()
    return tuple(found)


def read_node_pool(kube: KubeClient, name: str) -> NodePoolView:
    """The NodePool; one that is gone, or cannot be read, has no replicas and no limits."""
    try:
        return parse_node_pool(kube.get(paths.node_pool(name)))
    except NotFound:
        return NodePoolView(name)
    except BadObject as error:
        _log.warning("bad_node_pool", problem=str(error))
        return NodePoolView(name)
