"""The node tasks: counting the GPUs, diagnosing them, reading the kernel log, asking for a reboot.

Owns when a task refuses (another boot than the expected one, too late, a GPU in use), the two short
kinds, and the verdict. The others are `diagnose.py` and `kernel_log.py`; what is read of the node is
`host.py`; who started the task and how its verdict travels is `main.py`. Acts only below the host
root.
"""

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from msgspec.structs import replace

from workers.node_task.host import Host, HostUnreadable
from workflows.model.detection.finding import printable
from workflows.model.node_task import (
    JUDGING,
    Diagnosis,
    Result,
    TaskKind,
    TaskOrder,
    TaskVerdict,
)

REBOOT_COMMAND: Final = ("/usr/bin/systemctl", "reboot")
"""systemctl(1); run inside the host root, so it is the host's own program and its own manager."""
NEVER_RAN: Final = frozenset({125, 126, 127})
"""Exit codes with which chroot says that the command was not run (GNU coreutils 9 manual)."""
COMMAND_S: Final = 30.0
MAX_DETAIL: Final = 600

Tell = Callable[[TaskVerdict], None]
"""Writes a verdict where the kubelet finds it; a later one takes its place."""


def carry_out(order: TaskOrder, host: Host, tell: Tell) -> TaskVerdict:
    """Does what the order says; the last verdict that was told."""
    verdict = _refusal(order, host)
    if verdict is None and order.kind is TaskKind.REBOOT:
        return _reboot(order, host, tell)
    if verdict is None and order.kind in JUDGING:
        verdict = _judge(order, host)
    elif verdict is None:
        verdict = _inventory(order, host)
    tell(verdict)
    return verdict


def verdict_on(order: TaskOrder, result: Result, detail: str, *, boot_id: str = "") -> TaskVerdict:
    """A verdict without GPUs or health."""
    return TaskVerdict(
        kind=order.kind,
        episode=order.episode,
        task=order.task,
        boot_id=boot_id,
        result=result,
        detail=printable(detail, MAX_DETAIL),
    )


def _refusal(order: TaskOrder, host: Host) -> TaskVerdict | None:
    """Why nothing is done; None = go on. What cannot be told is a reason as well."""
    try:
        boot_id = host.boot_id()
    except HostUnreadable as error:
        return verdict_on(order, Result.UNKNOWN, str(error))
    detail = ""
    if order.kind is TaskKind.REBOOT and not order.expected_boot_id:
        detail = "expected_boot_id is missing: a reboot is bound to one boot"
    elif order.expected_boot_id and order.expected_boot_id != boot_id:
        detail = f"the machine is in boot {boot_id}, not in {order.expected_boot_id}"
    elif order.not_after is not None and datetime.now(UTC) > order.not_after:
        detail = f"too late: this was to be done before {order.not_after.isoformat()}"
    elif order.refuse_if_gpu_in_use:
        detail = _gpu_in_use(host)
    return verdict_on(order, Result.REFUSED, detail, boot_id=boot_id) if detail else None


def _gpu_in_use(host: Host) -> str:
    try:
        holders = host.gpu_holders()
    except HostUnreadable as error:
        return f"cannot tell whether a GPU is in use: {error}"
    return f"a GPU is in use by {', '.join(holders[:4])}" if holders else ""


def _inventory(order: TaskOrder, host: Host) -> TaskVerdict:
    boot_id = host.boot_id()
    try:
        found = host.gpus()
    except HostUnreadable as error:
        return verdict_on(order, Result.UNKNOWN, str(error), boot_id=boot_id)
    detail = f"{len(found.uuids)} GPUs"
    if found.unreadable:
        detail += f"; without a readable UUID: {', '.join(found.unreadable)}"
    return TaskVerdict(
        kind=order.kind,
        episode=order.episode,
        task=order.task,
        boot_id=boot_id,
        result=Result.DONE,
        detail=printable(detail, MAX_DETAIL),
        gpus=found.uuids,
        model=printable(found.model, 128),
    )


def _judge(order: TaskOrder, host: Host) -> TaskVerdict:
    """The boot is read before and after: a verdict belongs to one boot."""
    boot_id = host.boot_id()
    found = _find_faults(order, host)
    if host.boot_id() != boot_id:
        return verdict_on(order, Result.UNKNOWN, "the machine booted while it was asked")
    plain = verdict_on(order, Result.DONE, found.detail, boot_id=boot_id)
    return replace(plain, health=found.health, failures=found.failures, more=found.more)


def _find_faults(order: TaskOrder, host: Host) -> Diagnosis:
    """Imported here: the two short kinds, the reboot of a sick node among them, need neither."""
    if order.kind is TaskKind.DIAGNOSE:
        from workers.node_task.diagnose import diagnose

        return diagnose(order, host)
    from workers.node_task.kernel_log import kernel_log

    return kernel_log(order, host)


def _reboot(order: TaskOrder, host: Host, tell: Tell) -> TaskVerdict:
    """The verdict first: once the command has run, there may be no time left to write one."""
    boot_id = host.boot_id()
    asked = verdict_on(order, Result.DONE, "asked the host to reboot", boot_id=boot_id)
    tell(asked)
    failure = _run(["chroot", str(host.root), *REBOOT_COMMAND])
    if failure is None:
        return asked
    result, detail = failure
    failed = verdict_on(order, result, detail, boot_id=boot_id)
    tell(failed)
    return failed


def _run(command: list[str]) -> tuple[Result, str] | None:
    """None = the command reported success; else what is known of the reboot, and why."""
    try:
        ended = subprocess.run(command, capture_output=True, timeout=COMMAND_S, check=False)
    except OSError as error:
        return Result.REFUSED, f"{' '.join(command)}: could not be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        return Result.UNKNOWN, f"{' '.join(command)}: no end within {COMMAND_S:g} s"
    if ended.returncode == 0:
        return None
    said = ended.stderr[-300:].decode("utf-8", "replace")
    result = Result.REFUSED if ended.returncode in NEVER_RAN else Result.UNKNOWN
    return result, f"{' '.join(command)}: exit code {ended.returncode}: {said}"
