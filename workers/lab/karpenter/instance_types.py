"""What the lab's Karpenter can buy: machines as the stand-in kubelets play them.

Owns the instance types file of the kwok provider. Resources are those that a stand-in reports, so
that what Karpenter promised and what the Node says are the same. Pure; `process` writes the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from workers.lab.controlplane.recipe import RESERVATION_LABEL
from workers.lab.kubelet.spec import GPU_RESOURCE, MACHINE_RESOURCES

GPU_INSTANCE_TYPE: Final = "lab-gpu.8x"
GPUS: Final = 8
ZONES: Final = ("lab-a", "lab-b")
RESERVATION: Final = "lab-reservation"
RESERVED_CAPACITY: Final = 8
"""Machines of the reservation. Karpenter counts them within one scheduling pass only, so a
reservation that is full is imitated by the limit of a NodePool."""
ON_DEMAND_PRICE: Final = 30.0
RESERVED_PRICE: Final = 10.0


class Capacity(StrEnum):
    """How a machine is bought; values of the label karpenter.sh/capacity-type."""

    ON_DEMAND = "on-demand"
    RESERVED = "reserved"


@dataclass(frozen=True)
class _Offering:
    zone: str
    capacity: Capacity


def instance_types() -> list[dict[str, Any]]:
    """The content of the instance types file."""
    offerings = [_Offering(zone, Capacity.ON_DEMAND) for zone in ZONES]
    offerings.append(_Offering(ZONES[0], Capacity.RESERVED))
    return [
        {
            "name": GPU_INSTANCE_TYPE,
            "offerings": [_offering(each) for each in offerings],
            "architecture": "amd64",
            "operatingSystems": ["linux"],
            "resources": {**MACHINE_RESOURCES, GPU_RESOURCE: str(GPUS)},
        }
    ]


def _offering(offering: _Offering) -> dict[str, Any]:
    requirements = [
        _requirement("karpenter.sh/capacity-type", (offering.capacity,)),
        _requirement("topology.kubernetes.io/zone", (offering.zone,)),
    ]
    row: dict[str, Any] = {"Price": ON_DEMAND_PRICE, "Available": True}
    if offering.capacity is Capacity.RESERVED:
        requirements.append(_requirement(RESERVATION_LABEL, (RESERVATION,)))
        row |= {"Price": RESERVED_PRICE, "ReservationCapacity": RESERVED_CAPACITY}
    return {"Requirements": requirements, **row}


def _requirement(key: str, values: Sequence[str]) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": [str(value) for value in values]}
