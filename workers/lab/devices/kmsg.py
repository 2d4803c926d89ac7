r"""The kernel log of a simulated node: records in the kernel's format, read through FIFOs.

Owns the ring of the boot's records, their numbers and clock, and the FIFOs through which programs
read them. Each program gets its own FIFO (`offer`), as each opening of the real device has its own
place: it begins with the oldest record. A read gives one record (packets), and the oldest are
overwritten when a reader is slow, which shows as a gap in the numbers. The format is that of the
kernel's ABI document dev-kmsg. Nobody but the lab writes here.

Not as the device: no EPIPE after an overrun, no seeking, and one reader for each FIFO.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import time
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from workers.lab.devices.closing import ClosingWatch

RING_RECORDS: Final = 256
"""A pipe of 1 MiB, the most that an unprivileged user may have, holds so many packets."""
PIPE_BYTES: Final = RING_RECORDS * 4096
MAX_RECORD: Final = 4096
"""PIPE_BUF: a longer write would be cut in two packets. The kernel's own text ends at 1 KiB."""
WARNING: Final = 4
"""The level of NVRM's lines."""
BURST_CHUNK: Final = 500
BURST_LINES_PER_S: Final = 100_000

_ESCAPED: Final = re.compile(rb"[\x00-\x1f\x7f-\xff\\]")
_OVERWRITES: Final = 4
"""Tries to make room for one record; a reader may take the same packet at the same time."""


class Kmsg:
    """The log of one machine.

    Attributes:
        skew: what the kernel's clock is ahead of the machine's monotonic clock.
        written_at: epoch seconds of the latest record; 0.0 before the first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skew = timedelta()
        self.written_at = 0.0
        self._ring: deque[bytes] = deque(maxlen=RING_RECORDS)
        self._next_seq = 0
        self._pipes: dict[Path, int] = {}
        self._hidden: set[Path] | None = None
        self._closing = ClosingWatch(self._refill)

    @property
    def next_seq(self) -> int:
        """The number that the next record gets."""
        return self._next_seq

    def open(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Make the device at `path`.

        Args:
            loop: with one, a reader that comes after another one begins with the oldest record;
                without, it goes on where the other stopped.
        """
        if loop is not None:
            self._closing.start(loop)
        self.offer(self.path)

    def close(self) -> None:
        """Readers see the end of the log."""
        self._closing.stop()
        for path in list(self._pipes):
            self.withdraw(path)

    def offer(self, path: Path) -> None:
        """Make a FIFO at `path` that holds the ring's records, and each new one from now on."""
        if self._hidden is not None:
            self._hidden.add(path)
            return
        if path in self._pipes:
            self._refill(path)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_fifo():
            path.unlink(missing_ok=True)
            os.mkfifo(path, 0o600)
        # Read and write: readers never see an end, and the oldest packet can be taken out.
        pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_RDWR | os.O_NONBLOCK | os.O_DIRECT)
        with contextlib.suppress(OSError):
            # Refused if this user has too many pipes: then fewer records wait.
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._pipes[path] = pipe
        self._closing.add(path)
        self._refill(path)

    def withdraw(self, path: Path) -> None:
        """Take a FIFO away; nothing if there is none."""
        if self._hidden is not None:
            self._hidden.discard(path)
        pipe = self._pipes.pop(path, None)
        if pipe is None:
            return
        self._closing.remove(path)
        os.close(pipe)
        path.unlink(missing_ok=True)

    def hide(self) -> None:
        """Readers see the end of the log, and nobody can open it, until `show`."""
        if self._hidden is None:
            paths = tuple(self._pipes)
            for path in paths:
                self.withdraw(path)
            self._hidden = set(paths)

    def show(self) -> None:
        """End what `hide` began; nothing without it."""
        hidden, self._hidden = self._hidden, None
        for path in hidden or ():
            self.offer(path)

    def boot(self) -> None:
        """Another boot: nothing was said yet, and the numbers begin at 0."""
        self._ring.clear()
        self._next_seq = 0
        for path in self._pipes:
            self._refill(path)

    def write(
        self,
        text: str,
        *,
        priority: int = WARNING,
        keys: Mapping[str, str] | None = None,
        flags: str = "-",
        extra: str = "",
    ) -> int:
        r"""One record; gives its number back.

        Args:
            text: may hold line breaks and any character: they are escaped as the kernel does.
            priority: facility * 8 + level; the kernel's own facility is 0.
            keys: the dictionary, as ` KEY=value` lines after the text.
            flags: "-" whole, "c" first fragment of a continued line, "+" a later one.
            extra: more header fields, such as "caller=T123".
        """
        seq = self._take_number()
        fields = f"{priority},{seq},{self._microseconds()},{flags}"
        if extra:
            fields += f",{extra}"
        record = f"{fields};".encode() + _escape(text) + b"\n"
        for key, value in (keys or {}).items():
            record += b" " + _escape(f"{key}={value}") + b"\n"
        self._push(record)
        return seq

    def nvrm(self, text: str) -> int:
        """A line of the NVIDIA driver."""
        return self.write(f"NVRM: {text}")

    def write_raw(self, record: bytes) -> None:
        """A record as it stands, whatever is wrong with it; it takes a number of the log's."""
        self._take_number()
        self._push(record)

    async def burst(self, text: str, count: int, *, priority: int = WARNING) -> float:
        """`count` equal lines at 100,000 a second, the lab going on meanwhile; how long it took."""
        began = time.monotonic()
        for done in range(0, count, BURST_CHUNK):
            for _ in range(min(BURST_CHUNK, count - done)):
                self.write(text, priority=priority)
            ahead_s = began + done / BURST_LINES_PER_S - time.monotonic()
            await asyncio.sleep(max(0.0, ahead_s))
        return time.monotonic() - began

    def _take_number(self) -> int:
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        return seq

    def _microseconds(self) -> int:
        """The simulated machines share this one's monotonic clock: programs read it themselves."""
        return max(0, time.monotonic_ns() // 1000 + self.skew // timedelta(microseconds=1))

    def _push(self, record: bytes) -> None:
        if len(record) > MAX_RECORD:
            record = record[: MAX_RECORD - 1] + b"\n"
        self._ring.append(record)
        for pipe in self._pipes.values():
            _put(pipe, record)
        self.written_at = time.time()

    def _refill(self, path: Path) -> None:
        """Nobody reads this FIFO now: whoever comes next begins with the oldest record."""
        pipe = self._pipes[path]
        _drain(pipe)
        for record in self._ring:
            _put(pipe, record)


def _escape(text: str) -> bytes:
    r"""As the kernel prints it: `\xNN` for bytes below 32, from 127 on, and the backslash."""
    return _ESCAPED.sub(lambda found: b"\\x%02x" % found[0][0], text.encode())


def _put(pipe: int, record: bytes) -> None:
    for _ in range(_OVERWRITES):
        try:
            os.write(pipe, record)
        except BlockingIOError:
            _take_oldest(pipe)
        else:
            return


def _take_oldest(pipe: int) -> bool:
    """In packet mode a short read throws the rest of the packet away."""
    try:
        return bool(os.read(pipe, 1))
    except BlockingIOError:
        return False


def _drain(pipe: int) -> None:
    # Bounded: a pipe holds at most RING_RECORDS packets and nobody else writes.
    for _ in range(2 * RING_RECORDS):
        if not _take_oldest(pipe):
            return
