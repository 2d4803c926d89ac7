"""The fault classes: the closed vocabulary that rules give to what detectors saw.

Owns the classes and how grave each is; what is done about one stands in the policy. A class that
is unknown to this release is `diagnostic-unknown`, and unknown is never healthy.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Fault(StrEnum):
    """Classes of faults; the Node condition's reason is the CamelCase form of the value."""

    GPU_LOST = "gpu-lost"
    GPU_MEMORY_UNCORRECTABLE = "gpu-memory-uncorrectable"
    GPU_MEMORY_CONTAINED = "gpu-memory-contained"
    GPU_DRIVER = "gpu-driver"
    INTERCONNECT = "interconnect"
    THERMAL = "thermal"
    NETWORK = "network"
    HOST_UNREACHABLE = "host-unreachable"
    DIAGNOSTIC_UNKNOWN = "diagnostic-unknown"
    DIAGNOSTIC_FAILED = "diagnostic-failed"
    OPERATOR = "operator"


SEVERITY: Mapping[Fault, int] = MappingProxyType(
    {
        Fault.OPERATOR: 0,
        Fault.DIAGNOSTIC_UNKNOWN: 10,
        Fault.HOST_UNREACHABLE: 20,
        Fault.DIAGNOSTIC_FAILED: 25,
        Fault.THERMAL: 30,
        Fault.GPU_MEMORY_CONTAINED: 35,
        Fault.NETWORK: 40,
        Fault.GPU_DRIVER: 45,
        Fault.INTERCONNECT: 50,
        Fault.GPU_MEMORY_UNCORRECTABLE: 60,
        Fault.GPU_LOST: 70,
    }
)
"""Which of two faults is the worse (higher); ours, by how little of the node can still work."""

UNKNOWN_KIND = frozenset({Fault.DIAGNOSTIC_UNKNOWN, Fault.HOST_UNREACHABLE})
"""Classes that say "cannot tell": they may cordon, but never evict and never replace (P6)."""


def fault_of_reason(reason: str) -> Fault:
    """The class a condition's CamelCase reason names; `diagnostic-unknown` if it names none."""
    spelled = "".join(f"-{c.lower()}" if c.isupper() else c for c in reason).lstrip("-")
    spelled = spelled.replace("g-p-u", "gpu")
    try:
        return Fault(spelled)
    except ValueError:
        return Fault.DIAGNOSTIC_UNKNOWN


def is_worse(candidate: Fault, than: Fault) -> bool:
    """True if `candidate` is graver than `than`."""
    return SEVERITY[candidate] > SEVERITY[than]
