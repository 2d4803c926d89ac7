"""The node task `diagnose`: one run of `dcgmi diag`, ended when its time is over.

Owns the process: the fixed command, its own process group, the wall clock, what is left behind when
it had to be killed, and the bounded copy of its output in the pod's log. What the output means is
`activities/devices/dcgm_diag.py`. Reads the GPUs through DCGM only; writes nothing on the host.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from types import FrameType
from typing import IO, Final

from activities.devices.dcgm_diag import judge_diag
from activities.devices.dcgm_discovery import DISCOVER, why_foreign
from activities.devices.dcgm_output import MAX_OUTPUT
from activities.devices.parent import die_with_parent
from workers.node_task.host import Host, HostUnreadable
from workflows.model.host_engine import (
    HostEngineError,
    host_engine,
    host_words,
    is_over_network,
)
from workflows.model.node_task import Diagnosis, Health, TaskOrder

PROGRAM: Final = "dcgmi"
NVVS: Final = "nvvs"
"""The program that DCGM's diagnostic runs in; killing only dcgmi leaves it on the GPUs."""
LOG_BYTES: Final = 256 * 1024
TERM_S: Final = 5.0
"""Between SIGTERM (dcgmi then tries to stop the run) and SIGKILL."""
GONE_S: Final = 3.0
"""Within which a killed group is gone; what stays hangs in the driver."""
LOOK_S: Final = 0.05
DISCOVER_S: Final = 20.0
"""For the question whose GPUs a host engine on the network serves; as long as a poll of the agent's."""


@dataclass(frozen=True)
class _Ended:
    """How the run ended; `exit_code` None = it had to be killed."""

    output: str
    exit_code: int | None
    survivors: int


def diagnose(
    order: TaskOrder, host: Host, environment: Mapping[str, str] = os.environ
) -> Diagnosis:
    """Runs the diagnostic of the order's level; every way in which it gives no answer is unknown."""
    limit_s = order.limit_s or 0.0
    program = shutil.which(PROGRAM)
    if program is None:
        return Diagnosis(
            Health.UNKNOWN,
            f"{PROGRAM} is not on PATH: the image needs DCGM, or set diagnose_level: 0",
        )
    try:
        engine = host_engine(environment)
    except HostEngineError as error:
        return Diagnosis(Health.UNKNOWN, str(error))
    try:
        why = _why_foreign(program, engine, host)
        if why:
            return Diagnosis(Health.UNKNOWN, why)
        words = ("diag", "-r", str(order.level), "-j", *host_words(engine))
        ended = _run([program, *words], limit_s)
    except OSError as error:
        return Diagnosis(Health.UNKNOWN, f"{program} could not be started: {error.strerror}")
    left = f"; {_left_behind(host, ended)}" if ended.exit_code is None else ""
    if ended.exit_code is None:
        return Diagnosis(
            Health.UNKNOWN,
            f"dcgmi diag level {order.level}: no end within {limit_s:g} s{left}",
        )
    return judge_diag(
        ended.output, ended.exit_code, level=order.level, expected_gpus=order.expected_gpus
    )


def _why_foreign(program: str, engine: str, host: Host) -> str:
    """Why the diagnostic would not run on this node's GPUs, or may not; "" = it would."""
    if not is_over_network(engine):
        return ""
    asked = "dcgmi discovery"
    try:
        of_node = host.gpus().uuids
    except HostUnreadable as error:
        return f"{asked}: whether {engine} serves this node's GPUs cannot be told: {error}"
    ended = _run([program, *DISCOVER, *host_words(engine)], DISCOVER_S)
    if ended.exit_code is None:
        return f"{asked}: {engine} gave no answer within {DISCOVER_S:g} s"
    if ended.exit_code != 0:
        words = ended.output[-200:].strip()
        return f"{asked}: {engine}: exit code {ended.exit_code}: {words}"
    return why_foreign(ended.output, engine, of_node)


def _run(command: list[str], limit_s: float) -> _Ended:
    """The command to its end, or to the end of its time; its output goes to the pod's log too."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - no thread runs yet
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said, complained = _Reader(process.stdout, MAX_OUTPUT + 1), _Reader(process.stderr, LOG_BYTES)
    survivors = 0
    exit_code: int | None = None
    with _ending_with_us(process):
        try:
            exit_code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            survivors = _end(process)
        else:
            _kill(process, signal.SIGKILL)  # nobody of its group outlives it and works on
    output = said.text()
    _log(output, complained.text())
    return _Ended(output, exit_code, survivors)


class _Reader:
    """Drains a pipe and keeps its beginning; a process that writes without end is not stopped."""

    def __init__(self, pipe: IO[bytes], limit: int) -> None:
        self._pipe = pipe
        self._limit = limit
        self._kept = bytearray()
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        descriptor = self._pipe.fileno()
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(descriptor, 65_536):
                self._kept += chunk[: max(0, self._limit - len(self._kept))]

    def text(self) -> str:
        """What was kept; a process that cannot be killed may hold the pipe open for ever."""
        self._thread.join(GONE_S)
        return bytes(self._kept).decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> int:
    """Ends the group; how many of it are still there."""
    _kill(process, signal.SIGTERM)
    _until_gone(process, TERM_S)
    _kill(process, signal.SIGKILL)
    _until_gone(process, GONE_S)
    return _members(process.pid)


def _until_gone(process: subprocess.Popen[bytes], within_s: float) -> None:
    until = monotonic() + within_s
    while monotonic() < until:
        process.poll()
        if _members(process.pid) == 0:
            return
        sleep(LOOK_S)


def _kill(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _members(group: int) -> int:
    """Processes of the group that are not yet dead, by this pod's own /proc."""
    count = 0
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = (process / "stat").read_text(encoding="utf-8", errors="replace")
                state, _, its_group, *_ = text.rpartition(")")[2].split()
                count += int(its_group) == group and state not in "ZX"
    return count


def _left_behind(host: Host, ended: _Ended) -> str:
    """What a killed diagnostic left on the node, for people."""
    if ended.survivors:
        return f"{ended.survivors} processes cannot be killed: the driver hangs"
    count = host.processes_named(NVVS)
    return f"{count} {NVVS} are left on the node" if count else f"no {NVVS} is left behind"


def _log(output: str, complaints: str) -> None:
    """Into the pod's log, bounded; a verdict tells only the worst."""
    text = f"{complaints}\n{output}" if complaints else output
    kept = text.encode("utf-8", "replace")[:LOG_BYTES].decode("utf-8", "replace")
    with contextlib.suppress(OSError):  # a full disk: the verdict does not need it
        print(kept, file=sys.stderr)  # noqa: T201 - the pod's log


@contextlib.contextmanager
def _ending_with_us(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """While it runs, a SIGTERM to the task ends the diagnostic first."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return

    def end(number: int, _: FrameType | None) -> None:
        _kill(process, signal.SIGKILL)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
