"""Runs a program beside a lab, and ends it when the lab's supervisor is gone.

Owns one child's life: `python -m workers.lab.demo.companion SUPERVISOR_PID PROGRAM...` ends with
its child's exit code, passes SIGTERM on, and outlives neither the supervisor nor (by the tether)
leaves the child alone. So watch and worker of a kept demo end with `fleetmend lab down`.
"""

import os
import select
import signal
import subprocess
import sys
from typing import Final

from workers.lab.controlplane.tether import tether

GRACE_S: Final = 15.0
"""Longer than the worker's own grace for running steps."""


def main() -> int:
    """Run the child until it, or the supervisor, ends."""
    supervisor_pid, *command = sys.argv[1:]
    try:
        supervisor = os.pidfd_open(int(supervisor_pid))
    except ProcessLookupError:
        return 1
    asked, asking = os.pipe()
    os.set_blocking(asking, False)
    signal.set_wakeup_fd(asking)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # wakes the poll below
    # Tethered: if this process is killed, the child goes too. It loads nothing after the fork.
    child = subprocess.Popen(command, preexec_fn=tether(os.getpid()))  # noqa: PLW1509
    poll = select.poll()
    for descriptor in (supervisor, asked, os.pidfd_open(child.pid)):
        poll.register(descriptor, select.POLLIN)
    poll.poll()
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
    return child.wait()


if __name__ == "__main__":
    raise SystemExit(main())
