"""Faults of devices: what the kernel, NVML and DCGM then say. An agent has to find them itself.

Owns the faults that break what is below an agent: Xids with their lines in the kernel log, lost
links, any line of the kernel. They change `Devices` and publish nothing. A boot heals them, unless
they are lasting: then they are there again after each boot. `instruments` breaks the tools instead.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import ClassVar

from pydantic import Field

from workers.lab.devices.devices import Devices, NoSuchDevice
from workers.lab.devices.driver_log import Xid, pci_words
from workers.lab.devices.state import (
    Behaviour,
    DiagResult,
    Ecc,
    NvLink,
    RecoveryAction,
    RemappedRows,
)
from workers.lab.faults.fault import Fault, FaultyNode, NoSuchGpu

MAX_FLOOD: int = 1_000_000


class DeviceFault(Fault):
    """A fault that devices show. Subclasses say how it is made and undone."""

    needs_full: ClassVar[bool] = True

    lasting: bool = Field(default=False, description="whether it is there again after each boot")

    async def inject(self, node: FaultyNode) -> None:
        self._break(node)

    async def clear(self, node: FaultyNode) -> None:
        self._mend(node.devices)

    def survives_boot(self, node: FaultyNode) -> bool:  # noqa: ARG002 - the signature of Fault
        return self.lasting

    def booted(self, node: FaultyNode) -> None:
        self._break(node)

    def _break(self, node: FaultyNode) -> None:
        raise NotImplementedError(type(self).__name__)

    def _mend(self, devices: Devices) -> None:
        """Undo it without a boot, as far as the device allows."""


class OneGpu(DeviceFault):
    """A fault of one GPU."""

    gpu: int = Field(default=0, ge=0, le=15, description="index of the GPU")

    @property
    def key(self) -> str:
        return f"{self.name}/{self.gpu}"

    async def inject(self, node: FaultyNode) -> None:
        known = [gpu.index for gpu in node.devices.state.nvml.gpus]
        if self.gpu not in known:
            node.gpu_uuid(self.gpu)
            raise NoSuchGpu(node.name, self.gpu, len(known))
        await super().inject(node)

    async def clear(self, node: FaultyNode) -> None:
        # A GPU that the last boot didn't find has nothing to mend.
        with contextlib.suppress(NoSuchDevice):
            self._mend(node.devices)

    def booted(self, node: FaultyNode) -> None:
        with contextlib.suppress(NoSuchDevice):
            self._break(node)

    def _mend(self, devices: Devices) -> None:
        devices.change_gpu(self.gpu, **_HEALTHY)


_HEALTHY = {
    "behaviour": Behaviour.OK,
    "ecc": Ecc(),
    "remapped_rows": RemappedRows(),
    "recovery_action": RecoveryAction.NONE,
}


class _ApplicationXid(Fault):
    """An application's own error: lines in the kernel log, and nothing is wrong with the GPU."""

    needs_full: ClassVar[bool] = True
    is_event: ClassVar[bool] = True

    gpu: int = Field(default=0, ge=0, le=15, description="index of the GPU")
    pid: int = Field(default=2924011, ge=1, description="pid of the application")
    process: str = Field(default="pt_main_thread", max_length=64, description="its name")
    lines: int = Field(default=8, ge=1, le=1000, description="how often the driver says it")

    async def inject(self, node: FaultyNode) -> None:
        node.gpu_uuid(self.gpu)
        for _ in range(self.lines):
            for code, body in self._said():
                node.devices.xid(self.gpu, Xid(code, body, self.pid, self.process))
        # The channel goes down with its application; that is an effect.
        node.devices.xid(self.gpu, Xid(43, "Ch 00000008", self.pid, self.process))

    def _said(self) -> tuple[tuple[int, str], ...]:
        raise NotImplementedError(type(self).__name__)


class Xid79(OneGpu):
    """A GPU falls off the bus: Xid 79, NVML says it is lost. A reboot heals it."""

    name: ClassVar[str] = "xid-79"

    def _break(self, node: FaultyNode) -> None:
        devices = node.devices
        gpu = devices.change_gpu(self.gpu, behaviour=Behaviour.LOST)
        devices.xid(self.gpu, Xid(79, "GPU has fallen off the bus."))
        kmsg = devices.kmsg
        kmsg.nvrm(f"GPU {gpu.bus_id}: GPU has fallen off the bus.")
        kmsg.nvrm(f"GPU {gpu.bus_id}: GPU serial number is {gpu.serial}.")
        devices.change_recovery(self.gpu, RecoveryAction.NODE_REBOOT)


class Xid48(OneGpu):
    """A GPU's memory fails uncorrectably: Xid 48 and 63, ECC totals, a pending remap."""

    name: ClassVar[str] = "xid-48"

    def _break(self, node: FaultyNode) -> None:
        devices = node.devices
        before = devices.gpu(self.gpu).ecc or Ecc()
        ecc = before.model_copy(
            update={
                "volatile_uncorrected": before.volatile_uncorrected + 1,
                "aggregate_uncorrected": before.aggregate_uncorrected + 1,
            }
        )
        devices.change_gpu(self.gpu, ecc=ecc, remapped_rows=RemappedRows(pending=True))
        where = "physAddr 0x1f3a2c000 partition 16, subpartition 3"
        devices.xid(
            self.gpu,
            Xid(
                48,
                "An uncorrectable double bit error (DBE) has been detected on GPU in the "
                f"framebuffer at {where}.",
            ),
        )
        row = "New row (0x00000001f3a2c000) marked for remapping, reset gpu to activate."
        devices.xid(self.gpu, Xid(63, f"Row Remapper: {row}"))
        devices.change_recovery(self.gpu, RecoveryAction.GPU_RESET)


class Xid94(OneGpu):
    """A GPU contains a memory error: Xid 94 ends one application, the rest may go on."""

    name: ClassVar[str] = "xid-94"

    pid: int = Field(default=7194, ge=1, description="pid of the application that is ended")

    def _break(self, node: FaultyNode) -> None:
        contained = Xid(94, "Contained: SM (0x1). RST: No, D-RST: No", self.pid)
        node.devices.xid(self.gpu, contained)
        node.devices.xid(self.gpu, Xid(45, "Ch 00000008", self.pid))


class Xid13(_ApplicationXid):
    """An application computes out of bounds: Xid 13 and 43. Nothing is wrong with the GPU."""

    name: ClassVar[str] = "xid-13"

    def _said(self) -> tuple[tuple[int, str], ...]:
        place = "(GPC 9, TPC 5, SM 0)"
        return (
            (13, f"Graphics SM Warp Exception on {place}: Out Of Range Address"),
            (13, "Graphics Exception: ESR 0x54cfb0=0x11f000e 0x54cfb4=0x24 0x54cfa8=0xf81eb60"),
        )


class Xid31(_ApplicationXid):
    """An application reads what isn't its own: Xid 31 and 43. Nothing is wrong with the GPU."""

    name: ClassVar[str] = "xid-31"

    def _said(self) -> tuple[tuple[int, str], ...]:
        fault = "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
        unit = "ENGINE GRAPHICS GPC1 GPCCLIENT_T1_0"
        at = f"Ch 00000008, intr 10000000. MMU Fault: {unit} faulted @ 0x7f2a_4c000000"
        return ((31, f"{at}. {fault}"),)


class GpuWeak(OneGpu):
    """A GPU fails a test of DCGM's diagnostic (level 2 and above), and shows nothing else."""

    name: ClassVar[str] = "gpu-weak"

    test: str = Field(default="memory", max_length=32, description="the test that it fails")

    def _break(self, node: FaultyNode) -> None:
        devices = node.devices
        failed = DiagResult(test=self.test, gpu=self.gpu, text="a comparison error in memory")
        devices.change_dcgm(results=(*self._others(devices), failed))

    def _mend(self, devices: Devices) -> None:
        devices.change_dcgm(results=self._others(devices))

    def _others(self, devices: Devices) -> tuple[DiagResult, ...]:
        return tuple(result for result in devices.state.dcgm.results if result.gpu != self.gpu)


class NvlinkDown(OneGpu):
    """An NVLink of a GPU fails: Xid 74, NVML shows the link inactive, DCGM health fails."""

    name: ClassVar[str] = "nvlink-down"

    link: int = Field(default=14, ge=0, le=17, description="which link")

    def _break(self, node: FaultyNode) -> None:
        links = list(node.devices.gpu(self.gpu).nvlinks)
        links[self.link] = NvLink(active=False, replay=3, recovery=1)
        node.devices.change_gpu(self.gpu, nvlinks=tuple(links))
        words = "(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
        said = f"NVLink: fatal error detected on link {self.link}{words}"
        node.devices.xid(self.gpu, Xid(74, said))

    def _mend(self, devices: Devices) -> None:
        links = list(devices.gpu(self.gpu).nvlinks)
        links[self.link] = NvLink()
        devices.change_gpu(self.gpu, nvlinks=tuple(links))


class RdmaLinkDown(DeviceFault):
    """A port of an InfiniBand or EFA device goes down: sysfs shows it, DCGM and NVML don't."""

    name: ClassVar[str] = "rdma-link-down"

    device: int = Field(default=0, ge=0, le=63, description="index of the network device")

    @property
    def key(self) -> str:
        return f"{self.name}/{self.device}"

    def _break(self, node: FaultyNode) -> None:
        node.devices.change_rdma(node.devices.rdma(self.device).down())

    def _mend(self, devices: Devices) -> None:
        devices.change_rdma(devices.rdma(self.device))


class KernelLine(Fault):
    """The kernel says a line: text="NVRM: Xid (PCI:{pci0}): ..." ({pciN} = bus id of GPU N)."""

    name: ClassVar[str] = "kernel-line"
    needs_full: ClassVar[bool] = True
    is_event: ClassVar[bool] = True

    text: str = Field(default="NVRM: a line of the lab", max_length=2000, description="the line")
    priority: int = Field(default=4, ge=0, le=191, description="facility * 8 + level")
    count: int = Field(
        default=1, ge=1, le=MAX_FLOOD, description="how often, at 100,000 lines a second"
    )

    async def inject(self, node: FaultyNode) -> None:
        devices = node.devices
        text = self.text
        for gpu in devices.state.nvml.gpus:
            text = text.replace(f"{{pci{gpu.index}}}", pci_words(gpu))
        if self.count > 1:
            await asyncio.shield(devices.kmsg.burst(text, self.count, priority=self.priority))
        else:
            devices.kmsg.write(text, priority=self.priority)
