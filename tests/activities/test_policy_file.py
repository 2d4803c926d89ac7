"""Where the policy comes from, and what is said when it cannot be used."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.kube import errors, paths
from activities.kube.client import KubeClient, PatchKind
from activities.policy_file import PolicySource
from activities.policy_reader import POLICY_CONFIG_MAP
from tests.harness.cluster import Cluster
from workflows.model.policy import Policy, PolicyError

PATH = paths.config_map("fleetmend", POLICY_CONFIG_MAP)


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def write(cluster: Cluster, content: dict[str, str]) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": POLICY_CONFIG_MAP},
        "data": content,
    }
    try:
        cluster.kube.patch(PATH, {"data": content}, kind=PatchKind.MERGE)
    except errors.NotFound:
        cluster.kube.create(paths.config_maps("fleetmend"), body)


@pytest.fixture
def clean(cluster: Cluster) -> Iterator[Cluster]:
    """No policy ConfigMap before and after."""
    yield cluster
    try:
        cluster.kube.delete(PATH, uid=None)
    except errors.NotFound:
        return


def test_nothing_set_is_the_built_in_policy(worker_kube: KubeClient, clean: Cluster) -> None:
    assert PolicySource(worker_kube).read() == Policy()


def test_the_config_map_goes_before_the_file_and_is_read_live(
    worker_kube: KubeClient, clean: Cluster, tmp_path: Path, clock: Clock
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("timing: {probation_s: 7}")
    source = PolicySource(worker_kube, file, clock=clock)
    assert source.read().timing.probation_s == 7
    write(clean, {"policy.yaml": "timing: {probation_s: 8}"})
    assert source.read().timing.probation_s == 7  # still fresh
    clock.now = 2.1
    assert source.read().timing.probation_s == 8


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"policy.yml": ""}, ["'policy.yaml' is missing"]),
        ({"policy.yaml": "a: ["}, ["not YAML"]),
        ({"policy.yaml": "timing: {probation_s: x}"}, ["timing.probation_s", "'x'"]),
        ({"policy.yaml": "- 1"}, ["expected a mapping"]),
    ],
    ids=["key", "yaml", "field", "list"],
)
def test_a_policy_that_cannot_be_used_says_where_and_why(
    worker_kube: KubeClient,
    clean: Cluster,
    clock: Clock,
    content: dict[str, str],
    words: list[str],
) -> None:
    source = PolicySource(worker_kube, clock=clock)
    good = source.read()
    write(clean, content)
    clock.now = 3
    with pytest.raises(PolicyError) as caught:
        source.read()
    for word in [f"ConfigMap {POLICY_CONFIG_MAP}", *words]:
        assert word in str(caught.value)
    assert source.last_good() == good


def test_a_file_that_is_not_there_is_named(worker_kube: KubeClient, clean: Cluster) -> None:
    with pytest.raises(PolicyError, match="/no/such/policy"):
        PolicySource(worker_kube, Path("/no/such/policy")).read()
