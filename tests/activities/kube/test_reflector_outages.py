"""The reflector through real outages: a killed, a frozen and a restored API server.

Owns a lab of its own, as these tests take its components away.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from activities.kube.backoff import Backoff
from activities.kube.client import KubeClient
from activities.kube.reflector import Reflector, ReflectorSource, ReflectorTiming
from tests.activities.kube.conftest import Cards
from tests.activities.kube.test_reflector import Told, Watched, standing
from workers.lab.address import Component, LabAccount
from workers.lab.controlplane.lab import Lab, start_lab, stop_lab
from workers.lab.controlplane.settings import LabSettings

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

BOTH = (Component.API_SERVER, Component.ETCD)


@pytest.fixture(scope="module")
def own_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("reflector") / "lab"
    start_lab(directory, LabSettings(temporal=False, fleet=False), detached=False)
    yield Lab(directory)
    stop_lab(directory)


@pytest.fixture
def cards(own_lab: Lab, unique: Callable[[str], str]) -> Iterator[Cards]:
    kubeconfig = own_lab.address.kubeconfig(LabAccount.ADMIN)
    client = KubeClient.from_kubeconfig(kubeconfig)
    yield Cards(client, unique("c"))
    client.close()


@pytest.fixture
def watched(cards: Cards) -> Iterator[Watched]:
    """A reflector over the test's cards, of which "a" exists."""
    cards.add("a", v="1")
    told = Told()
    timing = ReflectorTiming(
        watch_min_s=60, watch_max_s=60, stall_after_s=70, backoff=Backoff(0.2, 2.0)
    )
    source = ReflectorSource(cards.collection, cards.selector)
    reflector = Reflector(cards.kube, source, told, timing=timing)
    reflector.start()
    yield standing(Watched(reflector, told))
    assert reflector.stop()


@pytest.mark.parametrize("end", ["killed", "ended-in-order"])
def test_goes_on_when_the_api_server_was_restarted(
    end: str, own_lab: Lab, cards: Cards, watched: Watched
) -> None:
    if end == "killed":
        own_lab.kill(Component.API_SERVER)
    else:
        own_lab.stop_component(Component.API_SERVER)
    own_lab.start(Component.API_SERVER)
    cards.change("a", v="2")
    watched.until(lambda: "2" in watched.told.content(cards.name("a")), "the change is told")


def test_goes_on_when_the_api_server_was_frozen(
    own_lab: Lab, cards: Cards, watched: Watched
) -> None:
    own_lab.stop_signal(Component.API_SERVER)
    # A list or watch that begins now is answered by nobody.
    with pytest.raises(Exception, match="no answer"):
        cards.change("a", v="never")
    own_lab.continue_signal(Component.API_SERVER)
    cards.change("a", v="2")
    watched.until(lambda: "2" in watched.told.content(cards.name("a")), "the change is told")


def test_sees_that_the_cluster_was_restored_from_a_backup(
    own_lab: Lab, cards: Cards, watched: Watched, tmp_path: Path
) -> None:
    data = own_lab.address.paths.etcd / "data"
    backup = tmp_path / "backup"
    take_away(own_lab)
    shutil.copytree(data, backup)
    bring_back(own_lab)
    for value in range(2, 40):
        cards.change("a", v=str(value))
    cards.add("later")
    watched.until(lambda: watched.told.has("event", cards.name("later")), "the later one is told")
    take_away(own_lab)
    shutil.rmtree(data)
    shutil.copytree(backup, data)
    bring_back(own_lab)
    watched.until(lambda: watched.told.has("delete", cards.name("later")), "it is gone again")
    # Deletions of a new list are told before its changes.
    watched.until(lambda: watched.told.content(cards.name("a"))[-1:] == ["1"], "it is as it was")
    # Versions run again from the backup's: a watch from the old place would have been silent.
    cards.change("a", v="again")
    watched.until(lambda: "again" in watched.told.content(cards.name("a")), "a change is told")


def take_away(lab: Lab) -> None:
    for component in BOTH:
        lab.kill(component)


def bring_back(lab: Lab) -> None:
    for component in reversed(BOTH):
        lab.start(component)
