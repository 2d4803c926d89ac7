"""Waiting for a condition, never for time.

Owns the one loop in which tests wait. A wait that runs out says what it waited for, how long, and
what it saw last. Talks to nothing.
"""

import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")

POLL_S = 0.05
"""Between two looks at first. A look costs the servers and us 5 to 20 ms of CPU."""
LONGEST_POLL_S = 0.25
SHARE = 0.05
"""Of the time waited so far that a look may come late: long waits look less often."""


def wait_until(
    condition: Callable[[], Seen],
    deadline_s: float,
    what: str,
    *,
    saw: Callable[[], object] | None = None,
) -> Seen:
    """The first truthy answer of `condition`.

    Args:
        condition: looked at every POLL_S, later every LONGEST_POLL_S; an AssertionError from it
            counts as "not yet".
        deadline_s: when to give up.
        what: the rest of the sentence "waited in vain until ...".
        saw: for the message of a wait in vain: what there is instead.

    Raises:
        AssertionError: it did not come about in time.
    """
    begun = time.monotonic()
    last: object = None
    while True:
        try:
            answer = condition()
            if answer:
                return answer
            last = answer
        except AssertionError as refusal:
            last = refusal
        waited_s = time.monotonic() - begun
        if waited_s > deadline_s:
            shown = saw() if saw is not None else last
            raise AssertionError(
                f"waited in vain for {deadline_s:g} s until {what}; saw: {str(shown)[:2000]}"
            )
        time.sleep(min(max(POLL_S, SHARE * waited_s), LONGEST_POLL_S))


def stays_true(condition: Callable[[], object], for_s: float, what: str) -> None:
    """Assert that `condition` holds at every look for `for_s` seconds.

    For "nothing happens": the time is part of what is claimed, not a wait for something to settle.

    Raises:
        AssertionError: it did not hold once.
    """
    begun = time.monotonic()
    while time.monotonic() - begun < for_s:
        assert condition(), f"after {time.monotonic() - begun:.2f} s it was not so that {what}"
        time.sleep(POLL_S)
