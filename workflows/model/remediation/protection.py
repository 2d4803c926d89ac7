"""Protection: a node that runs what fleetmend itself stands on is left alone.

Owns the one decision which pods protect their node, and for which effects: watch, the activities
and the preview of `arm` ask here. Pure; which pods are bound to the node is read by the caller,
in the namespaces of `Policy.scope` only. The other permits are `permit.py`'s.
"""

from collections.abc import Iterable
from typing import Final

from workflows.model.node import NodeView, PodView
from workflows.model.policy import Policy
from workflows.model.remediation.marks import MarkerError, marker_of
from workflows.model.remediation.permit import ALLOWED, Effect, Permit, Refusal

PROTECTING_CONTROLLERS: Final = frozenset({"ReplicaSet", "Deployment", "StatefulSet"})
"""Whose pods are a service. A DaemonSet has one on every node, a Job's and a bare pod come to an
end: neither keeps its node in service."""
ENDED: Final = frozenset({"Succeeded", "Failed"})


def is_protecting(pod: PodView, policy: Policy) -> bool:
    """True if the node that this pod is bound to is protected by it."""
    return (
        pod.namespace in policy.scope.protected_namespaces
        and pod.owner_kind in PROTECTING_CONTROLLERS
        and pod.phase not in ENDED
        and bool(pod.node_name)
    )


def decide_protection(
    effect: Effect, node: NodeView, pods: Iterable[PodView] | None, policy: Policy
) -> Permit:
    """Whether what runs on `node` lets a request with `effect` be made.

    Reading and giving back are never refused. A node that is out of service already may still be
    marked: its inventory and its slot are on the way back, and no work is kept off it anew.

    Args:
        effect: what the request does.
        node: the Node, read just now.
        pods: pods of the protected namespaces, on this node or anywhere; None = cannot tell.
        policy: says which namespaces are protected.
    """
    if effect in (Effect.READ, Effect.RESTORE) or not policy.scope.protected_namespaces:
        return ALLOWED
    if effect is Effect.MARK and _is_out_already(node):
        return ALLOWED
    if pods is None:
        return Permit(Refusal.PROTECTION_UNKNOWN, _unknown(node, policy))
    for pod in pods:
        if pod.node_name == node.name and is_protecting(pod, policy):
            return Permit(Refusal.PROTECTED, _protected(node, pod))
    return ALLOWED


def _is_out_already(node: NodeView) -> bool:
    try:
        marker = marker_of(node)
    except MarkerError:
        return False
    return marker is not None and not marker.handed_over


def _protected(node: NodeView, pod: PodView) -> str:
    return (
        f"Node {node.name} runs pod {pod.namespace}/{pod.name} (of {pod.owner_kind} "
        f"{pod.owner_name}), and {pod.namespace} is in scope.protected_namespaces; keep it off "
        "this pool (node affinity) and delete the pod, then this goes on by itself"
    )


def _unknown(node: NodeView, policy: Policy) -> str:
    names = ", ".join(policy.scope.protected_namespaces)
    return (
        f"whether Node {node.name} runs a pod of a protected namespace ({names}) cannot be told; "
        "give the right to read their pods (deploy/chart/README.md)"
    )
