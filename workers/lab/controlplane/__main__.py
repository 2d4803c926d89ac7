"""`python -m workers.lab.controlplane [--karpenter]`: have the lab's programs, built if need be.

Owns nothing but the call: `make` runs it before demo and tests, so that the minutes of a first
build are seen on the terminal and not spent silently inside the first test.
"""

import argparse
import sys

from workers.lab.controlplane.errors import LabError
from workers.lab.controlplane.programs import find_programs
from workers.lab.controlplane.progress import BuildDisplay, announce_on_terminal


def main() -> int:
    """0 = the programs are there; 1 = they can't be had, and why was said."""
    parser = argparse.ArgumentParser(prog="python -m workers.lab.controlplane")
    parser.add_argument("--karpenter", action="store_true", help="Karpenter and helm, too")
    wants_karpenter = parser.parse_args().karpenter
    try:
        programs = find_programs(announce_on_terminal, BuildDisplay())
        if wants_karpenter:
            programs.with_karpenter(BuildDisplay())
    except LabError as error:
        announce_on_terminal(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
