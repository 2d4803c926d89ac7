"""Activities as a worker carries them out, on the session's lab, one contract at a time.

Owns the desk: the worker's own account, the wired activities, and an activity context without
Temporal. Nodes here are bare Node objects unless a test asks for simulated ones.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities.kube import errors, paths
from activities.kube.client import CallTimeout, JsonObject, KubeClient, PatchKind
from activities.policy_file import PolicySource
from activities.registry import Dependencies
from tests.activities.desk import Desk
from tests.harness.cluster import Cluster
from tests.harness.policies import TestPool, write_policy
from tests.harness.proxy import FaultProxy
from tests.harness.proxy_kubeconfig import kubeconfig_through_proxy
from workers.lab.address import LabAccount, LabAddress
from workers.lab.kubelet.spec import POOL_LABEL
from workflows.contracts.kube import Owner
from workflows.model.identity import NodeRef

SHORT = CallTimeout(connect_s=3, read_s=1.5)
LEASE_NAMESPACE = "kube-node-lease"
RENEWAL_S = 2.0
"""Of a bare node's Lease, as the lab's kubelets do: after 8 s of silence a node is Unknown."""
NO_TEMPORAL = cast("Client", None)
"""For activities that do not talk to Temporal."""


@pytest.fixture
def pool(unique: Callable[[str], str], cluster: Cluster) -> Iterator[str]:
    """An armed pool that no other test uses."""
    name = unique("p")
    cluster.arm(name)
    yield name
    with suppress(errors.NotFound):
        cluster.disarm(name)


@pytest.fixture
def policy_file(tmp_path: Path, pool: str) -> Path:
    """A policy with just this test's pool."""
    path = tmp_path / "policy.yaml"
    write_policy(path, [TestPool(pool, expected_gpus=8)])
    return path


@pytest.fixture
def worker_kube(lab: LabAddress) -> Iterator[KubeClient]:
    """The API server with the worker's rights."""
    client = KubeClient.from_kubeconfig(lab.kubeconfig(LabAccount.WORKER), process="worker")
    yield client
    client.close()


@pytest.fixture
def desk(worker_kube: KubeClient, policy_file: Path, lab: LabAddress) -> Desk:
    """All activities, wired as in the worker."""
    return _desk(worker_kube, policy_file, lab)


@pytest.fixture
def worker_proxy(lab: LabAddress, tmp_path: Path) -> Iterator[FaultProxy]:
    with FaultProxy(lab.kubeconfig(LabAccount.WORKER), tmp_path) as running:
        yield running


@pytest.fixture
def faulty_desk(
    worker_proxy: FaultProxy, policy_file: Path, lab: LabAddress, tmp_path: Path
) -> Iterator[Desk]:
    """The same activities through the fault proxy."""
    worker = lab.kubeconfig(LabAccount.WORKER)
    through = kubeconfig_through_proxy(worker_proxy, worker, tmp_path / "proxied.kubeconfig")
    # Short, so that a silent server costs the matrix a second and not ten.
    client = KubeClient.from_kubeconfig(through, process="worker", timeout=SHORT)
    yield _desk(client, policy_file, lab)
    client.close()


def _desk(kube: KubeClient, policy_file: Path, lab: LabAddress) -> Desk:
    policies = PolicySource(kube, policy_file)
    return Desk(Dependencies(kube, NO_TEMPORAL, policies, lab.cluster))


@dataclass
class BareNodes:
    """Node objects without a machine behind them, whose Leases are kept fresh for them."""

    cluster: Cluster
    pool: str
    unique: Callable[[str], str]
    added: list[str] = field(default_factory=list)

    def add(self, name: str, **changes: Any) -> Owner:
        """A Node of the test's pool, and an episode that may own it."""
        real = self.unique(name)
        metadata = {"name": real, "labels": {POOL_LABEL: self.pool, **changes.get("labels", {})}}
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {**metadata, "annotations": changes.get("annotations", {})},
            "spec": changes.get("spec", {}),
        }
        made = self.cluster.kube.create(paths.nodes(), body)
        self.added.append(real)
        info = {
            "bootID": changes.get("boot_id", "boot-1"),
            "systemUUID": changes.get("system_uuid", f"uuid-{real}"),
            "machineID": "m",
            "kernelVersion": "",
            "osImage": "",
            "containerRuntimeVersion": "",
            "kubeletVersion": "",
            "kubeProxyVersion": "",
            "operatingSystem": "",
            "architecture": "",
        }
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        self.cluster.kube.patch(
            paths.node_status(real),
            {"status": {"nodeInfo": info, "conditions": [ready]}},
            kind=PatchKind.MERGE,
        )
        uid = str(made["metadata"]["uid"])
        self.cluster.kube.create(paths.leases(LEASE_NAMESPACE), _lease(real, uid))
        return Owner(NodeRef(real, uid), f"ep-{real}")

    def set_boot_id(self, owner: Owner, boot_id: str) -> None:
        self.cluster.kube.patch(
            paths.node_status(owner.node.name),
            {"status": {"nodeInfo": {"bootID": boot_id}}},
            kind=PatchKind.MERGE,
        )

    def remove(self, name: str) -> None:
        """The Node; its Lease follows, as it belongs to it."""
        with suppress(errors.NotFound):
            self.cluster.kube.delete(paths.node(name), uid=None)

    def renew_until(self, ended: threading.Event) -> None:
        """Heartbeats in the kubelets' place, also after a time without an API server."""
        while not ended.wait(RENEWAL_S):
            for name in tuple(self.added):
                lease = paths.lease(LEASE_NAMESPACE, name)
                with suppress(errors.ApiError):  # of a Node that is gone, or nobody answers
                    self.cluster.kube.patch(
                        lease, {"spec": {"renewTime": _now()}}, kind=PatchKind.MERGE, timeout=SHORT
                    )


def _lease(node: str, uid: str) -> JsonObject:
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node, "ownerReferences": [owner]},
        "spec": {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": _now()},
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.fixture
def bare(cluster: Cluster, pool: str, unique: Callable[[str], str]) -> Iterator[BareNodes]:
    nodes = BareNodes(cluster, pool, unique)
    ended = threading.Event()
    heart = threading.Thread(target=nodes.renew_until, args=(ended,), daemon=True)
    heart.start()
    yield nodes
    ended.set()
    heart.join()
    for name in nodes.added:
        nodes.remove(name)


@pytest.fixture
def epoch(cluster: Cluster) -> Iterator[str]:
    """The guard's epoch in the cluster for this test (put back afterwards)."""
    path = paths.config_map("fleetmend", "fleetmend-guard")
    try:
        before = str((cluster.kube.get(path).get("data") or {}).get("epoch", ""))
        cluster.kube.patch(path, {"data": {"epoch": "epoch-1"}}, kind=PatchKind.MERGE)
    except errors.NotFound:
        before = ""
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "fleetmend-guard"},
            "data": {"epoch": "epoch-1"},
        }
        cluster.kube.create(paths.config_maps("fleetmend"), body)
    yield "epoch-1"
    cluster.kube.patch(path, {"data": {"epoch": before}}, kind=PatchKind.MERGE)


def failure_type(error: ApplicationError) -> str:
    return error.type or ""
