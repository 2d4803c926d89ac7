"""The ladder: the next repair, once each."""

import pytest

from workflows.model.policy import Rung
from workflows.model.remediation.ladder import next_rung


@pytest.mark.parametrize(
    ("ladder", "tried", "rung"),
    [
        ((), (), None),
        ((Rung.REBOOT,), (), Rung.REBOOT),
        ((Rung.REBOOT,), (Rung.REBOOT,), None),
        ((Rung.REBOOT, Rung.REBOOT), (Rung.REBOOT,), None),
    ],
    ids=["empty", "first", "used-up", "the-same-action-twice-is-one"],
)
def test_next_rung(ladder: tuple[Rung, ...], tried: tuple[Rung, ...], rung: Rung | None) -> None:
    assert next_rung(ladder, tried) is rung
