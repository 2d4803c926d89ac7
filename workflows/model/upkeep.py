"""Upkeep: what the policy says about nodes that nothing is said against, new ones and idle ones.

Owns the schema of the two ways in which a node is proven before a job meets it: admission of a new
one, validation of an idle one. Part of a pool's policy (`policy.py`). Pure.
"""

from typing import Annotated

from pydantic import Field

from workflows.model.amounts import MAX_S, Part, Share

Level = Annotated[int, Field(ge=1, le=4)]
"""Of DCGM's diagnostic; above 1 it loads the GPUs."""


class ValidationPolicy(Part):
    """Idle nodes of a pool are validated by themselves, the longest unvalidated first."""

    enabled: bool = False
    period_s: Annotated[float, Field(ge=600, le=MAX_S, allow_inf_nan=False)] = 7 * 86_400
    """How old a node's last validation may become, if it is idle."""
    level: Level = 2
    share: Share = "10%"
    """Of the pool's idle nodes, at once; rounded down, never below 1."""


class AdmissionPolicy(Part):
    """Nodes with the startup taint are examined before their first job, then lose the taint."""

    level: Level = 2
    untainted: bool = False
    """New nodes that come without the taint are examined too, once they are idle: within the budget
    of validations, and only as soon as a tick of the validations sees them. A job may be quicker.
    Needs the pool's `expected_gpus`."""
    timeout_s: Annotated[float, Field(gt=0, le=MAX_S, allow_inf_nan=False)] = 1800
    """Unknown is asked again until then; after it people are asked."""
    max_replaced: Annotated[int, Field(ge=1, le=10_000)] = 5
    """New machines of the pool that are given away within a day because they were not admitted;
    from then on people are asked. Newcomers that all fail have one cause, and it is none of them."""
