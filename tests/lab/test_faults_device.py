"""Faults of devices: what each leaves in the kernel log, NVML and DCGM, and what ends it."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.devices.conftest import BOARDS
from workers.lab.devices.build import ensure_programs
from workers.lab.devices.devices import Devices
from workers.lab.devices.state import Behaviour, Ecc, RecoveryAction
from workers.lab.faults.ailment import Ailment
from workers.lab.faults.fault import AgentManners, BootPlan, Fault, NoSuchGpu
from workers.lab.faults.gpu import GpuMissingAfterReboot
from workers.lab.faults.registry import make_fault

PCI = "0000:1c:00"
"""Of GPU 1, which is broken here."""


class Machine:
    """What a fault may touch of a full node, without kubelet and API server."""

    name = "node-1"
    is_full = True
    has_real_agent = True

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        self.plan = BootPlan()
        self.agent = AgentManners()
        self.ailments: dict[str, Ailment] = {}
        self.active: list[Fault] = []
        self.published = 0

    def gpu_uuid(self, index: int) -> str:
        if index >= len(BOARDS):
            raise NoSuchGpu(self.name, index, len(BOARDS))
        return BOARDS[index].uuid

    async def publish(self) -> None:
        self.published += 1

    async def stop_kubelet(self) -> None: ...

    async def restart_kubelet(self) -> None: ...

    async def power_on(self) -> None: ...

    async def replace_machine(self, *, keeps_hardware: bool) -> None: ...

    async def inject(self, name: str, **options: str) -> Fault:
        fault = make_fault(name, options)
        await fault.inject(self)
        self.active.append(fault)
        return fault

    def boot(self) -> None:
        """As a full node does it."""
        self.active = [fault for fault in self.active if fault.survives_boot(self)]
        missing = self.plan.missing_gpus
        self.devices.boot(tuple(board for board in BOARDS if board.index not in missing))
        for fault in self.active:
            fault.booted(self)

    def lines(self) -> list[str]:
        """The texts of the records since the last look."""
        return _texts(self._reader)

    def open(self) -> None:
        self._reader = os.open(self.devices.kmsg.path, os.O_RDONLY | os.O_NONBLOCK)
        self.lines()

    def close(self) -> None:
        os.close(self._reader)


def _texts(reader: int) -> list[str]:
    found: list[str] = []
    while True:
        try:
            record = os.read(reader, 8192)
        except BlockingIOError:
            return found
        if not record:
            return found
        found.append(record.partition(b";")[2].partition(b"\n")[0].decode())


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    devices = Devices(tmp_path / "node", model="NVIDIA H100 80GB HBM3")
    devices.install(ensure_programs(), BOARDS)
    devices.open()
    devices.boot(BOARDS)
    node = Machine(devices)
    node.open()
    yield node
    node.close()
    devices.close()


def _xids(lines: list[str]) -> list[int]:
    """The codes of GPU 1's Xids, in order."""
    found = (re.fullmatch(rf"NVRM: Xid \(PCI:{PCI}\): (\d+)(, .*)?", line) for line in lines)
    return [int(match[1]) for match in found if match]


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("xid-79", [79, 154]),
        ("xid-48", [48, 63, 154]),
        ("xid-94", [94, 45]),
        ("xid-13", [13, 13] * 8 + [43]),
        ("xid-31", [31] * 8 + [43]),
        ("nvlink-down", [74]),
        ("dcgm-hang", []),
        ("dcgm-crash", []),
        ("nvml-segfault", []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_fault_says_its_lines_with_the_nodes_own_bus_id(
    machine: Machine, name: str, codes: list[int]
) -> None:
    options = {} if name.startswith("dcgm") else {"gpu": "1"}
    await machine.inject(name, **options)
    assert _xids(machine.lines()) == codes


async def test_uuid_and_serial_come_once_before_a_gpus_first_xid_of_a_boot(
    machine: Machine,
) -> None:
    await machine.inject("xid-94", gpu="1")
    lines = machine.lines()
    serial = machine.devices.gpu(1).serial
    assert lines[:2] == [
        f"NVRM: GPU at PCI:{PCI}: {BOARDS[1].uuid}",
        f"NVRM: GPU Board Serial Number: {serial}",
    ]
    await machine.inject("xid-48", gpu="1")
    assert not any("GPU at PCI" in line for line in machine.lines())
    machine.boot()
    machine.lines()
    await machine.inject("xid-94", gpu="1")
    assert "GPU at PCI" in machine.lines()[0]


@pytest.mark.parametrize(
    ("driver", "line"),
    [
        ("580.95.05", "79, GPU has fallen off the bus."),
        ("535.183.01", "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
        ("470.256.02", "79, GPU has fallen off the bus."),
    ],
)
async def test_a_line_is_worded_as_its_driver_does(
    machine: Machine, driver: str, line: str
) -> None:
    machine.devices.change_nvml(driver=driver)
    await machine.inject("xid-79", gpu="1")
    assert f"NVRM: Xid (PCI:{PCI}): {line}" in machine.lines()


async def test_xid_79_loses_the_gpu_until_the_boot(machine: Machine) -> None:
    await machine.inject("xid-79", gpu="1")
    gpu = machine.devices.gpu(1)
    assert (gpu.behaviour, gpu.recovery_action) == (Behaviour.LOST, RecoveryAction.NODE_REBOOT)
    machine.boot()
    assert machine.devices.gpu(1).behaviour is Behaviour.OK
    assert machine.active == []


async def test_xid_48_counts_and_leaves_a_remap_pending(machine: Machine) -> None:
    await machine.inject("xid-48", gpu="1")
    gpu = machine.devices.gpu(1)
    assert gpu.ecc == Ecc(volatile_uncorrected=1, aggregate_uncorrected=1)
    assert gpu.remapped_rows is not None
    assert gpu.remapped_rows.pending


@pytest.mark.parametrize("name", ["xid-13", "xid-31", "xid-94"])
async def test_an_applications_end_changes_nothing_of_the_device(
    machine: Machine, name: str
) -> None:
    before = machine.devices.state
    await machine.inject(name, gpu="1")
    assert machine.devices.state == before


async def test_a_link_that_is_down_can_be_mended(machine: Machine) -> None:
    fault = await machine.inject("nvlink-down", gpu="1", link="3")
    assert [link.active for link in machine.devices.gpu(1).nvlinks].index(False) == 3
    await fault.clear(machine)
    assert all(link.active for link in machine.devices.gpu(1).nvlinks)


@pytest.mark.parametrize(
    ("name", "behaviour"), [("dcgm-hang", Behaviour.HANG), ("dcgm-crash", Behaviour.CRASH)]
)
async def test_dcgm_misbehaves_until_it_is_cleared(
    machine: Machine, name: str, behaviour: Behaviour
) -> None:
    fault = await machine.inject(name)
    dcgm = machine.devices.state.dcgm
    assert (dcgm.diag.behaviour, dcgm.health.behaviour) == (behaviour, behaviour)
    await fault.clear(machine)
    dcgm = machine.devices.state.dcgm
    assert (dcgm.diag.behaviour, dcgm.health.behaviour) == (Behaviour.OK, Behaviour.OK)
    assert dcgm.diag.ms == 200


@pytest.mark.parametrize(
    ("options", "is_back"), [({}, False), ({"lasting": "true"}, True)], ids=["healed", "lasting"]
)
async def test_a_boot_heals_unless_the_fault_is_lasting(
    machine: Machine, options: dict[str, Any], is_back: bool
) -> None:
    await machine.inject("xid-79", gpu="1", **options)
    machine.lines()
    machine.boot()
    assert (machine.devices.gpu(1).behaviour is Behaviour.LOST) is is_back
    assert (79 in _xids(machine.lines())) is is_back


@pytest.mark.parametrize("seconds", ["600", "-600"])
async def test_the_clock_steps_both_ways_and_back(machine: Machine, seconds: str) -> None:
    fault = await machine.inject("clock-skew", seconds=seconds)
    assert machine.devices.kmsg.skew.total_seconds() == float(seconds)
    await fault.clear(machine)
    assert machine.devices.kmsg.skew.total_seconds() == 0


async def test_an_unreadable_kernel_log_ends_and_is_whole_again_when_cleared(
    machine: Machine,
) -> None:
    kmsg = machine.devices.kmsg
    kmsg.write("before")
    fault = await machine.inject("kmsg-unreadable")
    assert machine.lines()[0] == "before"
    assert not kmsg.path.exists()
    late = kmsg.path.with_name("late")
    kmsg.offer(late)
    assert not late.exists()
    kmsg.write("meanwhile")
    await fault.clear(machine)
    for path in (kmsg.path, late):
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        assert _texts(reader)[-2:] == ["before", "meanwhile"]
        os.close(reader)


@pytest.mark.parametrize("is_cleared", [True, False], ids=["cleared", "booted"])
async def test_an_absent_dcgmi_comes_back(machine: Machine, is_cleared: bool) -> None:
    program = machine.devices.root / "opt/lab/bin/dcgmi"
    fault = await machine.inject("dcgm-absent")
    assert not program.exists()
    if is_cleared:
        await fault.clear(machine)
    else:
        machine.boot()
    assert program.exists()


async def test_an_absent_driver_is_told_by_init_until_the_boot(machine: Machine) -> None:
    await machine.inject("driver-absent", code="18")
    assert machine.devices.state.nvml.init_code == 18
    machine.boot()
    assert machine.devices.state.nvml.init_code == 0


async def test_any_line_can_be_said_with_the_nodes_bus_ids(machine: Machine) -> None:
    await machine.inject("kernel-line", text="NVRM: Xid (PCI:{pci1}): 46", count="3")
    assert machine.lines() == [f"NVRM: Xid (PCI:{PCI}): 46"] * 3


async def test_a_port_goes_down_and_comes_back(machine: Machine) -> None:
    state = machine.devices.root / "sys/class/infiniband/mlx5_1/ports/1/state"
    fault = await machine.inject("rdma-link-down", device="1")
    assert state.read_text() == "1: DOWN\n"
    await fault.clear(machine)
    assert state.read_text() == "4: ACTIVE\n"


async def test_with_a_real_agent_a_gpu_is_lost_first_and_missing_after_the_boot(
    machine: Machine,
) -> None:
    await machine.inject(GpuMissingAfterReboot.name, gpu="1")
    assert machine.devices.gpu(1).behaviour is Behaviour.LOST
    assert (machine.published, machine.ailments) == (0, {})
    machine.boot()
    assert [gpu.index for gpu in machine.devices.state.nvml.gpus] == [0, 2, 3]


async def test_a_gpu_that_is_not_there_cannot_be_broken(machine: Machine) -> None:
    with pytest.raises(NoSuchGpu, match="gpu=9: node node-1 has GPUs 0 to 3"):
        await machine.inject("xid-79", gpu="9")
    with pytest.raises(NoSuchGpu, match="gpu=9"):
        await machine.inject("xid-13", gpu="9")
