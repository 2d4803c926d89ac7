"""The pods that protect their node, in the namespaces that the policy names.

Owns listing them, on one node or on all. Namespace by namespace: a list of one node's pods over all
namespaces is, for the API server, a walk over every pod of the cluster. Which of them protect is
`workflows/model/remediation/protection.py`'s. Used by the permit, the sweep and `arm`.
"""

from collections.abc import Iterator

from activities.kube import paths
from activities.kube.client import KubeClient, Selector
from workflows.model.node import PodView, parse_pod
from workflows.model.policy import Policy
from workflows.model.remediation.protection import is_protecting

BOUND_AND_NOT_ENDED = f"spec.nodeName!=,{paths.NOT_ENDED}"
"""Field selector: only these can protect a node."""


def protected_pods(
    kube: KubeClient, policy: Policy, node_name: str | None = None
) -> tuple[PodView, ...]:
    """The protecting pods on this node, or (None) on any.

    Raises:
        ApiError: they could not be listed: what stands on the node is not known.
        BadObject: one of them cannot be read, so it may be one that protects.
    """
    return tuple(_each(kube, policy, node_name))


def _each(kube: KubeClient, policy: Policy, node_name: str | None) -> Iterator[PodView]:
    fields = BOUND_AND_NOT_ENDED if node_name is None else paths.field_on_node(node_name)
    selector = Selector(field=fields)
    for namespace in policy.scope.protected_namespaces:
        for page in kube.pages(paths.pods(namespace), selector=selector):
            for item in page.items:
                pod = parse_pod(item)
                if is_protecting(pod, policy):
                    yield pod
