"""One watch and one worker for each module of scenarios; a pool of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.cluster import Cluster
from tests.harness.fleet import Fleet, fleet_on
from tests.harness.work import Work
from workers.lab.address import LabAddress

POOLS = tuple(f"pool-{letter}" for letter in "abcdefghijklmnop")


@pytest.fixture(scope="module")
def fleet(
    lab: LabAddress, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Fleetmend at work for the whole module."""
    folder: Path = tmp_path_factory.mktemp("fleet")
    with fleet_on(lab, cluster, folder, POOLS) as own:
        yield own


@pytest.fixture(scope="module")
def _pools() -> Iterator[str]:
    return iter(POOLS)


@pytest.fixture
def pool(_pools: Iterator[str]) -> str:
    """A pool that no other test of the module uses."""
    return next(_pools)


@pytest.fixture
def work(cluster: Cluster) -> Iterator[Work]:
    """Pods and budgets of one test."""
    own = Work(cluster)
    yield own
    own.end()
