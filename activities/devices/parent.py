"""What a program that we start on a node owes to its parent: it dies with it.

Owns the one call that a child makes between fork and exec. A dcgmi that outlives whoever asked it
would go on holding GPUs.
"""

import ctypes
import signal
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG: Final = 1
"""linux/prctl.h; see prctl(2)."""


def die_with_parent() -> None:
    """For `preexec_fn`, in a process without threads: the parent's death kills the child."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
