"""The last step of a process that has spoken to Temporal: out, without unwinding.

Owns the exit itself. The SDK's native runtime has threads of its own; while the interpreter is
taken down they abort the process now and then (sdk-python issue 300; seen here as exit code -6
after a command that had done its work). Whoever calls this has ended everything in order before.
"""

import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn

from workers.telemetry import end_telemetry


def leave(code: int) -> NoReturn:
    """Write out what is buffered (spans, logs, output), and end the process with `code`."""
    end_telemetry()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the reader is gone; the code still counts
            stream.flush()
    os._exit(code)
