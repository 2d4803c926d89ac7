"""`make bench` comes in here: the measurements need the lab that pytest's fixture starts."""

import pytest

from tests.bench.run import run
from workers.lab.address import LabAddress


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_every_figure_is_measured_and_written(lab: LabAddress) -> None:
    run(lab)
