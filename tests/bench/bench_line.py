"""From a line in a node's kernel log to an unschedulable node, beside the API's own floor.

Owns the measurement of `line_to_unschedulable_ms`: the real agent reads the record, reports, watch
cordons; faults one by one on a quiet lab, each from the moment at which the record was written to
the moment at which a watch of ours shows the cordon. An Xid stands for its boot, so after each
turn all nodes boot again, untimed. The floor is bench_reflex's, in turns with it. Needs a lab in
which no worker runs.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.bench.bare import BareClient, cordon_ourselves, is_cordoned, walk
from tests.bench.bench_reflex import armed_watch
from tests.bench.figure import Figure, figure_of
from tests.harness.cluster import Cluster, cluster_of
from tests.harness.nodes import TestNodes, test_nodes
from tests.harness.waiting import wait_until
from workers.lab.address import LabAddress
from workers.lab.kubelet.client import FleetClient
from workers.lab.kubelet.spec import NodeKind, NodeSpec

TURNS, NODES = 20, 10
"""200 faults; the first of each node is among them: there is no warm-up in life."""
POOL, FLOOR_POOL = "bench-line", "bench-line-floor"
LINE = "NVRM: Xid (PCI:{pci0}): 79, GPU has fallen off the bus."
BOOT_LIMIT_S = 90.0
QUIET_S = 1.0
"""After all have booted: what boots leave behind on two cores is not what is timed."""


def measure(lab: LabAddress) -> list[Figure]:
    """`line_to_unschedulable_ms` on this lab."""
    cluster = cluster_of(lab)
    ours: list[float] = []
    theirs: list[float] = []
    with (
        _nodes(lab, cluster) as (nodes, own, floor),
        armed_watch(lab, cluster, POOL),
        BareClient(cluster.kube) as bare,
    ):
        for _ in range(TURNS):
            time.sleep(QUIET_S)
            for number in range(NODES):
                theirs.append(walk(bare, floor[number], cordon_ourselves))
                ours.append(_break(nodes, bare, own[number]))
            _heal(nodes, cluster, own)
    cluster.kube.close()
    return [figure_of("line_to_unschedulable_ms", "ms", ours, floor=theirs)]


def _break(nodes: TestNodes, bare: BareClient, node: str) -> float:
    """One line; how long until the node was seen unschedulable, in milliseconds."""
    receipt = nodes.inject(node, "kernel-line", text=LINE)
    bare.until(node, is_cordoned)
    seen_at = time.time()
    assert receipt.written_at is not None, receipt
    return (seen_at - receipt.written_at) * 1000


def _heal(nodes: TestNodes, cluster: Cluster, own: list[str]) -> None:
    """Boot all of them, and take the marks off when all are reported healthy."""
    before = {node: cluster.node(node).boot_id for node in own}
    for node in own:
        nodes.client.reboot(node, "bench")
    for node in own:
        wait_until(
            lambda node=node: cluster.node(node).boot_id not in ("", before[node]),  # type: ignore[misc]  # mypy infers no default argument
            BOOT_LIMIT_S,
            f"{node} is in another boot",
        )
        nodes.until_healthy(node)
    for node in own:
        cluster.annotate(node, episode=None)
        cluster.uncordon(node)


@contextmanager
def _nodes(lab: LabAddress, cluster: Cluster) -> Iterator[tuple[TestNodes, list[str], list[str]]]:
    """Full nodes with the real agent, and light ones for the floor."""
    floor = [f"{FLOOR_POOL}-{number}" for number in range(NODES)]
    specs = [
        NodeSpec(name=name, pool=FLOOR_POOL, kind=NodeKind.LIGHT, agent_refresh_s=86_400)
        for name in floor
    ]
    with (
        FleetClient(lab.directory) as client,
        test_nodes(lab, cluster, lambda name: f"{POOL}-{name}") as nodes,
    ):
        client.add_nodes(specs)
        try:
            names = [str(number) for number in range(NODES)]
            own = nodes.add_many(names, POOL, agent="real", boot_time_s=0.1)
            yield nodes, own, floor
        finally:
            client.remove_nodes(floor)
