"""What people undid: the faults for which a quarantine was taken off, and until when that counts.

Owns the value and the question whether a match was overruled. Pure. The record that keeps it is
`activities/machines`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

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
    """True if a person undid our quarantine for all that the match says, during its boot.

    Another device is something new, as for watch (`workers/watch/machine.py`).
    """
    done = [o for o in overrules if o.boot_id in ("", match.boot_id)]
    devices = {device for o in done if o.fault == match.fault.value for device in o.devices}
    if match.devices:
        return devices.issuperset(match.devices)
    return any(o.fault == match.fault.value for o in done)
