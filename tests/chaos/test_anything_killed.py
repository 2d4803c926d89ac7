"""SIGKILL of each process that fleetmend consists of or stands on, in each phase of an episode.

One node stands in each phase (`cast.py`) when the process dies; a second time it dies while all
episodes go on. Each is to end as it would have: one reboot for each intent, and nothing is left
quarantined that nobody owns. On a lab of its own; the witness is its audit log, and each node's own
boot log. The worker's deaths are `test_worker_killed.py`'s, and the quick ones of these.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import psutil
import pytest

from tests.chaos.cast import PARTS, Company, after_a_power_cut, cast_policy, cast_pools, company
from tests.chaos.stage import STANDS_S, OwnLab, Stage, own_lab
from tests.harness.waiting import wait_until
from workers.lab.address import Component
from workers.lab.kubelet.spec import Power

PREFIX = "any"
AGENT = ["workers.cli", "agent"]
KUBELET_DEAD = "kubelet-dead"

Revive = Callable[[], None]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnLab]:
    folder = tmp_path_factory.mktemp("any")
    with own_lab(folder, cast_pools(PREFIX), cast_policy()) as started:
        yield started


@pytest.fixture
def stage(own: OwnLab) -> Iterator[Stage]:
    yield own.stage()
    own.nodes.remove_all()


@dataclass(frozen=True)
class Victim:
    """What is killed; `kill` gives back how it is started again."""

    name: str
    kill: Callable[[OwnLab, Company], Revive]
    agent: Literal["real", "stand-in"] = "stand-in"
    holds_on: bool = True
    """Without it nobody can let a node go on: it is started again before."""
    is_power_cut: bool = False


def kill_component(component: Component) -> Callable[[OwnLab, Company], Revive]:
    def kill(own: OwnLab, actors: Company) -> Revive:
        own.hands.kill(component)
        return lambda: own.hands.start(component)

    return kill


def kill_watch(own: OwnLab, actors: Company) -> Revive:
    own.fleet.watch.kill()

    def revive() -> None:
        own.fleet.restart_watch()
        watch = own.fleet.watch
        wait_until(lambda: watch.logged("writing"), STANDS_S, "watch writes", saw=watch.tail)

    return revive


def kill_agents(own: OwnLab, actors: Company) -> Revive:
    """Every agent that runs, with its children; kubelets start them again by themselves."""
    killed = {node: agent for node in actors.cast for agent in agents_of(own, node)}
    assert killed, "no agent runs"
    family = list(killed.values())
    for agent in killed.values():
        with suppress(psutil.NoSuchProcess):  # its node goes down for a reboot at this moment
            family += agent.children(recursive=True)
            agent.kill()
    _, left = psutil.wait_procs(family, STANDS_S)
    assert not left, f"the children of a killed agent live on: {left}"

    def revive() -> None:
        for node in killed:
            wait_until(
                lambda node=node: not may_run_agent(own, node) or agents_of(own, node),  # type: ignore[misc]  # mypy infers no default argument
                STANDS_S,
                f"an agent runs on {node}",
            )

    return revive


def agents_of(own: OwnLab, node: str) -> list[psutil.Process]:
    """A node's agent, without its children."""
    root = str(own.lab.paths.nodes / node)
    found = []
    for process in psutil.process_iter():
        try:
            is_of_node = process.environ().get("FLEETMEND_HOST_ROOT") == root
            parent = process.parent()
            is_agent = process.cmdline()[-2:] == AGENT
            is_child = parent is not None and parent.cmdline()[-2:] == AGENT
        except psutil.Error:
            continue
        if is_of_node and is_agent and not is_child:
            found.append(process)
    return found


def may_run_agent(own: OwnLab, node: str) -> bool:
    """True if the machine is on and its kubelet runs."""
    view = own.nodes.view(node)
    return view.power is Power.ON and view.is_kubelet_running


def kill_kubelets(own: OwnLab, actors: Company) -> Revive:
    """The kubelets alone: what runs on the machines goes on, as with containerd's shims."""
    killed = [node for node in actors.cast if KUBELET_DEAD not in own.nodes.view(node).faults]
    for node in killed:
        own.nodes.inject(node, KUBELET_DEAD)

    def revive() -> None:
        for node in killed:
            own.nodes.clear(node, KUBELET_DEAD)

    return revive


VICTIMS = (
    Victim("watch", kill_watch, holds_on=False),
    Victim("agents", kill_agents, agent="real", holds_on=False),
    Victim("kubelets", kill_kubelets, agent="real"),
    # The lab's kubelets are one process, which is also their machines: it takes the power along.
    Victim("machines", kill_component(Component.FLEET), agent="real", is_power_cut=True),
    Victim("api-server", kill_component(Component.API_SERVER)),
    Victim("etcd", kill_component(Component.ETCD)),
    Victim("temporal", kill_component(Component.TEMPORAL)),
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", VICTIMS, ids=lambda victim: victim.name)
def test_what_is_killed_changes_no_ending_whatever_phase_the_episode_is_in(
    own: OwnLab, stage: Stage, victim: Victim
) -> None:
    actors = company(stage, PREFIX, PARTS, agent=victim.agent)
    actors.enter()
    revive = victim.kill(own, actors)
    if not victim.holds_on:
        actors.leave()
    revive()
    if victim.holds_on:
        actors.leave()
    if not victim.is_power_cut:
        # What was just let go is doing something now.
        victim.kill(own, actors)()
        actors.judge()
    else:
        actors.judge(after_a_power_cut)
