"""The node task `kernel-log`: what the kernel itself said of the GPUs since a time.

The second source when a diagnostic gave no answer.
"""

from workers.node_task.host import Host
from workflows.contracts.node_tasks import Diagnosis, Health, TaskOrder


def kernel_log(order: TaskOrder, host: Host) -> Diagnosis:
    """The hardware faults in the log of this boot."""
    return Diagnosis(Health.UNKNOWN, f"cannot be read yet: {host.root} {order.since}")
