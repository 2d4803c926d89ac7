"""The closed set of fault classes."""

import pytest
from hypothesis import given

from tests.model.views import TEXT
from workflows.model.detection.fault import (
    SEVERITY,
    UNKNOWN_KIND,
    Fault,
    fault_of_reason,
    is_worse,
)


@pytest.mark.parametrize(
    ("reason", "fault"),
    [
        ("GpuLost", Fault.GPU_LOST),
        ("GPULost", Fault.GPU_LOST),
        ("GpuMemoryUncorrectable", Fault.GPU_MEMORY_UNCORRECTABLE),
        ("GpuMemoryContained", Fault.GPU_MEMORY_CONTAINED),
        ("GpuDriver", Fault.GPU_DRIVER),
        ("Interconnect", Fault.INTERCONNECT),
        ("HostUnreachable", Fault.HOST_UNREACHABLE),
        ("NewerThanThisRelease", Fault.DIAGNOSTIC_UNKNOWN),
        ("", Fault.DIAGNOSTIC_UNKNOWN),
    ],
)
def test_a_reason_names_its_class_or_unknown(reason: str, fault: Fault) -> None:
    assert fault_of_reason(reason) is fault


@given(TEXT)
def test_any_reason_has_a_class(reason: str) -> None:
    assert isinstance(fault_of_reason(reason), Fault)


def test_severity_is_total_and_without_ties() -> None:
    assert set(SEVERITY) == set(Fault)
    assert len(set(SEVERITY.values())) == len(Fault)


@pytest.mark.parametrize("unknown", sorted(UNKNOWN_KIND))
def test_what_cannot_tell_is_never_worse_than_what_can(unknown: Fault) -> None:
    known = set(Fault) - UNKNOWN_KIND - {Fault.OPERATOR}
    assert not any(is_worse(unknown, fault) for fault in known)


@pytest.mark.parametrize("fault", list(Fault))
def test_no_fault_is_worse_than_itself(fault: Fault) -> None:
    assert not is_worse(fault, fault)
