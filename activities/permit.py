"""The activities' one door to the permit: reads what is live, and asks the model.

Owns the fresh reads behind every single write (Node, arming, policy, what runs on the node that
must not go down with it; at most `FRESH_S` old) and raises what is refused. The decisions are
`workflows/model/remediation/permit.py` and `protection.py`, the failure types `activities/errors.py`. Every activity that writes asks here first.
"""

import threading
from collections.abc import Callable
from time import monotonic

from activities import errors
from activities.kube import paths
from activities.kube.client import KubeClient
from activities.kube.errors import NotFound
from activities.kube.protected_pods import protected_pods
from activities.policy_file import NAMESPACE, PolicySource
from workflows.contracts.kube import Owner
from workflows.model.identity import NodeRef
from workflows.model.node import NodeView, parse_node
from workflows.model.policy import Policy, PolicyError
from workflows.model.remediation.arming import ARMING_CONFIG_MAP, Arming, parse_arming
from workflows.model.remediation.permit import (
    FRESH_S,
    Claim,
    Effect,
    Permit,
    Refusal,
    decide_permit,
)
from workflows.model.remediation.protection import decide_protection


class Authority:
    """Says whether a request may be made now. Thread-safe."""

    def __init__(self, kube: KubeClient, policies: PolicySource) -> None:
        self._kube = kube
        self._policies = policies

    def look(self, node: NodeRef) -> NodeView:
        """The Node as it is now.

        Raises:
            ApplicationError: node-gone: it does not exist, or another Node has its name.
            ApiError, BadObject: it could not be read.
        """
        try:
            view = parse_node(self._kube.get(paths.node(node.name)))
        except NotFound as error:
            raise errors.node_gone(f"Node {node.name} does not exist any more") from error
        if view.uid != node.uid:
            raise errors.node_gone(f"Node {node.name} was recreated: its UID is now {view.uid}")
        return view

    def judge(self, node: NodeView, owner: Owner, effect: Effect) -> Permit:
        """The permit for one request on a Node that was just read.

        Raises:
            ApiError, BadObject: what it needs could not be read; then nothing may be done.
        """
        if effect is Effect.READ:
            return decide_permit(effect, node, _claim(owner), Arming(), Policy())
        try:
            policy = self._policies.read()
        except PolicyError as error:
            # A policy that nobody can read puts nothing in scope; what we put there may still be
            # taken off, by the rules it was put there under.
            if effect is not Effect.RESTORE:
                return Permit(Refusal.OUT_OF_SCOPE, f"the policy cannot be used: {error}")
            policy = self._policies.last_good()
        permit = decide_permit(effect, node, _claim(owner), self.arming(), policy)
        if permit.refusal is not None or effect is Effect.RESTORE:
            return permit
        pods = protected_pods(self._kube, policy, node.name)
        return decide_protection(effect, node, pods, policy)

    def arming(self) -> Arming:
        """What is armed and paused right now; no ConfigMap = nothing armed."""
        try:
            found = self._kube.get(paths.config_map(NAMESPACE, ARMING_CONFIG_MAP))
        except NotFound:
            return Arming()
        return parse_arming(found.get("data"))

    def demand(self, owner: Owner, effect: Effect) -> NodeView:
        """The Node, read just now, on which `owner` may make one request with `effect`.

        Raises:
            ApplicationError: it is refused, or the Node is gone.
            ApiError: one of the reads failed; then nothing may be done.
        """
        node = self.look(owner.node)
        self.demand_on(node, owner, effect)
        return node

    def demand_on(self, node: NodeView, owner: Owner, effect: Effect) -> None:
        """As `demand`, for a Node that the caller read just now."""
        permit = self.judge(node, owner, effect)
        if permit.refusal is not None:
            raise errors.refused(permit)


class StandingPermit:
    """A permit that many requests of one activity share: read again when older than `FRESH_S`.

    Thread-safe; a refusal stays refused.
    """

    def __init__(
        self,
        authority: Authority,
        owner: Owner,
        effect: Effect,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._authority = authority
        self._owner = owner
        self._effect = effect
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_at: float | None = None

    def check(self) -> None:
        """Returns if one more request may be sent now.

        Raises:
            ApplicationError: it may not.
            ApiError: it is not known.
        """
        with self._lock:
            # From before the reads: an answer that came slowly is as old as its question.
            now = self._clock()
            if self._asked_at is not None and now - self._asked_at < FRESH_S:
                return
            self._asked_at = None
            self._authority.demand(self._owner, self._effect)
            self._asked_at = now


def _claim(owner: Owner) -> Claim:
    return Claim(owner.episode, owner.node.uid)
