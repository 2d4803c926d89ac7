"""RDMA devices of a simulated node, InfiniBand adapters and Elastic Fabric Adapters, as values.

Owns what a device is like and the usual sets of them. `sysfs` shows them to programs.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from workers.lab.kubelet.spec import WireModel


class RdmaKind(StrEnum):
    """What kind of RDMA device it is."""

    INFINIBAND = "infiniband"
    EFA = "efa"


class RdmaDevice(WireModel):
    """One RDMA device with its port 1."""

    name: str = Field(pattern=r"^[a-z0-9_]{1,32}$")
    bus_id: str
    kind: RdmaKind = RdmaKind.INFINIBAND
    state: str = "4: ACTIVE"
    phys_state: str = "5: LinkUp"
    rate: str = "400 Gb/sec (4X NDR)"
    counters: dict[str, int] = Field(default_factory=dict)
    """Those that are not 0, of either folder."""

    def down(self) -> RdmaDevice:
        """The same with its link lost, as after a pulled cable."""
        downed = self.counters | {"link_downed": self.counters.get("link_downed", 0) + 1}
        changed = {"state": "1: DOWN", "phys_state": "2: Polling", "rate": "2.5 Gb/sec (1X SDR)"}
        return self.model_copy(update={**changed, "counters": downed})


def infiniband_devices(count: int) -> tuple[RdmaDevice, ...]:
    """One 400 Gb/s adapter beside each GPU, as in an HGX H100; bus ids made up."""
    return tuple(
        RdmaDevice(name=f"mlx5_{i}", bus_id=f"0000:{0x20 + 8 * i:02x}:00.0") for i in range(count)
    )


def efa_devices(count: int) -> tuple[RdmaDevice, ...]:
    """Elastic Fabric Adapters as on a p5.48xlarge, which has 32."""
    return tuple(
        RdmaDevice(
            name=f"rdmap{0x50 + i}s{27 + i % 4}",
            bus_id=f"0000:{0x50 + i:02x}:{27 + i % 4:02x}.0",
            kind=RdmaKind.EFA,
            rate="100 Gb/sec (4X EDR)",
        )
        for i in range(count)
    )
