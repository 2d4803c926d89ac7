"""`fleetmend worker --settings`: the variables of the worker process, with defaults and meaning.

Owns the table; the settings themselves are `workers.control.settings`.
"""

from rich.markup import escape
from rich.table import Table

from workers.cli.outcome import console
from workers.control.settings import describe_settings


def show_worker_settings() -> None:
    """Every variable, one row each."""
    table = Table(box=None, pad_edge=False)
    for column in ("VARIABLE", "DEFAULT", "MEANING"):
        table.add_column(column, overflow="fold")
    for row in describe_settings():
        table.add_row(*map(escape, row))
    console().print(table)
    console().print(
        "\nThe cluster is KUBECONFIG's, or the pod's own; Temporal is TEMPORAL_ADDRESS and the other "
        "variables of its client; the policy is ConfigMap fleetmend-policy, else FLEETMEND_POLICY."
    )
