"""Lines of the kernel and of the NVIDIA driver, worded as their versions word them.

Owns the wording that depends on the driver's branch and on what was said before: a GPU's two lines
with UUID and serial number come once a boot, before its first Xid. The forms are those of NVIDIA's
open kernel modules, branches 470 to 580. Writes to the kernel log; does not know faults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from workers.lab.devices.kmsg import Kmsg
from workers.lab.devices.state import GpuState, NvmlState, RecoveryAction

INFO: Final = 6
FIRST_BRANCH_WITH_154: Final = 565
_ACTIONS: Final = {
    RecoveryAction.NONE: "None",
    RecoveryAction.GPU_RESET: "GPU Reset Required",
    RecoveryAction.NODE_REBOOT: "Node Reboot Required",
    RecoveryAction.DRAIN_P2P: "Drain P2P",
    RecoveryAction.DRAIN_AND_RESET: "Drain and Reset",
}
_KERNEL: Final = "Linux version 6.8.0-1024-lab (lab@fleetmend) #26-Ubuntu SMP PREEMPT_DYNAMIC"


@dataclass(frozen=True)
class Xid:
    """One Xid to print."""

    code: int
    body: str = ""
    """What stands after code and process; '' = nothing, as with a bare `: 46`."""
    pid: int | None = None
    """None where the driver knows no process."""
    process: str = "python3"


class DriverLog:
    """What the kernel and its NVIDIA driver say on one machine."""

    def __init__(self, kmsg: Kmsg) -> None:
        self._kmsg = kmsg
        self._introduced: set[str] = set()

    def boot(self, nvml: NvmlState) -> None:
        """The first lines of a boot, up to the loaded driver."""
        self._introduced.clear()
        self._kmsg.write(_KERNEL, priority=5)
        for gpu in nvml.gpus:
            self._kmsg.write(
                f"nvidia {gpu.bus_id}: enabling device (0000 -> 0002)",
                priority=INFO,
                keys={"SUBSYSTEM": "pci", "DEVICE": f"+pci:{gpu.bus_id}"},
            )
        self._kmsg.nvrm(
            f"loading NVIDIA UNIX Open Kernel Module for x86_64  {nvml.driver}  Release Build"
        )

    def xid(self, driver: str, gpu: GpuState, xid: Xid) -> int:
        """The lines of an Xid; the number of the record that holds it."""
        bus = pci_words(gpu)
        if gpu.uuid not in self._introduced:
            self._introduced.add(gpu.uuid)
            self._kmsg.nvrm(f"GPU at PCI:{bus}: {gpu.uuid}")
            self._kmsg.nvrm(f"GPU Board Serial Number: {gpu.serial}")
        text = f"Xid (PCI:{bus}): {xid.code}"
        rest = _process(driver, xid) + xid.body
        return self._kmsg.nvrm(f"{text}, {rest}" if rest else text)


def recovery_xid(driver: str, old: RecoveryAction, new: RecoveryAction) -> Xid | None:
    """The 154 that tells of another recovery action; None from drivers that tell nothing."""
    if _branch(driver) < FIRST_BRANCH_WITH_154 or old is new:
        return None
    change = f"from {old:#x} ({_ACTIONS[old]}) to {new:#x} ({_ACTIONS[new]})"
    return Xid(154, f"GPU recovery action changed {change}")


def pci_words(gpu: GpuState) -> str:
    """The bus id as in Xid lines: without the function."""
    return gpu.bus_id.rpartition(".")[0]


def _process(driver: str, xid: Xid) -> str:
    """Branch 470 names no process, 515 to 565 always one or `<unknown>`, 570 only a known one."""
    branch = _branch(driver)
    if branch < 515:
        return "" if xid.pid is None else f"pid={xid.pid}, "
    if xid.pid is not None:
        return f"pid={xid.pid}, name={xid.process[:15]}, "
    return "" if branch >= 570 else "pid='<unknown>', name=<unknown>, "


def _branch(driver: str) -> int:
    return int(driver.split(".", maxsplit=1)[0])
