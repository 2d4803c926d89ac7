"""Long outages, as other systems met them: what happened meanwhile is not kept, it is still there."""

import asyncio
import tracemalloc
from dataclasses import dataclass, field

import pytest

from tests.harness.audit import AuditLog
from tests.harness.fleet import Fleet
from tests.harness.nodes import TestNodes
from tests.harness.waiting import wait_until
from workers.lab.address import Component
from workers.lab.controlplane.lab import Lab
from workers.lab.kubelet.spec import NodeKind
from workers.watch.metrics import Metrics
from workers.watch.outbox import CutOff, Outbox
from workers.watch.pace import Haste
from workflows.contracts.messages import NodeFacts, Report
from workflows.memory_runtime import START
from workflows.model.identity import NodeRef

NODES = 200
ROUNDS = 50
GROWTH_BYTES = 1_000_000
"""Between the first round and the last: what an entry holds varies by a few hundred bytes."""
FLAPS = 25
RSS_GROWTH_MIB = 24.0
"""Hundreds of changes are read, judged and compared meanwhile; the interpreter keeps some of that."""
BACK_S = 90.0
TRIED_S = 30.0
"""A call to a Temporal that hangs takes 3 s."""


@dataclass
class Away:
    """Temporal behind a post that fails until it is told otherwise."""

    is_away: bool = True
    newest: dict[str, Report] = field(default_factory=dict)
    facts: dict[str, NodeFacts] = field(default_factory=dict)

    async def send_report(self, report: Report) -> None:
        self._demand_there()
        self.newest[report.node.uid] = report
        if report.facts is not None:
            self.facts[report.node.uid] = report.facts

    async def send_facts(self, node: NodeRef, facts: NodeFacts) -> bool:
        self._demand_there()
        self.facts[node.uid] = facts
        return True

    def _demand_there(self) -> None:
        if self.is_away:
            raise CutOff("away")


@dataclass
class Truth:
    """A ledger by which the nodes of an even number have recovered."""

    def is_open(self) -> bool:
        return True

    def is_current(self, report: Report) -> bool:
        return int(report.node.uid) % 2 == 1

    def note_delivered(self, report: Report) -> None:
        pass

    def note_no_run(self, uid: str) -> None:
        pass


def _report(number: int, turn: int) -> Report:
    return Report(NodeRef(f"n{number}", str(number)), f"e{turn}", "a", (), f"boot-{turn}", START)


def _facts(number: int, turn: int) -> NodeFacts:
    return NodeFacts(
        str(number), str(turn + 1), True, f"boot-{turn}", True, "e", {}, {}, False, START
    )


async def test_n17_ten_thousand_reports_into_an_outage_are_one_entry_a_node() -> None:
    """An event log of a fixed size lasts so and so long; a map of nodes has no such end."""
    outbox, post = Outbox(Metrics()), Away()
    running = asyncio.create_task(outbox.run(post, Truth()))
    tracemalloc.start()
    try:
        sizes = []
        for turn in range(ROUNDS):
            for number in range(NODES):
                assert outbox.offer_report(_report(number, turn))
                assert outbox.offer_facts(
                    NodeRef(f"n{number}", str(number)), _facts(number, turn), Haste.NOW
                )
            await asyncio.sleep(0)
            assert len(outbox) <= NODES
            if turn in (1, ROUNDS - 1):
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < GROWTH_BYTES, sizes
    post.is_away = False
    async with asyncio.timeout(BACK_S):
        while len(outbox) or len(post.facts) < NODES:
            await asyncio.sleep(0.01)
    running.cancel()
    sick = {str(number): _report(number, ROUNDS - 1) for number in range(1, NODES, 2)}
    assert post.newest == sick, "every node that is still faulty, by its newest report"
    assert {facts.boot_id for facts in post.facts.values()} == {f"boot-{ROUNDS - 1}"}


def _has_run(fleet: Fleet, node: NodeRef) -> bool:
    """False also while Temporal does not answer yet."""
    try:
        return fleet.episodes.is_open(node) or fleet.episodes.phase(node) != ""
    except TimeoutError:
        return False


def _named(fleet: Fleet, event: str) -> set[str]:
    """The nodes of which watch has logged this."""
    return {line["node"] for line in fleet.watch.logged(event)}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_n17_a_storm_in_an_outage_loses_no_node_that_is_still_faulty(
    fleet: Fleet, nodes: TestNodes, pool: str, witness: AuditLog, lab_hands: Lab
) -> None:
    names = nodes.add_many([f"n{n}" for n in range(6)], pool, kind=NodeKind.LIGHT)
    lost, unknown, well = names[:2], names[2:4], names[4:]
    refs = {name: fleet.ref(name) for name in names}
    before_mib = fleet.watch.rss_mib()
    lab_hands.kill(Component.TEMPORAL)
    try:
        for node in (*unknown, *well):
            nodes.inject(node, "unknown")
        wait_until(
            lambda: {*unknown, *well} <= _named(fleet, "report_not_sent"),
            TRIED_S,
            "a report of each was tried in vain",
            saw=fleet.watch.tail,
        )
        for _ in range(FLAPS):
            for node in (*unknown, *well):
                nodes.clear(node, "unknown")
                nodes.inject(node, "unknown")
        for node in well:
            nodes.clear(node, "unknown")
        for node in lost:
            nodes.inject(node, "gpu-lost")
        for node in lost:
            wait_until(lambda node=node: witness.cordons(node), 60, f"{node} is quarantined")  # type: ignore[misc]  # mypy infers no default argument
        grown_mib = fleet.watch.rss_mib() - before_mib
    finally:
        lab_hands.start(Component.TEMPORAL)
    assert grown_mib < RSS_GROWTH_MIB
    for node in (*lost, *unknown):
        wait_until(
            lambda node=node: _has_run(fleet, refs[node]),  # type: ignore[misc]  # as above
            BACK_S,
            f"{node} has an episode",
            saw=fleet.watch.tail,
        )
        assert len(witness.cordons(node)) <= 1
    for node in well:
        # What is over by then is dropped. A report that was on its way when it was still true may come
        # through, and a light node that is late with its Lease is reported too: to no effect.
        wait_until(
            lambda node=node: (
                node in _named(fleet, "report_dropped") or _has_run(fleet, refs[node])
            ),  # type: ignore[misc]  # as above
            BACK_S,
            f"the report of {node} is dropped or told",
            saw=fleet.watch.tail,
        )
        if _has_run(fleet, refs[node]):
            closing = fleet.episodes.closing(refs[node], but=frozenset())
            assert closing.outcome == "dismissed", fleet.episodes.shown(refs[node])
    assert [node for node in well if witness.node_writes(node)] == []
