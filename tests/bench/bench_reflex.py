"""From a bad condition in the API server to an unschedulable node, beside the API's own floor.

Owns the measurement of `condition_to_unschedulable_ms`: faults one by one, each from the start of
the PATCH that reports it to the moment at which a watch of ours shows the cordon. The floor is the
same way walked by one client without fleetmend, in turns with it, so that both meet the same
weather. Needs a lab in which no worker runs: an episode would act on the nodes.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.bench.bare import BareClient, cordon_ourselves, wait_for_cordon, walk
from tests.bench.figure import Figure, Peer, figure_of
from tests.harness.cluster import Cluster, cluster_of
from tests.harness.policies import TestPool, write_policy
from tests.harness.processes import Running, processes
from tests.harness.starts import start_cold
from tests.harness.waiting import wait_until
from workers.lab.address import LabAddress
from workers.lab.kubelet.client import FleetClient, FleetError
from workers.lab.kubelet.spec import NodeKind, NodeSpec
from workers.temporal_connection import TemporalTarget, connect_or_explain

ROUNDS = 200
WARM_UP = 10
NODES = 10
"""Each of the two pools: enough that a node has settled before its turn comes again."""
POOL, FLOOR_POOL = "bench-reflex", "bench-floor"
PEER = Peer("NVSentinel", 26.0, 165.0, "its published benchmark")


def measure(lab: LabAddress) -> list[Figure]:
    """`condition_to_unschedulable_ms` and `watch_rss_mib` on this lab."""
    cluster = cluster_of(lab)
    ours, theirs = [], []
    with (
        _nodes(lab) as (own, floor),
        armed_watch(lab, cluster, POOL) as watch,
        BareClient(cluster.kube) as bare,
    ):
        for turn in range(WARM_UP + ROUNDS):
            theirs.append(walk(bare, floor[turn % NODES], cordon_ourselves))
            ours.append(walk(bare, own[turn % NODES], wait_for_cordon))
        rss_mib = watch.rss_mib()
    cluster.kube.close()
    return [
        figure_of(
            "condition_to_unschedulable_ms",
            "ms",
            ours[WARM_UP:],
            floor=theirs[WARM_UP:],
            peer=PEER,
        ),
        figure_of("watch_rss_mib", "MiB", [rss_mib]),
    ]


@contextmanager
def _nodes(lab: LabAddress) -> Iterator[tuple[list[str], list[str]]]:
    """Light nodes for both ways; they go with the block."""
    named = {pool: [f"{pool}-{number}" for number in range(NODES)] for pool in (POOL, FLOOR_POOL)}
    specs = [
        NodeSpec(name=name, pool=pool, kind=NodeKind.LIGHT, agent_refresh_s=86_400)
        for pool, names in named.items()
        for name in names
    ]
    with FleetClient(lab.directory) as client:
        client.add_nodes(specs)
        try:
            yield named[POOL], named[FLOOR_POOL]
        finally:
            for spec in specs:
                with suppress(FleetError):
                    client.remove_node(spec.name)


@contextmanager
def armed_watch(lab: LabAddress, cluster: Cluster, pool: str) -> Iterator[Running]:
    """A watch that may quarantine every node of this pool; its workflows end with it."""
    with tempfile.TemporaryDirectory(prefix="fleetmend-bench-") as name:
        folder = Path(name)
        write_policy(folder / "policy.yaml", [TestPool(pool)])
        cluster.arm(pool)
        try:
            with processes(
                lab,
                folder,
                {"FLEETMEND_POLICY": str(folder / "policy.yaml")},
                start_by=start_cold,
            ) as started:
                watch = started.watch()
                wait_until(lambda: watch.logged("writing"), 60, "watch writes", saw=watch.tail)
                yield watch
        finally:
            cluster.disarm(pool)
            asyncio.run(_terminate_runs(lab, pool))


async def _terminate_runs(lab: LabAddress, pool: str) -> None:
    client = await connect_or_explain(TemporalTarget(lab.temporal_address, "default", {}))
    query = f"ExecutionStatus = 'Running' AND WorkflowId STARTS_WITH 'node/{lab.cluster}/{pool}-'"
    async for run in client.list_workflows(query):
        await client.get_workflow_handle(run.id, run_id=run.run_id).terminate("bench has ended")
