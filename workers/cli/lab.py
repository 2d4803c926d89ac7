"""`fleetmend lab`: the commands of the control plane and of the simulated nodes, as one group.

Owns putting them together. Imported only when a lab command runs: they need packages that a
process in a cluster does not have.
"""

import typer

from workers.lab.controlplane.cli import lab_app
from workers.lab.kubelet.cli import mount


def lab_commands() -> typer.Typer:
    """The group `lab`."""
    mount(lab_app)
    return lab_app
