"""The words of `dcgmi discovery -l`: which GPUs a host engine serves, and whether of this node.

Owns the reading of the table and the comparison with what the node's driver shows. Pure.
"""

import re
from collections.abc import Collection
from typing import Final

DISCOVER: Final = ("discovery", "-l")
MAX_ROWS: Final = 4096


def read_uuids(table: str) -> dict[str, str]:
    """UUIDs by DCGM's id."""
    uuids: dict[str, str] = {}
    current = ""
    for row in table.splitlines()[:MAX_ROWS]:
        found = re.match(r"\|\s*(\d{1,3})\s*\|", row)
        current = found[1] if found else current
        uuid = re.search(r"UUID:\s*(GPU-[0-9A-Za-z-]{8,64})", row)
        if uuid and current:
            uuids[current] = uuid[1]
    return uuids


def why_foreign(table: str, address: str, of_node: Collection[str]) -> str:
    """Why the host engine at `address` is not this node's; "" = all its GPUs are the node's.

    `of_node` are the UUIDs of the node's GPUs by its own driver.
    """
    served = set(read_uuids(table).values())
    if not served:
        return f"the host engine at {address} names no GPU"
    foreign = sorted(served.difference(of_node))
    if foreign:
        return (
            f"the host engine at {address} is another node's ({foreign[0]} is not on this one): a "
            "Service needs internalTrafficPolicy: Local"
        )
    return ""
