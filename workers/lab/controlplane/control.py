"""The supervisor's control socket: its messages, and the client side.

Owns one request and one answer, each a line of JSON. `supervisor.py` serves them; `lab.py` and the
tests send them. Only the user who owns the lab directory can reach the socket.
"""

import signal
from enum import StrEnum
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from workers.lab.address import Component, LabNotRunning
from workers.lab.controlplane.errors import LabCommandRefused
from workers.lab.paths import LabPaths, connect_unix

MAXIMUM_MESSAGE_BYTES: Final = 1 << 20
# A start waits for readiness; the supervisor's own limit is a little shorter.
ANSWER_TIMEOUT_S: Final = 150.0


class LabCommand(StrEnum):
    """What a supervisor can be asked to do."""

    KILL = "kill"  # SIGKILL, and wait until it is gone
    STOP = "stop"  # SIGTERM, SIGKILL after the grace, and wait until it is gone
    START = "start"  # same data, same port, and wait until it is ready
    RESTART = "restart"  # kill and start
    SIGNAL = "signal"
    SHUTDOWN = "shutdown"  # the whole lab; answered before it happens


class LabSignal(StrEnum):
    """Signals that a component may be sent."""

    STOP = "SIGSTOP"
    CONTINUE = "SIGCONT"
    TERMINATE = "SIGTERM"
    INTERRUPT = "SIGINT"
    USER_1 = "SIGUSR1"

    @property
    def number(self) -> signal.Signals:
        """The kernel's number of it."""
        return signal.Signals[self.value]


class ControlRequest(BaseModel):
    """One request to a supervisor."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: LabCommand
    component: Component | None = None
    signal: LabSignal | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> "ControlRequest":
        if (self.component is None) != (self.command is LabCommand.SHUTDOWN):
            raise ValueError(f"{self.command}: every command but shutdown needs a component")
        if (self.signal is None) == (self.command is LabCommand.SIGNAL):
            raise ValueError(f"{self.command}: a signal belongs to the command signal, and only it")
        return self


class ControlAnswer(BaseModel):
    """The supervisor's answer."""

    model_config = ConfigDict(frozen=True)

    refusal: str = ""  # "" = done


def lab_control(directory: Path, request: ControlRequest) -> None:
    """Have the lab's supervisor carry out a command; returns when it is done.

    Raises:
        LabNotRunning: no supervisor answers in that directory.
        LabCommandRefused: it answered that it can't; the message says why.
    """
    try:
        connection = connect_unix(
            LabPaths(directory.absolute()).control_socket, timeout_s=ANSWER_TIMEOUT_S
        )
    except OSError as error:
        raise LabNotRunning(directory, f"its control socket doesn't answer: {error}") from error
    with connection, connection.makefile("rwb") as stream:
        try:
            stream.write(request.model_dump_json().encode() + b"\n")
            stream.flush()
            line = stream.readline(MAXIMUM_MESSAGE_BYTES)
            answer = ControlAnswer.model_validate_json(line)
        except TimeoutError as error:
            raise LabCommandRefused(
                f"{request.command} {request.component or ''}: no answer within "
                f"{ANSWER_TIMEOUT_S:.0f} s"
            ) from error
        except (OSError, ValidationError) as error:
            raise LabNotRunning(directory, "its supervisor went away in mid answer") from error
    if answer.refusal:
        raise LabCommandRefused(answer.refusal)
