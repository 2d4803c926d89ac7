"""Faults of the tools by which an agent looks at devices: they hang, crash, lie or are not there.

Owns the faults of dcgmi, NVML, the kernel log and its clock. Nothing is wrong with a GPU here: what
an agent may say is that it cannot tell. As with `device`, a boot heals them unless they are lasting.
"""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from pydantic import Field

from workers.lab.devices.devices import Devices
from workers.lab.devices.state import Behaviour, Manner
from workers.lab.faults.device import DeviceFault, OneGpu
from workers.lab.faults.fault import FaultyNode


class _DcgmFault(DeviceFault):
    """Both of dcgmi's checks behave badly."""

    deaf: bool = Field(default=False, description="whether dcgmi takes no notice of SIGTERM")

    behaviour: ClassVar[Behaviour]

    def _break(self, node: FaultyNode) -> None:
        diag_ms = node.devices.state.dcgm.diag.ms
        node.devices.change_dcgm(
            diag=Manner(behaviour=self.behaviour, ms=diag_ms, deaf=self.deaf),
            health=Manner(behaviour=self.behaviour, deaf=self.deaf),
        )

    def _mend(self, devices: Devices) -> None:
        devices.change_dcgm(diag=Manner(ms=devices.state.dcgm.diag.ms), health=Manner())


class DcgmHang(_DcgmFault):
    """dcgmi diag and dcgmi health hang; with for=SECONDS the hang ends by itself."""

    name: ClassVar[str] = "dcgm-hang"
    behaviour: ClassVar[Behaviour] = Behaviour.HANG


class DcgmCrash(_DcgmFault):
    """dcgmi diag and dcgmi health die by SIGSEGV."""

    name: ClassVar[str] = "dcgm-crash"
    behaviour: ClassVar[Behaviour] = Behaviour.CRASH


class NvmlSegfault(OneGpu):
    """NVML dies by SIGSEGV in whoever reads this GPU; the kernel log says nothing."""

    name: ClassVar[str] = "nvml-segfault"

    def _break(self, node: FaultyNode) -> None:
        node.devices.change_gpu(self.gpu, behaviour=Behaviour.CRASH)


class NvmlHang(OneGpu):
    """NVML hangs in whoever reads this GPU, until this is cleared or the node boots."""

    name: ClassVar[str] = "nvml-hang"

    def _break(self, node: FaultyNode) -> None:
        node.devices.change_gpu(self.gpu, behaviour=Behaviour.HANG)


class DriverAbsent(DeviceFault):
    """The NVIDIA driver isn't loaded: nvmlInit says so (9), or code=18: versions don't match."""

    name: ClassVar[str] = "driver-absent"

    code: int = Field(default=9, ge=1, le=999, description="what nvmlInit answers")

    def _break(self, node: FaultyNode) -> None:
        node.devices.change_nvml(init_code=self.code)

    def _mend(self, devices: Devices) -> None:
        devices.change_nvml(init_code=0)


class DcgmAbsent(DeviceFault):
    """There is no dcgmi on the node; with down=true there is, and its host engine is down."""

    name: ClassVar[str] = "dcgm-absent"

    down: bool = Field(default=False, description="whether only the host engine is down")

    def _break(self, node: FaultyNode) -> None:
        if self.down:
            node.devices.change_dcgm(is_down=True)
        else:
            node.devices.hide_dcgmi()

    def _mend(self, devices: Devices) -> None:
        devices.change_dcgm(is_down=False)
        devices.show_dcgmi()

    def survives_boot(self, node: FaultyNode) -> bool:
        node.devices.show_dcgmi()
        return self.lasting


class KmsgUnreadable(DeviceFault):
    """The kernel log ends for its readers and cannot be opened again."""

    name: ClassVar[str] = "kmsg-unreadable"

    def _break(self, node: FaultyNode) -> None:
        node.devices.kmsg.hide()

    def _mend(self, devices: Devices) -> None:
        devices.kmsg.show()

    def survives_boot(self, node: FaultyNode) -> bool:
        self._mend(node.devices)
        return self.lasting


class ClockSkew(DeviceFault):
    """The kernel log's clock and the machine's differ: seconds=600 ahead, seconds=-600 behind."""

    name: ClassVar[str] = "clock-skew"

    seconds: float = Field(default=600.0, ge=-86_400, le=86_400, description="how far ahead")

    def _break(self, node: FaultyNode) -> None:
        node.devices.kmsg.skew = timedelta(seconds=self.seconds)

    def _mend(self, devices: Devices) -> None:
        devices.kmsg.skew = timedelta()

    def survives_boot(self, node: FaultyNode) -> bool:
        self._mend(node.devices)
        return self.lasting
