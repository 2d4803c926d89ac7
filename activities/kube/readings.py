"""Reading a node for an episode: the Node, its machine's memory, and the policy it runs under.

Owns the activities `open_episode` and `read_node`, and how much of a Node goes into a history. The
machine record is read by `activities/machines`, which is passed in. Writes nothing.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Protocol

import structlog

from activities.kube import paths
from activities.kube.client import KubeClient, Selector
from activities.permit import Authority
from activities.policy_file import PolicySource
from workflows.contracts.kube import MachineMemory, Opened, Owner, Reading
from workflows.model.detection.rules import MAX_LINE
from workflows.model.node import CONTROL_PLANE_LABELS, BadObject, Condition, NodeView, parse_node
from workflows.model.policy import Policy, PolicyError
from workflows.model.remediation.marks import (
    KARPENTER_NODEPOOL_LABEL,
    marker_or_problem,
)

KEPT_ANNOTATIONS: Final = ("fleetmend.io/", "karpenter.sh/")
MAX_CONDITIONS: Final = 64
"""Conditions of one Node that are kept; a node with every known detector has about 30."""

_log = structlog.get_logger(__name__)


class Memories(Protocol):
    """Who knows what the machine record says."""

    def of(self, node: NodeView, episode: str) -> MachineMemory:
        """What the record of the node's machine says for `episode`; empty if there is none."""


class ReadingActivities:
    """Reads only."""

    def __init__(
        self, kube: KubeClient, authority: Authority, policies: PolicySource, memories: Memories
    ) -> None:
        self._kube = kube
        self._authority = authority
        self._policies = policies
        self._memories = memories

    def read_node(self, owner: Owner) -> Reading:
        """Implements `read_node`: Node and machine record, read just now.

        Raises:
            ApplicationError: node-gone.
        """
        try:
            policy = self._policies.read()
        except PolicyError:
            # The policy only says which labels to keep; an episode that runs has its snapshot.
            policy = self._policies.last_good()
        return self._reading(owner, policy)

    def open_episode(self, owner: Owner) -> Opened:
        """Implements `open_episode`: the first reading, and the policy snapshot.

        `pool` is "" for a node outside every pool.

        Raises:
            ApplicationError: node-gone.
            PolicyError: retried until the policy can be used.
        """
        policy = self._policies.read()
        reading = self._reading(owner, policy)
        pool = policy.pool_of(reading.node.labels)
        if pool is None or reading.node.is_control_plane:
            return Opened(reading, policy, "", 0)
        return Opened(reading, policy, pool.name, self._pool_size(policy, pool.name))

    def _reading(self, owner: Owner, policy: Policy) -> Reading:
        node = self._authority.look(owner.node)
        marker, problem = marker_or_problem(node)
        memory = self._memories.of(node, owner.episode)
        return Reading(slim(node, policy), memory, marker, problem)

    def _pool_size(self, policy: Policy, name: str) -> int:
        pool = policy.pool_named(name)
        labels = pool.selector if pool else {}
        selector = Selector(label=",".join(f"{key}={value}" for key, value in labels.items()))
        size = 0
        for page in self._kube.pages(paths.nodes(), selector=selector):
            size += sum(1 for item in page.items if _is_in_pool(item, policy, name))
        return size


def _is_in_pool(item: object, policy: Policy, name: str) -> bool:
    try:
        node = parse_node(item)
    except BadObject as error:
        _log.warning("bad_node", problem=str(error))
        return False
    pool = policy.pool_of(node.labels)
    return pool is not None and pool.name == name and not node.is_control_plane


def slim(node: NodeView, policy: Policy) -> NodeView:
    """The Node without what no decision looks at: histories keep every reading for weeks."""
    labels = {KARPENTER_NODEPOOL_LABEL, *CONTROL_PLANE_LABELS}
    labels.update(key for pool in policy.pools for key in pool.selector)
    return replace(
        node,
        labels=_only(node.labels, labels),
        annotations={
            key: value
            for key, value in node.annotations.items()
            if key.startswith(KEPT_ANNOTATIONS)
        },
        conditions={
            key: _shortened(condition)
            for key, condition in list(node.conditions.items())[:MAX_CONDITIONS]
        },
    )


def _shortened(condition: Condition) -> Condition:
    return replace(condition, message=condition.message[: MAX_LINE + 1])


def _only(labels: Mapping[str, str], wanted: set[str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if key in wanted}
