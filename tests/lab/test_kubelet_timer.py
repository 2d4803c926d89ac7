"""Timer containers: how the annotations are read, and how they end."""

import asyncio

import pytest

from workers.lab.kubelet.timer import (
    DURATION,
    EXIT_CODE,
    TERMINATION,
    TimerContainer,
    TimerPlan,
    read_timer_plan,
)

END_S = 10.0


def test_without_annotations_it_runs_until_it_is_stopped() -> None:
    assert read_timer_plan({}) == TimerPlan(duration_s=None, exit_code=0, stopping_s=0)


def test_annotations_say_how_long_and_how() -> None:
    plan = read_timer_plan({DURATION: "1.5", EXIT_CODE: "3", TERMINATION: "0.2"})
    assert plan == TimerPlan(duration_s=1.5, exit_code=3, stopping_s=0.2)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (DURATION, "soon"),
        (DURATION, "-1"),
        (DURATION, "inf"),
        (DURATION, "nan"),
        (EXIT_CODE, "256"),
        (EXIT_CODE, "-1"),
        (TERMINATION, ""),
    ],
)
def test_a_bad_annotation_is_named(key: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"annotation {key}"):
        read_timer_plan({key: text})


@pytest.mark.parametrize(("code", "reason"), [(0, "Completed"), (4, "Error")])
async def test_it_ends_by_the_clock(code: int, reason: str) -> None:
    container = TimerContainer(TimerPlan(duration_s=0.01, exit_code=code))
    end = await asyncio.wait_for(container.done, END_S)
    assert (end.code, end.reason) == (code, reason)


@pytest.mark.parametrize(
    ("stopping_s", "grace_s", "code"),
    [(0.0, 30.0, 143), (0.05, 30.0, 143), (30.0, 0.05, 137)],
    ids=["at once", "in time", "too slow"],
)
async def test_it_stops_within_its_grace(stopping_s: float, grace_s: float, code: int) -> None:
    container = TimerContainer(TimerPlan(stopping_s=stopping_s))
    container.stop(grace_s)
    end = await asyncio.wait_for(container.done, END_S)
    assert end.code == code
