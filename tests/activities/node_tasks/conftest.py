"""What the release says of node tasks, for a test to change."""

from collections.abc import Callable, Iterator

import pytest

from activities.kube import paths
from activities.kube.client import PatchKind
from activities.node_tasks.runner import RELEASE_CONFIG_MAP
from tests.harness.cluster import Cluster


@pytest.fixture
def release(cluster: Cluster) -> Iterator[Callable[[str, str], None]]:
    """Names another thing in the release's ConfigMap, which the policy does not know; taken back after."""
    path = paths.config_map("fleetmend", RELEASE_CONFIG_MAP)
    before = cluster.kube.get(path)["data"]
    named: set[str] = set()

    def name(key: str, value: str) -> None:
        named.add(key)
        cluster.kube.patch(path, {"data": {key: value}}, kind=PatchKind.MERGE)

    yield name
    restored = {key: before.get(key) for key in named}
    cluster.kube.patch(path, {"data": restored}, kind=PatchKind.MERGE)
