"""What people undid: the faults for which a quarantine was taken off, and until when that counts.

Owns the value and the question whether a match was overruled. Pure. The record that keeps it is
`activities/machines`.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime

from workflows.model.detection.fault import Fault
from workflows.model.detection.rules import RuleMatch


@dataclass(frozen=True)
class Overrule:
    """A person undid the quarantine for these faults (class, device) during this boot.

    `boot_id` "" counts for every boot.
    """

    fault: str
    devices: tuple[str, ...]
    boot_id: str
    at: datetime


def is_overruled(match: RuleMatch, overrules: Iterable[Overrule]) -> bool:
    """True if a person undid our quarantine for all that the match says, during its boot."""
    return was_undone(match.fault, match.devices, match.boot_id, overrules)


def was_undone(
    fault: Fault, devices: tuple[str, ...], boot_id: str, overrules: Iterable[Overrule]
) -> bool:
    """As `is_overruled`, for a fault on these devices, by whatever source."""
    marks = {
        (o.fault, device)
        for o in overrules
        if o.boot_id in ("", boot_id)
        for device in o.devices or ("",)
    }
    return covers(marks, fault, devices)


def covers(marks: AbstractSet[tuple[str, str]], fault: Fault, devices: tuple[str, ...]) -> bool:
    """True if all that a fault says of these devices is among the (fault, device) pairs undone.

    A fault that names devices is covered only if each of them is: another device is something new.
    One that names none is covered by any pair of its class.
    """
    if devices:
        return all((fault, device) in marks for device in devices)
    return any(marked == fault for marked, _ in marks)
