"""What a person undid covers a fault only if it covers all of it, in the boot it was undone in."""

from datetime import UTC, datetime

import pytest

from workflows.model.detection.fault import Fault
from workflows.model.remediation.overrule import Overrule, was_undone

AT = datetime(2026, 11, 30, tzinfo=UTC)
UNDONE = (
    Overrule("gpu-lost", ("GPU-0",), "boot-1", AT),
    Overrule("gpu-lost", ("GPU-1",), "boot-1", AT),
    Overrule("gpu-memory-uncorrectable", (), "", AT),
)


@pytest.mark.parametrize(
    ("fault", "devices", "boot_id", "undone"),
    [
        (Fault.GPU_LOST, ("GPU-0",), "boot-1", True),
        (Fault.GPU_LOST, ("GPU-0", "GPU-1"), "boot-1", True),
        (Fault.GPU_LOST, ("GPU-0", "GPU-2"), "boot-1", False),
        (Fault.GPU_LOST, ("GPU-2",), "boot-1", False),
        (Fault.GPU_LOST, (), "boot-1", True),
        (Fault.GPU_LOST, ("GPU-0",), "boot-2", False),
        (Fault.GPU_MEMORY_UNCORRECTABLE, (), "boot-2", True),
        (Fault.GPU_MEMORY_UNCORRECTABLE, ("GPU-0",), "boot-2", False),
        (Fault.NETWORK, (), "boot-1", False),
    ],
    ids=[
        "the same device",
        "all devices",
        "one device more",
        "another device",
        "no device named",
        "another boot",
        "undone for every boot",
        "a device where none was named",
        "another class",
    ],
)
def test_only_all_of_a_fault_is_undone(
    fault: Fault, devices: tuple[str, ...], boot_id: str, undone: bool
) -> None:
    assert was_undone(fault, devices, boot_id, UNDONE) is undone
