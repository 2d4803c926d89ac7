"""The pods on a node: all that have not ended, whatever else its history has left there."""

from activities.kube import paths
from activities.kube.client import PatchKind
from activities.kube.node_pods import list_pods_on
from tests.activities.conftest import BareNodes
from tests.harness.cluster import Cluster

ENDED = 12


def test_what_has_ended_hides_no_work(cluster: Cluster, bare: BareNodes) -> None:
    """Seen elsewhere: 12,000 failed pods on one node (NVIDIA/k8s-device-plugin#231)."""
    node = bare.add("a").node.name
    for number in range(ENDED):
        name = make(cluster, f"{node}-{number:02}", node)
        failed = {"status": {"phase": "Failed"}}
        cluster.kube.patch(paths.pod_status("default", name), failed, kind=PatchKind.MERGE)
    work = make(cluster, f"{node}-z", node)
    try:
        assert [pod.name for pod in list_pods_on(cluster.kube, node)] == [work]
    finally:
        cluster.delete_pods_of(node)


def make(cluster: Cluster, name: str, node: str) -> str:
    spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    cluster.kube.create(paths.pods("default"), body)
    return name
