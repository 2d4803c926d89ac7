"""A node's Lease in kube-node-lease: the heartbeat that the controller-manager looks at.

Owns the object's shape, its creation and its renewal; both kinds of nodes call it on their own
schedule.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from workers.lab.kubelet.api import MERGE, ApiClient, ApiError, JsonObject
from workers.lab.kubelet.container import now

LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
LEASE_SECONDS: Final = 40
"""The duration a kubelet states; the controller-manager looks at the renewal time only."""


async def create_lease(client: ApiClient, name: str, node_uid: str) -> None:
    """The Lease of a Node that was just registered; one left over of an earlier Node is renewed.

    Raises:
        ApiError: refused or unreachable.
    """
    try:
        await client.post(LEASES, _new_lease(name, node_uid, now()))
    except ApiError as error:
        if error.status != 409:
            raise
        await renew_lease(client, name, node_uid)


async def renew_lease(client: ApiClient, name: str, node_uid: str) -> None:
    """One heartbeat; a Lease that is gone is made again.

    Raises:
        ApiError: refused or unreachable.
    """
    body: JsonObject = {"spec": {"renewTime": _micro_time(now())}}
    try:
        await client.patch(f"{LEASES}/{name}", body, content_type=MERGE)
    except ApiError as error:
        if error.status != 404:
            raise
        await client.post(LEASES, _new_lease(name, node_uid, now()))


def _new_lease(name: str, node_uid: str, at: datetime) -> JsonObject:
    """Owned by the Node object, so that it goes with it."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": name,
            "namespace": "kube-node-lease",
            "ownerReferences": [owner],
        },
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": _micro_time(at),
        },
    }


def _micro_time(at: datetime) -> str:
    """metav1.MicroTime."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
