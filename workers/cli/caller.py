"""Who gives a command, and why: recorded with every word of a person.

Owns the caller's name and the options that say the reason. Takes the user's and the host's name as
they are: it is a note for colleagues, not a proof of identity (the API server's audit log is one).
"""

import getpass
import os
import socket
from dataclasses import dataclass

from workflows.model.detection.finding import printable

CALLER_VARIABLE = "FLEETMEND_CALLER"
"""For automation that acts for somebody: recorded in place of user@host."""
MAX_REASON = 200
MAX_CALLER = 64


@dataclass(frozen=True)
class Caller:
    """Who says it, and the reason they gave ("" = none)."""

    by: str
    reason: str


def caller(reason: str) -> Caller:
    """The caller of this process."""
    named = os.environ.get(CALLER_VARIABLE) or f"{_user()}@{socket.gethostname()}"
    return Caller(printable(named, MAX_CALLER), printable(reason, MAX_REASON))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"  # a container without a passwd entry
