"""The folder that stands for a full node's root file system, and the machine's identity in it.

Owns the files a program on the node would read (boot id, machine id, the NVIDIA driver's procfs),
the stand-in `chroot` program, the FIFO through which that asks for a reboot, and `boot.log`, the
witness of the tests. Does not decide anything: the node reads and writes through it.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from workers.lab.kubelet.spec import NodeSpec

BUS_IDS: Final = (
    "0000:1b:00.0",
    "0000:43:00.0",
    "0000:52:00.0",
    "0000:61:00.0",
    "0000:9d:00.0",
    "0000:c3:00.0",
    "0000:d1:00.0",
    "0000:df:00.0",
    "0001:1b:00.0",
    "0001:43:00.0",
    "0001:52:00.0",
    "0001:61:00.0",
    "0001:9d:00.0",
    "0001:c3:00.0",
    "0001:d1:00.0",
    "0001:df:00.0",
)
"""The first eight as on a DGX H100; the others in a second PCI domain, made up."""

REBOOT_FIFO: Final = "run/lab-reboot.fifo"
BOOT_ID: Final = "proc/sys/kernel/random/boot_id"
GPU_FOLDER: Final = "proc/driver/nvidia/gpus"
BOOT_LOG: Final = "boot.log"
PROGRAMS: Final = "opt/lab/bin"

_CHROOT: Final = """\
#!/bin/sh
# Stand-in for chroot in the lab: knows one root and one command, and asks the lab for the rest.
root='{root}'
given=$(readlink -f -- "$1" 2>/dev/null)
if [ -z "$given" ] || [ "$given" != "$root" ]; then
    echo "chroot (lab): only the node's own root $root is allowed, not '$1'" >&2
    exit 125
fi
shift
case "$*" in
    "/usr/bin/systemctl reboot" | "/usr/bin/systemctl reboot --force") ;;
    *)
        echo "chroot (lab): only '/usr/bin/systemctl reboot' is known here, not '$*'" >&2
        exit 127
        ;;
esac
printf '%s\\n' "systemctl reboot by ${{FLEETMEND_LAB_POD:-unknown}}" > "$root/{fifo}"
"""


class BootEvent(StrEnum):
    """What a line of boot.log tells. Only BOOT (and FIRST) changed the boot id."""

    FIRST = "first"
    BOOT = "boot"
    IGNORED = "ignored"
    HUNG = "hung"
    NEW_MACHINE = "new-machine"


@dataclass(frozen=True)
class Gpu:
    """One simulated GPU; `index` is its minor number."""

    index: int
    uuid: str
    bus_id: str


@dataclass(frozen=True)
class MachineIdentity:
    """What names the physical machine; kept over boots, new when the cloud brings another one."""

    machine_id: str
    system_uuid: str
    provider_id: str
    gpus: tuple[Gpu, ...]


def make_identity(spec: NodeSpec) -> MachineIdentity:
    """A machine nobody has seen before, with what the specification fixes."""
    system_uuid = spec.system_uuid
    if system_uuid is None:
        system_uuid = str(uuid.uuid4())
    gpus = tuple(Gpu(i, f"GPU-{uuid.uuid4()}", BUS_IDS[i]) for i in range(spec.gpus))
    provider_id = spec.provider_id or f"lab:///{spec.pool}/i-{uuid.uuid4().hex[:17]}"
    return MachineIdentity(uuid.uuid4().hex, system_uuid, provider_id, gpus)


class HostRoot:
    """The files of one full node under `path`."""

    def __init__(self, path: Path, model: str) -> None:
        self.path = path.absolute()
        self._model = model

    @property
    def programs(self) -> Path:
        """Comes first in the PATH of the node's fleetmend pods."""
        return self.path / PROGRAMS

    @property
    def boot_id(self) -> str:
        """The boot id that programs on the node read; '' before the first boot."""
        try:
            return (self.path / BOOT_ID).read_text().strip()
        except FileNotFoundError:
            return ""

    def install(self, identity: MachineIdentity) -> None:
        """Lay out the root of a machine that has not booted yet."""
        for folder in ("etc", "run", "var/log/pods", "var/lib/kubelet/pods", PROGRAMS):
            (self.path / folder).mkdir(parents=True, exist_ok=True)
        self._write("etc/machine-id", identity.machine_id + "\n")
        self._write("sys/class/dmi/id/product_uuid", identity.system_uuid + "\n")
        script = _CHROOT.format(root=os.path.realpath(self.path), fifo=REBOOT_FIFO)
        self._write(f"{PROGRAMS}/chroot", script)
        (self.path / PROGRAMS / "chroot").chmod(0o755)
        fifo = self.path / REBOOT_FIFO
        if not fifo.is_fifo():
            os.mkfifo(fifo, 0o600)

    def boot(self, event: BootEvent, why: str, gpus: tuple[Gpu, ...], *, boot_id: str = "") -> str:
        """Write a new boot id and the GPUs this boot found; gives the new boot id back.

        Args:
            event: for the log.
            why: for the log.
            gpus: what this boot found.
            boot_id: the one that a provider has announced; '' = made up here, as the kernel does.
        """
        old, new = self.boot_id, boot_id or str(uuid.uuid4())
        self._write(BOOT_ID, new + "\n")
        shutil.rmtree(self.path / GPU_FOLDER, ignore_errors=True)
        (self.path / GPU_FOLDER).mkdir(parents=True)
        for gpu in gpus:
            self._write(f"{GPU_FOLDER}/{gpu.bus_id}/information", self._gpu_information(gpu))
        self.log(event, why, old=old, new=new)
        return new

    def log(self, event: BootEvent, why: str, *, old: str = "", new: str = "") -> None:
        """One line for the witness. Without ids: the boot id stayed as it is."""
        current = self.boot_id
        line = {
            "at": datetime.now(UTC).isoformat(timespec="microseconds"),
            "event": event.value,
            "old": old or ("" if new else current),
            "new": new or current,
            "why": why,
        }
        with (self.path / BOOT_LOG).open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")

    def _gpu_information(self, gpu: Gpu) -> str:
        return (
            f"Model: \t\t {self._model}\n"
            f"IRQ:   \t\t {200 + gpu.index}\n"
            f"GPU UUID: \t {gpu.uuid}\n"
            f"Video BIOS: \t 96.00.89.00.01\n"
            f"Bus Type: \t PCIe\n"
            f"DMA Size: \t 52 bits\n"
            f"DMA Mask: \t 0xfffffffffffff\n"
            f"Bus Location: \t {gpu.bus_id}\n"
            f"Device Minor: \t {gpu.index}\n"
            f"GPU Firmware: \t 580.95.05\n"
            f"GPU Excluded:\t No\n"
        )

    def _write(self, name: str, text: str) -> None:
        """Replace the file in one step: a reader on the node never sees half of it."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(target.name + ".new")
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)


@dataclass(frozen=True)
class BootRecord:
    """One line of boot.log."""

    at: datetime
    event: BootEvent
    old: str
    new: str
    why: str


def read_boot_log(host_root: Path) -> list[BootRecord]:
    """The witness, oldest first; empty when the node never was there."""
    try:
        lines = (host_root / BOOT_LOG).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    records = []
    for line in lines:
        row = json.loads(line)
        at = datetime.fromisoformat(row["at"])
        event = BootEvent(row["event"])
        records.append(BootRecord(at, event, row["old"], row["new"], row["why"]))
    return records
