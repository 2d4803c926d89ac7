"""Counting what is noted on the nodes: the truth from which a fresh guard starts.

Owns the activity `survey_marks` and the one place where markers become places in budgets (the
sweep uses it too). Reads only.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

import structlog

from activities.kube import paths
from activities.kube.client import KubeClient
from activities.permit import Authority
from activities.policy_file import PolicySource
from workflows.contracts.guard import NotedPlace, RebuildRequest, Rebuilt
from workflows.model.identity import NodeRef
from workflows.model.node import BadObject, NodeView, parse_node
from workflows.model.policy import Policy, PolicyError
from workflows.model.remediation.budget import Budget
from workflows.model.remediation.marks import Marker, MarkerError, Quarantine, marker_of

BUDGETS: Final[Mapping[Quarantine, Budget]] = MappingProxyType(
    {Quarantine.CONFIRMED: Budget.QUARANTINE, Quarantine.VALIDATION: Budget.VALIDATION}
)
"""In which budget of the guard a quarantine counts; the others have none of its places."""

_log = structlog.get_logger(__name__)


class MarksSurvey:
    """Reads every node's marks."""

    def __init__(self, kube: KubeClient, authority: Authority, policies: PolicySource) -> None:
        self._kube = kube
        self._authority = authority
        self._policies = policies

    def survey(self, request: RebuildRequest) -> Rebuilt:  # noqa: ARG002 - the contract's shape
        """Implements `survey_marks`: every noted place, and every pause that stands."""
        policy = self._policy()
        places = tuple(place for node in self.nodes() for place in places_on(node, policy))
        return Rebuilt(places, tuple(entry.scope for entry in self._authority.arming().paused))

    def nodes(self) -> Iterator[NodeView]:
        """Every Node that can be read, as of one moment."""
        for page in self._kube.pages(paths.nodes()):
            for item in page.items:
                try:
                    yield parse_node(item)
                except BadObject as error:
                    _log.warning("bad_node", problem=str(error))

    def _policy(self) -> Policy:
        """Only says which pool a node is in; a broken one must not stop a guard from counting."""
        try:
            return self._policies.read()
        except PolicyError as error:
            _log.warning("policy_unusable", problem=str(error))
            return self._policies.last_good()


def readable_marker(node: NodeView) -> Marker | None:
    """The marker, if it can be read, is about this Node and was not handed over."""
    try:
        marker = marker_of(node)
    except MarkerError as error:
        _log.warning("bad_marker", node=node.name, problem=str(error))
        return None
    if marker is None or marker.handed_over or marker.node_uid != node.uid:
        return None
    return marker


def places_on(node: NodeView, policy: Policy) -> tuple[NotedPlace, ...]:
    """The places that a node's marker holds; a reflex quarantine counts in watch's own budget."""
    marker = readable_marker(node)
    if marker is None:
        return ()
    pool = policy.pool_of(node.labels)
    name, ref = pool.name if pool else "", NodeRef(node.name, node.uid)
    places = []
    budget = BUDGETS.get(marker.quarantine)
    if budget is not None:
        places.append(NotedPlace(budget, name, ref, marker.episode, marker.since))
    if marker.slot is not None:
        at = marker.slot.at
        places.append(NotedPlace(Budget.DISRUPTION, name, ref, marker.episode, at))
    return tuple(places)
