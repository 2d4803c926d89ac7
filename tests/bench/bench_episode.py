"""What an episode takes: from fault to workflow, from Ready to proof, and its actions and events.

Owns the measurement of whole episodes on a lab with watch and worker, one fault after the other.
Times are the servers' own (Temporal's history, the API server's audit log); counts come from the
histories. Retries and heartbeats are counted apart: retries by the attempts that the history
names, heartbeats by the server's own bound on their pace, as no history shows them.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.bench.figure import Figure, figure_of
from tests.harness.audit import AuditLog, Wanted, audit
from tests.harness.cluster import Cluster, cluster_of
from tests.harness.fleet import Fleet, fleet_on
from tests.harness.nodes import TestNodes, test_nodes
from tests.harness.policies import TestPool
from tests.harness.processes import fleetmend
from tests.harness.starts import start_cold
from tests.harness.waiting import wait_until
from workers.lab.address import LabAddress
from workers.lab.demo.chronicle import OPEN, Chronicle, read_chronicles
from workers.temporal_connection import TemporalTarget, connect_or_explain

POOL = "bench-episode"
RETURNED, HELD, DISMISSED, RETIRED = 12, 4, 4, 4
PACE_S = 3.0
"""Between two faults: the episodes overlap, the moments that are timed do not."""
ENDS_WITHIN_S = 300.0
LONG_BOOT_S, WAIT_S = 60.0, 2.0
"""A boot of 10 minutes with waits of 20 s, ten times faster: as many waits, in a minute."""
HEARTBEAT_PACE_S = 2.0
"""The worker's bound (FLEETMEND_HEARTBEAT_THROTTLE_S)."""
HEARTBEATING = ("drain", "inventory", "reboot", "diagnose", "kernel_log", "sweep_cluster")


def measure(lab: LabAddress) -> list[Figure]:
    """Figures of whole episodes, and the worker's memory after them."""
    cluster = cluster_of(lab)
    try:
        with _at_work(lab, cluster) as (fleet, nodes):
            cast = _play(lab, fleet, nodes)
            rss_mib = fleet.worker.rss_mib()
            return [*_figures(lab, cast), figure_of("worker_rss_mib", "MiB", [rss_mib])]
    finally:
        cluster.kube.close()


class _Cast:
    """Who had which fault when, and what came of it."""

    def __init__(self, witness: AuditLog) -> None:
        self.witness = witness
        self.injected: dict[str, float] = {}
        self.boots: dict[str, str] = {}
        self.chronicles: Mapping[str, Chronicle] = {}
        self.long_boot = ""

    def of(self, ending: str) -> list[tuple[str, Chronicle]]:
        """The nodes whose episode ended so; the long boot is apart."""
        return [
            (node, chronicle)
            for node, chronicle in self.chronicles.items()
            if _ending(chronicle) == ending and node != self.long_boot
        ]


@contextmanager
def _at_work(lab: LabAddress, cluster: Cluster) -> Iterator[tuple[Fleet, TestNodes]]:
    changes = {
        "steps": {"await_reboot": {"retry_initial_s": WAIT_S, "retry_maximum_s": WAIT_S}},
        "timing": {"boot_deadline_s": 4 * LONG_BOOT_S},
    }
    names: dict[str, str] = {}

    def unique(name: str) -> str:
        return names.setdefault(name, f"bench-{name}")

    with (
        tempfile.TemporaryDirectory() as folder,
        fleet_on(
            lab, cluster, Path(folder), [TestPool(POOL)], changes, start_by=start_cold
        ) as fleet,
        test_nodes(lab, cluster, unique) as nodes,
    ):
        yield fleet, nodes


def _play(lab: LabAddress, fleet: Fleet, nodes: TestNodes) -> _Cast:
    faults: list[tuple[str, str, dict[str, Any]]] = [
        *((f"returned-{i}", "gpu-lost", {}) for i in range(RETURNED)),
        *((f"held-{i}", "gpu-missing-after-reboot", {}) for i in range(HELD)),
        *((f"dismissed-{i}", "unknown", {"for_s": 0.5}) for i in range(DISMISSED)),
    ]
    slow = nodes.add("long-boot", POOL, boot_time_s=LONG_BOOT_S)
    named = nodes.add_many([name for name, _, _ in faults], POOL)
    retired = nodes.add_many([f"retired-{i}" for i in range(RETIRED)], POOL)
    nodes.until_baselines()
    cast = _Cast(audit(lab))
    cast.long_boot = slow
    nodes.inject(slow, "gpu-lost")
    cast.boots = {node: fleet.cluster.node(node).boot_id for node in named}
    for node, (_, fault, options) in zip(named, faults, strict=True):
        receipt = nodes.inject(node, fault, **options)
        assert receipt.patched_at is not None, receipt
        # From the answer: the API server has it, and the agent's own way is not ours.
        cast.injected[node] = receipt.patched_at
        # Part of the measurement: one fault at a time is what is timed.
        time.sleep(PACE_S)
    environment = {"FLEETMEND_POLICY": fleet.processes.environment["FLEETMEND_POLICY"]}
    for node in retired:
        answer = fleetmend(
            lab, "retire", node, "--reason", "bench", environment=environment, start_by=start_cold
        )
        assert answer.code == 0, answer.err

    everybody = {slow, *named, *retired}

    def all_over() -> bool:
        cast.chronicles = _chronicles(lab)
        over = {n for n, c in cast.chronicles.items() if c.is_held or c.outcome != OPEN}
        return everybody <= over

    wait_until(all_over, ENDS_WITHIN_S, "every episode is over", saw=fleet.worker.tail)
    return cast


def _figures(lab: LabAddress, cast: _Cast) -> Iterator[Figure]:
    yield figure_of("fault_to_workflow_ms", "ms", list(_fault_to_workflow_ms(cast)))
    yield figure_of("reboot_ready_to_proof_ms", "ms", list(_ready_to_proof_ms(cast)))
    for ending in ("returned", "held", "dismissed", "retired"):
        seen = [chronicle for _, chronicle in cast.of(ending)]
        assert seen, f"no episode ended {ending}"
        for name, values in (
            ("actions", [c.actions for c in seen]),
            ("events", [c.events for c in seen]),
            ("retries", [c.retries for c in seen]),
            ("heartbeats", [c.heartbeats(HEARTBEATING, HEARTBEAT_PACE_S) for c in seen]),
        ):
            yield figure_of(f"{name}_per_episode_{ending}", name, values)
    slow = cast.chronicles[cast.long_boot]
    apart = slow.retries + slow.heartbeats(HEARTBEATING, HEARTBEAT_PACE_S)
    yield figure_of("retries_and_heartbeats_per_long_boot", "count", [apart])
    yield figure_of("actions_per_long_boot", "actions", [slow.actions])


def _fault_to_workflow_ms(cast: _Cast) -> Iterator[float]:
    for node, at in cast.injected.items():
        chronicle = cast.chronicles.get(node)
        if chronicle is not None:
            yield (chronicle.started.timestamp() - at) * 1000


def _ready_to_proof_ms(cast: _Cast) -> Iterator[float]:
    for node, chronicle in [*cast.of("returned"), *cast.of("held")]:
        proven = chronicle.first("rebooted")
        ready = _ready_after_boot(cast.witness, node, cast.boots[node])
        if proven is not None and ready is not None:
            yield (proven - ready).total_seconds() * 1000


def _ready_after_boot(witness: AuditLog, node: str, before: str) -> datetime | None:
    """When the API server had answered the kubelet's first Ready in another boot."""
    for event in witness.events(Wanted(resource="nodes/status", name=node)):
        status = event.body.get("status") or {}
        boot = (status.get("nodeInfo") or {}).get("bootID")
        is_kubelets = event.who.startswith("system:node:")
        if is_kubelets and boot and boot != before and _says_ready(status):
            return event.answered_at
    return None


def _says_ready(status: Mapping[str, Any]) -> bool:
    conditions: Sequence[Mapping[str, Any]] = status.get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _ending(chronicle: Chronicle) -> str:
    return "held" if chronicle.is_held else chronicle.outcome


def _chronicles(lab: LabAddress) -> dict[str, Chronicle]:
    async def read() -> dict[str, Chronicle]:
        target = TemporalTarget(lab.temporal_address, "default", {})
        client = await connect_or_explain(target, timeout_s=20)
        return await read_chronicles(client, lab.cluster)

    return asyncio.run(read())
