"""The namespace in which fleetmend itself works: its ConfigMaps, Lease and node tasks.

Owns the variable and its default. Read once, when the process loads: one process works in one
namespace. The chart sets it for the pods; people who installed elsewhere set it for their commands.
"""

import os
import re
from typing import Final

NAMESPACE_VARIABLE: Final = "FLEETMEND_NAMESPACE"
OWN_NAMESPACE: Final = os.environ.get(NAMESPACE_VARIABLE) or "fleetmend"

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""RFC 1123, as Kubernetes demands of a namespace's name."""


def namespace_problem(name: str = OWN_NAMESPACE) -> str:
    """What is wrong with the name; "" = nothing. Asked before a process or a command begins."""
    if _LABEL.fullmatch(name):
        return ""
    return (
        f"{NAMESPACE_VARIABLE}: {name[:80]!r} is no namespace; use the one that fleetmend was "
        "installed in (1 to 63 of a-z 0-9 -)"
    )
