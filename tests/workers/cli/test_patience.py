"""The 5 s that a person waits begin with the process, not with the import that counts them."""

import subprocess
import sys

import pytest

from workers.cli.patience import AT_LEAST_S, EXPLAINED_WITHIN_S

SLOW_S = 1.0


def left_after(start_s: float) -> float:
    """What a process that takes `start_s` to come to the import says is left."""
    code = f"import time; time.sleep({start_s}); from workers.cli import patience as p; print(p.patience_s())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return float(done.stdout)


def test_the_time_of_starting_counts() -> None:
    assert AT_LEAST_S <= left_after(SLOW_S) <= EXPLAINED_WITHIN_S - SLOW_S


@pytest.mark.parametrize("start_s", [EXPLAINED_WITHIN_S + 0.5])
def test_a_process_that_did_something_else_before_has_the_whole_time(start_s: float) -> None:
    assert left_after(start_s) == pytest.approx(EXPLAINED_WITHIN_S, abs=0.5)
