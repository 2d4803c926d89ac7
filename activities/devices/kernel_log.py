"""The kernel log as a source: Xid, SXid and losses without a number, told as they are written.

Owns the loop between the log device (`kmsg.py`) and what its lines are worth
(`kernel_readings.py`). The first line of a fault is yielded with the read that brought it: nothing
is collected first. Answers for GPUs and interconnect while the log can be read.
"""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from activities.devices.fact import utc_now
from activities.devices.gpu_list import GpuList, read_gpus
from activities.devices.kernel_lines import is_of_interest
from activities.devices.kernel_readings import KernelReadings
from activities.devices.kmsg import KernelLog, Lost, Record
from activities.devices.reading import ConditionType, Reading

ALIVE_S: Final = 5.0
"""Longest time between two items of the stream: a third of the deadline, so one may be late."""
COUNT_S: Final = 1.0
"""How often the counts of open bursts are looked at."""
LIST_S: Final = 2.0
"""How long the driver's files are waited for: it may hang on them, which is when lines matter."""
MAX_ITEM: Final = 64
"""Readings of one item; more follow in the next."""


class KernelLogSource:
    """A `StreamedSource` over the log device at `path`."""

    name = "kernel-log"
    deadline_s = 15.0
    conditions = frozenset({ConditionType.GPU, ConditionType.INTERCONNECT})

    def __init__(
        self, path: Path, host_root: Path, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._path = path
        self._host_root = host_root
        self._clock = clock

    def stream(self) -> Iterator[tuple[Reading, ...]]:
        """What the log says, beginning with what it has said since the boot.

        Raises:
            CannotTell: the log is absent or unreadable, or has ended for long.
        """
        log = KernelLog(self._path, is_of_interest)
        try:
            yield from self._items(log)
        finally:
            log.close()

    def _items(self, log: KernelLog) -> Iterator[tuple[Reading, ...]]:
        log.open()  # first of all: what is written from here on waits for us
        readings = KernelReadings(self._listed)
        readings.look(time.monotonic())
        told_at: float | None = None
        while True:
            wait_s = ALIVE_S if readings.is_quiet else COUNT_S
            if told_at is None or not log.has_caught_up:
                wait_s = 0.0
            found = list(self._read(log, readings, wait_s))
            now = time.monotonic()
            found += readings.due(now)
            # Silence is "alive" only when everything from before was read.
            is_due = log.has_caught_up if told_at is None else now - told_at >= ALIVE_S
            if found or is_due:
                told_at = now
                yield tuple(found[:MAX_ITEM])
                for begin in range(MAX_ITEM, len(found), MAX_ITEM):
                    yield tuple(found[begin : begin + MAX_ITEM])

    def _listed(self) -> GpuList:
        """The host's GPUs; none if the driver keeps its files back: lines are told all the same."""
        found: list[GpuList] = []
        reading = threading.Thread(
            target=lambda: found.append(read_gpus(self._host_root)), daemon=True
        )
        reading.start()
        reading.join(LIST_S)
        return found[0] if found else GpuList()

    def _read(self, log: KernelLog, readings: KernelReadings, wait_s: float) -> Iterator[Reading]:
        is_fresh = log.has_caught_up
        for item in log.read(wait_s):
            now, at = time.monotonic(), self._clock()
            if isinstance(item, Lost):
                yield from readings.lost(item.count, at, now)
                continue
            for line in item.lines:
                yield from readings.take(line, at if is_fresh else _written(item, at, now), now)


def _written(record: Record, at: datetime, now: float) -> datetime:
    """When a record from before was written, by its age on the kernel's clock."""
    age_s = now - record.usec / 1e6
    return at - timedelta(seconds=age_s) if age_s > 0 else at
