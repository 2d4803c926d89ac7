"""A service on a node: a real Deployment with one pod, bound to a node of choice.

Owns making the Deployment, moving its pod away, and removing both. The pod names its node itself,
so that no scheduler and no readiness of the node is in the way, and goes without grace.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from activities.kube import errors, paths
from activities.kube.client import JsonObject, PatchKind, Selector
from tests.harness.cluster import Cluster
from tests.harness.processes import Running
from tests.harness.waiting import wait_until
from workers.lab.address import NAMESPACE

POD_LIMIT_S = 30.0


@dataclass(frozen=True)
class Service:
    """One Deployment with one pod."""

    cluster: Cluster
    name: str
    namespace: str

    @property
    def path(self) -> paths.ObjectPath:
        return paths.object_path(_deployments(self.namespace), self.name)

    def pods(self) -> list[str]:
        """Names of its pods."""
        selector = Selector(label=f"service={self.name}")
        found = self.cluster.kube.list(paths.pods(self.namespace), selector=selector).items
        return [str(item["metadata"]["name"]) for item in found]

    def leave(self) -> None:
        """Its pod leaves the node; returns when it is gone."""
        with suppress(errors.NotFound):
            body = {"spec": {"replicas": 0}}
            self.cluster.kube.patch(self.path, body, kind=PatchKind.MERGE)
        wait_until(lambda: not self.pods(), POD_LIMIT_S, f"the pod of {self.name} is gone")


@contextmanager
def service_on(
    cluster: Cluster, node: str, name: str, namespace: str = NAMESPACE
) -> Iterator[Service]:
    """A Deployment whose pod is bound to `node`, until the block ends."""
    service = Service(cluster, name, namespace)
    cluster.kube.create(_deployments(namespace), _deployment(node, name))
    try:
        wait_until(service.pods, POD_LIMIT_S, f"the pod of {name} is there")
        yield service
    finally:
        service.leave()
        with suppress(errors.NotFound):
            cluster.kube.delete(service.path, uid=None)


def _deployments(namespace: str) -> paths.CollectionPath:
    return paths.collection_path("apps/v1", "deployments", namespace=namespace)


def _deployment(node: str, name: str) -> JsonObject:
    pod = {
        "nodeName": node,
        "containers": [{"name": "service", "image": "service:lab"}],
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 0,
    }
    labels = {"service": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def until_seen(watch: Running, node: str) -> None:
    """Returns when watch knows of the service's pod: pods and Nodes come by streams of their own."""
    wait_until(
        lambda: node in {line["node"] for line in watch.logged("protecting_pods_changed")},
        POD_LIMIT_S,
        f"watch knows that {node} runs a pod that protects it",
        saw=watch.tail,
    )
