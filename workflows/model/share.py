"""Shares: a count of nodes or a part of a pool, as budgets and arming are given.

Owns the form of a share and its rounding, stated in one place. Pure; `policy.py` has the fields.
"""

import re
from typing import Annotated

from pydantic import BeforeValidator

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
