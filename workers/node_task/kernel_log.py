"""The node task `kernel-log`: what the kernel itself said of the hardware since a time.

Owns one look through the log of this boot (the device FLEETMEND_KMSG, else the host's /dev/kmsg),
from its oldest record to the present one, and whether that is enough to call it clean. What a line
means is `activities/devices/kernel_readings.py` and the tables behind it. Reads only.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Final

from activities.devices.gpu_list import read_gpus
from activities.devices.kernel_lines import Kind, read_line
from activities.devices.kernel_readings import KernelReadings
from activities.devices.kmsg import Lost, Record, Splitter
from activities.devices.reading import Reading
from workers.node_task.host import Host
from workflows.model.detection.fault import SEVERITY, UNKNOWN_KIND, Fault
from workflows.model.detection.finding import printable
from workflows.model.node_task import MAX_FAILURES, Diagnosis, Failure, Health, TaskOrder

KMSG_ENV: Final = "FLEETMEND_KMSG"
KMSG: Final = "dev/kmsg"
READ_BYTES: Final = 64 * 1024
"""The kernel refuses a read that a record does not fit in; its own end at 8 KiB."""
READ_S: Final = 20.0
"""Longest look: a log that grows faster than it is read has no end."""
MAX_READINGS: Final = 1_000


class LogUnreadable(Exception):
    """The log cannot be read; the message says which file and why."""


def kernel_log(order: TaskOrder, host: Host) -> Diagnosis:
    """The hardware faults that the log tells of; clean only if it was read whole."""
    path = Path(os.environ.get(KMSG_ENV) or host.root / KMSG)
    try:
        seen = _look(path, host, order.since)
    except LogUnreadable as error:
        return Diagnosis(Health.UNKNOWN, str(error))
    hardware = sorted(seen.of(lambda f: f not in UNKNOWN_KIND), key=_gravity)
    if hardware:
        failures = tuple(_failure(one) for one in hardware[:MAX_FAILURES])
        detail = f"{len(hardware)} hardware faults in the kernel log; first: {failures[0]}"
        more = len(hardware) - len(failures)
        return Diagnosis(Health.FAULTY, printable(detail, 600), failures, more)
    doubtful = seen.of(lambda f: f in UNKNOWN_KIND)
    if doubtful:
        failures = tuple(_failure(one) for one in doubtful[:MAX_FAILURES])
        said = f"the kernel log has lines that nobody can explain: {failures[0]}"
        return Diagnosis(Health.UNKNOWN, printable(said, 600), failures)
    gap = seen.gap(order.since)
    if gap:
        return Diagnosis(Health.UNKNOWN, f"{path}: {gap}")
    since = f"since {order.since:%Y-%m-%d %H:%M:%S}" if order.since else "since the boot"
    return Diagnosis(Health.HEALTHY, f"no hardware fault in {seen.records} records {since}")


@dataclass
class _Seen:
    """What one look found."""

    readings: list[Reading] = field(default_factory=list)
    records: int = 0
    begins: datetime | None = None
    begins_whole: bool = False
    lost: bool = False
    cut_short: bool = False

    def of(self, kind: Callable[[Fault], bool]) -> list[Reading]:
        """The readings whose fault is a class of this kind (an application's is none)."""
        faults = set(Fault)
        return [r for r in self.readings if r.fault in faults and kind(Fault(r.fault))]

    def gap(self, since: datetime | None) -> str:
        """What is missing for a whole look; "" = nothing."""
        if self.records == 0:
            return "the log is empty, which the kernel's never is"
        if self.cut_short:
            return f"the log could not be read to its end within {READ_S:g} s"
        if self.lost:
            return "records were overwritten before they could be read"
        if self.begins_whole or (since and self.begins and self.begins <= since):
            return ""
        return f"the log reaches back only to {self.begins:%Y-%m-%d %H:%M:%S}; older is overwritten"


def _look(path: Path, host: Host, since: datetime | None) -> _Seen:
    seen, gpus = _Seen(), KernelReadings(lambda: read_gpus(host.root))
    now, clock = monotonic(), datetime.now(UTC)
    until = now + READ_S
    for item in _items(path, until):
        if isinstance(item, Lost):
            seen.lost = True
            continue
        at_s = item.usec / 1e6
        at = clock - timedelta(seconds=now - at_s)
        if seen.records == 0:
            seen.begins, seen.begins_whole = at, item.seq == 0
        seen.records += 1
        for line in item.lines:
            if since is None or at >= since or _names_a_gpu(line):
                seen.readings += gpus.take(line, at, at_s)
        if len(seen.readings) > MAX_READINGS:
            seen.cut_short = True
            break
    seen.cut_short = seen.cut_short or monotonic() >= until
    return seen


def _names_a_gpu(line: str) -> bool:
    """Said once when the driver is loaded: wanted for what comes later, whenever it was."""
    found = read_line(line)
    return found is not None and found.kind is Kind.UUID


def _items(path: Path, until: float) -> Iterator[Record | Lost]:
    """Every record that is there now."""
    splitter = Splitter()
    size = READ_BYTES
    with _opened(path) as descriptor:
        while monotonic() < until:
            try:
                data = os.read(descriptor, size)
            except BlockingIOError:
                break  # read to its end
            except OSError as error:
                if error.errno == errno.EPIPE:
                    yield Lost(0)
                    continue
                raise LogUnreadable(f"{path}: {error.strerror}") from error
            if not data:
                break
            yield from splitter.feed(data)
    yield from splitter.flush()


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise LogUnreadable(
            f"{path}: {error.strerror}: the task must be privileged, and see the host's /dev"
        ) from error
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)):
            raise LogUnreadable(f"{path}: neither a character device nor a FIFO; set {KMSG_ENV}")
        yield descriptor
    finally:
        os.close(descriptor)


def _gravity(reading: Reading) -> int:
    return -SEVERITY[Fault(reading.fault)]


def _failure(reading: Reading) -> Failure:
    return Failure(
        what=printable(reading.code, 64),
        device=printable(reading.device, 64),
        fault=printable(reading.fault, 64),
        words=printable(reading.text, 256),
    )
