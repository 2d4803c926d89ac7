"""Being told when a reader closes a FIFO: inotify, which Python's library doesn't offer.

Owns one inotify descriptor and its watches. Does not know what is in the files; `kmsg` fills a
FIFO anew when its reader went.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

_CLOSED_AFTER_READING: Final = 0x10
"""IN_CLOSE_NOWRITE of inotify(7): the lab's own descriptor is open for writing, so it is none."""
_EVENT: Final = struct.Struct("iIII")
_BUFFER: Final = 64 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


class ClosingWatch:
    """Calls `closed(path)` from the loop after a reader of a watched file closed it."""

    def __init__(self, closed: Callable[[Path], None]) -> None:
        self._closed = closed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fd = -1
        self._paths: dict[int, Path] = {}

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin; files added before are not watched."""
        if self._fd >= 0:
            return
        self._fd = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")
        self._loop = loop
        loop.add_reader(self._fd, self._read)

    def stop(self) -> None:
        if self._fd < 0:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1
        self._paths.clear()

    def add(self, path: Path) -> None:
        """Watch a file; nothing before `start`."""
        if self._fd < 0:
            return
        name = os.fsencode(path)
        answer = _libc.inotify_add_watch(self._fd, name, _CLOSED_AFTER_READING)
        self._paths[_checked(answer, f"inotify_add_watch {path}")] = path

    def remove(self, path: Path) -> None:
        for watch, known in list(self._paths.items()):
            if known == path:
                del self._paths[watch]
                _libc.inotify_rm_watch(self._fd, watch)

    def _read(self) -> None:
        try:
            events = os.read(self._fd, _BUFFER)
        except BlockingIOError:
            return
        closed: dict[Path, None] = {}
        at = 0
        while at < len(events):
            watch, mask, _, length = _EVENT.unpack_from(events, at)
            at += _EVENT.size + length
            if mask & _CLOSED_AFTER_READING and watch in self._paths:
                closed[self._paths[watch]] = None
        for path in closed:
            self._closed(path)


def _checked(answer: int, what: str) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return answer
