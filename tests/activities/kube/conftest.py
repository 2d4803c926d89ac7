"""Fixtures of the tests of `activities.kube`: a client of the lab, the fault proxy, own objects.

Owns the small objects (ConfigMaps with a label of their own) that these tests watch, so that tests
do not see each other's. Talks to the session's lab of `tests/conftest.py`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from activities.kube import errors, paths
from activities.kube.client import JsonObject, KubeClient, PatchKind, Selector
from tests.harness.proxy import FaultProxy
from tests.harness.proxy_kubeconfig import kubeconfig_through_proxy
from workers.lab.address import LabAccount, LabAddress


@pytest.fixture(scope="session")
def kubeconfig(lab: LabAddress) -> Path:
    return lab.kubeconfig(LabAccount.ADMIN)


@pytest.fixture
def kube(kubeconfig: Path) -> Iterator[KubeClient]:
    """An administrator's client, straight to the API server."""
    client = KubeClient.from_kubeconfig(kubeconfig, process="test")
    yield client
    client.close()


@pytest.fixture
def proxy(kubeconfig: Path, tmp_path: Path) -> Iterator[FaultProxy]:
    with FaultProxy(kubeconfig, tmp_path) as running:
        yield running


@pytest.fixture
def faulty(proxy: FaultProxy, kubeconfig: Path, tmp_path: Path) -> Iterator[KubeClient]:
    """The same client through the fault proxy."""
    through = kubeconfig_through_proxy(proxy, kubeconfig, tmp_path / "proxied.kubeconfig")
    client = KubeClient.from_kubeconfig(through, process="test-faulty")
    yield client
    client.close()


@dataclass
class Cards:
    """ConfigMaps of one test: small objects to create, change, delete and watch.

    Attributes:
        kube: a client that reaches the API server whatever the proxy does.
        family: value of the label that all of this test's objects carry.
    """

    kube: KubeClient
    family: str
    collection: paths.CollectionPath = field(default_factory=lambda: paths.config_maps("default"))

    @property
    def selector(self) -> Selector:
        return Selector(label=f"fleetmend.io/test={self.family}")

    def name(self, short: str) -> str:
        return f"{self.family}-{short}"

    def key(self, short: str) -> str:
        return f"default/{self.name(short)}"

    def path(self, short: str) -> paths.ObjectPath:
        return paths.config_map("default", self.name(short))

    def add(self, short: str, **content: str) -> JsonObject:
        labels = {"fleetmend.io/test": self.family}
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self.name(short), "labels": labels},
            "data": content,
        }
        return self.kube.create(self.collection, body)

    def change(self, short: str, **content: str) -> JsonObject:
        return self.kube.patch(self.path(short), {"data": content}, kind=PatchKind.MERGE)

    def remove(self, short: str) -> None:
        self.kube.delete(self.path(short), uid=None)


@pytest.fixture
def cards(kube: KubeClient, unique: Callable[[str], str]) -> Iterator[Cards]:
    mine = Cards(kube, unique("c"))
    yield mine
    for item in kube.list(mine.collection, selector=mine.selector).items:
        try:
            kube.delete(paths.config_map("default", item["metadata"]["name"]), uid=None)
        except errors.NotFound:
            continue
