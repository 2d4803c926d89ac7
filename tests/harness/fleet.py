"""fleetmend at work on a lab: watch and worker under a test policy, pools armed.

Owns the start of both processes for a module of tests, and the few calls that most scenarios
begin with. Each test takes a pool of its own, so that budgets don't couple tests.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.cluster import Cluster
from tests.harness.episodes import Episodes
from tests.harness.nodes import TestNodes
from tests.harness.policies import TestPool, write_policy
from tests.harness.processes import Processes, Running, fleetmend, processes
from tests.harness.starts import Start, start_warm
from tests.harness.waiting import wait_until
from workers.lab.address import LabAddress
from workflows.model.identity import NodeRef

HELD_REASON_LIMIT_S = 20.0


@dataclass
class Fleet:
    """Both processes, the episodes and the cluster."""

    lab: LabAddress
    cluster: Cluster
    episodes: Episodes
    processes: Processes
    watch: Running
    worker: Running

    def ref(self, node: str) -> NodeRef:
        """The Node that has this name now."""
        return NodeRef(node, self.cluster.node(node).uid)

    def until_baselines(self, nodes: TestNodes) -> None:
        """Returns when every added node has one; the sweep that records them begins at once."""
        self.episodes.sweep_now()
        nodes.until_baselines()

    def held_reason(self, node: str) -> str:
        """What the machine record says of the hold, a moment after the workflow says that it is."""

        def told() -> str:
            machine = self.cluster.machine_of(node)
            return str(machine["status"].get("heldReason", "")) if machine else ""

        return wait_until(told, HELD_REASON_LIMIT_S, f"the record says why {node} is held")

    def tick(self) -> None:
        """A tick of the validations' Schedule, as a person triggers it."""

        def triggered() -> bool:
            """False for a moment in which a busy Temporal does not answer in the command's time."""
            answer = fleetmend(self.lab, "schedules", "trigger", "validate", "--json")
            assert answer.code == 0, answer.err
            return True

        wait_until(triggered, 60, "the schedule is triggered")

    def restart_worker(self) -> None:
        """A new worker, after the old one ended or was killed."""
        self.worker = self.processes.worker()

    def restart_watch(self) -> None:
        """A new watch, after the old one ended or was killed."""
        self.watch = self.processes.watch()


@contextmanager
def fleet_on(
    lab: LabAddress,
    cluster: Cluster,
    folder: Path,
    pools: Sequence[TestPool | str],
    changes: Mapping[str, Any] | None = None,
    *,
    start_by: Start = start_warm,
) -> Iterator[Fleet]:
    """Watch and worker for these pools, all armed; they end with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    policy = folder / "policy.yaml"
    write_policy(policy, pools, **(changes or {}))
    names = [pool.name if isinstance(pool, TestPool) else pool for pool in pools]
    cluster.arm(*names)
    episodes = Episodes(lab)
    try:
        environment = {"FLEETMEND_POLICY": str(policy)}
        with processes(lab, folder / "logs", environment, start_by=start_by) as own:
            watch = own.watch()
            worker = own.worker()
            yield Fleet(lab, cluster, episodes, own, watch, worker)
    finally:
        cluster.disarm(*names)
        episodes.close()
