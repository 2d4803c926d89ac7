"""Amounts as the policy writes them: shares of a pool, and durations with their bounds.

Owns what may be written, how a share becomes a count of nodes, and the base of the policy's parts.
`policy.py` and what it is made of take their field types from here. Pure.
"""

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MAX_S = 31 * 86_400
"""Longest duration that may be set: a month; more cannot be meant, and would overflow somewhere."""
Seconds = Annotated[float, Field(ge=0, le=MAX_S, allow_inf_nan=False)]
Timeout = Annotated[float, Field(gt=0, le=MAX_S, allow_inf_nan=False)]


class Part(BaseModel):
    """One part of the policy: no field but those it names, and nothing changes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_SHARE = re.compile(r"(100|[1-9]?[0-9])%")


def _check_share(value: object) -> int | str:
    if isinstance(value, str) and _SHARE.fullmatch(value):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ValueError('a count of at least 1, or a share like "10%", from "0%" to "100%"')


Share = Annotated[int | str, BeforeValidator(_check_share)]
"""A count of nodes, or a share of the pool such as "10%" (rounded down, never below 1)."""


def nodes_of_share(share: int | str, pool_size: int) -> int:
    """How many nodes of a pool of `pool_size` a share allows: max(1, floor(share))."""
    if isinstance(share, int):
        return share
    return max(1, pool_size * int(share.rstrip("%")) // 100)
