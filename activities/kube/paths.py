"""Paths of the Kubernetes API, built from checked parts.

Owns which path an object has; every part is checked, because an empty or dotted name in a path
would turn "delete this object" into "delete all of them" or reach another object. Does not know
what stands in the objects. `client.py` takes only what comes from here.
"""

import re
from typing import NewType

ObjectPath = NewType("ObjectPath", str)
"""Path of one object, or of a subresource of it."""
CollectionPath = NewType("CollectionPath", str)
"""Path of a collection: for list, watch and create."""

FLEETMEND_GROUP = "fleetmend.io/v1alpha1"
KARPENTER_GROUP = "karpenter.sh/v1"

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.:_]{0,251}[A-Za-z0-9])?")
"""Names of objects as the API server admits them: the RFC 1123 subdomain, and ':' and '_' and
capitals for the RBAC kinds. Never empty, no slash, no leading or trailing dot."""
_GROUP_VERSION = re.compile(r"([a-z0-9][-a-z0-9.]{0,251}/)?v[a-z0-9]{1,20}")
_WORD = re.compile(r"[a-z]{1,63}")


class BadName(ValueError):
    """A name that no object of the cluster can have."""


def collection_path(
    group_version: str, plural: str, *, namespace: str | None = None
) -> CollectionPath:
    """Path of a collection; `namespace` None for cluster-scoped kinds and for all namespaces.

    Args:
        group_version: "v1", "apps/v1".
        plural: the kind's plural, as in RBAC: "daemonsets".
        namespace: the namespace, or None.

    Raises:
        BadName: a part is empty or has characters that no name has.
    """
    _check("group and version", group_version, _GROUP_VERSION)
    _check("plural", plural, _WORD)
    root = "apis" if "/" in group_version else "api"
    if namespace is None:
        return CollectionPath(f"/{root}/{group_version}/{plural}")
    _check("namespace", namespace, _NAME)
    return CollectionPath(f"/{root}/{group_version}/namespaces/{namespace}/{plural}")


def object_path(
    collection: CollectionPath, name: str, *, subresource: str | None = None
) -> ObjectPath:
    """Path of one object of a collection, or of its subresource.

    Raises:
        BadName: the name is empty or has characters that no name has.
    """
    _check("name", name, _NAME)
    if subresource is None:
        return ObjectPath(f"{collection}/{name}")
    _check("subresource", subresource, _WORD)
    return ObjectPath(f"{collection}/{name}/{subresource}")


def nodes() -> CollectionPath:
    """All Nodes."""
    return CollectionPath("/api/v1/nodes")


def node(name: str) -> ObjectPath:
    """One Node."""
    return object_path(nodes(), name)


def node_status(name: str) -> ObjectPath:
    """The status of one Node."""
    return object_path(nodes(), name, subresource="status")


def pods(namespace: str | None = None) -> CollectionPath:
    """The pods of a namespace, or of all. For those of one node add `field_on_node`."""
    return collection_path("v1", "pods", namespace=namespace)


def pod(namespace: str, name: str) -> ObjectPath:
    """One pod."""
    return object_path(pods(namespace), name)


def pod_status(namespace: str, name: str) -> ObjectPath:
    """The status of one pod."""
    return object_path(pods(namespace), name, subresource="status")


def pod_eviction(namespace: str, name: str) -> ObjectPath:
    """Where the eviction of one pod is posted."""
    return object_path(pods(namespace), name, subresource="eviction")


NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector for pods that run or may run."""


def field_on_node(node_name: str) -> str:
    """Field selector for the pods that are bound to one node."""
    _check("node name", node_name, _NAME)
    return f"spec.nodeName={node_name}"


def field_named(name: str) -> str:
    """Field selector for the one object of a collection with this name: to watch just it."""
    _check("name", name, _NAME)
    return f"metadata.name={name}"


def events(namespace: str) -> CollectionPath:
    """The Events of a namespace (core v1; those about Nodes live in "default")."""
    return collection_path("v1", "events", namespace=namespace)


def event(namespace: str, name: str) -> ObjectPath:
    """One Event."""
    return object_path(events(namespace), name)


def leases(namespace: str) -> CollectionPath:
    """The Leases of a namespace."""
    return collection_path("coordination.k8s.io/v1", "leases", namespace=namespace)


def lease(namespace: str, name: str) -> ObjectPath:
    """One Lease."""
    return object_path(leases(namespace), name)


def config_maps(namespace: str) -> CollectionPath:
    """The ConfigMaps of a namespace."""
    return collection_path("v1", "configmaps", namespace=namespace)


def config_map(namespace: str, name: str) -> ObjectPath:
    """One ConfigMap."""
    return object_path(config_maps(namespace), name)


def pod_disruption_budgets(namespace: str | None = None) -> CollectionPath:
    """The PodDisruptionBudgets of a namespace, or of all."""
    return collection_path("policy/v1", "poddisruptionbudgets", namespace=namespace)


def gpu_machines() -> CollectionPath:
    """All machine records."""
    return collection_path(FLEETMEND_GROUP, "gpumachines")


def gpu_machine(name: str) -> ObjectPath:
    """The record of one machine."""
    return object_path(gpu_machines(), name)


def gpu_machine_status(name: str) -> ObjectPath:
    """The status of the record of one machine."""
    return object_path(gpu_machines(), name, subresource="status")


def node_claims() -> CollectionPath:
    """All of Karpenter's NodeClaims."""
    return collection_path(KARPENTER_GROUP, "nodeclaims")


def node_claim(name: str) -> ObjectPath:
    """One NodeClaim."""
    return object_path(node_claims(), name)


def node_pool(name: str) -> ObjectPath:
    """One of Karpenter's NodePools."""
    return object_path(collection_path(KARPENTER_GROUP, "nodepools"), name)


def volume_attachments() -> CollectionPath:
    """All VolumeAttachments; the server has no selector for those of one node."""
    return collection_path("storage.k8s.io/v1", "volumeattachments")


def version() -> ObjectPath:
    """The server's version: the cheapest question that proves address and credential."""
    return ObjectPath("/version")


def describe(path: str) -> str:
    """`path` as a person reads it: "nodes/gpu-1", "namespaces/x/pods/y/eviction"."""
    parts = path.strip("/").split("/")
    if parts[:1] == ["api"]:
        return "/".join(parts[2:]) or path
    if parts[:1] == ["apis"]:
        return "/".join(parts[3:]) or path
    return path.strip("/")


def _check(what: str, value: str, pattern: re.Pattern[str]) -> None:
    if pattern.fullmatch(value) is None:
        raise BadName(
            f"{what} {value[:80]!r} is not one that the API server admits;"
            f" use only what was read from the cluster (pattern {pattern.pattern})"
        )
