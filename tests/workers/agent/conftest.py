"""Fixtures of the agent's tests."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.audit import AuditLog
from tests.harness.cluster import Cluster
from tests.harness.nodes import TestNodes
from tests.workers.agent.stage import Stage
from workers.lab.address import LabAddress


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
