"""The fault proxy passes on what it is not told to break, and breaks what it is told to."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.kube import errors, paths
from activities.kube.client import CallTimeout, KubeClient
from tests.harness.proxy import FaultProxy
from tests.harness.proxy_faults import Answer, Drop, Hang
from tests.harness.proxy_kubeconfig import kubeconfig_through_proxy
from workers.lab.address import LabAccount, LabAddress

VERSION = paths.version()


@pytest.fixture
def proxy(lab: LabAddress, tmp_path: Path) -> Iterator[FaultProxy]:
    with FaultProxy(lab.kubeconfig(LabAccount.ADMIN), tmp_path) as running:
        yield running


def client_of(lab: LabAddress, proxy: FaultProxy, account: LabAccount, folder: Path) -> KubeClient:
    target = folder / f"{account}.proxied"
    kubeconfig = kubeconfig_through_proxy(proxy, lab.kubeconfig(account), target)
    return KubeClient.from_kubeconfig(kubeconfig)


@pytest.mark.parametrize(
    ("account", "may"), [(LabAccount.ADMIN, True), (LabAccount.WATCH, False)], ids=str
)
def test_callers_keep_their_rights(
    account: LabAccount, may: bool, lab: LabAddress, proxy: FaultProxy, tmp_path: Path
) -> None:
    client = client_of(lab, proxy, account, tmp_path)
    secrets = paths.collection_path("v1", "secrets", namespace="kube-system")
    if may:
        assert client.list(secrets).items is not None
    else:
        with pytest.raises(errors.Forbidden, match="fleetmend-watch"):
            client.list(secrets)
    client.close()


def test_a_rule_fires_from_its_nth_match_on_so_many_times(
    lab: LabAddress, proxy: FaultProxy, tmp_path: Path
) -> None:
    client = client_of(lab, proxy, LabAccount.ADMIN, tmp_path)
    rule = proxy.add(Answer(503), method="GET", path="^/version$", nth=2, times=2)
    outcomes = []
    for _ in range(5):
        try:
            client.get(VERSION)
            outcomes.append("answer")
        except errors.ServerError:
            outcomes.append("503")
    assert outcomes == ["answer", "503", "503", "answer", "answer"]
    assert (rule.matched, rule.fired) == (5, 2)
    assert [one.fault for one in proxy.seen(path="version")] == [
        None,
        "Answer",
        "Answer",
        None,
        None,
    ]
    client.close()


def test_the_oldest_rule_fires_first_and_removed_ones_never(
    lab: LabAddress, proxy: FaultProxy, tmp_path: Path
) -> None:
    client = client_of(lab, proxy, LabAccount.ADMIN, tmp_path)
    proxy.add(Answer(500), times=None).remove()
    proxy.add(Answer(409))
    proxy.add(Drop())
    with pytest.raises(errors.Conflict):
        client.get(VERSION)
    with pytest.raises(errors.Unreachable):
        client.get(VERSION)
    proxy.add(Answer(500), times=None)
    proxy.clear()
    assert client.get(VERSION)
    client.close()


def test_the_server_goes_off_the_network_and_comes_back(
    lab: LabAddress, proxy: FaultProxy, tmp_path: Path
) -> None:
    client = client_of(lab, proxy, LabAccount.ADMIN, tmp_path)
    url = proxy.url
    proxy.refuse()
    with pytest.raises(errors.Unreachable):
        client.get(VERSION)
    proxy.accept()
    assert proxy.url == url
    assert client.get(VERSION)
    client.close()


def test_hanging_requests_do_not_hold_up_the_others(
    lab: LabAddress, proxy: FaultProxy, tmp_path: Path
) -> None:
    client = client_of(lab, proxy, LabAccount.ADMIN, tmp_path)
    proxy.add(Hang())
    with pytest.raises(errors.Unreachable):
        client.get(VERSION, timeout=CallTimeout(1, 0.3))
    assert client.get(VERSION)
    client.close()
