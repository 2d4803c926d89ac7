"""A child that cannot outlive the process that started it.

Owns one preparation for `subprocess` (`preexec_fn`): the kernel kills the child when its parent is
gone, whatever ended the parent. Does not restart or reap anything.

The kernel ties the kill to the *thread* that forked: start tethered children from the main thread.
"""

import ctypes
import os
import signal
from collections.abc import Callable
from typing import Final

# linux/prctl.h
_PR_SET_PDEATHSIG: Final = 1
# Loaded at import: nothing may be loaded between fork and exec.
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def tether(parent_pid: int) -> Callable[[], None]:
    """A `preexec_fn` for children of the process `parent_pid` (the caller's own pid)."""

    def prepare() -> None:
        if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            os._exit(127)
        # The parent may have died before the line above took effect.
        if os.getppid() != parent_pid:
            os._exit(127)

    return prepare
