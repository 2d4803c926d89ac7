"""What a process that is started warm has loaded: the libraries, and fleetmend below the CLI.

Owns the list, and that nothing stands in it that a fork would not copy: a thread. The command line
is not in it, as `workers.cli.patience` counts time from the start of its process. Loaded by `starts.py`'s
server alone, in a process of its own.
"""

import gc
import threading

import workers.agent.main
import workers.control.process
import workers.watch.process  # noqa: F401

if threading.active_count() != 1:
    raise RuntimeError(f"a fork would copy one thread of {threading.enumerate()}")
gc.freeze()  # what is loaded is not looked at again in each process, and its pages stay shared
