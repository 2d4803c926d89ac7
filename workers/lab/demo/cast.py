"""Who plays in the demo: the nodes, what befalls them, and how each must end.

Owns that table. Does nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

WORKING: Final = ("training", "inference")
"""Pools whose nodes run training pods."""
SPARE: Final = "spare"
"""A pool without work: its idle nodes are validated when the Schedule ticks."""
NODES_OF_POOL: Final = MappingProxyType({"training": 6, "inference": 6, SPARE: 2})
ELASTIC: Final = "elastic"
"""A pool whose machines Karpenter buys as its work asks for them, and replaces."""
POOLS: Final = (*NODES_OF_POOL, ELASTIC)
GPUS: Final = 8
POD_GPUS: Final = 4
BOOT_TIME_S: Final = 3.0
HANG_S: Final = 60
RETIRE_REASON: Final = "demo: the fan of this node is due"


@dataclass(frozen=True)
class Job:
    """Training pods of one pool, and how many of them a drain must leave running."""

    replicas: int
    at_least: int


JOBS: Final = MappingProxyType({**{pool: Job(6, 4) for pool in WORKING}, ELASTIC: Job(2, 0)})
"""By pool. Two pods of four GPUs each fill the one machine that Karpenter buys for them; nothing
keeps one of them running until that machine's successor has passed."""


class Ending(StrEnum):
    """How a node of the demo ends."""

    RETURNED = "returned"
    HELD = "held"
    RETIRED = "retired"
    REPLACED = "replaced"
    UNTOUCHED = "untouched"


@dataclass(frozen=True)
class Part:
    """One node. `fault` "" = it is retired by a command, validated, or nothing befalls it."""

    node: str
    pool: str
    ending: Ending
    what: str
    fault: str = ""
    options: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    reboots: int = 0
    is_validated: bool = False

    @property
    def befalls(self) -> bool:
        """True if anything happens to it."""
        return bool(self.fault) or self.has_episode

    @property
    def has_episode(self) -> bool:
        """True if fleetmend is to act on it."""
        return self.ending is not Ending.UNTOUCHED


PARTS: Final = (
    Part(
        "training-1",
        "training",
        Ending.RETURNED,
        "a GPU falls off the bus; a reboot brings it back",
        "xid-79",
        reboots=1,
    ),
    Part(
        "training-2",
        "training",
        Ending.RETURNED,
        "a GPU contains a memory error; its work may end before the reboot",
        "xid-94",
        reboots=1,
    ),
    Part(
        "training-3",
        "training",
        Ending.UNTOUCHED,
        "an application computes out of bounds; the node is not to blame",
        "xid-13",
    ),
    Part(
        "inference-1",
        "inference",
        Ending.HELD,
        "a GPU falls off the bus and is gone for good; a person must decide",
        "gpu-missing-after-reboot",
        reboots=1,
    ),
    Part("inference-2", "inference", Ending.RETIRED, "a person retires it by command"),
    Part(
        "inference-3",
        "inference",
        Ending.UNTOUCHED,
        "an application reads what is not its own; the node is not to blame",
        "xid-31",
    ),
    Part(
        "inference-4",
        "inference",
        Ending.RETURNED,
        f"DCGM hangs for {HANG_S} s; kept out until a diagnosis has passed",
        "dcgm-hang",
        MappingProxyType({"for": HANG_S}),
    ),
    Part(
        "spare-0",
        SPARE,
        Ending.RETURNED,
        "idle; a scheduled validation finds it well",
        is_validated=True,
    ),
    Part(
        "spare-1",
        SPARE,
        Ending.RETURNED,
        "idle; a scheduled validation finds a GPU that fails DCGM's diagnosis",
        "gpu-weak",
        reboots=1,
        is_validated=True,
    ),
)


BOUGHT: Final = Part(
    "(Karpenter's)",
    ELASTIC,
    Ending.REPLACED,
    "a GPU is gone for good, and its machine is Karpenter's: another one comes in its place",
    "gpu-missing-after-reboot",
    reboots=1,
)
"""The node that Karpenter makes; its name is known once it is there (`named`)."""


def named(node: str) -> Part:
    """Karpenter's node under the name that it has."""
    return replace(BOUGHT, node=node)


def own_cast() -> tuple[Part, ...]:
    """Every node that the demo adds, those to which nothing happens included, pool by pool."""
    known = {part.node: part for part in PARTS}
    names = [(f"{pool}-{i}", pool) for pool, nodes in NODES_OF_POOL.items() for i in range(nodes)]
    return tuple(
        known.get(name) or Part(name, pool, Ending.UNTOUCHED, "nothing") for name, pool in names
    )
