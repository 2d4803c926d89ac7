"""The simulated sysfs: what programs read of GPUs and network devices."""

from pathlib import Path

import pytest

from tests.lab.devices.conftest import BOARDS, Machine
from workers.lab.devices.network import efa_devices
from workers.lab.devices.state import PcieLink


def _read(machine: Machine, path: str) -> str:
    return (machine.devices.root / "sys" / path).read_text().strip()


def _names(machine: Machine, folder: str) -> set[str]:
    return {path.name for path in (machine.devices.root / "sys" / folder).iterdir()}


def test_gpus_are_pci_devices_of_nvidia(machine: Machine) -> None:
    folder = f"bus/pci/devices/{BOARDS[0].bus_id}"
    assert _read(machine, f"{folder}/vendor") == "0x10de"
    assert _read(machine, f"{folder}/class") == "0x030200"
    assert _read(machine, f"{folder}/current_link_speed") == "32.0 GT/s PCIe"
    assert "TOTAL_ERR_COR 0" in _read(machine, f"{folder}/aer_dev_correctable")


def test_a_narrow_link_shows_at_once_and_is_healed_by_a_boot(machine: Machine) -> None:
    folder = f"bus/pci/devices/{BOARDS[1].bus_id}"
    machine.devices.change_gpu(1, pcie=PcieLink(width=8, generation=3))
    assert _read(machine, f"{folder}/current_link_width") == "8"
    assert _read(machine, f"{folder}/current_link_speed") == "8.0 GT/s PCIe"
    machine.devices.boot(BOARDS)
    assert _read(machine, f"{folder}/current_link_width") == "16"


def test_a_gpu_that_a_boot_missed_is_no_pci_device_and_comes_back(machine: Machine) -> None:
    machine.devices.boot(BOARDS[1:])
    assert BOARDS[0].bus_id not in _names(machine, "bus/pci/devices")
    machine.devices.boot(BOARDS)
    assert BOARDS[0].bus_id in _names(machine, "bus/pci/devices")


def test_an_infiniband_port_is_active_and_points_to_its_pci_device(machine: Machine) -> None:
    assert _names(machine, "class/infiniband") == {"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"}
    port = "class/infiniband/mlx5_0/ports/1"
    assert _read(machine, f"{port}/state") == "4: ACTIVE"
    assert _read(machine, f"{port}/rate") == "400 Gb/sec (4X NDR)"
    assert _read(machine, f"{port}/counters/link_downed") == "0"
    assert _read(machine, "class/infiniband/mlx5_0/device/vendor") == "0x15b3"


def test_a_lost_link_shows_in_state_and_counter_until_the_boot(machine: Machine) -> None:
    machine.devices.change_rdma(machine.devices.rdma(2).down())
    port = "class/infiniband/mlx5_2/ports/1"
    assert _read(machine, f"{port}/state") == "1: DOWN"
    assert _read(machine, f"{port}/counters/link_downed") == "1"
    machine.devices.boot(BOARDS)
    assert _read(machine, f"{port}/state") == "4: ACTIVE"
    assert _read(machine, f"{port}/counters/link_downed") == "0"


def test_efa_devices_are_amazons_and_have_hardware_counters_only(machine: Machine) -> None:
    machine.devices.set_network(efa_devices(2))
    names = sorted(_names(machine, "class/infiniband"))
    assert names == ["rdmap80s27", "rdmap81s28"]
    assert _read(machine, f"class/infiniband/{names[0]}/device/vendor") == "0x1d0f"
    port = f"class/infiniband/{names[0]}/ports/1"
    assert _read(machine, f"{port}/hw_counters/rx_drops") == "0"
    assert not (machine.devices.root / "sys" / port / "counters").exists()


@pytest.mark.parametrize("kept", [1, 0])
def test_a_missing_network_device_is_gone_from_both_places(machine: Machine, kept: int) -> None:
    machine.devices.set_network(efa_devices(2)[:kept])
    assert len(_names(machine, "class/infiniband")) == kept
    gpus = {board.bus_id for board in BOARDS}
    assert len(_names(machine, "bus/pci/devices") - gpus) == kept


def test_a_change_by_another_process_is_not_undone(machine: Machine) -> None:
    """A test's process and the fleet's both hold the node's devices."""
    other = type(machine.devices)(Path(machine.devices.root), model="x")
    other.change_dcgm(is_busy=True)
    machine.devices.change_gpu(0, temperature=60)
    assert machine.dcgmi("diag", "-r", "1", "-j").returncode == 217
    machine.devices.change_dcgm(is_busy=False)
    assert machine.dcgmi("diag", "-r", "1", "-j").returncode == 0
    # Back to what each has written last itself: it must be written all the same.
    other.change_dcgm(is_busy=True)
    assert machine.dcgmi("diag", "-r", "1", "-j").returncode == 217
    machine.devices.change_dcgm(is_busy=False)
    assert machine.dcgmi("diag", "-r", "1", "-j").returncode == 0


def test_devices_are_installed_anew_for_another_machine(machine: Machine) -> None:
    machine.devices.kmsg.nvrm("old")
    machine.devices.install(machine.programs, BOARDS[:2])
    machine.devices.boot(BOARDS[:2])
    assert _names(machine, "class/infiniband") == {"mlx5_0", "mlx5_1"}
    assert machine.ask("n.nvmlInit()\ntell(n.nvmlDeviceGetCount())") == 2
