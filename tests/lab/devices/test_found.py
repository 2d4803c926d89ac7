"""What the agent's own sources read of the lab's devices: healthy ones, and each fault."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from activities.devices.network import NetworkSource
from tests.lab.devices.conftest import BOARDS, Machine
from tests.lab.test_faults_device import Machine as FaultyMachine
from workers.lab.faults.registry import make_fault

LIMIT_S = 60.0
CHECKOUT = Path(__file__).parents[3]
CODE = """
import json, os, sys
from pathlib import Path
from activities.devices.reading import CannotTell
from activities.devices.sources import sources
root, names, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
found = []
for source in sources(root, {**os.environ, "FLEETMEND_SOURCES": names}):
    try:
        if hasattr(source, "poll"):
            batches = [source.poll() for _ in range(rounds)][-1:]
        else:
            # An item with nothing in it comes 5 s after the one before.
            batches = []
            for item in source.stream():
                batches.append(item)
                if item or len(batches) == rounds:
                    break
    except CannotTell as error:
        found.append([source.name, "cannot-tell", "", "", str(error)])
        continue
    found += [[source.name, r.code, r.fault, r.device, r.text] for b in batches for r in b]
print(json.dumps(found))
"""


def _readings(machine: Machine, names: str, *, rounds: int = 1) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(machine.devices.root), names, str(rounds)],
        env={**machine.environment(), "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def test_healthy_devices_are_found_healthy_by_every_source(machine: Machine) -> None:
    assert _readings(machine, "") == []


@pytest.mark.parametrize(
    ("name", "options", "source", "code"),
    [
        ("xid-79", {"gpu": "1"}, "kernel-log", "xid-79"),
        ("xid-79", {"gpu": "1"}, "nvml", "nvml-gpu-lost"),
        ("xid-48", {"gpu": "1"}, "kernel-log", "xid-48"),
        ("xid-94", {"gpu": "1"}, "kernel-log", "xid-94"),
        ("xid-13", {"gpu": "1"}, "kernel-log", "xid-13"),
        ("xid-31", {"gpu": "1"}, "kernel-log", "xid-31"),
        ("nvlink-down", {"gpu": "1"}, "kernel-log", "xid-74"),
        ("nvlink-down", {"gpu": "1"}, "dcgm", "dcgm-nvlink"),
        ("dcgm-crash", {}, "dcgm", "cannot-tell"),
        ("dcgm-absent", {}, "dcgm", "cannot-tell"),
        ("driver-absent", {}, "nvml", "cannot-tell"),
        ("kmsg-unreadable", {}, "kernel-log", "cannot-tell"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_fault_is_found_by_its_source(
    machine: Machine, name: str, options: dict[str, str], source: str, code: str
) -> None:
    node = FaultyMachine(machine.devices)
    await make_fault(name, options).inject(node)
    found = _readings(machine, source, rounds=2)
    assert code in [reading[1] for reading in found], found
    for reading in found:
        if reading[1].startswith("xid"):
            assert reading[3] == BOARDS[1].uuid


async def test_a_link_that_goes_down_is_found_after_it_was_up(machine: Machine) -> None:
    source = NetworkSource(machine.devices.root)
    assert source.poll() == ()
    await make_fault("rdma-link-down", {"device": "1"}).inject(FaultyMachine(machine.devices))
    source.poll()
    assert [(r.code, r.device) for r in source.poll()] == [("ib-link-down", "mlx5_1")]
