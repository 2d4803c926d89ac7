"""A fault of the API server at each call of an episode: the ending stays the same.

The worker stands behind the fault proxy; each node of a batch has its own faults. Of the whole matrix
three cases, at calls of different kinds, share an episode; if that ends otherwise, each is tried alone.
Calls without a node in them (ConfigMaps, reads of a task's pod) hit whichever episode comes first.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.chaos.stage import Ending, Stage
from tests.harness.audit import audit
from tests.harness.cluster import Cluster
from tests.harness.fleet import Fleet, fleet_on
from tests.harness.nodes import TestNodes, test_nodes
from tests.harness.proxy import FaultProxy, Rule, Seen
from tests.harness.proxy_faults import Answer, Drop, Fault, Hang
from tests.harness.proxy_kubeconfig import kubeconfig_through_proxy
from workers.lab.address import LabAccount, LabAddress
from workflows.model.identity import machine_id

POOL = "faults"
LONG_BATCH = 16
CASES_AN_EPISODE = 3
TRIED_ALONE = 32
"""Of the cases in episodes that ended otherwise; with more than that, one by one says no more."""
AS_EVER = Ending("returned", reboots=1)
CHANGES = {
    # Patience for answers that never come (10 s each).
    "gate": {"timeout_s": 120, "settle_s": 60},
    "timing": {"boot_deadline_s": 120, "node_task_deadline_s": 60},
    "faults": {
        "gpu-lost": {
            "drain": "now",
            "drain_deadline_s": 120,
            "ladder": ["reboot"],
            "recovery_wait_s": 5,
            "diagnose_level": 2,
        }
    },
}
EVERY_FAULT: tuple[Fault, ...] = (
    Answer(409),
    Answer(410),
    Answer(429, retry_after_s=1),
    Answer(500),
    Hang(),
    Hang(forwarded=True),
    Drop(),
    Drop(forwarded=True),
)
TASK_POD = re.compile(r"fleetmend-(reboot|inventory|diagnose|kernel-log)-[0-9a-f]{20}")


@dataclass(frozen=True)
class Call:
    """One kind of request of an episode; `path` holds {node}, {machine} and the task's kind."""

    method: str
    path: str
    is_about_node: bool = False
    """The node stands in the body, not in the path."""

    @property
    def is_write(self) -> bool:
        return self.method in ("POST", "PATCH", "DELETE", "PUT")


@dataclass(frozen=True)
class Case:
    """The fault is done to the `nth` such call."""

    call: Call
    fault: Fault
    nth: int = 1

    def __str__(self) -> str:
        fault = type(self.fault).__name__
        status = self.fault.status if isinstance(self.fault, Answer) else ""
        after = " forwarded" if getattr(self.fault, "forwarded", False) else ""
        call = f"{self.call.method} {self.call.path} no. {self.nth}"
        return f"{fault}{status}{after} at {call}"


Cases: TypeAlias = tuple[Case, ...]
"""The faults of one episode."""
END = r"(\?|$)"
NODE = "/api/v1/nodes/{node}" + END


@dataclass
class Scene:
    """The worker behind its proxy, and nodes that are used again and again."""

    lab: LabAddress
    fleet: Fleet
    proxy: FaultProxy
    nodes: TestNodes

    def batch(self, episodes: Sequence[Cases]) -> dict[Cases, str]:
        """Episodes at the same time, each with these faults; what was not as ever."""
        self._until_enough(len(episodes))
        names = self.nodes.added[: len(episodes)]
        stage = self.begin(names)
        rules = [
            [self._rule(stage, node, case) for case in cases]
            for node, cases in zip(names, episodes, strict=True)
        ]
        for node in names:
            stage.inject(node, "gpu-lost")
        problems = {}
        for node, cases, done in zip(names, episodes, rules, strict=True):
            try:
                stage.judge(node, AS_EVER)
                assert len(stage.witness.evictions([f"{node}-work"])) == 1
                for case, rule in zip(cases, done, strict=True):
                    assert rule.fired == 1, f"never done: {case}; {rule.matched} such calls"
            except AssertionError as error:
                problems[cases] = f"{' and '.join(map(str, cases))}: {str(error)[:600]}"
        self.proxy.clear()
        return problems

    def begin(self, names: Sequence[str]) -> Stage:
        """Healthy nodes with work on them."""
        stage = Stage(self.fleet, self.nodes, audit(self.lab))
        for node in names:
            self.nodes.until_healthy(node)
            stage.add_pod(node)
        stage.settle(*names)
        return stage

    def _until_enough(self, count: int) -> None:
        missing = range(len(self.nodes.added), count)
        if missing:
            self.nodes.add_many([f"n{number}" for number in missing], POOL)

    def _rule(self, stage: Stage, node: str, case: Case) -> Rule:
        call = case.call
        path = call.path.replace("{node}", node).replace("{machine}", self.machine(stage, node))
        body = f'"{node}"' if call.is_about_node else ""
        return self.proxy.add(case.fault, method=call.method, path=path, body=body, nth=case.nth)

    def machine(self, stage: Stage, node: str) -> str:
        seen = stage.cluster.node(node)
        return machine_id(seen.system_uuid, seen.provider_id, seen.uid)


@pytest.fixture(scope="module")
def scene(
    lab: LabAddress, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    folder: Path = tmp_path_factory.mktemp("faults")
    original = lab.kubeconfig(LabAccount.WORKER)
    with (
        FaultProxy(original, folder) as proxy,
        fleet_on(lab, cluster, folder, [POOL], CHANGES) as fleet,
        test_nodes(lab, cluster, lambda name: f"api-faults-{name}") as nodes,
    ):
        fleet.worker.end()
        through = kubeconfig_through_proxy(proxy, original, folder / "worker.kubeconfig")
        fleet.worker = fleet.processes.worker(KUBECONFIG=str(through))
        yield Scene(lab, fleet, proxy, nodes)


@pytest.mark.timeout(2400)
def test_no_fault_at_any_call_changes_the_ending(scene: Scene) -> None:
    cases = [
        Case(call, fault, nth)
        for (call, nth), fault in product(calls_of_a_clean_episode(scene), EVERY_FAULT)
    ]
    apart = math.ceil(len(cases) / CASES_AN_EPISODE)
    assert apart >= len(EVERY_FAULT), "an episode would have two faults at one call"
    together = in_batches(scene, [tuple(cases[start::apart]) for start in range(apart)])
    suspects = [(case,) for episode in together for case in episode]
    problems = in_batches(scene, suspects) if len(suspects) <= TRIED_ALONE else together
    # What only fails together is a defect as well.
    told = "\n\n".join({**together, **problems}.values())
    assert not together, f"{len(together)} of {apart} episodes, {len(cases)} cases:\n{told}"


def in_batches(scene: Scene, episodes: Sequence[Cases]) -> dict[Cases, str]:
    problems: dict[Cases, str] = {}
    for start in range(0, len(episodes), LONG_BATCH):
        problems |= scene.batch(episodes[start : start + LONG_BATCH])
    return problems


def calls_of_a_clean_episode(scene: Scene) -> list[tuple[Call, int]]:
    """Every kind of call with its first occurrence; of writes to the node every occurrence."""
    stage = scene.begin(scene.nodes.added[:1] or [scene.nodes.add("n0", POOL)])
    node = scene.nodes.added[0]
    machine = scene.machine(stage, node)
    begun = len(scene.proxy.seen())
    stage.inject(node, "gpu-lost")
    stage.judge(node, AS_EVER)
    counts: dict[Call, int] = {}
    for one in scene.proxy.seen()[begun:]:
        call = _call_of(one, node, machine)
        if call is not None:
            counts[call] = counts.get(call, 0) + 1
    found = []
    for call, count in counts.items():
        is_mark = call.is_write and call.path == NODE
        found += [(call, nth) for nth in range(1, count + 1 if is_mark else 2)]
    return found


def _call_of(one: Seen, node: str, machine: str) -> Call | None:
    """The kind of a request; None = it is not about the node."""
    path = one.path.partition("?")[0]
    is_list = one.method in ("GET", "WATCH") and f"spec.nodeName%3D{node}" in one.path
    if is_list:
        return Call(one.method, "/api/v1/pods\\?.*spec.nodeName%3D{node}")
    task = TASK_POD.search(one.path)
    if task is not None:
        return Call(one.method, f"fleetmend-{task[1]}-")
    if node in path or machine in path:
        known = re.escape(path.replace(node, "{node}").replace(machine, "{machine}"))
        return Call(one.method, known.replace("\\{", "{").replace("\\}", "}") + END)
    if node in one.body:
        return Call(one.method, re.escape(path) + END, is_about_node=True)
    if "/configmaps/" in path:
        return Call(one.method, re.escape(path) + END)
    return None
