"""Verdicts: what one code of a driver means for the node, before anybody acts on it.

Owns the type that the Xid and SXid tables give, and the makers of its common values. A verdict
names a fault class, or says that the code costs no node. Pure; talks to `fault` only.
"""

from dataclasses import dataclass
from typing import Literal

from workflows.model.detection.fault import Fault

APPLICATION = "application"
"""The application's own error: told, and costs no node."""
NONE = "none"
"""Nothing is wrong that a node must be taken for: informational, corrected, or a clear."""

GPU = "GPUHealthy"
INTERCONNECT = "InterconnectHealthy"


@dataclass(frozen=True)
class Verdict:
    """What a code means.

    Attributes:
        fault: the value of a `Fault`, `APPLICATION` or `NONE`.
        condition: the node condition it makes bad; None = none.
        certainty: "certain", "likely" or "unknown" (the code or its line could not be read).
        severity: "fatal" takes a GPU or the node out, "warning" is told, "info" is not.
    """

    fault: str
    condition: str | None
    certainty: Literal["certain", "likely", "unknown"]
    severity: Literal["fatal", "warning", "info"]

    @property
    def status(self) -> Literal["False", "Unknown"]:
        """What it makes of `condition`: what is not known is never False and never True."""
        return "Unknown" if self.certainty == "unknown" else "False"


def certain(fault: Fault, condition: str = GPU) -> Verdict:
    """The device is at fault: NVIDIA's action takes it out of service."""
    return Verdict(fault, condition, "certain", "fatal")


def likely(fault: Fault, condition: str = GPU) -> Verdict:
    """As `certain`, but the code has another explanation, or its line was incomplete."""
    return Verdict(fault, condition, "likely", "fatal")


def cannot_tell(condition: str = GPU) -> Verdict:
    """A code or a line that nobody explains: never healthy, and never a reason to replace."""
    return Verdict(Fault.DIAGNOSTIC_UNKNOWN, condition, "unknown", "warning")


def application() -> Verdict:
    """The application did it; the device goes on."""
    return Verdict(APPLICATION, None, "likely", "warning")


def nothing() -> Verdict:
    """No node is taken for this."""
    return Verdict(NONE, None, "certain", "info")
