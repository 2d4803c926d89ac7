"""The ladder: which repair action comes next.

Owns the choice of the next rung from the fault's ladder and the rungs already tried. Pure.
"""

from collections.abc import Sequence

from workflows.model.policy import Rung


def next_rung(ladder: Sequence[Rung], tried: Sequence[Rung]) -> Rung | None:
    """The first rung of `ladder` after the last one tried; None = nothing more is allowed.

    A rung that is not in this ladder (tried under another fault class) counts as tried if its
    action stands in it: a node is not rebooted twice because its fault got another name.
    """
    done = set(tried)
    return next((rung for rung in ladder if rung not in done), None)
