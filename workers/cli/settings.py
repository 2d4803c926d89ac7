"""`fleetmend worker --settings`: the variables of the worker process, with defaults and meaning.

Owns the table; the settings themselves are `workers.control.settings`.
"""

from typing import Final

from rich.markup import escape

from workers.cli.outcome import console
from workers.control.settings import describe_settings
from workers.tables import plain_table
from workers.telemetry import DEFAULT_LEVEL, LEVEL_VARIABLE, LEVELS, OTLP_VARIABLE

OF_ALL_PROCESSES: Final = (
    (LEVEL_VARIABLE, DEFAULT_LEVEL, f"The least level that is logged: {', '.join(LEVELS)}."),
    (OTLP_VARIABLE, "(none)", "Where traces are sent (OTLP over HTTP); without it none is made."),
)
"""The worker reads them as watch does."""


def show_worker_settings() -> None:
    """Every variable, one row each."""
    table = plain_table("VARIABLE", "DEFAULT", "MEANING")
    for row in (*describe_settings(), *OF_ALL_PROCESSES):
        table.add_row(*map(escape, row))
    console().print(table)
    console().print(
        "\nThe cluster is KUBECONFIG's, or the pod's own; Temporal is TEMPORAL_ADDRESS and the other "
        "variables of its client; the policy is ConfigMap fleetmend-policy, else FLEETMEND_POLICY."
    )
