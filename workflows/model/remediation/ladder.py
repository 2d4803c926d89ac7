"""The ladder: which repair action comes next.

Owns the choice of the next rung from the fault's ladder and the rungs already tried. Pure.
"""

from collections.abc import Sequence

from workflows.model.policy import Pool, Rung
from workflows.model.remediation.replacement import may_replace


def rungs_for(ladder: Sequence[Rung], pool: Pool | None, *, is_on_karpenter: bool) -> list[Rung]:
    """The rungs of `ladder` that mean something on this node."""
    can = may_replace(pool, is_on_karpenter=is_on_karpenter)
    return [rung for rung in ladder if rung is not Rung.REPLACE or can]


def from_replace(ladder: Sequence[Rung]) -> tuple[Rung, ...]:
    """What of a ladder is meant for a machine that never worked: nothing on it is to be saved."""
    rungs = tuple(ladder)
    return rungs[rungs.index(Rung.REPLACE) :] if Rung.REPLACE in rungs else ()


def next_rung(ladder: Sequence[Rung], tried: Sequence[Rung]) -> Rung | None:
    """The first rung of `ladder` after the last one tried; None = nothing more is allowed.

    A rung that is not in this ladder (tried under another fault class) counts as tried if its
    action stands in it: a node is not rebooted twice because its fault got another name.
    """
    done = set(tried)
    return next((rung for rung in ladder if rung not in done), None)
