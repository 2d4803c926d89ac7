"""`python -m workers.lab.controlplane`: have the lab's programs, built if need be.

Owns nothing but the call: `make` runs it before demo and tests, so that the minutes of a first
build are seen on the terminal and not spent silently inside the first test.
"""

import sys

from workers.lab.controlplane.errors import LabError
from workers.lab.controlplane.programs import find_helm, find_programs
from workers.lab.controlplane.progress import BuildDisplay, announce_on_terminal


def main() -> int:
    """0 = the programs are there; 1 = they can't be had, and why was said."""
    display = BuildDisplay()
    try:
        find_programs(announce_on_terminal, display).with_karpenter(display)
        find_helm(display)
    except LabError as error:
        announce_on_terminal(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
