"""What can go wrong with a lab's control plane, each with its remedy in the message.

Owns the error classes that callers of this package may catch. `LabNotRunning` stands beside the
address it belongs to, in `workers.lab.address`.
"""

from collections.abc import Sequence
from pathlib import Path


class LabError(Exception):
    """Base of everything this package raises on purpose."""


class ProgramsUnavailable(LabError):
    """The control plane's programs are neither found nor can they be built."""


class BuildFailed(LabError):
    """The Go build of the programs ended with an error; what was built so far is kept."""


class LabStartFailed(LabError):
    """A lab did not become ready; nothing of it is left running."""

    def __init__(self, what: str, log: Path | None, last_lines: Sequence[str]) -> None:
        """Name what failed and show the end of its log."""
        message = what
        if log is not None:
            message += f"\nlog: {log}"
        if last_lines:
            message += "\n" + "\n".join(f"  | {line[:300]}" for line in last_lines)
        super().__init__(message)


class LabCommandRefused(LabError):
    """The supervisor refused or could not carry out a command."""


class ApiRequestFailed(LabError):
    """The lab's API server answered a request of the lab itself with an error."""

    def __init__(self, what: str, status: int, message: str) -> None:
        """Keep the HTTP status, so that a caller can tell 404 from the rest."""
        super().__init__(f"{what}: the API server answered {status}: {message[:400]}")
        self.status = status


class ManifestRejected(LabError):
    """A manifest can't be read or was refused; the message names its file."""


class ChartRejected(LabError):
    """fleetmend's chart can't be installed; the message has helm's own words."""
