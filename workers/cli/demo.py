"""`fleetmend demo`: starts the lab's demo and turns its end into an exit code.

Owns options and exit code only; the demo is `workers.lab.demo`.
"""

import signal

from workers.cli.outcome import ExitCode, refused, write_json
from workers.lab.controlplane.errors import LabError
from workers.lab.demo.run import is_watched, run_demo
from workers.lab.demo.scene import SceneFailed
from workers.lab.demo.view import Report
from workers.lab.kubelet.client import FleetError
from workers.leaving import leave
from workers.temporal_connection import TemporalUnreachable


def play(*, once: bool, keep: bool, as_json: bool) -> None:
    """Play it.

    Raises:
        CommandError: a node did not end as it should, or the lab did not come up.
    """
    signal.signal(signal.SIGTERM, _stop)

    def write(report: Report) -> None:
        write_json(report.as_json())

    try:
        passed = run_demo(
            keep=keep,
            # Without a terminal nobody could end it.
            stays=not once and not keep and not as_json and is_watched(),
            write=write if as_json else None,
        )
    except (LabError, FleetError, SceneFailed, TemporalUnreachable) as error:
        raise refused(f"the demo did not come about: {error}") from error
    if not passed and as_json:
        leave(ExitCode.REFUSED)  # the report says why; a second document would not
    if not passed:
        raise refused("not every node ended as it should; what is wrong stands above")


def _stop(_number: int, _frame: object) -> None:
    """SIGTERM ends it in order, as Ctrl-C does: nothing of it stays behind."""
    raise KeyboardInterrupt
