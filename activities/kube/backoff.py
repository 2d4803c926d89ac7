"""How long to stay away after failures in a row.

Owns one formula, for everything in `activities/kube` that connects again by itself. Temporal's
retry policies rule the activities; this is for the reflector, which Temporal does not know.
"""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Exponential pauses with jitter.

    Attributes:
        first_s: longest pause after the first failure.
        limit_s: longest pause ever.
    """

    first_s: float = 0.5
    limit_s: float = 30.0

    def pause_s(self, failures: int, chance: random.Random) -> float:
        """Seconds to wait after `failures` (at least 1) in a row.

        Half of the full pause is certain and half is chance, so that many clients do not come back
        in step.
        """
        doublings = min(failures - 1, 20)  # beyond that the limit holds in any case
        full = min(self.limit_s, self.first_s * 2.0**doublings)
        return full * (0.5 + chance.random() / 2)
