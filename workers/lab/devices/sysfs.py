"""The part of sysfs that tells of GPUs and network devices, below a simulated node's root.

Owns the folders `sys/bus/pci/devices` and `sys/class/infiniband` with the kernel's names and text
formats (ABI documents sysfs-class-infiniband, sysfs-bus-pci). A device is written when it is not as
it was shown before. Does not know why something is wrong with a device.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from workers.lab.devices.network import RdmaDevice, RdmaKind
from workers.lab.devices.state import GpuState

INFINIBAND: Final = "sys/class/infiniband"
PCI_DEVICES: Final = "sys/bus/pci/devices"
SPEEDS: Final = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
"""GT/s by PCIe generation."""

_COUNTERS: Final = (
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
)
_IB_HARDWARE_COUNTERS: Final = ("out_of_sequence", "packet_seq_err", "roce_adp_retrans")
_EFA_HARDWARE_COUNTERS: Final = (
    "impaired_remote_conn_events",
    "lifespan",
    "rdma_read_wr_err",
    "rdma_write_wr_err",
    "retrans_bytes",
    "retrans_pkts",
    "retrans_timeout_events",
    "rx_bytes",
    "rx_drops",
    "tx_bytes",
    "unresponsive_remote_events",
)
_AER_FATAL: Final = ("DLP", "SDES", "TLP", "FCP", "CmpltTO", "UnxCmplt", "RxOF", "MalfTLP", "ECRC")
_AER_CORRECTABLE: Final = ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "AdvNonFatalErr")


class Sysfs:
    """Both trees below a root, and what they show: a device that is shown already costs nothing."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._shown: dict[str, GpuState | RdmaDevice] = {}
        self._is_clean = False

    def show_all(self, gpus: tuple[GpuState, ...], rdma: tuple[RdmaDevice, ...]) -> None:
        """These devices and no others."""
        if not self._is_clean:
            for folder in (INFINIBAND, PCI_DEVICES):
                shutil.rmtree(self._root / folder, ignore_errors=True)
                (self._root / folder).mkdir(parents=True)
            self._is_clean = True
        wanted: dict[str, GpuState | RdmaDevice] = {gpu.bus_id: gpu for gpu in gpus}
        wanted |= {device.bus_id: device for device in rdma}
        for bus_id in self._shown.keys() - wanted.keys():
            self.hide(bus_id)
        for device in wanted.values():
            self.show(device)

    def show(self, device: GpuState | RdmaDevice) -> None:
        """This device as it is now."""
        before = self._shown.get(device.bus_id)
        self._shown[device.bus_id] = device
        if isinstance(device, RdmaDevice):
            if device != before:
                if isinstance(before, RdmaDevice) and before.name != device.name:
                    shutil.rmtree(self._root / INFINIBAND / before.name, ignore_errors=True)
                _write_rdma(self._root, device)
        elif not isinstance(before, GpuState) or before.pcie != device.pcie:
            _write_gpu(self._root, device)

    def forget(self) -> None:
        """Somebody else has written there: take nothing for shown."""
        self._shown.clear()
        self._is_clean = False

    def hide(self, bus_id: str) -> None:
        """The device is gone, as one that the kernel didn't find."""
        device = self._shown.pop(bus_id, None)
        if isinstance(device, RdmaDevice):
            shutil.rmtree(self._root / INFINIBAND / device.name, ignore_errors=True)
        shutil.rmtree(self._root / PCI_DEVICES / bus_id, ignore_errors=True)


def _write_gpu(root: Path, gpu: GpuState) -> None:
    """One GPU's PCI folder."""
    folder = root / PCI_DEVICES / gpu.bus_id
    link = gpu.pcie
    _write_pci(folder, vendor="0x10de", device="0x2330", class_code="0x030200")
    _write(folder / "current_link_speed", f"{SPEEDS.get(link.generation, '2.5')} GT/s PCIe")
    _write(folder / "current_link_width", str(link.width))
    _write(folder / "max_link_speed", f"{SPEEDS.get(link.max_generation, '2.5')} GT/s PCIe")
    _write(folder / "max_link_width", str(link.max_width))


def _write_rdma(root: Path, device: RdmaDevice) -> None:
    """One RDMA device: its PCI folder and its class folder."""
    is_efa = device.kind is RdmaKind.EFA
    pci = root / PCI_DEVICES / device.bus_id
    if is_efa:
        _write_pci(pci, vendor="0x1d0f", device="0xefa1", class_code="0x020000")
    else:
        _write_pci(pci, vendor="0x15b3", device="0x1021", class_code="0x020700")
    for name in ("current", "max"):
        _write(pci / f"{name}_link_speed", f"{SPEEDS[5]} GT/s PCIe")
        _write(pci / f"{name}_link_width", "16")
    folder = root / INFINIBAND / device.name
    _write(folder / "node_type", "7: unspecified" if is_efa else "1: CA")
    pointer = folder / "device"
    if not pointer.is_symlink():
        pointer.symlink_to(Path("../../../bus/pci/devices") / device.bus_id)
    port = folder / "ports/1"
    _write(port / "state", device.state)
    _write(port / "phys_state", device.phys_state)
    _write(port / "rate", device.rate)
    _write(port / "link_layer", "Unspecified" if is_efa else "InfiniBand")
    groups: dict[str, tuple[str, ...]] = {
        "hw_counters": _EFA_HARDWARE_COUNTERS if is_efa else _IB_HARDWARE_COUNTERS
    }
    if not is_efa:
        groups["counters"] = _COUNTERS
    for group, names in groups.items():
        for name in names:
            _write(port / group / name, str(device.counters.get(name, 0)))


def _write_pci(folder: Path, *, vendor: str, device: str, class_code: str) -> None:
    for name, text in (("vendor", vendor), ("device", device), ("class", class_code)):
        _write(folder / name, text)
    for name, rows, total in (
        ("correctable", _AER_CORRECTABLE, "TOTAL_ERR_COR"),
        ("nonfatal", _AER_FATAL, "TOTAL_ERR_NONFATAL"),
        ("fatal", _AER_FATAL, "TOTAL_ERR_FATAL"),
    ):
        _write(folder / f"aer_dev_{name}", "\n".join(f"{row} 0" for row in (*rows, total)))


def _write(path: Path, text: str) -> None:
    """In one step: sysfs never shows half a value."""
    text += "\n"
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True)
    if path.exists():
        draft = path.with_name(f".{path.name}.new")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    else:
        # Nobody reads what isn't there yet: one write of one block is seen whole or not at all.
        path.write_text(text, encoding="utf-8")
