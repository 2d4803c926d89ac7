"""The lab of the benchmarks: one of its own, with the audit log written after the answers."""

from collections.abc import Iterator

import pytest

from workers.lab.address import LabAddress
from workers.lab.controlplane.lab import start_lab, stop_lab
from workers.lab.controlplane.settings import LabSettings


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabAddress]:
    """A quiet lab: nothing runs there but what is measured."""
    directory = tmp_path_factory.mktemp("bench") / "lab"
    address = start_lab(directory, LabSettings(cluster="bench"), detached=False)
    yield address
    stop_lab(directory)
