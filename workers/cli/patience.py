"""How long a person waits for an answer or an explanation: 5 s from the start of the command.

Owns that one sum. The time of starting the program counts too.
"""

import os
import time
from pathlib import Path
from typing import Final

EXPLAINED_WITHIN_S: Final = 4.6
"""A little less than 5 s, for writing the message and leaving."""
AT_LEAST_S: Final = 2.0
"""On a machine so busy that the program itself starts slowly, the other side is slow as well."""
STARTED_FIELD: Final = 19
"""Of /proc/self/stat after the command's name: `starttime`, in ticks since the boot (proc(5))."""


def patience_s() -> float:
    """Seconds that are left for a first call."""
    return max(AT_LEAST_S, EXPLAINED_WITHIN_S - (time.monotonic() - _BEGUN))


def _begun() -> float:
    """When the process was started, on the monotonic clock; without Linux's /proc, now."""
    now = time.monotonic()
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        age = since_boot - int(fields[STARTED_FIELD]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now
    # An older process did something else before it became this command (`exec` in a script).
    return now - age if 0 <= age <= EXPLAINED_WITHIN_S else now


_BEGUN: Final = _begun()
