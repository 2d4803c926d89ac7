"""Settings of the worker process, field by field, with unit, default and variable.

Owns reading them from the environment and the messages for wrong values. How Temporal and the
cluster are reached is not here: `temporal_connection` and `activities.kube` read their own
variables, as their users know them.
"""

import os
from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from workers.listening import Listen, SettingsError, read_listen

PREFIX = "FLEETMEND_"
CLUSTER_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class WorkerSettings(BaseModel):
    """One worker process. Each field is set by FLEETMEND_ and its name in capitals."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    cluster: str = Field("", pattern=CLUSTER_PATTERN, validate_default=True)
    """Name of the cluster, part of workflow ids; the same for watch, worker and commands. It has
    no default: two clusters of one name on one Temporal would share their guard."""

    max_concurrent_activities: int = Field(64, ge=4, le=1000)
    """Steps at once in this process, and threads for them."""

    max_cached_workflows: int = Field(500, ge=10, le=100_000)
    """Episodes kept in memory, about 0.2 MiB each; others are replayed when something happens."""

    heartbeat_throttle_s: Seconds = 2.0
    """Longest pause between two heartbeats that reach the server: a retire is seen within it."""

    graceful_shutdown_s: Seconds = 10.0
    """For running steps after SIGTERM; keep the pod's grace period above it."""

    sticky_timeout_s: Seconds = 10.0
    """How long the work of a worker that was killed waits for it (Temporal's own default)."""

    sweep_interval_s: Annotated[float, Field(ge=1, le=86_400)] = 60.0
    """Between two sweeps; a node that carries a mark without an owner is found within it."""

    sweep_jitter_s: Annotated[float, Field(ge=0, le=3600)] = 5.0
    """So that several clusters on one Temporal don't sweep at the same moment."""

    sweep_catch_up_s: Annotated[float, Field(ge=10, le=3600)] = 180.0
    """Sweeps that Temporal missed for longer are left out: one sweep sees everything."""

    validation_interval_s: Annotated[float, Field(ge=1, le=86_400)] = 600.0
    """Between two looks for idle nodes that are due for a validation (the policy says which)."""

    validation_jitter_s: Annotated[float, Field(ge=0, le=3600)] = 60.0
    """So that several clusters on one Temporal don't look at the same moment."""

    validation_catch_up_s: Annotated[float, Field(ge=10, le=3600)] = 300.0
    """Looks that Temporal missed for longer are left out: the next one sees who is due."""

    worker_listen: str = "off"
    """Where health is served: host:port, or "off"."""

    kube_pool_size: int = Field(32, ge=1, le=1000)
    """Connections to the API server that are kept open."""

    @property
    def listen(self) -> Listen | None:
        """Where health is served; None = nowhere.

        Raises:
            SettingsError: it is no address.
        """
        return read_listen(f"{PREFIX}WORKER_LISTEN", self.worker_listen, "127.0.0.1:9473")


def read_settings(environment: Mapping[str, str] = os.environ) -> WorkerSettings:
    """The settings in the environment, defaults where it says nothing.

    Raises:
        SettingsError: names each variable, its value and what is allowed.
    """
    given = {
        name: environment[variable]
        for name in WorkerSettings.model_fields
        if (variable := PREFIX + name.upper()) in environment
    }
    try:
        settings = WorkerSettings.model_validate(given)
    except ValidationError as error:
        raise SettingsError(
            "\n".join(
                f"{PREFIX}{str(item['loc'][0]).upper()}: {_words(item)} "
                f"(found {str(item.get('input'))[:80]!r})"
                for item in error.errors()
            )
        ) from error
    settings.listen  # noqa: B018 - a wrong address is told now
    return settings


def _words(item: ErrorDetails) -> str:
    if item["type"] == "string_pattern_mismatch":
        return "set it to 1 to 63 of A-Z a-z 0-9 . _ -, beginning and ending with a letter or digit"
    return str(item["msg"])


def describe_settings() -> list[tuple[str, str, str]]:
    """Variable, default and meaning of each setting, for people."""
    return [
        (
            PREFIX + name.upper(),
            "(none)" if field.default == "" else str(field.default),
            " ".join((field.description or "").split()),
        )
        for name, field in WorkerSettings.model_fields.items()
    ]
