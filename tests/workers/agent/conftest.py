"""Fixtures of the agent's tests."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.audit import AuditLog
from tests.harness.cluster import Cluster
from tests.harness.nodes import TestNodes
from tests.harness.proxy import FaultProxy
from tests.workers.agent.stage import Stage
from workers.lab.address import LabAccount, LabAddress


@pytest.fixture
def stage(
    lab: LabAddress,
    cluster: Cluster,
    nodes: TestNodes,
    witness: AuditLog,
    tmp_path: Path,
    unique: Callable[[str], str],
) -> Iterator[Stage]:
    """A node whose agent the test starts; everything ends with it."""
    own = Stage(lab, cluster, nodes, witness, tmp_path)
    try:
        own.prepare(unique)
        yield own
    finally:
        own.clear()


@pytest.fixture
def proxy(lab: LabAddress, stage: Stage, tmp_path: Path) -> Iterator[FaultProxy]:
    """The agent's API server is this proxy."""
    folder = tmp_path / "proxy"
    folder.mkdir()
    with FaultProxy(lab.kubeconfig(LabAccount.ADMIN), folder) as own:
        host, port = own.url.removeprefix("https://").split(":")
        stage.environment |= {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        account = Path(stage.environment["FLEETMEND_SERVICEACCOUNT"])
        (account / "ca.crt").write_bytes(own.ca_pem)
        yield own
