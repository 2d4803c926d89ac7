"""How long a person waits for an answer or an explanation: 5 s from the start of the command.

Owns that one sum. Imported first of all, so that the time of starting the program counts too.
"""

import time
from typing import Final

EXPLAINED_WITHIN_S: Final = 4.6
"""A little less than 5 s, for writing the message and leaving."""
AT_LEAST_S: Final = 2.0
"""On a machine so busy that the program itself starts slowly, the other side is slow as well."""

_BEGUN: Final = time.monotonic()


def patience_s() -> float:
    """Seconds that are left for a first call."""
    return max(AT_LEAST_S, EXPLAINED_WITHIN_S - (time.monotonic() - _BEGUN))
