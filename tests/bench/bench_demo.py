"""How long the demo takes by itself, from the command to its end, once the programs are built.

Owns one measurement: `fleetmend demo --once` with a lab of its own, beside the bench's idle one.
"""

import time

from tests.bench.figure import Figure, figure_of
from tests.harness.processes import fleetmend
from workers.lab.address import LabAddress

PATIENCE_S = 400.0


def measure(lab: LabAddress) -> list[Figure]:
    """`demo_s`; the lab of the bench is left alone."""
    begun = time.monotonic()
    answer = fleetmend(None, "demo", "--once", "--json", timeout_s=PATIENCE_S)
    took_s = time.monotonic() - begun
    assert answer.code == 0, answer.out + answer.err
    return [figure_of("demo_s", "s", [took_s])]
