"""`fleetmend status` says which watch writes, and warns when none does."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.kube import paths
from activities.kube.errors import NotFound
from activities.policy_file import NAMESPACE
from tests.harness.cluster import Cluster
from tests.harness.processes import Processes, fleetmend
from tests.harness.waiting import wait_until
from workers.cli.outcome import ExitCode
from workers.cli.writer import read_writer
from workers.lab.address import LabAddress
from workers.watch.lease import LEASE_NAME, TERM_S

PATH = paths.lease(NAMESPACE, LEASE_NAME)


@pytest.fixture(autouse=True)
def _no_lease(cluster: Cluster) -> Iterator[None]:
    """None of an earlier watch, and none afterwards."""

    def remove() -> None:
        with suppress(NotFound):
            cluster.kube.delete(PATH, uid=None)

    remove()
    yield
    remove()


def write_lease(cluster: Cluster, holder: str, age: timedelta) -> None:
    spec: dict[str, Any] = {
        "holderIdentity": holder,
        "leaseDurationSeconds": TERM_S,
        "renewTime": (datetime.now(UTC) - age).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    body = {"metadata": {"name": LEASE_NAME, "namespace": NAMESPACE}, "spec": spec}
    kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    cluster.kube.create(paths.leases(NAMESPACE), {**kind, **body})


def test_a_watch_that_writes_is_named_and_one_that_was_killed_is_missed(
    lab: LabAddress, cluster: Cluster, started: Processes
) -> None:
    watch = started.watch()
    wait_until(lambda: watch.logged("writing"), 30, "watch writes", saw=watch.tail)
    told = fleetmend(lab, "status", "--json").json["writer"]
    assert told["is_writing"] is True
    assert told["problem"] == ""
    # Another name in workflow ids finds no episode: the answers would be wrong, not missing.
    other = fleetmend(lab, "status", environment={"FLEETMEND_CLUSTER": "another"})
    assert f"watch works here as '{lab.cluster}'" in other.out.replace("\n", " ")
    assert f"export FLEETMEND_CLUSTER={lab.cluster}" in other.out.replace("\n", " ")
    watch.kill()
    # Until its term has passed nobody can know.
    wait_until(lambda: read_writer(cluster.kube).problem, 30, "it is missed")
    dead = fleetmend(lab, "status")
    assert dead.code == ExitCode.OK, dead.err
    assert f"nobody watches ({told['holder']} renewed last " in dead.out
    assert "Next: start fleetmend watch" in dead.out


def test_nobody_has_ever_watched(cluster: Cluster) -> None:
    assert "it has never run here" in read_writer(cluster.kube).problem


@pytest.mark.parametrize("age", [timedelta(seconds=60), timedelta(days=3), timedelta(seconds=-60)])
def test_an_old_lease_is_nobody_s_whatever_the_clocks_say(cluster: Cluster, age: timedelta) -> None:
    write_lease(cluster, "one", age)
    writer = read_writer(cluster.kube)
    assert writer.is_writing is False
    assert "one renewed last" in writer.problem


def test_a_lease_that_was_given_back_is_nobody_s(cluster: Cluster) -> None:
    write_lease(cluster, "", timedelta())
    assert "the last one has ended" in read_writer(cluster.kube).problem
