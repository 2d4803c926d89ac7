"""What every test may ask for: one lab for the whole run, names of its own, and hands on it.

Owns the session's lab (a child of pytest, in a directory of its own, with deploy/ installed) and
the small fixtures around it. Tests that need a lab of their own start one with `start_lab`.
Fixtures for processes and nodes are functions of `tests.harness`; those here wrap them.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.audit import AuditLog, audit
from tests.harness.cluster import Cluster, cluster_of
from tests.harness.karpenter import KarpenterHands, karpenter_hands
from tests.harness.nodes import TestNodes, test_nodes
from tests.harness.processes import Processes, processes
from workers.lab.address import LabAddress
from workers.lab.controlplane.api import LabApi
from workers.lab.controlplane.errors import LabError
from workers.lab.controlplane.lab import Lab, start_lab, stop_lab
from workers.lab.controlplane.settings import AuditMode, LabSettings
from workers.lab.kubelet.client import FleetClient
from workers.lab.paths import LabPaths

LAST_LINES = 25
LAB_DIRECTORY = "lab"

BEGIN = (
    "chaos/test_anything_killed.py",
    "workers/control/test_validation_year.py",
    "chaos/test_temporal_away.py",
    "activities/test_faults_at_each_call.py",
    "activities/karpenter/test_faults.py",
)
"""The longest files of `make test-long`. All but the first mostly wait (ticks, outages, answers that never
come), which leaves the cores to the first and to what comes after it."""
LONGEST_FIRST = ("chaos", "scenarios", "workers", "workflows", "replay", "lab", "activities")
"""Folders whose files keep a process for minutes: one that began last would be waited for alone."""

LONG = ("chaos", "lab")
"""Folders that `make test` leaves to `make test-long`: what dies and hangs, and the proving ground itself."""

_numbers = itertools.count(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is long; `BEGIN` and `LONGEST_FIRST` begin first, files stay together and in order."""
    for item in items:
        if _path(item).parts[0] in LONG:
            item.add_marker(pytest.mark.long)
    items.sort(key=_rank)


def _path(item: pytest.Item) -> Path:
    return item.path.relative_to(Path(__file__).parent)


def _rank(item: pytest.Item) -> tuple[int, int]:
    path = _path(item)
    return _place(path.as_posix(), BEGIN), _place(path.parts[0], LONGEST_FIRST)


def _place(name: str, order: tuple[str, ...]) -> int:
    return order.index(name) if name in order else len(order)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabAddress]:
    """The address of the session's lab; it ends with pytest in every case."""
    directory = tmp_path_factory.mktemp("session") / LAB_DIRECTORY
    settings = LabSettings(cluster="test", audit_mode=AuditMode.BLOCKING)
    try:
        address = start_lab(directory, settings, detached=False)
    except LabError as error:
        pytest.fail(f"the lab did not start: {error}\n{_last_lines(directory)}", pytrace=False)
    yield address
    stop_lab(directory)


@pytest.fixture(scope="session")
def lab_hands(lab: LabAddress) -> Lab:
    """The handle that kills, freezes and restarts the session lab's components."""
    return Lab(lab.directory)


@pytest.fixture(scope="session")
def cluster(lab: LabAddress) -> Iterator[Cluster]:
    """An administrator's hands on the session's lab."""
    hands = cluster_of(lab)
    yield hands
    hands.kube.close()


@pytest.fixture(scope="module")
def own_cluster(own_lab: LabAddress) -> Iterator[Cluster]:
    """The same on the lab of a module that has one of its own (its fixture `own_lab`)."""
    hands = cluster_of(own_lab)
    yield hands
    hands.kube.close()


@pytest.fixture
def api(own_lab: LabAddress) -> Iterator[LabApi]:
    """Plain requests to the same lab, as its administrator."""
    requests = LabApi(own_lab)
    yield requests
    requests.close()


@pytest.fixture
def karpenter(own_cluster: Cluster) -> Iterator[KarpenterHands]:
    """Hands on Karpenter in the module's own lab; what a test has made goes with it."""
    with karpenter_hands(own_cluster) as hands:
        yield hands


@pytest.fixture
def machines(own_lab: LabAddress, own_cluster: Cluster) -> Iterator[TestNodes]:
    """Hands on the machines behind Karpenter's nodes in the module's own lab."""
    with FleetClient(own_lab.directory) as client:
        yield TestNodes(client, own_cluster, lambda name: name)


@pytest.fixture
def seen(own_lab: LabAddress) -> AuditLog:
    """The audit log of the module's own lab from the start of this test on."""
    return audit(own_lab)


@pytest.fixture
def witness(lab: LabAddress) -> AuditLog:
    """The API server's audit log from the start of this test on."""
    return audit(lab)


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names that no other test uses: `unique("a")` is a DNS label of at most 40 characters."""
    number = next(_numbers)
    slug = re.sub(r"[^a-z0-9]+", "-", request.node.originalname.lower()).removeprefix("test-")
    return lambda name: f"{slug[:24].strip('-')}-{number}-{name}"[:40].rstrip("-")


@pytest.fixture
def started(lab: LabAddress, tmp_path: Path) -> Iterator[Processes]:
    """Starts watch and worker for one test; all end with it."""
    with processes(lab, tmp_path) as own:
        yield own


@pytest.fixture
def nodes(lab: LabAddress, cluster: Cluster, unique: Callable[[str], str]) -> Iterator[TestNodes]:
    """Simulated nodes for one test; all go with it."""
    with test_nodes(lab, cluster, unique) as own:
        yield own


def _last_lines(directory: Path) -> str:
    parts = []
    for log in sorted(LabPaths(directory).logs.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        parts.append(f"--- {log.name}\n" + "\n".join(line[:400] for line in lines))
    return "\n".join(parts)
