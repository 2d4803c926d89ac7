"""Containers as the simulated runtime keeps them: running ones, ended ones, and their pods.

Owns the seam between a pod's worker and what really runs (a process, a timer, the agent stand-in)
and the memory that outlives a dead kubelet, as containerd's does. Does not start anything and talks
to no API server; `process`, `timer` and `agent` implement `Container`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from workers.lab.kubelet.volumes import PodVolumes

TERMINATION_MESSAGE_BYTES: Final = 4096
"""What a kubelet reads of a termination message, from the end (kubelet 1.36, `ReadAtMost`)."""

LOST_EXIT_CODE: Final = 255
"""containerd reports so, with reason Unknown, a container whose machine went down under it."""


class BadContainer(Exception):
    """It cannot be started; the message says what is asked that the lab can't do, or is missing.

    `reason` is the one under which a kubelet reports it.
    """

    def __init__(self, message: str, reason: str = "CreateContainerConfigError") -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Exit:
    """How one run of a container ended."""

    code: int
    reason: str
    message: str
    started_at: datetime
    finished_at: datetime


class Container(Protocol):
    """One run of one container."""

    started_at: datetime
    done: asyncio.Future[Exit]
    """Resolves once, when nothing of the container runs any more."""

    def stop(self, grace_s: float) -> None:
        """Ask it to end (SIGTERM), and end it (SIGKILL) after the grace. Returns at once."""

    def kill(self) -> None:
        """End it now; `done` resolves a moment later."""

    def termination_message(self) -> str:
        """What it has written so far, truncated as a kubelet does."""


@dataclass
class Health:
    """What a container's probes say; without probes all is well as soon as it runs."""

    is_started: bool = True
    is_ready: bool = True
    changed_at: datetime | None = None


@dataclass
class ContainerSlot:
    """One container of a pod's specification over its restarts."""

    name: str
    image: str
    running: Container | None = None
    last: Exit | None = None
    restarts: int = 0
    health: Health = field(default_factory=Health)
    probed: Container | None = None
    """The run that `health` is about."""

    @property
    def is_ready(self) -> bool:
        return self.running is not None and self.health.is_started and self.health.is_ready


@dataclass
class Sandbox:
    """A pod on this machine: it exists from the first start until the pod is gone."""

    uid: str
    pod_name: str
    folder: Path
    ip: str
    started_at: datetime
    slots: dict[str, ContainerSlot] = field(default_factory=dict)
    inits: dict[str, ContainerSlot] = field(default_factory=dict)
    """Of its init containers, in their order."""
    gpus: int = 0
    volumes: PodVolumes | None = None
    """Made by the launcher with the first container that needs them."""

    def running(self) -> list[Container]:
        every = (*self.inits.values(), *self.slots.values())
        return [slot.running for slot in every if slot.running is not None]

    @property
    def next_init(self) -> ContainerSlot | None:
        """The init container whose turn it is; None = all have succeeded."""
        waiting = (s for s in self.inits.values() if s.last is None or s.last.code != 0)
        return next(waiting, None)


class ContainerRuntime:
    """All sandboxes of one machine. Lives as long as the machine's disk does."""

    def __init__(self) -> None:
        self.sandboxes: dict[str, Sandbox] = {}
        self.has_forgotten = False
        """The fleet's process was restarted on this machine's disk: a pod that was started before
        and has no sandbox here was lost with the power, it is not new."""

    def gpus_in_use(self) -> int:
        """GPUs held by pods that still run something."""
        return sum(sandbox.gpus for sandbox in self.sandboxes.values() if sandbox.running())

    def lose_power(self) -> None:
        """Everything running dies; the disk remembers that it was running."""
        for sandbox in self.sandboxes.values():
            for slot in sandbox.inits.values():
                if slot.running is not None:
                    slot.running.kill()
                # They prepare what a boot takes away, so they run again.
                slot.running = slot.last = None
            for slot in sandbox.slots.values():
                container, slot.running = slot.running, None
                if container is None:
                    continue
                message = container.termination_message()
                container.kill()
                slot.last = Exit(LOST_EXIT_CODE, "Unknown", message, container.started_at, now())

    def wipe(self) -> None:
        """Another machine's disk: nothing is remembered."""
        self.lose_power()
        self.sandboxes.clear()
        self.has_forgotten = False


def now() -> datetime:
    """This machine's clock."""
    return datetime.now(UTC)


def read_termination_message(path: Path) -> str:
    """The last 4,096 bytes of the file; '' when there is none."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(0, size - TERMINATION_MESSAGE_BYTES))
            return log.read(TERMINATION_MESSAGE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
