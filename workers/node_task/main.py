"""The program `fleetmend node-task KIND`: reads its order, carries it out, leaves its verdict.

Owns the edges: FLEETMEND_TASK (the order, JSON), FLEETMEND_HOST_ROOT (where the host's root is
mounted), FLEETMEND_TERMINATION_LOG (where the kubelet reads the verdict). What is done is
`task.py`. Runs on nodes: imports neither `kubernetes` nor `temporalio`.
"""

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from workers.node_task.host import Host, HostUnreadable
from workers.node_task.task import Tell, carry_out, verdict_on
from workflows.model.node_task import (
    MAX_LEVEL,
    MAX_VERDICT_BYTES,
    TASK_ENV,
    NotReadable,
    Result,
    TaskKind,
    TaskOrder,
    TaskVerdict,
    read_wire,
    write_wire,
)

HOST_ROOT_ENV: Final = "FLEETMEND_HOST_ROOT"
DEFAULT_HOST_ROOT: Final = "/host"
TERMINATION_LOG_ENV: Final = "FLEETMEND_TERMINATION_LOG"
DEFAULT_TERMINATION_LOG: Final = "/dev/termination-log"
EXIT_OF: Final[Mapping[Result, int]] = {Result.DONE: 0, Result.REFUSED: 3, Result.UNKNOWN: 4}
EXIT_BAD_ORDER: Final = 2


class VerdictNotLeft(Exception):
    """The kubelet will find no verdict; whoever asked counts the task as unknown."""


class BadOrder(ValueError):
    """The task was not told what to do; the message names the field."""


def main(kind: str, environment: Mapping[str, str] = os.environ) -> int:
    """One task, from its order to its verdict.

    Returns:
        The exit code: 0 done, 2 bad order, 3 refused, 4 unknown.
    """
    try:
        order = read_order(kind, environment.get(TASK_ENV, ""))
    except BadOrder as error:
        print(f"fleetmend node-task: {error}", file=sys.stderr)  # noqa: T201 - the pod's log
        return EXIT_BAD_ORDER
    log = Path(environment.get(TERMINATION_LOG_ENV, DEFAULT_TERMINATION_LOG))

    def tell(verdict: TaskVerdict) -> None:
        write_verdict(log, verdict)

    try:
        verdict = _carry_out(order, environment, tell)
    except VerdictNotLeft as error:
        print(f"{order.kind}: {Result.UNKNOWN}: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_OF[Result.UNKNOWN]
    print(f"{order.kind}: {verdict.result}: {verdict.detail}", file=sys.stderr)  # noqa: T201
    return EXIT_OF[verdict.result]


def _carry_out(order: TaskOrder, environment: Mapping[str, str], tell: Tell) -> TaskVerdict:
    try:
        host = Host.at(environment.get(HOST_ROOT_ENV, DEFAULT_HOST_ROOT))
        return carry_out(order, host, tell)
    except HostUnreadable as error:
        verdict = verdict_on(order, Result.UNKNOWN, str(error))
        tell(verdict)
        return verdict


def read_order(kind: str, text: str) -> TaskOrder:
    """The order in FLEETMEND_TASK.

    Raises:
        BadOrder: it is missing, no order, or for another kind of task than the command says.
    """
    if not text:
        raise BadOrder(f"{TASK_ENV} is not set; node tasks are started by fleetmend's worker")
    try:
        order = read_wire(text, TaskOrder)
    except NotReadable as error:
        raise BadOrder(f"{TASK_ENV}: {error}") from error
    if order.kind != kind:
        raise BadOrder(f"{TASK_ENV} is an order for {order.kind}, the command says {kind}")
    if order.kind is TaskKind.DIAGNOSE and (order.level < 1 or not order.limit_s):
        raise BadOrder(f"{TASK_ENV}: diagnose needs level 1 to {MAX_LEVEL} and a limit_s above 0")
    return order


def write_verdict(log: Path, verdict: TaskVerdict) -> None:
    """Leaves the verdict for the kubelet, in place of an earlier one, and on the disk.

    Raises:
        VerdictNotLeft: the disk is full, or the file is not there to be written.
    """
    try:
        with log.open("wb") as file:
            file.write(encode_verdict(verdict))
            file.flush()
            with contextlib.suppress(OSError):  # a device or pipe has no disk behind it
                os.fsync(file.fileno())
    except OSError as error:
        raise VerdictNotLeft(
            f"{log}: the verdict cannot be left ({error.strerror}): the task ends here, and counts "
            "as unknown"
        ) from error


def encode_verdict(verdict: TaskVerdict) -> bytes:
    """The verdict as JSON of at most `MAX_VERDICT_BYTES`.

    A longer one loses its last failures (they are counted), then its detail's end, and, if that is
    not enough, becomes unknown: a part of the GPUs would be a false count.
    """
    content = write_wire(verdict)
    while len(content) > MAX_VERDICT_BYTES and len(verdict.failures) > 1:
        verdict = replace(verdict, failures=verdict.failures[:-1], more=verdict.more + 1)
        content = write_wire(verdict)
    over = len(content) - MAX_VERDICT_BYTES
    if over <= 0:
        return content
    room = max(0, len(verdict.detail) - over - 8)
    shorter = replace(verdict, detail=verdict.detail[:room])
    content = write_wire(shorter)
    if len(content) <= MAX_VERDICT_BYTES:
        return content
    untold = replace(
        verdict,
        result=Result.UNKNOWN,
        detail="the verdict is too long to be told whole",
        gpus=(),
        model="",
        health=None,
        failures=(),
    )
    return write_wire(untold)
