"""A figure of `build/bench.json`: what was measured, beside its floor and a peer's published one.

Owns the form of one figure and the percentiles. Does not measure.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Floor:
    """The same way without fleetmend, measured in the same run."""

    p50: float
    p99: float


@dataclass(frozen=True)
class Peer:
    """What another project publishes for the same thing."""

    name: str
    p50: float
    p99: float
    source: str


@dataclass(frozen=True)
class Figure:
    """One measured quantity; `unit` also ends its name."""

    name: str
    unit: str
    n: int
    p50: float
    p99: float
    max: float
    floor: Floor | None = None
    peer: Peer | None = None

    def as_json(self) -> dict[str, Any]:
        """As it stands in build/bench.json."""
        return asdict(self)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * share // 1))
    return ordered[int(rank) - 1]


def figure_of(
    name: str,
    unit: str,
    values: Sequence[float],
    *,
    floor: Sequence[float] = (),
    peer: Peer | None = None,
) -> Figure:
    """The figure for these values, rounded to three decimals."""
    return Figure(
        name=name,
        unit=unit,
        n=len(values),
        p50=round(percentile(values, 0.5), 3),
        p99=round(percentile(values, 0.99), 3),
        max=round(max(values), 3),
        floor=Floor(round(percentile(floor, 0.5), 3), round(percentile(floor, 0.99), 3))
        if floor
        else None,
        peer=peer,
    )
