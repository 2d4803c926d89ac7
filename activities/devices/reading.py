"""Readings: what one source on the node says about its devices, and the two shapes of a source.

Owns the types at the seam between sources (this package), the agent and the node tasks. Decides
nothing: what a reading costs the node is said by its fault class, which policy judges. Light on
purpose (standard library only): every source runs in a child process of a 64 MiB agent.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, Protocol

APPLICATION = "application"
"""The `fault` of a reading that costs no node: an application's own error."""
MAX_READING_TEXT = 256


class ConditionType(StrEnum):
    """The node conditions that the agent writes."""

    GPU = "GPUHealthy"
    INTERCONNECT = "InterconnectHealthy"
    NETWORK = "NetworkHealthy"
    HOST = "HostHealthy"


class Certainty(StrEnum):
    """How sure a source is; `unknown` never certifies a device and never condemns one."""

    CERTAIN = "certain"
    LIKELY = "likely"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Reading:
    """One thing that a source says is wrong, or that costs no node but is worth telling.

    Attributes:
        key: tells two readings of one source apart and is stable: "<device>/<code>".
        device: GPU UUID; a PCI bus id ("0000:1b:00") where the UUID is not known; the name of a
            network device; "" = the host.
        code: "xid-79", "sxid-20034", "nvml-gpu-lost", "dcgm-nvlink", "ib-link-down", "no-answer".
        fault: the value of a `Fault`, or `APPLICATION`.
        condition: which condition it makes bad; None = none (application, warnings).
        status: what it makes of that condition.
        at: aware; the first line or poll that showed it.
        text: one human line, printable, at most `MAX_READING_TEXT` characters.
        lasting: True = an event; it stands until the next boot (or a proof on the host), whatever
            later readings say. False = it stands as long as each poll repeats it.
        count: lines folded into it.
    """

    key: str
    device: str
    code: str
    fault: str
    condition: ConditionType | None
    status: Literal["False", "Unknown"]
    certainty: Certainty
    at: datetime
    text: str
    lasting: bool
    count: int = 1


class CannotTell(Exception):
    """The source gives no answer; the message says what failed and what to do about it."""


class PolledSource(Protocol):
    """A source that is asked: every `period_s` in its own child, killed after `deadline_s`."""

    @property
    def name(self) -> str: ...
    @property
    def period_s(self) -> float: ...
    @property
    def deadline_s(self) -> float: ...
    @property
    def conditions(self) -> frozenset[ConditionType]:
        """The conditions that this source answers for: unknown while it cannot tell."""
        ...

    def poll(self) -> tuple[Reading, ...]:
        """ALL that is wrong now; raises CannotTell."""
        ...


class StreamedSource(Protocol):
    """A source that tells by itself, in its own child process.

    `deadline_s` is its longest silence: it yields at least that often, empty = "alive".
    """

    @property
    def name(self) -> str: ...
    @property
    def deadline_s(self) -> float: ...
    @property
    def conditions(self) -> frozenset[ConditionType]:
        """The conditions that this source answers for: unknown while it cannot tell."""
        ...

    def stream(self) -> Iterator[tuple[Reading, ...]]:
        """New events, item by item; the same key again = a higher count. Raises CannotTell."""
        ...
