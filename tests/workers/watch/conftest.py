"""What tests of watch share: a pool of light nodes, its policy, and a witness in Temporal.

Owns the small world of one test of watch: its own pool, armed or not, its policy file, and the
recording workflow (`recorder.py`) that stands where the runbook would. Nothing else acts on the
nodes, so the API server's audit log shows watch alone.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.audit import AuditLog
from tests.harness.cluster import Cluster
from tests.harness.nodes import TestNodes
from tests.harness.processes import Processes
from tests.workers.watch.recorder import Recorder, recording
from tests.workers.watch.scene import Scene
from workers.lab.address import LabAddress


@pytest.fixture
def recorder(lab: LabAddress) -> Iterator[Recorder]:
    """A worker that plays RemediateNode and writes down what it is sent."""
    with recording(lab) as own:
        yield own


@pytest.fixture
def scene(
    cluster: Cluster,
    nodes: TestNodes,
    started: Processes,
    witness: AuditLog,
    tmp_path: Path,
    unique: Callable[[str], str],
) -> Iterator[Scene]:
    """A pool of its own, not armed yet and without nodes."""
    own = Scene(cluster, nodes, started, witness, tmp_path, unique("pool"))
    yield own
    own.clear()
