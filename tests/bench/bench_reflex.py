"""From a bad condition in the API server to an unschedulable node, beside the API's own floor.

Owns the measurement of `condition_to_unschedulable_ms`: faults one by one, each from the start of
the PATCH that reports it to the moment at which a watch of ours shows the cordon. The floor is the
same way walked by one client without fleetmend, in turns with it, so that both meet the same
weather. Needs a lab in which no worker runs: an episode would act on the nodes.
"""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from activities.kube import paths
from activities.kube.client import JsonObject, KubeClient, PatchKind
from activities.kube.stream import Frame, WatchRequest, WatchStream
from tests.bench.figure import Figure, Peer, figure_of
from tests.harness.cluster import Cluster, cluster_of
from tests.harness.policies import TestPool, write_policy
from tests.harness.processes import Running, processes
from tests.harness.waiting import wait_until
from workers.lab.address import LabAddress
from workers.lab.kubelet.client import FleetClient, FleetError
from workers.lab.kubelet.spec import NodeKind, NodeSpec
from workers.temporal_connection import TemporalTarget, connect_or_explain
from workflows.model.remediation.marks import EPISODE

ROUNDS = 200
WARM_UP = 10
NODES = 10
"""Each of the two pools: enough that a node has settled before its turn comes again."""
POOL, FLOOR_POOL = "bench-reflex", "bench-floor"
ROUND_LIMIT_S = 30
PEER = Peer("NVSentinel", 26.0, 165.0, "its published benchmark")


def measure(lab: LabAddress) -> list[Figure]:
    """`condition_to_unschedulable_ms` and `watch_rss_mib` on this lab."""
    cluster = cluster_of(lab)
    ours, theirs = [], []
    with (
        _nodes(lab) as (own, floor),
        _armed_watch(lab, cluster) as watch,
        _Fleet(cluster.kube) as fleet,
    ):
        for turn in range(WARM_UP + ROUNDS):
            theirs.append(_walk(fleet, floor[turn % NODES], _cordon_ourselves))
            ours.append(_walk(fleet, own[turn % NODES], _wait_for_cordon))
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


class _Fleet:
    """All Nodes through one connection for patches and one bare watch."""

    def __init__(self, kube: KubeClient) -> None:
        self.kube = kube
        version = kube.list(paths.nodes()).resource_version
        self._stream = WatchStream(kube, WatchRequest(paths.nodes(), version, duration_s=3000))
        self._frames = iter(self._stream)

    def __enter__(self) -> "_Fleet":
        return self

    def __exit__(self, *_error: object) -> None:
        self._stream.close()

    def until(self, node: str, is_so: Callable[[JsonObject], bool]) -> JsonObject:
        """The first form of this Node that the watch shows to be so."""
        deadline = perf_counter() + ROUND_LIMIT_S
        for frame in self._frames:
            if _is_about(frame, node) and is_so(frame.object):
                found: JsonObject = frame.object
                return found
            assert perf_counter() < deadline, f"{node} did not become as expected"
        raise AssertionError("the watch ended")

    def report(self, node: str, status: str, reason: str) -> None:
        """The agent's PATCH: one condition."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": "GPUHealthy",
            "status": status,
            "reason": reason,
            "message": "bench",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        self.kube.patch(
            paths.node_status(node),
            {"status": {"conditions": [condition]}},
            kind=PatchKind.STRATEGIC,
        )

    def mark(self, node: str, marker: str | None, *, version: str | None = None) -> None:
        """Cordon and mark, or take both off."""
        body = {
            "metadata": {"annotations": {EPISODE: marker}},
            "spec": {"unschedulable": True if marker else None},
        }
        self.kube.patch(paths.node(node), body, kind=PatchKind.MERGE, resource_version=version)


Finish = Callable[[_Fleet, str], None]


def _walk(fleet: _Fleet, node: str, finish: Finish) -> float:
    """One fault, timed in milliseconds; the node is healthy and unmarked afterwards."""
    begun = perf_counter()
    fleet.report(node, "False", "GpuLost")
    finish(fleet, node)
    took_ms = (perf_counter() - begun) * 1000
    # Healed before the marks go: otherwise it would look like a person who overrules.
    fleet.report(node, "True", "Healthy")
    fleet.mark(node, None)
    fleet.until(node, lambda item: not _is_cordoned(item) and not _is_bad(item))
    return took_ms


def _wait_for_cordon(fleet: _Fleet, node: str) -> None:
    fleet.until(node, _is_cordoned)


def _cordon_ourselves(fleet: _Fleet, node: str) -> None:
    seen = fleet.until(node, _is_bad)
    fleet.mark(node, "bench", version=seen["metadata"]["resourceVersion"])


def _is_about(frame: Frame, node: str) -> bool:
    return frame.type == "MODIFIED" and frame.object["metadata"]["name"] == node


def _is_cordoned(item: JsonObject) -> bool:
    return bool((item.get("spec") or {}).get("unschedulable"))


def _is_bad(item: JsonObject) -> bool:
    conditions = item["status"]["conditions"]
    return any(c["type"] == "GPUHealthy" and c["status"] == "False" for c in conditions)


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
def _armed_watch(lab: LabAddress, cluster: Cluster) -> Iterator[Running]:
    """A watch that may quarantine every node of our pool; its workflows end with it."""
    with tempfile.TemporaryDirectory(prefix="fleetmend-bench-") as name:
        folder = Path(name)
        write_policy(folder / "policy.yaml", [TestPool(POOL)])
        cluster.arm(POOL)
        try:
            with processes(
                lab, folder, {"FLEETMEND_POLICY": str(folder / "policy.yaml")}
            ) as started:
                watch = started.watch()
                wait_until(lambda: watch.logged("writing"), 60, "watch writes", saw=watch.tail)
                yield watch
        finally:
            cluster.disarm(POOL)
            asyncio.run(_terminate_runs(lab))


async def _terminate_runs(lab: LabAddress) -> None:
    client = await connect_or_explain(TemporalTarget(lab.temporal_address, "default", {}))
    query = f"ExecutionStatus = 'Running' AND WorkflowId STARTS_WITH 'node/{lab.cluster}/{POOL}-'"
    async for run in client.list_workflows(query):
        await client.get_workflow_handle(run.id, run_id=run.run_id).terminate("bench has ended")
