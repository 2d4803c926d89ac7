"""The end of a NodeClaim: gone, or what stands in the way by name."""

from collections.abc import Callable
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from activities.kube import paths
from tests.activities.desk import Desk
from tests.activities.karpenter.conftest import AddNode
from tests.activities.karpenter.kinds import HOLD, Claims
from tests.harness.cluster import Cluster
from workflows.contracts import errors
from workflows.contracts.karpenter import AWAIT_CLAIM_GONE, READ_CLAIM_END, ClaimWatch
from workflows.contracts.kube import Owner


def pod_on(owner: Owner, name: str, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}, **metadata},
        "spec": {
            "nodeName": owner.node.name,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "i"}],
        },
    }


def words(desk: Desk, watch: ClaimWatch) -> list[str]:
    end = desk.do(READ_CLAIM_END, watch)
    assert not end.gone
    return [str(blocker) for blocker in end.blockers]


def test_pod_then_volume_then_finalizer_are_named_until_both_are_gone(
    desk: Desk,
    claims: Claims,
    karpenter_node: AddNode,
    cluster: Cluster,
    unique: Callable[[str], str],
) -> None:
    owner = karpenter_node()
    watch = ClaimWatch(owner, claims.add_for(owner, metadata={"finalizers": [HOLD]}))
    pod, volume = unique("pod"), unique("va")
    cluster.kube.create(paths.pods("default"), pod_on(owner, pod))
    cluster.kube.create(paths.volume_attachments(), _attachment(volume, owner.node.name))
    assert words(desk, watch) == [f"pod default/{pod} is still on the node"]

    cluster.kube.create(paths.pod_disruption_budgets("default"), _budget(pod))
    assert words(desk, watch) == [
        f"PodDisruptionBudget default/{pod} allows no eviction of pod default/{pod}"
    ]
    cluster.kube.delete(paths.pod("default", pod), uid=None, grace_s=0)
    assert words(desk, watch) == [f"VolumeAttachment {volume} is still attached"]

    attached = paths.object_path(paths.volume_attachments(), volume)
    cluster.kube.delete(attached, uid=None)
    cluster.kube.delete(paths.node(owner.node.name), uid=None)
    cluster.kube.delete(paths.node_claim(watch.claim.name), uid=None)
    assert words(desk, watch) == [f"finalizer {HOLD} holds NodeClaim {watch.claim.name}"]
    with pytest.raises(ApplicationError) as caught:
        desk.do(AWAIT_CLAIM_GONE, watch)
    assert caught.value.type == errors.NOT_YET

    claims.patch(watch.claim.name, {"metadata": {"finalizers": None}})
    assert desk.do(READ_CLAIM_END, watch).gone
    assert desk.do(AWAIT_CLAIM_GONE, watch).gone


def test_recreated_objects_of_the_same_names_do_not_count(
    desk: Desk, claims: Claims, karpenter_node: AddNode
) -> None:
    owner = karpenter_node()
    ref = claims.add_for(owner)
    former = Owner(type(owner.node)(owner.node.name, "former"), owner.episode)
    watch = ClaimWatch(former, type(ref)(ref.name, "former"))
    assert desk.do(AWAIT_CLAIM_GONE, watch).gone


def _budget(app: str) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": app},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}},
    }


def _attachment(name: str, node: str) -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": name},
        "spec": {
            "attacher": "example.com",
            "nodeName": node,
            "source": {"persistentVolumeName": "pv"},
        },
    }
