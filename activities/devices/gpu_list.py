"""The GPUs of the node by what needs no driver call: procfs of the driver and sysfs of PCI.

Owns the paths and bounds of that reading, the map from bus address to UUID, and which PCI port or
slot a GPU hangs on. Asks no NVML (that may hang). Everything read is bounded and checked.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from activities.devices.kernel_lines import bus_address

GPU_FOLDER = "proc/driver/nvidia/gpus"
"""One folder a GPU, named by its address, with a file `information` (NVIDIA driver's procfs)."""
PCI_FOLDER = "sys/bus/pci/devices"
SLOT_FOLDER = "sys/bus/pci/slots"
NVIDIA_VENDOR = "0x10de"
GPU_CLASSES = ("0x0300", "0x0302")
"""VGA and 3D controller (PCI Code and ID Assignment, base class 03)."""
MAX_DEVICES = 8192
MAX_GPUS = 64
MAX_FILE_BYTES = 4096

_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9A-Za-z-]{8,64})\s*$", re.MULTILINE)


@dataclass(frozen=True)
class GpuList:
    """What the host's files say.

    Attributes:
        uuids: by address, of the GPUs that the driver shows; "" = it shows no UUID.
        on_bus: addresses of the GPUs that PCI shows; None = it cannot be read.
        behind: by the address of a PCI port, the GPUs below it.
        in_slot: by the name of a slot, the address of the GPU in it.
    """

    uuids: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    on_bus: frozenset[str] | None = None
    behind: Mapping[str, frozenset[str]] = field(default_factory=lambda: MappingProxyType({}))
    in_slot: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def addresses(self) -> frozenset[str]:
        """Every address that either of the two knows as a GPU."""
        return frozenset(self.uuids) | (self.on_bus or frozenset())


def read_gpus(host_root: Path) -> GpuList:
    """What can be read now; a part that cannot be read is empty (`on_bus`: None)."""
    on_bus = _on_bus(host_root)
    uuids = _uuids(host_root)
    gpus = frozenset(uuids) | (on_bus or frozenset())
    return GpuList(uuids, on_bus, _behind(host_root, gpus), _in_slot(host_root, gpus))


def read_file(path: Path) -> str:
    """The beginning of a small file; "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode(errors="replace")
    except OSError:
        return ""


def names_in(folder: Path) -> list[str] | None:
    """The names in a folder, sorted, at most `MAX_DEVICES`; None if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry, _ in zip(entries, range(MAX_DEVICES), strict=False))
    except OSError:
        return None


def _uuids(host_root: Path) -> dict[str, str]:
    uuids = {}
    for name in (names_in(host_root / GPU_FOLDER) or [])[:MAX_GPUS]:
        address = bus_address(name)
        if address:
            found = _UUID.search(read_file(host_root / GPU_FOLDER / name / "information"))
            uuids[address] = found[1] if found else ""
    return uuids


def _on_bus(host_root: Path) -> frozenset[str] | None:
    folder = host_root / PCI_FOLDER
    names = names_in(folder)
    if names is None:
        return None
    return frozenset(bus_address(name) for name in names if _is_gpu(folder / name))


def _is_gpu(device: Path) -> bool:
    return (
        bus_address(device.name) != ""
        and read_file(device / "vendor").strip() == NVIDIA_VENDOR
        and read_file(device / "class").startswith(GPU_CLASSES)
    )


def _behind(host_root: Path, gpus: Iterable[str]) -> dict[str, frozenset[str]]:
    """Ports by the path that the kernel's link of a device shows: .../port/.../device."""
    behind: dict[str, set[str]] = {}
    for gpu in gpus:
        try:
            link = (host_root / PCI_FOLDER / f"{gpu}.0").readlink()
        except OSError:
            continue
        ports = (bus_address(part) for part in link.parts[-16:-1])
        for port in filter(None, ports):
            behind.setdefault(port, set()).add(gpu)
    return {port: frozenset(found) for port, found in behind.items()}


def _in_slot(host_root: Path, gpus: frozenset[str]) -> dict[str, str]:
    slots = {}
    for name in (names_in(host_root / SLOT_FOLDER) or [])[:512]:
        # A slot's file has no function: "0000:9b:00".
        address = bus_address(read_file(host_root / SLOT_FOLDER / name / "address"))
        if address in gpus:
            slots[name] = address
    return slots
