"""The kernel's log device: whole records, one after the other, whatever happens to the device.

Owns the record format (kernel ABI document `dev-kmsg`) and a reader that is bounded in memory and
outlives overruns, odd records and a device that closes. Does not know what a line means
(`kernel_lines` does). A FIFO with the same records is read like the device.
"""

import errno
import os
import re
import select
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from activities.devices.reading import CannotTell

MAX_RECORD = 32 * 1024
"""A longer record is cut; the kernel's own records end at 8 KiB with all bytes escaped."""
_FIRST_READ = 16 * 1024
_LARGEST_READ = 256 * 1024
MAX_FRAGMENTS = 4096
"""How much text the fragments of one continued line may have together."""
FRAGMENT_WAIT_S = 0.02
"""How long the first fragment of a line waits for the next; ours: far above one printk."""
CLOSED_S = 30.0
"""A device that gives nothing but end-of-file for so long is lost."""
_HEADER = re.compile(rb"(\d{1,5}),(\d{1,20}),(\d{1,20}),([^,;]?)[^;]{0,512};")
"""prio, seq, usec, flag; more fields may follow. A line of the dictionary begins with a space."""
_BACK_OFF_S = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class Record:
    """One kernel record.

    Attributes:
        seq: the kernel's number of it; gaps are lost records.
        usec: the kernel's clock at the line, in microseconds since boot.
        lines: its text, escapes decoded, one item for each line in it.
        cut: True if the record was longer than `MAX_RECORD`.
    """

    seq: int
    usec: int
    lines: tuple[str, ...]
    cut: bool = False


@dataclass(frozen=True)
class Lost:
    """`count` records were overwritten before they could be read; 0 = not known how many."""

    count: int


@dataclass
class _Open:
    """The first fragment of a continued line, until its last one is known."""

    seq: int
    usec: int
    text: bytes
    since: float


def _any(_: bytes) -> bool:
    return True


class Splitter:
    """Bytes of the device in, records out: any cut of the bytes gives the same records.

    `wanted` sees the raw text of a record and says whether it is worth decoding: a flood of other
    lines costs little.
    """

    def __init__(self, wanted: Callable[[bytes], bool] = _any) -> None:
        self._wanted = wanted
        self._rest = b""
        self._skipping = False
        self._open: _Open | None = None
        self._next_seq: int | None = None
        self._latest = (-1, -1)
        self._seen = (-1, -1)

    def feed(self, data: bytes) -> Iterator[Record | Lost]:
        """The records that `data` completes, in order, and the gaps between them."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if self._skipping:
                self._skipping = False
            elif not self._is_passed_over(line):
                yield from self._line(line[:MAX_RECORD], cut=len(line) > MAX_RECORD)
        if self._skipping:
            self._rest = b""
        elif len(self._rest) > MAX_RECORD:
            # What it began with is enough to know what it is; its end is thrown away unread.
            head, self._rest, self._skipping = self._rest[:MAX_RECORD], b"", True
            yield from self._line(head, cut=True)

    @property
    def is_waiting(self) -> bool:
        """True while the first fragment of a line waits for its next."""
        return self._open is not None

    def flush(self, now: float | None = None) -> Iterator[Record]:
        """The fragments that waited long enough at `now` (monotonic); None = all of them."""
        kept = self._open
        if kept is not None and (now is None or now - kept.since >= FRAGMENT_WAIT_S):
            self._open = None
            yield from self._record(kept.seq, kept.usec, kept.text)

    def end(self) -> Iterator[Record | Lost]:
        """The device ended: what it said last, though without its end; then start anew.

        It will give its oldest record first: what was read already is left out.
        """
        rest, self._rest = self._rest, b""
        if not self._skipping:
            yield from self._line(rest, cut=True)
        yield from self.flush()
        self._skipping, self._seen, self._next_seq = False, self._latest, None

    def _is_passed_over(self, line: bytes) -> bool:
        """The short way of a flood: the next number, a whole line, and nothing of interest."""
        header = _HEADER.match(line)
        if header is None:
            return True
        if header[4] != b"-" or self._open is not None or self._wanted(line):
            return False
        seq = int(header[2])
        if seq != self._next_seq:
            return False  # also the first after an opening, which may be a known one
        self._next_seq = seq + 1
        self._latest = (seq, int(header[3]))
        return True

    def _line(self, line: bytes, *, cut: bool) -> Iterator[Record | Lost]:
        header = _HEADER.match(line)
        if header is None:
            return
        prio, seq, usec = int(header[1]), int(header[2]), int(header[3])
        flag, text = header[4], line[header.end() :]
        if seq <= self._seen[0] and usec <= self._seen[1]:
            return
        yield from self._gap(seq)
        self._latest = (seq, usec)
        if prio > 7:
            return  # facility 0 only: user space may write here too, and can write anything
        if flag == b"+" and self._open is not None:
            self._open.text = (self._open.text + text)[:MAX_FRAGMENTS]
            return
        yield from self.flush()
        if flag == b"c":
            self._open = _Open(seq, usec, text[:MAX_FRAGMENTS], time.monotonic())
            return
        yield from self._record(seq, usec, text, cut=cut)

    def _record(self, seq: int, usec: int, text: bytes, *, cut: bool = False) -> Iterator[Record]:
        if self._wanted(text):
            yield Record(seq, usec, tuple(_decoded(text).splitlines()), cut)

    def _gap(self, seq: int) -> Iterator[Lost]:
        expected, self._next_seq = self._next_seq, seq + 1
        if expected is not None and seq > expected:
            yield Lost(seq - expected)


def _decoded(text: bytes) -> str:
    r"""`\xNN` turned back into bytes, then UTF-8; an escape that is none stays as it is."""
    if b"\\x" in text:
        first, *others = text.split(b"\\x")
        parts = [first]
        for part in others:
            try:
                parts.append(bytes((int(part[:2].decode("ascii"), 16),)) + part[2:])
            except ValueError:
                parts.append(b"\\x" + part)
        text = b"".join(parts)
    return text.decode(errors="replace")


class KernelLog:
    """An open kernel log; reads never block for longer than they are asked to.

    Opening the device begins with its oldest record, so what was said since the boot, also before
    this process began, is read first.
    """

    def __init__(self, path: Path, wanted: Callable[[bytes], bool] = _any) -> None:
        self._path = path
        self._fd = -1
        self._size = _FIRST_READ
        self._splitter = Splitter(wanted)
        self.has_caught_up = False
        """True once everything that was said before the opening is read."""
        self._closed_since: float | None = None
        self._failures = 0

    def open(self) -> None:
        """Open it if it is not; raises CannotTell as `read` does."""
        if self._fd < 0:
            self._fd = self._opened()

    def read(self, timeout_s: float) -> Iterator[Record | Lost]:
        """What is there, waiting at most `timeout_s` for the first of it; may be nothing.

        Raises:
            CannotTell: the device is absent, unreadable, or gave nothing but its end for long.
        """
        self.open()
        if self._splitter.is_waiting:
            timeout_s = min(timeout_s, FRAGMENT_WAIT_S)
        ready, _, _ = select.select([self._fd], [], [], timeout_s)
        if ready:
            yield from self._read_once()
        else:
            self._closed_since, self._failures, self.has_caught_up = None, 0, True
        yield from self._splitter.flush(time.monotonic())

    def close(self) -> None:
        """Give the device back; reading again opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_once(self) -> Iterator[Record | Lost]:
        try:
            data = os.read(self._fd, self._size)
        except OSError as error:
            yield from self._refused(error)
            return
        if data:
            self._closed_since, self._failures = None, 0
            yield from self._splitter.feed(data)
        else:
            yield from self._reopen("it ended")

    def _refused(self, error: OSError) -> Iterator[Record | Lost]:
        if error.errno in (errno.EAGAIN, errno.EINTR):
            return
        if error.errno == errno.EPIPE:
            # Overwritten before they were read; the next record's number says how many.
            yield Lost(0)
        elif error.errno == errno.EINVAL and self._size < _LARGEST_READ:
            self._size *= 2
        else:
            yield from self._reopen(error.strerror or str(error))

    def _reopen(self, why: str) -> Iterator[Record | Lost]:
        """Open anew before closing: what a writer put into a FIFO meanwhile is kept.

        The first time is at once, the next ones wait longer each time.
        """
        yield from self._splitter.end()
        now = time.monotonic()
        self._closed_since = self._closed_since or now
        if now - self._closed_since > CLOSED_S:
            self.close()
            raise CannotTell(
                f"kernel log {self._path}: closed for {CLOSED_S:.0f} s ({why}); see what holds it, "
                "then restart the agent's pod"
            )
        time.sleep(_BACK_OFF_S[min(self._failures, len(_BACK_OFF_S) - 1)])
        self._failures += 1
        old, self._fd = self._fd, self._opened()
        os.close(old)

    def _opened(self) -> int:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise CannotTell(
                f"kernel log {self._path}: {error.strerror}; the agent's pod must mount it and may "
                "need CAP_SYSLOG"
            ) from error
        mode = os.fstat(fd).st_mode
        if not (stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)):
            os.close(fd)
            raise CannotTell(
                f"kernel log {self._path}: neither a character device nor a FIFO; set FLEETMEND_KMSG"
            )
        return fd
