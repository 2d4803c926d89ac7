"""What the lab reads from a Node that Karpenter made, and what its NodePools say. Pure."""

from typing import Any

import pytest
from pydantic import ValidationError

from workers.lab.karpenter.instance_types import GPU_INSTANCE_TYPE, Capacity, instance_types
from workers.lab.karpenter.node_pools import UNVALIDATED, PoolShape, node_pool
from workers.lab.kubelet.adoption import spec_of
from workers.lab.kubelet.spec import MAX_GPUS, Machine, NodeKind, NodeSpec

LONG_NAME = "kwok-" + "a" * 80 + "-1234567890"


def _node(labels: dict[str, str], gpus: int = 8) -> dict[str, Any]:
    return {
        "metadata": {"name": LONG_NAME, "labels": labels},
        "spec": {"providerID": f"kwok://{LONG_NAME}"},
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}},
    }


def test_a_node_is_played_as_its_labels_say() -> None:
    labels = node_pool(PoolShape("p", NodeKind.LIGHT, machine=Machine.AGAIN))["spec"]["template"][
        "metadata"
    ]["labels"]
    spec = spec_of(_node(labels))
    assert (spec.pool, spec.kind, spec.gpus, spec.machine) == ("p", NodeKind.LIGHT, 8, "again")
    assert spec.name == LONG_NAME
    assert spec.is_adopted


def test_without_labels_it_is_a_full_node_with_a_stand_in() -> None:
    spec = spec_of(_node({}))
    assert (spec.kind, spec.agent, spec.pool) == (NodeKind.FULL, "stand-in", "default")


def test_what_the_lab_cannot_play_is_refused() -> None:
    with pytest.raises(ValidationError, match="gpus"):
        spec_of(_node({}, gpus=MAX_GPUS + 1))


def test_only_karpenters_names_may_be_longer_than_a_label() -> None:
    with pytest.raises(ValidationError, match="use 1 to 63"):
        NodeSpec(name=LONG_NAME)


def test_a_static_pool_has_replicas_and_an_elastic_one_a_disruption() -> None:
    static = node_pool(PoolShape("p", replicas=2, most_nodes=3))["spec"]
    elastic = node_pool(PoolShape("p", most_nodes=3, startup_taints=(UNVALIDATED,)))["spec"]
    assert (static["replicas"], static["limits"]) == (2, {"nodes": "3"})
    assert "disruption" not in static
    assert elastic["limits"] == {"nvidia.com/gpu": "24"}
    assert elastic["disruption"]["consolidateAfter"] == "Never"
    (taint,) = elastic["template"]["spec"]["startupTaints"]
    assert (taint["key"], taint["effect"]) == ("fleetmend.io/unvalidated", "NoSchedule")


def test_a_reserved_offering_names_its_reservation() -> None:
    (machine,) = instance_types()
    assert machine["name"] == GPU_INSTANCE_TYPE
    reserved = [
        offering
        for offering in machine["offerings"]
        if any(Capacity.RESERVED in r["values"] for r in offering["Requirements"])
    ]
    assert len(reserved) == 1
    assert reserved[0]["ReservationCapacity"] > 0
    keys = {requirement["key"] for requirement in reserved[0]["Requirements"]}
    assert "karpenter.kwok.sh/reservation-id" in keys
