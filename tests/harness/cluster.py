"""The cluster as a test's own hands: an administrator's client, arming, and reading marks.

Owns what a test does to the cluster as a person would (arm a pool, pause, cordon, set an
annotation), and how it reads Nodes and machine records. Does not go through fleetmend.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from activities.kube import errors
from activities.kube import paths as kube_paths
from activities.kube.client import JsonObject, KubeClient, PatchKind, Selector
from activities.kube.paths import ObjectPath
from workers.lab.address import NAMESPACE, LabAccount, LabAddress
from workflows.model.node import NodeView, parse_node
from workflows.model.remediation.arming import (
    ARMING_CONFIG_MAP,
    Arming,
    Entry,
    encode_arming,
    parse_arming,
)
from workflows.model.remediation.marks import Marker, marker_of

TEST_IDENTITY = "test@lab"


@dataclass(frozen=True)
class Cluster:
    """The API server with the rights of an administrator."""

    kube: KubeClient

    def node(self, name: str) -> NodeView:
        """One Node now.

        Raises:
            activities.kube.errors.NotFound: there is none.
        """
        return parse_node(self.kube.get(kube_paths.node(name)))

    def marker(self, name: str) -> Marker | None:
        """The marker on a Node; None = no mark of fleetmend."""
        return marker_of(self.node(name))

    def machines(self) -> list[JsonObject]:
        """Every machine record."""
        return self.kube.list(kube_paths.gpu_machines()).items

    def machine_of(self, node: str) -> JsonObject | None:
        """The record of the machine that a Node is now; None = there is none yet."""
        wanted = {"name": node, "uid": self.node(node).uid}
        for machine in self.machines():
            known = (machine.get("spec") or {}).get("node") or {}
            if {key: known.get(key) for key in wanted} == wanted:
                return machine
        return None

    def has_baseline(self, node: str) -> bool:
        """True if the machine's baseline is recorded."""
        machine = self.machine_of(node)
        return bool(machine and (machine.get("status") or {}).get("baseline"))

    def annotate(self, node: str, **annotations: str | None) -> None:
        """Set annotations below `fleetmend.io/` (pause="why"); None removes."""
        named = {f"fleetmend.io/{key}": value for key, value in annotations.items()}
        self.patch_node(node, {"metadata": {"annotations": named}})

    def uncordon(self, node: str) -> None:
        """As `kubectl uncordon` does."""
        self.patch_node(node, {"spec": {"unschedulable": None}})

    def patch_node(self, node: str, body: JsonObject) -> JsonObject:
        """A person's merge patch of a Node."""
        return self.kube.patch(kube_paths.node(node), body, kind=PatchKind.MERGE)

    def arming(self) -> Arming:
        """What is armed and paused now."""
        try:
            return parse_arming(self.kube.get(_arming_path()).get("data"))
        except errors.NotFound:
            return Arming()

    def arm(self, *pools: str) -> None:
        """Arm these pools beside those that are armed."""
        now = self.arming()
        kept = tuple(entry for entry in now.armed if entry.scope not in pools)
        self.write_arming(Arming(armed=kept + _entries(pools, "armed"), paused=now.paused))

    def disarm(self, *pools: str) -> None:
        """Disarm these pools."""
        now = self.arming()
        kept = tuple(entry for entry in now.armed if entry.scope not in pools)
        self.write_arming(Arming(armed=kept, paused=now.paused))

    def pause(self, scope: str) -> None:
        """Pause a pool, or `*` the fleet, in the ConfigMap alone."""
        now = self.arming()
        self.write_arming(Arming(armed=now.armed, paused=now.paused + _entries([scope], "paused")))

    def resume(self, scope: str) -> None:
        """Lift such a pause."""
        now = self.arming()
        kept = tuple(entry for entry in now.paused if entry.scope != scope)
        self.write_arming(Arming(armed=now.armed, paused=kept))

    def write_arming(self, arming: Arming) -> None:
        """Replace the ConfigMap's content."""
        self.write_raw_arming(encode_arming(arming))

    def write_raw_arming(self, content: dict[str, str]) -> None:
        """As `write_arming`, for content that need not be readable."""
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": ARMING_CONFIG_MAP},
            "data": content,
        }
        try:
            self.kube.patch(_arming_path(), {"data": content}, kind=PatchKind.MERGE)
        except errors.NotFound:
            self.kube.create(kube_paths.config_maps(NAMESPACE), body)

    def delete_pods_of(self, node: str) -> None:
        """Delete every pod bound to a node at once."""
        for pod in self.pods_on(node):
            meta = pod["metadata"]
            with suppress(errors.NotFound, errors.Conflict):
                self.kube.delete(
                    kube_paths.pod(meta["namespace"], meta["name"]), uid=meta["uid"], grace_s=0
                )

    def pods_on(self, node: str) -> list[Any]:
        """Every pod bound to a node."""
        on_node = Selector(field=kube_paths.field_on_node(node))
        return list(self.kube.list(kube_paths.pods(), selector=on_node).items)


def cluster_of(lab: LabAddress) -> Cluster:
    """An administrator's hands on a lab."""
    kubeconfig = lab.kubeconfig(LabAccount.ADMIN)
    return Cluster(KubeClient.from_kubeconfig(kubeconfig, process="test"))


def _arming_path() -> ObjectPath:
    return kube_paths.config_map(NAMESPACE, ARMING_CONFIG_MAP)


def _entries(scopes: Iterable[str], reason: str) -> tuple[Entry, ...]:
    now = datetime.now(UTC)
    return tuple(Entry(scope, TEST_IDENTITY, now, reason) for scope in scopes)
