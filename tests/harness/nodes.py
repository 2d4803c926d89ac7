"""Simulated nodes in tests: added with names of their own, and taken away afterwards.

Owns adding, breaking and removing nodes through the fleet's socket, and the waits for what a test
takes for granted (agent reports, baseline recorded). Does not judge what fleetmend does with them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from activities.kube.errors import NotFound
from tests.harness.cluster import Cluster
from tests.harness.waiting import wait_until
from workers.lab.address import LabAddress
from workers.lab.kubelet.client import FleetClient, FleetError
from workers.lab.kubelet.spec import NodeKind, NodeSpec, NodeView, Receipt
from workflows.model.detection.rules import AGENT_CONDITIONS

AGENT_LIMIT_S = 30.0
BASELINE_LIMIT_S = 150.0
"""Twice what a sweep waits for the count of a node that was taken away at that moment (60 s)."""


@dataclass
class TestNodes:
    """Nodes of one test (or module); `added` are taken away at its end."""

    __test__ = False

    client: FleetClient
    cluster: Cluster
    unique: Callable[[str], str]
    added: list[str] = field(default_factory=list)

    def add(self, name: str, pool: str, **spec: Any) -> str:
        """A full node whose agent reports it healthy; its real name.

        Args:
            name: made unique here.
            pool: its pool label.
            spec: other fields of `NodeSpec`.
        """
        return self.add_many([name], pool, **spec)[0]

    def add_many(self, names: list[str], pool: str, **spec: Any) -> list[str]:
        """Several full nodes at once; returns when all are reported healthy."""
        specs = [NodeSpec(name=self.unique(name), pool=pool, **spec) for name in names]
        self.added += [each.name for each in specs]
        self.client.add_nodes(specs, await_agents=specs[0].kind is NodeKind.FULL)
        for each in specs:
            if each.kind is NodeKind.FULL:
                self.until_healthy(each.name)
        return [each.name for each in specs]

    def until_healthy(self, node: str) -> None:
        """Returns when the Node is Ready, its GPUs are allocatable and all conditions are True."""
        wait_until(
            lambda: self._is_healthy(node),
            AGENT_LIMIT_S,
            f"{node} is Ready and its agent reports it healthy",
            saw=lambda: self.cluster.node(node),
        )

    def until_baselines(self) -> None:
        """Returns when every added node's machine has a baseline (needs a worker, armed pools)."""
        for node in self.added:
            wait_until(
                lambda node=node: self.cluster.has_baseline(node),  # type: ignore[misc]  # mypy infers no default argument
                BASELINE_LIMIT_S,
                f"the baseline of {node} is recorded",
                saw=lambda node=node: self.cluster.machine_of(node),  # type: ignore[misc]  # as above
            )

    def inject(self, node: str, fault: str, **options: Any) -> Receipt:
        """Break a node; it is so when this returns. `for_s` is the option `for`."""
        named = {"for" if key == "for_s" else key: value for key, value in options.items()}
        return self.client.inject(node, fault, named)

    def clear(self, node: str, fault: str) -> Receipt:
        """End a fault."""
        return self.client.clear(node, fault)

    def view(self, node: str) -> NodeView:
        """A node as seen from inside the machine."""
        return self.client.node(node)

    def boots(self, node: str) -> int:
        """How often the machine has booted since it was added."""
        return self.view(node).boots

    def remove_all(self) -> None:
        """Take every added node away, with the pods that were bound to it."""
        for name in self.added:
            with suppress(FleetError):
                self.client.remove_node(name)
            self.cluster.delete_pods_of(name)
        self.added.clear()

    def _is_healthy(self, node: str) -> bool:
        try:
            seen = self.cluster.node(node)
        except NotFound:
            return False
        statuses = [seen.conditions[c].status for c in AGENT_CONDITIONS if c in seen.conditions]
        wanted = self.client.node(node).gpus
        return (
            seen.ready
            and sum(seen.gpus.values()) == wanted
            and statuses == ["True"] * len(AGENT_CONDITIONS)
        )


@contextmanager
def test_nodes(
    lab: LabAddress, cluster: Cluster, unique: Callable[[str], str]
) -> Iterator[TestNodes]:
    """Nodes that go with the block."""
    with FleetClient(lab.directory) as client:
        nodes = TestNodes(client, cluster, unique)
        try:
            yield nodes
        finally:
            nodes.remove_all()


test_nodes.__test__ = False  # type: ignore[attr-defined]  # pytest looks at it
