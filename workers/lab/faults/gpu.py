"""Faults of GPUs: what the agent reports, and what a boot does about it.

Owns gpu-lost, gpu-memory, unknown and gpu-missing-after-reboot. They change only what ails the
machine and which GPUs the next boot finds; the node does the rest.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import ClassVar

from pydantic import Field

from activities.devices.reading import Certainty, ConditionType
from workers.lab.faults import device
from workers.lab.faults.ailment import Ailment, ConditionStatus, Finding
from workers.lab.faults.fault import Fault, FaultyNode


class _GpuFault(Fault):
    """A fault of one GPU that the agent reports at once and a boot heals."""

    gpu: int = Field(default=0, ge=0, le=15, description="index of the GPU")

    @property
    def key(self) -> str:
        return f"{self.name}/{self.gpu}"

    async def inject(self, node: FaultyNode) -> None:
        node.ailments[self.key] = self._ailment(node.gpu_uuid(self.gpu))
        await node.publish()

    async def clear(self, node: FaultyNode) -> None:
        node.ailments.pop(self.key, None)
        await node.publish()

    def survives_boot(self, node: FaultyNode) -> bool:
        node.ailments.pop(self.key, None)
        return False

    def _ailment(self, device: str) -> Ailment:
        raise NotImplementedError(type(self).__name__)


class GpuLost(_GpuFault):
    """A GPU fell off the bus (Xid 79): GPUHealthy False, reason GpuLost. A reboot heals it."""

    name: ClassVar[str] = "gpu-lost"

    def _ailment(self, device: str) -> Ailment:
        return _lost(device)


class GpuMemory(_GpuFault):
    """A GPU's memory failed (Xid 48): GPUHealthy False, GpuMemoryUncorrectable. A reboot heals."""

    name: ClassVar[str] = "gpu-memory"

    def _ailment(self, device: str) -> Ailment:
        text = f"GPU {device} reports a double-bit ECC error"
        return _bad("GpuMemoryUncorrectable", device, "xid-48", "gpu-memory-uncorrectable", text)


class Unknown(Fault):
    """The agent cannot tell: GPUHealthy Unknown, DiagnosticUnknown. Recovers with for=SECONDS."""

    name: ClassVar[str] = "unknown"

    async def inject(self, node: FaultyNode) -> None:
        text = "the GPU health check timed out"
        finding = _finding(
            "", "health-check-timeout", "diagnostic-unknown", text, certainty=Certainty.UNKNOWN
        )
        node.ailments[self.key] = Ailment(
            ConditionType.GPU, ConditionStatus.UNKNOWN, "DiagnosticUnknown", text, (finding,)
        )
        await node.publish()

    async def clear(self, node: FaultyNode) -> None:
        node.ailments.pop(self.key, None)
        await node.publish()

    def survives_boot(self, node: FaultyNode) -> bool:
        node.ailments.pop(self.key, None)
        return False


class GpuMissingAfterReboot(_GpuFault):
    """A GPU is lost now, and from the next boot on it is gone from procfs and allocatable."""

    name: ClassVar[str] = "gpu-missing-after-reboot"
    needs_full: ClassVar[bool] = True

    async def inject(self, node: FaultyNode) -> None:
        if node.has_real_agent:
            await device.Xid79(gpu=self.gpu).inject(node)
        else:
            await super().inject(node)

    async def clear(self, node: FaultyNode) -> None:
        """The GPU is found again by the next boot."""
        node.plan.missing_gpus.discard(self.gpu)
        if node.has_real_agent:
            await device.Xid79(gpu=self.gpu).clear(node)
        else:
            await super().clear(node)

    def survives_boot(self, node: FaultyNode) -> bool:
        # Conditions are healthy from here on: an agent that counts what it finds misses nothing,
        # so only an inventory compared with the baseline can tell.
        node.ailments.pop(self.key, None)
        node.plan.missing_gpus.add(self.gpu)
        return True

    def _ailment(self, device: str) -> Ailment:
        return _lost(device)


def _lost(device: str) -> Ailment:
    return _bad("GpuLost", device, "xid-79", "gpu-lost", f"GPU {device} has fallen off the bus")


def _bad(reason: str, device: str, code: str, fault: str, text: str) -> Ailment:
    finding = _finding(device, code, fault, text)
    return Ailment(ConditionType.GPU, ConditionStatus.FALSE, reason, text, (finding,))


def _finding(
    device: str, code: str, fault: str, text: str, *, certainty: Certainty = Certainty.CERTAIN
) -> Finding:
    return Finding(
        id=uuid.uuid4().hex,
        device=device,
        code=code,
        fault=fault,
        text=text,
        at=datetime.now(UTC),
        certainty=certainty,
    )
