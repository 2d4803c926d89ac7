"""What the tests of commands share: a node to talk about, and a cluster that nobody serves."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cluster import Cluster
from tests.harness.nodes import test_nodes
from tests.harness.policies import write_policy
from tests.harness.processes import Processes, processes
from workers.lab.address import LabAccount, LabAddress

POOL = "cli"


@contextmanager
def under_policy(factory: pytest.TempPathFactory, unknown: Mapping[str, Any]) -> Iterator[Path]:
    """A policy that treats unknown health so, for commands and processes meanwhile."""
    path = factory.mktemp("policy") / "policy.yaml"
    write_policy(path, [POOL], faults={"diagnostic-unknown": dict(unknown)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLEETMEND_POLICY", str(path))
        yield path


@pytest.fixture(scope="module", autouse=True)
def policy_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The policy that commands (and processes) of these tests run under."""
    # Unknown health then waits for its recovery for the whole test, and asks nothing.
    patient = {"drain": "none", "ladder": [], "recovery_wait_s": 600}
    with under_policy(tmp_path_factory, patient) as path:
        yield path


@pytest.fixture(scope="module")
def a_node(request: pytest.FixtureRequest, lab: LabAddress, cluster: Cluster) -> Iterator[str]:
    """One healthy node of the module, in pool `cli`."""
    name = request.module.__name__.rpartition("_")[2]

    def unique(word: str) -> str:
        return f"cli-{name}-{word}"[:40]

    with test_nodes(lab, cluster, unique) as nodes:
        yield nodes.add("node", POOL)


@pytest.fixture(scope="module")
def running(
    lab: LabAddress, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Processes]:
    """Watch and worker for the module, and the pool armed."""
    cluster.arm(POOL)
    with processes(lab, tmp_path_factory.mktemp("processes")) as own:
        own.watch()
        own.worker()
        yield own
    cluster.disarm(POOL)


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address on which nobody listens (and nobody will: the port is held)."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def elsewhere(lab: LabAddress, nobody: str, tmp_path: Path) -> str:
    """A kubeconfig whose server is an address on which nobody listens."""
    text = lab.kubeconfig(LabAccount.OPERATOR).read_text()
    path = tmp_path / "elsewhere.kubeconfig"
    path.write_text(text.replace(lab.api_url, f"https://{nobody}"))
    return str(path)
