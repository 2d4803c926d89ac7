"""Under a policy ConfigMap that cannot be used a person still sees, pauses and disarms."""

from collections.abc import Iterator
from contextlib import suppress

import pytest

from activities.kube import paths
from activities.kube.errors import NotFound
from activities.policy_file import NAMESPACE
from activities.policy_reader import POLICY_CONFIG_MAP
from tests.harness.cluster import Cluster
from tests.harness.processes import fleetmend
from tests.workers.cli.conftest import POOL
from workers.cli.outcome import ExitCode
from workers.lab.address import LabAddress

FIELD = "poools"


@pytest.fixture(autouse=True)
def _broken_policy(cluster: Cluster) -> Iterator[None]:
    """The ConfigMap goes before the file; what a test armed or paused goes with it."""
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": POLICY_CONFIG_MAP},
        "data": {"policy.yaml": f"{FIELD}: []\n"},
    }
    before = cluster.arming()
    cluster.kube.create(paths.config_maps(NAMESPACE), body)
    yield
    cluster.write_arming(before)
    with suppress(NotFound):
        cluster.kube.delete(paths.config_map(NAMESPACE, POLICY_CONFIG_MAP), uid=None)


def says_what_and_the_remedy(text: str) -> bool:
    return all(
        part in text for part in (POLICY_CONFIG_MAP, FIELD, "Next:", "fleetmend policy check")
    )


def test_status_shows_the_nodes_and_says_that_the_policy_is_unusable(
    lab: LabAddress, cluster: Cluster, a_node: str
) -> None:
    cluster.arm(POOL)
    cluster.annotate(a_node, pause="hands off")
    told = fleetmend(lab, "status", "--json")
    assert told.code == ExitCode.OK, told.err
    assert says_what_and_the_remedy(told.json["policy"])
    assert told.json["armed"] == [POOL]
    (row,) = [row for row in told.json["nodes"] if row["node"] == a_node]
    assert row["marks"] == ["paused"]
    shown = fleetmend(lab, "status")
    assert shown.code == ExitCode.OK, shown.err
    assert a_node in shown.out
    assert says_what_and_the_remedy(shown.out)
    cluster.annotate(a_node, pause=None)


def test_a_node_is_shown_without_its_rules(lab: LabAddress, a_node: str) -> None:
    shown = fleetmend(lab, "node", a_node)
    assert shown.code == ExitCode.OK, shown.err
    assert "cannot be told without a policy" in shown.out
    assert says_what_and_the_remedy(shown.out)


def test_arming_is_refused_with_the_reason(lab: LabAddress, cluster: Cluster) -> None:
    told = fleetmend(lab, "arm", POOL, "--json")
    assert told.code == ExitCode.REFUSED
    assert f"pool {POOL} is not armed: the policy cannot be used" in told.json["error"]
    assert says_what_and_the_remedy(told.json["error"])
    assert not cluster.arming().is_armed(POOL)


def test_a_pool_is_disarmed_all_the_same(lab: LabAddress, cluster: Cluster) -> None:
    cluster.arm(POOL)
    told = fleetmend(lab, "disarm", POOL)
    assert told.code == ExitCode.OK, told.err
    assert not cluster.arming().is_armed(POOL)


def test_a_pool_is_paused_and_resumed_all_the_same(lab: LabAddress, cluster: Cluster) -> None:
    told = fleetmend(lab, "pause", "--pool", POOL)
    assert told.code == ExitCode.OK, told.err
    assert says_what_and_the_remedy(told.out)
    assert [entry.scope for entry in cluster.arming().paused] == [POOL]
    assert fleetmend(lab, "resume", "--pool", POOL).code == ExitCode.OK
    assert cluster.arming().paused == ()


def test_a_retire_without_an_episode_says_why_it_cannot_be(lab: LabAddress, a_node: str) -> None:
    told = fleetmend(lab, "retire", a_node)
    assert told.code == ExitCode.REFUSED
    assert f"no episode is open on Node {a_node}, and the policy cannot be used" in told.err
