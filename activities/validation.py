"""Validation: which idle nodes are validated now, and whether one is idle at this moment.

Owns the activities `pick_idle` and `read_idleness`: the fresh reads behind the decisions of
`workflows/model/remediation/validation.py` (nodes, pods that use or wait for GPUs, machine records,
arming, policy). Writes nothing; each answer is of the moment of its look, so a second run is as
good as the first.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from activities import errors
from activities.guard import Place
from activities.kube import paths
from activities.kube.client import JsonObject, Selector
from activities.kube.marks_survey import readable_marker
from activities.kube.node_pods import list_pods_on, view_of
from activities.kube.protected_pods import BOUND_AND_NOT_ENDED, protected_pods
from activities.kube.waiting_pods import waiting_pods
from activities.machines.record import baseline_of, taken_back_at, validated_at
from activities.sources import Sources
from workflows.contracts.fleet import (
    MAX_LEFT,
    MAX_PICKS,
    FleetOrder,
    Idleness,
    LeftAlone,
    Picked,
    Picks,
)
from workflows.contracts.kube import Owner
from workflows.model.identity import NodeRef, machine_id
from workflows.model.node import NodeView, PodView
from workflows.model.policy import Policy, Pool
from workflows.model.remediation.arming import Arming
from workflows.model.remediation.demand import WaitingPod, claimant_of
from workflows.model.remediation.marks import Quarantine
from workflows.model.remediation.validation import (
    IdleNode,
    Sight,
    gpu_user_among,
    in_order,
    pick,
    rests,
    why_not,
)

TOO_MANY: Final = f"more than {MAX_PICKS} nodes at once; ask again when these are done"
NOBODY: Final[JsonObject] = {}


@dataclass(frozen=True)
class _Seen:
    """One look at the cluster."""

    nodes: tuple[NodeView, ...]
    users: Mapping[str, str]
    """The pod that uses the GPUs, by the name of its node."""
    waiting: tuple[WaitingPod, ...]
    machines: Mapping[str, JsonObject]
    policy: Policy
    arming: Arming
    protecting: tuple[PodView, ...]
    at: datetime

    def sight(self, node: NodeView) -> Sight:
        status = self.status(node)
        return Sight(
            node,
            worker=self.users.get(node.name, ""),
            claimant=claimant_of(node, self.waiting),
            has_baseline=baseline_of(status) is not None,
            has_episode=bool(status.get("workflowID")) and not status.get("outcome"),
            protecting=self.protecting,
        )

    def status(self, node: NodeView) -> JsonObject:
        name = machine_id(node.system_uuid, node.provider_id, node.uid)
        return self.machines.get(name, NOBODY).get("status") or {}


class ValidationActivities:
    """Looks for idle nodes."""

    def __init__(self, sources: Sources, place: Place) -> None:
        self._sources = sources
        self._place = place

    def pick_idle(self, order: FleetOrder) -> Picks:
        """Implements `pick_idle`: who is validated now, and why the others are not.

        By schedule: of each pool that enables it, those that are due, within its share. By hand:
        every node that was named and may be validated.

        Raises:
            ApplicationError: bad-request: another cluster, or a pool that the policy does not have.
            ApiError, PolicyError: something could not be read; tried again.
        """
        if order.cluster != self._place.cluster:
            raise errors.bad_request(
                f"validation of cluster {order.cluster!r}: this worker serves {self._place.cluster!r}"
            )
        seen = self._look()
        if order.pool and seen.policy.pool_named(order.pool) is None:
            known = ", ".join(pool.name for pool in seen.policy.pools)
            raise errors.bad_request(f"the policy has no pool {order.pool!r}; its pools: {known}")
        left: list[LeftAlone] = []
        if order.node and all(node.name != order.node for node in seen.nodes):
            left.append(LeftAlone(order.node, "there is no such Node"))
        picked: list[Picked] = []
        for pool in seen.policy.pools:
            picked += _pick_in(pool, order, seen, left)
        if order.is_by_hand:
            left += [LeftAlone(p.node.name, TOO_MANY) for p in picked[MAX_PICKS:]]
        return Picks(seen.at, tuple(picked[:MAX_PICKS]), tuple(left[:MAX_LEFT]))

    def read_idleness(self, owner: Owner) -> Idleness:
        """Implements `read_idleness`: what is against a validation of this node, at this moment.

        Raises:
            ApplicationError: node-gone.
            ApiError, PolicyError: it cannot be told; tried again.
        """
        sources = self._sources
        policy = sources.policies.read()
        node = sources.authority.look(owner.node)
        memory = sources.machines.of(node, owner.episode)
        sight = Sight(
            node,
            worker=gpu_user_among(list_pods_on(sources.kube, node.name)),
            claimant=claimant_of(node, waiting_pods(sources.kube)),
            has_baseline=memory.baseline is not None,
            protecting=protected_pods(sources.kube, policy, node.name),
        )
        against = why_not(sight, policy, sources.authority.arming(), datetime.now(UTC))
        return Idleness(against, sight.worker or sight.claimant)

    def _look(self) -> _Seen:
        sources = self._sources
        policy = sources.policies.read()
        machines = {str(body["metadata"]["name"]): body for body in sources.machines.all()}
        nodes = tuple(sources.survey.nodes())
        return _Seen(
            nodes=nodes,
            users=self._users(),
            waiting=waiting_pods(sources.kube),
            machines=machines,
            policy=policy,
            arming=sources.authority.arming(),
            protecting=protected_pods(sources.kube, policy),
            at=datetime.now(UTC),
        )

    def _users(self) -> dict[str, str]:
        """After the nodes: a pod that was bound meanwhile is seen."""
        found: dict[str, str] = {}
        selector = Selector(field=BOUND_AND_NOT_ENDED)
        for page in self._sources.kube.pages(paths.pods(), selector=selector):
            for item in page.items:
                pod = view_of(item)
                if pod.requests_gpu:
                    found.setdefault(_node_name(item, pod), f"{pod.namespace}/{pod.name}")
        return found


def _node_name(item: JsonObject, pod: PodView) -> str:
    spec = item.get("spec")
    return pod.node_name or str((spec if isinstance(spec, dict) else {}).get("nodeName", ""))


def _pick_in(pool: Pool, order: FleetOrder, seen: _Seen, left: list[LeftAlone]) -> list[Picked]:
    """Those of one pool; what is left alone is added to `left` with the reason.

    By hand that is every other node, by schedule only what a person took back.
    """
    is_wanted = pool.validation.enabled or order.is_by_hand
    if order.pool not in ("", pool.name) or not (is_wanted or pool.admission.untainted):
        return []
    level = order.level or pool.validation.level
    idle, new, under_way = [], [], 0
    for node in seen.nodes:
        if seen.policy.pool_of(node.labels) != pool or order.node not in ("", node.name):
            continue
        sight = seen.sight(node)
        is_new = pool.admission.untainted and not sight.has_baseline
        why = why_not(sight, seen.policy, seen.arming, seen.at)
        rest = "" if why or order.is_by_hand else _rests(node, pool, seen)
        if rest:
            left.append(LeftAlone(node.name, rest))
        elif not why and is_new:
            new.append(NodeRef(node.name, node.uid))
        elif not why:
            ref = NodeRef(node.name, node.uid)
            idle.append(IdleNode(ref, validated_at(seen.status(node), level)))
        elif order.is_by_hand:
            left.append(LeftAlone(node.name, why))
        under_way += _is_under_validation(node)
    chosen: Sequence[IdleNode] = ()
    if order.is_by_hand:
        chosen = in_order(idle)
    elif pool.validation.enabled:
        chosen = pick(idle, pool.validation, under_way, seen.at)
    first = order.level or pool.admission.level
    return [
        *(Picked(ref, pool.name, secrets.token_hex(8), first, is_new=True) for ref in new),
        *(Picked(one.node, pool.name, secrets.token_hex(8), level) for one in chosen),
    ]


def _rests(node: NodeView, pool: Pool, seen: _Seen) -> str:
    return rests(taken_back_at(seen.status(node)), pool.validation, seen.at)


def _is_under_validation(node: NodeView) -> bool:
    marker = readable_marker(node)
    return marker is not None and marker.quarantine is Quarantine.VALIDATION
