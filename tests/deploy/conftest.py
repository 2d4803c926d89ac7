"""Fixtures of the rights' tests: the lab's API server with deploy/chart installed."""

from collections.abc import Iterator

import pytest

from tests.deploy.caller import Caller, read_kubeconfig
from tests.deploy.world import SimNode, World
from workers.lab.address import LabAccount, LabAddress


@pytest.fixture(scope="session")
def world(lab: LabAddress, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The API server, with all policies in force."""
    folder = tmp_path_factory.mktemp("rights")
    made = World(read_kubeconfig(lab.kubeconfig(LabAccount.ADMIN), folder))
    made.prepare()
    return made


@pytest.fixture(scope="session")
def untouched(world: World) -> Iterator[SimNode]:
    """A node for all requests that must be refused: they leave it as it is."""
    made = world.new_node()
    yield made
    world.admin.delete(made.path)


@pytest.fixture(scope="session")
def its_agent(world: World, untouched: SimNode) -> Caller:
    """The agent that runs on `untouched`."""
    return world.agent(untouched)


@pytest.fixture
def node(world: World) -> Iterator[SimNode]:
    """A fresh node with an agent's pod; gone after the test."""
    made = world.new_node()
    yield made
    world.admin.delete(made.path)


@pytest.fixture
def agent(world: World, node: SimNode) -> Caller:
    """The agent that runs on `node`."""
    return world.agent(node)
