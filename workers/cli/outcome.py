"""How a command ends: its exit code, its one error message, its JSON.

Owns the exit codes and the only places where the CLI writes to standard output and error. Messages
are one sentence of what failed and one of what to do. Knows no command.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any, Final, NoReturn

from rich.console import Console

from workers.leaving import leave
from workers.tables import open_console
from workers.telemetry import LEVEL_VARIABLE, TelemetryError, set_up_telemetry

INTERRUPTED: Final = 130
"""As a shell has it after Ctrl-C: 128 and the signal's number."""


class ExitCode(IntEnum):
    """What a script may rely on."""

    OK = 0
    REFUSED = 1
    """It was refused, or it failed; the message says why."""
    USAGE = 2
    """The command line, a variable or a file is wrong."""
    UNREACHABLE = 3
    """Temporal or the cluster could not be reached."""


class CommandError(Exception):
    """A command ends with this message and exit code."""

    def __init__(self, code: ExitCode, message: str, facts: Mapping[str, object] | None = None):
        super().__init__(message)
        self.code = code
        self.facts = dict(facts or {})


def refused(message: str, **facts: object) -> CommandError:
    """It was refused or failed; `facts` stand beside the message in the JSON."""
    return CommandError(ExitCode.REFUSED, message, facts)


def wrong_usage(message: str) -> CommandError:
    """What was typed or set cannot be meant."""
    return CommandError(ExitCode.USAGE, message)


def unreachable(message: str) -> CommandError:
    """Temporal or the cluster did not answer."""
    return CommandError(ExitCode.UNREACHABLE, message)


def run_command(body: Callable[[], object], *, as_json: bool) -> NoReturn:
    """Run a command's body, and leave the process with its exit code.

    A body that has told all it could may give back another code than OK.
    """
    code: object = ExitCode.OK
    try:
        _set_up_telemetry()
        code = body()
    except CommandError as error:
        if as_json:
            write_json({"error": str(error), "exit_code": int(error.code), **error.facts})
        Console(stderr=True, highlight=False).print(
            f"error: {error}", markup=False, style="red", soft_wrap=True
        )
        leave(error.code)
    except KeyboardInterrupt:
        leave(INTERRUPTED)
    leave(code if isinstance(code, ExitCode) else ExitCode.OK)


def end_at_path(error: OSError, *, as_json: bool) -> NoReturn:
    """End a command at a path that it was given and that cannot be used."""

    def tell() -> None:
        reason = "it is no folder" if isinstance(error, FileExistsError) else error.strerror
        raise refused(
            f"cannot use {os.fsdecode(error.filename)}: {reason}. Next: name another path by the "
            "command's options or variables (a lab's: --dir or FLEETMEND_LAB, a folder of yours)"
        )

    run_command(tell, as_json=as_json)


def _set_up_telemetry() -> None:
    """What the modules below log is for processes; a person asks for it by the level."""
    try:
        set_up_telemetry("cli", {LEVEL_VARIABLE: "warning", **os.environ})
    except TelemetryError as error:
        raise wrong_usage(str(error)) from error


def write_json(value: object) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, default=_plain) + "\n")


def write_lines(lines: Sequence[str]) -> None:
    """Plain lines on standard output, never wrapped."""
    for line in lines:
        sys.stdout.write(line + "\n")


def console() -> Console:
    """The terminal of standard output."""
    return open_console()


def _plain(value: Any) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)
