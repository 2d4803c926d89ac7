"""fleetmend installed by Helm in a lab, upgraded in the middle of two episodes, and taken away.

Everything runs as the chart's pods. The new release is a copy of this checkout that calls itself
otherwise in Temporal's histories. Witnesses: the API server's audit log, which knows the pod behind
each request, Temporal's histories, which know the worker behind each task, and the machines.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.kube import errors, paths
from activities.kube.client import Selector
from tests.harness.audit import WORKER, AuditLog, Wanted, audit
from tests.harness.cluster import Cluster
from tests.harness.episodes import Episodes
from tests.harness.nodes import TestNodes, test_nodes
from tests.harness.policies import write_policy
from tests.harness.waiting import wait_until
from workers.lab.address import NAMESPACE, LabAddress
from workers.lab.controlplane.chart import RELEASE, install_chart, run_helm
from workers.lab.controlplane.lab import start_lab, stop_lab
from workers.lab.controlplane.programs import find_helm
from workers.lab.controlplane.progress import build_on_terminal
from workers.lab.controlplane.release import DEPLOYMENTS, await_pods, pod_values
from workers.lab.controlplane.settings import (
    REPOSITORY_CHART,
    AuditMode,
    LabSettings,
    ReleaseSettings,
)
from workflows.contracts.messages import Command
from workflows.model.identity import NodeRef

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

POOL = "upgraded"
NEXT = "next"
PACKAGES = ("workflows", "activities", "workers")
OLD_IDENTITY, NEW_IDENTITY = "worker-", "next-worker-"
ROLLOUT_LIMIT_S = 240.0
"""Four pods start one after the other, each beside those that still run."""
GONE_LIMIT_S = 90.0


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> ReleaseSettings:
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    # The machine is down for as long as the upgrade takes.
    write_policy(policy, [POOL], timing={"boot_deadline_s": 600})
    return ReleaseSettings(replicas=2, policy=policy)


@pytest.fixture(scope="module")
def own_lab(
    tmp_path_factory: pytest.TempPathFactory, release: ReleaseSettings
) -> Iterator[LabAddress]:
    folder = tmp_path_factory.mktemp("upgrade") / "lab"
    settings = LabSettings(cluster="upgrade", audit_mode=AuditMode.BLOCKING, release=release)
    yield start_lab(folder, settings, detached=False)
    stop_lab(folder)


@pytest.fixture(scope="module")
def machines(own_lab: LabAddress, own_cluster: Cluster) -> Iterator[TestNodes]:
    with test_nodes(own_lab, own_cluster, lambda name: name) as own:
        yield own


@pytest.fixture(scope="module")
def episodes(own_lab: LabAddress) -> Iterator[Episodes]:
    own = Episodes(own_lab)
    yield own
    own.close()


@pytest.fixture(scope="module")
def seen(own_lab: LabAddress) -> AuditLog:
    return audit(own_lab)


def make_next_release(lab: LabAddress) -> None:
    """A checkout as the next release's image holds it; its workers have another name."""
    image = lab.paths.images / NEXT
    here = REPOSITORY_CHART.parents[1]
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(here / package, image / package, ignore=ignored)
    shutil.copytree(here / "deploy", image / "deploy")
    process = image / "workers/control/process.py"
    text = process.read_text()
    assert text.count(f'identity=f"{OLD_IDENTITY}') == 1
    process.write_text(text.replace(f'identity=f"{OLD_IDENTITY}', f'identity=f"{NEW_IDENTITY}'))


def helm() -> Path:
    return find_helm(build_on_terminal)


def pods_of(cluster: Cluster, image: str) -> set[str]:
    """Names of watch's and worker's pods with that image."""
    found = cluster.kube.list(paths.pods(NAMESPACE)).items
    return {
        str(pod["metadata"]["name"])
        for pod in found
        if str(pod["metadata"]["name"]).startswith(DEPLOYMENTS)
        and pod["spec"]["containers"][0]["image"] == image
    }


def acted(seen: AuditLog, node: str) -> list[str]:
    """The pods by which the worker has written to a Node, oldest first."""
    events = seen.events(Wanted(who=WORKER, verb="patch", resource="nodes", name=node))
    return [
        event.raw["user"]["extra"]["authentication.kubernetes.io/pod-name"][0] for event in events
    ]


def identities(episodes: Episodes, ref: NodeRef) -> list[str]:
    """The workers that carried the episode's workflow on, oldest first."""

    async def fetch() -> list[Any]:
        return [event async for event in episodes.handle(ref).fetch_history_events()]

    done = (e.workflow_task_completed_event_attributes for e in episodes.call(fetch()))
    return [each.identity for each in done if each.identity]


def test_an_upgrade_with_an_episode_in_flight_and_one_held_ends_both_on_the_new_code(
    own_lab: LabAddress,
    own_cluster: Cluster,
    machines: TestNodes,
    episodes: Episodes,
    seen: AuditLog,
    release: ReleaseSettings,
) -> None:
    own_cluster.arm(POOL)
    flying, held = machines.add_many(["flying", "held"], POOL)
    await_pods(own_lab)
    machines.until_baselines()
    in_flight, in_hold = (NodeRef(n, own_cluster.node(n).uid) for n in (flying, held))
    machines.inject(held, "gpu-missing-after-reboot")
    episodes.until_held(in_hold)
    machines.inject(flying, "reboot-hangs")
    machines.inject(flying, "gpu-lost")
    wait_until(lambda: seen.reboots(flying), 60, "the reboot is on its way")
    old = pods_of(own_cluster, "fleetmend:lab")
    assert set(acted(seen, flying) + acted(seen, held)) <= old

    make_next_release(own_lab)
    changed = pod_values(own_lab, release.model_copy(update={"tag": NEXT}))
    install_chart(own_lab, helm(), REPOSITORY_CHART, changed)
    await_pods(own_lab, ROLLOUT_LIMIT_S)
    wait_until(
        lambda: not pods_of(own_cluster, "fleetmend:lab"), GONE_LIMIT_S, "the old pods have ended"
    )
    new = pods_of(own_cluster, f"fleetmend:{NEXT}")
    assert len(new) == 4
    assert episodes.is_open(in_flight)
    assert episodes.is_held(in_hold)
    before = {node: len(acted(seen, node)) for node in (flying, held)}

    machines.clear(flying, "reboot-hangs")
    closing = episodes.closing(in_flight, 120)
    assert closing.outcome == "returned", episodes.shown(in_flight)
    episodes.tell(in_hold, Command.RETIRE)
    closing = episodes.closing(in_hold, 120)
    assert closing.outcome == "retired", episodes.shown(in_hold)

    for node, ref in ((flying, in_flight), (held, in_hold)):
        after = acted(seen, node)[before[node] :]
        assert after, node
        assert set(after) <= new
        names = identities(episodes, ref)
        assert names[0].startswith(OLD_IDENTITY)
        assert names[-1].startswith(NEW_IDENTITY)
        assert len(seen.reboots(node)) == 1
        assert machines.boots(node) == 1
    assert own_cluster.marker(flying) is None
    assert not own_cluster.node(flying).unschedulable
    marker = own_cluster.marker(held)
    assert marker is not None
    assert marker.handed_over


def test_an_uninstallation_leaves_the_records_and_hands_over_what_is_marked(
    own_lab: LabAddress, own_cluster: Cluster, machines: TestNodes
) -> None:
    open_one = machines.add("open", POOL)
    machines.until_baselines()
    machines.inject(open_one, "reboot-hangs")
    machines.inject(open_one, "gpu-lost")
    wait_until(lambda: own_cluster.marker(open_one), 60, "a third node is in mid episode")
    records = {machine["metadata"]["name"] for machine in own_cluster.machines()}
    handed_over = {node for node in machines.added if own_cluster.marker(node) is not None}
    run_helm(own_lab, helm(), "uninstall", RELEASE)
    folder = paths.collection_path("apps/v1", "deployments", namespace=NAMESPACE)
    for name in DEPLOYMENTS:
        with pytest.raises(errors.NotFound):
            own_cluster.kube.get(paths.object_path(folder, name))
    wait_until(
        lambda: not pods_of(own_cluster, f"fleetmend:{NEXT}"), GONE_LIMIT_S, "its pods have ended"
    )
    rights = Selector(label="app.kubernetes.io/part-of=fleetmend")
    for kind in ("clusterroles", "clusterrolebindings"):
        folder = paths.collection_path("rbac.authorization.k8s.io/v1", kind)
        assert own_cluster.kube.list(folder, selector=rights).items == []
    assert {machine["metadata"]["name"] for machine in own_cluster.machines()} == records
    for node in machines.added:
        marker = own_cluster.marker(node)
        assert (marker is not None and bool(marker.handed_over)) == (node in handed_over)
    left = own_cluster.marker(open_one)
    assert left is not None
    assert "helm uninstall" in left.handed_over
