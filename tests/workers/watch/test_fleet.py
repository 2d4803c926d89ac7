"""The fleet's counts: kept one change at a time, equal to a count from scratch."""

import random
from dataclasses import replace

import pytest

from tests.workers.watch.nodes_in_memory import NOW, POOL, node, policy
from workers.watch import fleet as fleet_module
from workers.watch.fleet import Fleet
from workflows.model.node import NodeView
from workflows.model.remediation.budget import reflex_quarantines
from workflows.model.remediation.marks import EPISODE, Marker, Quarantine, marker_of

SEEDS = range(20)


def _marked(name: str, quarantine: Quarantine, handed_over: str = "") -> NodeView:
    marker = Marker(
        "e1", f"uid-{name}", NOW, "gpu-lost", "gpu-lost", quarantine, handed_over=handed_over
    )
    return node(name=name, annotations={EPISODE: marker.encode()})


def _versioned(view: NodeView, version: int) -> NodeView:
    return replace(view, resource_version=str(version))


@pytest.mark.parametrize("seed", SEEDS)
def test_counts_equal_a_count_from_scratch_after_any_changes(seed: int) -> None:
    chance = random.Random(seed)
    fleet, rules = Fleet(), policy()
    for version in range(200):
        name = f"n{chance.randrange(12)}"
        view = chance.choice(
            [
                node(name=name),
                node(name=name, labels={"fleetmend.io/pool": "other"}),
                _marked(name, Quarantine.REFLEX),
                _marked(name, Quarantine.CONFIRMED),
                _marked(name, Quarantine.REFLEX, "hands-on:x"),
            ]
        )
        if chance.random() < 0.2:
            fleet.remove(view.uid)
        else:
            fleet.put(_versioned(view, version), rules, is_ours=chance.random() < 0.3)
        members = [t for t in fleet if rules.pool_of(t.view.labels)]
        markers = [m for t in members if (m := marker_of(t.view))]
        assert fleet.pool_size(POOL) == len(members)
        assert fleet.reflex_marks(POOL) == reflex_quarantines(markers)
        for tracked in fleet:
            assert fleet.nodes_of_machine(tracked.machine) == (tracked,)


def test_what_we_wrote_is_not_undone_by_an_older_frame() -> None:
    fleet, rules = Fleet(), policy()
    fleet.put(_versioned(node(), 10), rules)
    fleet.put(_versioned(_marked("n", Quarantine.REFLEX), 12), rules, is_ours=True)
    fleet.put(_versioned(node(), 11), rules)
    assert fleet.reflex_marks(POOL) == 1
    fleet.put(_versioned(node(), 13), rules)
    assert fleet.reflex_marks(POOL) == 0


def test_older_versions_count_after_a_restored_backup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "AHEAD_S", 0.0)
    fleet, rules = Fleet(), policy()
    fleet.put(_versioned(_marked("n", Quarantine.REFLEX), 12), rules, is_ours=True)
    fleet.put(_versioned(node(), 3), rules)
    assert fleet.reflex_marks(POOL) == 0


def test_what_is_remembered_stays_with_the_node_and_goes_with_it() -> None:
    fleet, rules = Fleet(), policy()
    fleet.put(node(), rules).episode = "e1"
    assert fleet.put(_versioned(node(), 11), rules).episode == "e1"
    fleet.remove("uid-n")
    assert fleet.put(node(), rules).episode == ""
