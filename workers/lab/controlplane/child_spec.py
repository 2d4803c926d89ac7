"""One process of a lab as a value: what runs, what it needs, how its readiness is seen.

Owns the shape only. The tables of flags (`components.py`, `karpenter/process.py`) make these values,
the supervisor's `child.py` starts them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from workers.lab.address import Component
from workers.lab.controlplane.probes import Probe

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True)
class ChildSpec:
    """One process of the lab."""

    component: Component
    command: tuple[str, ...]
    probe: Probe
    folder: Path
    log: Path
    needs: tuple[Component, ...] = ()
    address: str = ""
    ports: tuple[int, ...] = ()  # must be free before it can start
    environment: Mapping[str, str] = field(default_factory=dict)
    stop_grace_s: float = 2.0  # from SIGTERM to SIGKILL when it is stopped in order
    prepare: Callable[[], None] | None = None
    """Done before each start, in a thread; a LabError from it is why it did not start."""
