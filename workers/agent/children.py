"""One child process that runs one source, and the pipes to it.

Owns the fork, the child's own loop, its end (SIGKILL to its process group, then to what is left of
its session, then reaping), and the lines it writes. Judges nothing: what a silence or an end means is `supervision.py`'s. A child is
forked from the agent itself, so that its memory is shared until it imports a library of its own.
"""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from activities.devices.reading import CannotTell, PolledSource, StreamedSource
from workers.agent.answer import MAX_LINE_BYTES, encode_cannot_tell, encode_readings

Source = PolledSource | StreamedSource
Kill = Callable[[int, int], None]
"""Sends a signal to a process group, as os.killpg does."""

EXIT_ERROR: Final = 70
READ_BYTES: Final = 64 * 1024
ASK: Final = b"?"
ADOPTED_S: Final = 1.0
_ASK_FD, _ANSWER_FD = 3, 4
_MAX_FD: Final = 65_536
_PR_SET_PDEATHSIG: Final = 1
"""linux/prctl.h."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ears:
    """Who is told what happens to a child."""

    line: Callable[[bytes], None]
    """One whole line, without its end."""
    garbage: Callable[[str], None]
    """What it wrote is no line; why."""
    ended: Callable[[str], None]
    """It is gone and reaped; how it ended."""


class Child:
    """A running child; made by `start`, over when `ears.ended` was called."""

    def __init__(self, pid: int, ask: int, answer: int, ears: Ears) -> None:
        self.pid = pid
        self._ask = ask
        self._answer = answer
        self._ears = ears
        self._pending = bytearray()
        self._is_deaf = False
        self._loop = asyncio.get_running_loop()
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(ask)
            os.close(answer)
            raise
        self._loop.add_reader(answer, self._read)
        self._loop.add_reader(self._pidfd, self._reap)

    @classmethod
    def start(cls, source: Source, ears: Ears) -> "Child":
        """Fork it.

        Raises:
            OSError: the machine has no process or no file to give.
        """
        parent = os.getpid()
        ask_read, ask_write = os.pipe()
        answer_read, answer_write = os.pipe()
        ends = (ask_read, ask_write, answer_read, answer_write)
        try:
            pid = os.fork()
        except OSError:
            for end in ends:
                os.close(end)
            raise
        if pid == 0:
            _live(source, ask_read, answer_write, parent)
        os.close(ask_read)
        os.close(answer_write)
        os.set_blocking(answer_read, False)
        os.set_blocking(ask_write, False)
        return cls(pid, ask_write, answer_read, ears)

    def ask(self) -> None:
        """Ask a polled source for its next answer."""
        # A child that has ended meanwhile is told by `ended`.
        with contextlib.suppress(OSError):
            os.write(self._ask, ASK)

    def look(self) -> None:
        """Take what it has written by now, without waiting."""
        self._read()

    def kill(self, kill: Kill) -> None:
        """SIGKILL its group; nothing it still says is heard."""
        self._is_deaf = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(self.pid, signal.SIGKILL)

    def _read(self) -> None:
        try:
            chunk = os.read(self._answer, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._loop.remove_reader(self._answer)
            return
        if self._is_deaf:
            return
        self._pending += chunk
        *lines, rest = self._pending.split(b"\n")
        self._pending = bytearray(rest)
        for line in lines:
            if not self._is_deaf:
                self._ears.line(bytes(line))
        if len(self._pending) > MAX_LINE_BYTES and not self._is_deaf:
            self._pending.clear()
            self._ears.garbage(f"a line longer than {MAX_LINE_BYTES} bytes")

    def _reap(self) -> None:
        # While it is not reaped nobody else can have its number, as a session's either.
        left = end_session(self.pid)
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return
        self._loop.remove_reader(self._pidfd)
        self._read()  # its last words: at most what a pipe holds
        self._loop.remove_reader(self._answer)
        for end in (self._pidfd, self._ask, self._answer):
            os.close(end)
        # In a container the agent is the first process, so it inherits them.
        self._loop.call_later(ADOPTED_S, reap_adopted, left)
        self._ears.ended(describe_end(status))


def end_session(session: int) -> list[int]:
    """SIGKILL to the programs that a child had started, in whatever group; who they are."""
    left = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - a Path for each process costs more
        if name.isdigit() and int(name) != session and _session_of(name) == session:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(name), signal.SIGKILL)
            left.append(int(name))
    return left


def reap_adopted(pids: list[int]) -> None:
    """Take leave of those of them that have become the agent's own children."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _session_of(process: str) -> int:
    """-1 = it is gone."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:  # noqa: PTH123 - as above
            return int(file.read(4096).rpartition(b")")[2].split()[3])
    except (OSError, ValueError, IndexError):
        return -1


def describe_end(status: int) -> str:
    """How a process ended, for people."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return f"killed by {signal.Signals(number).name}"
        except ValueError:
            return f"killed by signal {number}"
    return f"exit code {os.waitstatus_to_exitcode(status)}"


def _live(source: Source, ask: int, answer: int, parent: int) -> NoReturn:
    """The child's whole life. Nothing here may return into the agent's own frames."""
    code = EXIT_ERROR
    try:
        _leave_the_agent(ask, answer, parent)
        _run(source)
        code = 0
    except BrokenPipeError:
        code = 0  # the agent is gone
    except BaseException:  # noqa: BLE001 - nothing may pass: the frames below are the agent's
        traceback.print_exc(limit=20)
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _leave_the_agent(ask: int, answer: int, parent: int) -> None:
    gc.freeze()  # a collection would write to every inherited page
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != parent:
        os._exit(EXIT_ERROR)
    # First out of the way of the two numbers, then onto them.
    ask_copy, answer_copy = _above(ask), _above(answer)
    os.dup2(ask_copy, _ASK_FD, inheritable=False)
    os.dup2(answer_copy, _ANSWER_FD, inheritable=False)
    os.closerange(_ANSWER_FD + 1, _MAX_FD)
    os.dup2(2, 1)  # what a library prints goes to the log


def _above(end: int) -> int:
    """A copy with a number above the two that are wanted."""
    copy = end
    while copy <= _ANSWER_FD:
        copy = os.dup(copy)
    return copy


def _run(source: Source) -> None:
    if hasattr(source, "poll"):
        while os.read(_ASK_FD, 1):
            try:
                line = encode_readings(source.poll())
            except CannotTell as reason:
                line = encode_cannot_tell(str(reason))
            _write(line)
        return
    try:
        for readings in source.stream():
            _write(encode_readings(readings))
    except CannotTell as reason:
        _write(encode_cannot_tell(str(reason)))


def _write(line: bytes) -> None:
    left = memoryview(line)
    while left:
        left = left[os.write(_ANSWER_FD, left) :]
