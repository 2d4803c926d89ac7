"""The cluster as commands see it: Nodes, machine records, arming and policy, read once.

Owns opening the cluster within a person's patience, and the messages when it does not answer or
refuses. Reads with the caller's own kubeconfig; the only thing it writes is the ConfigMap
`fleetmend-arming`. What the objects mean is `workflows.model`'s.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from activities.kube import errors, paths
from activities.kube.client import CallTimeout, JsonObject, KubeClient, PatchKind
from activities.kube.protected_pods import protected_pods
from activities.policy_file import NAMESPACE, PolicySource
from activities.policy_reader import POLICY_CONFIG_MAP, POLICY_VARIABLE
from workers.cli.outcome import CommandError, ExitCode, refused, unreachable, wrong_usage
from workers.cli.patience import patience_s
from workflows.model.node import BadObject, NodeView, PodView, parse_node
from workflows.model.policy import Policy, PolicyError
from workflows.model.remediation.arming import (
    ARMING_CONFIG_MAP,
    Arming,
    encode_arming,
    parse_arming,
)

LAST_CHANGE: Final = "fleetmend.io/last-change"
"""Annotation of the ConfigMap: who took something off, when and why; entries name who put it on."""
WRITE_TRIES: Final = 5
"""Two people arm at the same moment: one of them reads again."""


class PolicyUnusable(CommandError):
    """The policy cannot be used; the message names each wrong field and the remedy.

    A command that can do its work without a policy catches it, and tells the message beside its
    answer.
    """

    def __init__(self, error: PolicyError) -> None:
        super().__init__(
            ExitCode.REFUSED,
            f"the policy cannot be used: {error}\n"
            f"Next: mend it (kubectl -n {NAMESPACE} edit configmap {POLICY_CONFIG_MAP}, or the "
            f"file that {POLICY_VARIABLE} names) and try it with: fleetmend policy check FILE. "
            "Until then no node is drained or rebooted; giving back, pause and disarm go on",
        )


@dataclass(frozen=True)
class Machine:
    """One machine record, with what commands show of it; "" = nothing is recorded."""

    name: str
    node_name: str
    node_uid: str
    pool: str
    phase: str
    fault: str
    outcome: str
    held: bool
    held_reason: str
    episode: str
    workflow_id: str
    run_id: str
    baseline_gpus: int | None
    strikes: int
    raw: JsonObject

    @property
    def is_open(self) -> bool:
        """True while an episode of this machine runs."""
        return bool(self.workflow_id) and not self.outcome


@dataclass(frozen=True)
class ClusterReader:
    """One cluster. Every method raises `CommandError`."""

    kube: KubeClient

    def nodes(self) -> tuple[NodeView, ...]:
        """Every readable Node, by name."""
        with cluster_errors(self.kube):
            items = self.kube.list(paths.nodes()).items
        views = []
        for item in items:
            try:
                views.append(parse_node(item))
            except BadObject:
                continue  # hostile or half-written; watch counts it
        return tuple(sorted(views, key=lambda view: view.name))

    def node(self, name: str) -> NodeView:
        """One Node."""
        with cluster_errors(self.kube):
            try:
                return parse_node(self.kube.get(paths.node(name)))
            except errors.NotFound:
                raise refused(f"there is no Node {name}; see: fleetmend status") from None
            except paths.BadName as error:
                raise wrong_usage(f"NODE: {error}") from None
            except BadObject as error:
                raise refused(str(error)) from None

    def machines(self) -> tuple[Machine, ...]:
        """Every machine record; none if the CRD is not installed."""
        with cluster_errors(self.kube):
            try:
                items = self.kube.list(paths.gpu_machines()).items
            except errors.NotFound:
                return ()
        return tuple(_machine(item) for item in items)

    def machine_of(self, node: NodeView) -> Machine | None:
        """The record of the machine that a Node is now."""
        return next((m for m in self.machines() if m.node_uid == node.uid), None)

    def policy(self) -> Policy:
        """The policy that the processes run under (ConfigMap, else FLEETMEND_POLICY's file).

        Raises:
            PolicyUnusable: whoever can do without it goes on.
        """
        with cluster_errors(self.kube):
            try:
                return PolicySource.from_environment(self.kube).read()
            except PolicyError as error:
                raise PolicyUnusable(error) from error

    def protected_pods(self, policy: Policy) -> tuple[PodView, ...] | None:
        """The pods that keep their nodes from being touched; None = the caller may not see them."""
        with cluster_errors(self.kube):
            try:
                return protected_pods(self.kube, policy)
            except errors.Forbidden:
                return None
            except BadObject as error:
                raise refused(str(error)) from error

    def arming(self) -> Arming:
        """What is armed and paused."""
        return self._arming()[0]

    def change_arming(self, change: Callable[[Arming], Arming], *, note: str = "") -> Arming:
        """Write `change` of what stands there now, and `note` beside it; what stands afterwards."""
        for _ in range(WRITE_TRIES):
            now, version = self._arming()
            wanted = change(now)
            with cluster_errors(self.kube):
                try:
                    self._write(wanted, version, note)
                except errors.Conflict:
                    continue  # somebody else wrote meanwhile: decide anew
            return wanted
        raise refused(f"ConfigMap {ARMING_CONFIG_MAP} changes faster than it can be written")

    def _arming(self) -> tuple[Arming, str | None]:
        with cluster_errors(self.kube):
            try:
                found = self.kube.get(paths.config_map(NAMESPACE, ARMING_CONFIG_MAP))
            except errors.NotFound:
                return Arming(), None
        return parse_arming(found.get("data")), str(found["metadata"]["resourceVersion"])

    def _write(self, arming: Arming, version: str | None, note: str) -> None:
        noted = {"annotations": {LAST_CHANGE: note}} if note else {}
        if version is None:
            body: JsonObject = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": ARMING_CONFIG_MAP, **noted},
                "data": encode_arming(arming),
            }
            self.kube.create(paths.config_maps(NAMESPACE), body)
            return
        self.kube.patch(
            paths.config_map(NAMESPACE, ARMING_CONFIG_MAP),
            {"data": encode_arming(arming), **({"metadata": noted} if noted else {})},
            kind=PatchKind.MERGE,
            resource_version=version,
        )


@contextmanager
def open_cluster() -> Iterator[ClusterReader]:
    """The caller's cluster, asked once so that a dead one is told at once.

    Raises:
        CommandError: no kubeconfig, or nobody answers.
    """
    try:
        kube = KubeClient.from_environment(process="cli", pool_size=4)
    except errors.KubeconfigError as error:
        raise unreachable(str(error)) from error
    try:
        with cluster_errors(kube):
            # The whole answer may take twice the silence that is borne.
            patience = patience_s()
            first = CallTimeout(connect_s=patience, read_s=patience / 2)
            kube.get(paths.version(), timeout=first)
        yield ClusterReader(kube)
    finally:
        kube.close()


@contextmanager
def cluster_errors(kube: KubeClient) -> Iterator[None]:
    """Turns the API's errors into a command's end."""
    try:
        yield
    except errors.Unreachable as error:
        raise _gone(kube, error) from error
    except errors.ApiError as error:
        raise refused(str(error)) from error


def _gone(kube: KubeClient, error: errors.Unreachable) -> CommandError:
    source = os.environ.get("KUBECONFIG", "the pod's ServiceAccount")
    return unreachable(
        f"cannot reach the cluster at {kube.wire.host} (from {source}): {error.said}. "
        "Next: start it, or set KUBECONFIG to the right file"
    )


def _machine(body: Any) -> Machine:
    spec = _mapping(body.get("spec"))
    status = _mapping(body.get("status"))
    node = _mapping(spec.get("node"))
    baseline = _mapping(status.get("baseline"))
    count = baseline.get("gpuCount")
    return Machine(
        name=str(_mapping(body.get("metadata")).get("name", "")),
        node_name=str(node.get("name") or ""),
        node_uid=str(node.get("uid") or ""),
        pool=str(spec.get("pool") or ""),
        phase=str(status.get("phase") or ""),
        fault=str(status.get("fault") or ""),
        outcome=str(status.get("outcome") or ""),
        held=status.get("held") is True,
        held_reason=str(status.get("heldReason") or ""),
        episode=str(status.get("episode") or ""),
        workflow_id=str(status.get("workflowID") or ""),
        run_id=str(status.get("runID") or ""),
        baseline_gpus=count if isinstance(count, int) else None,
        strikes=int(status.get("strikeCount") or 0),
        raw=body,
    )


def _mapping(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}
