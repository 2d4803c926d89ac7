"""One watch and one worker for each module of scenarios; a pool of its own for each test."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cluster import Cluster
from tests.harness.fleet import Fleet, fleet_on
from tests.harness.nodes import TestNodes
from tests.harness.work import Work
from workers.lab.address import LabAddress
from workflows.model.identity import NodeRef

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
def spec() -> dict[str, Any]:
    """What is special about the test's node: fields of `NodeSpec`; a test may give its own."""
    return {}


@pytest.fixture
def node(fleet: Fleet, nodes: TestNodes, pool: str, spec: dict[str, Any]) -> str:
    """The name of one healthy node whose baseline the fleet has recorded."""
    name = nodes.add("a", pool, **spec)
    fleet.until_baselines(nodes)
    return name


@pytest.fixture
def ref(fleet: Fleet, node: str) -> NodeRef:
    """That node as it was before anything befell it."""
    return fleet.ref(node)


@pytest.fixture
def work(cluster: Cluster) -> Iterator[Work]:
    """Pods and budgets of one test."""
    own = Work(cluster)
    yield own
    own.end()
