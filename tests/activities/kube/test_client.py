"""The client against the real API server, straight and through the fault proxy."""

import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from activities.kube import errors, paths
from activities.kube.client import CallTimeout, JsonObject, KubeClient, PatchKind
from activities.kube.kubeconfig import load_configuration
from tests.activities.kube.conftest import Cards
from tests.harness.audit import AuditLog
from tests.harness.proxy import FaultProxy
from tests.harness.proxy_faults import Answer, Drop, Hang, Rewrite

SHORT = CallTimeout(connect_s=1.0, read_s=0.5)
PATIENT = CallTimeout(connect_s=3.0, read_s=5.0)
"""For what the real server has to do before the fault shows."""
CARD = {"metadata": {"name": "x"}, "data": {"v": "2"}}


def test_a_created_object_is_read_listed_and_deleted(cards: Cards, kube: KubeClient) -> None:
    made = cards.add("a", v="1")
    assert kube.get(cards.path("a"))["data"] == {"v": "1"}
    listing = kube.list(cards.collection, selector=cards.selector)
    assert [item["metadata"]["uid"] for item in listing.items] == [made["metadata"]["uid"]]
    assert int(listing.resource_version) >= int(made["metadata"]["resourceVersion"])
    kube.delete(cards.path("a"), uid=made["metadata"]["uid"])
    with pytest.raises(errors.NotFound) as caught:
        kube.get(cards.path("a"))
    assert not caught.value.is_unserved


def test_a_list_has_every_page_once(cards: Cards, kube: KubeClient) -> None:
    for number in range(5):
        cards.add(str(number))
    listing = kube.list(cards.collection, selector=cards.selector, page_size=2)
    names = [item["metadata"]["name"] for item in listing.items]
    assert names == [cards.name(str(number)) for number in range(5)]


def test_an_unknown_kind_is_told_from_a_missing_object(kube: KubeClient) -> None:
    nobody = paths.collection_path("nobody.example/v1", "things")
    with pytest.raises(errors.NotFound) as caught:
        kube.get(paths.object_path(nobody, "x"))
    assert caught.value.is_unserved


def test_a_second_create_says_that_the_name_is_taken(cards: Cards) -> None:
    cards.add("a")
    with pytest.raises(errors.Conflict) as caught:
        cards.add("a")
    assert caught.value.is_existing


def change(kind: PatchKind) -> JsonObject | list[JsonObject]:
    if kind is PatchKind.JSON:
        return [{"op": "add", "path": "/data/v", "value": "2"}]
    if kind is PatchKind.APPLY:
        return {"apiVersion": "v1", "kind": "ConfigMap", "data": {"v": "2"}}
    return {"data": {"v": "2"}}


@pytest.mark.parametrize("kind", list(PatchKind))
def test_a_patch_changes_the_object(kind: PatchKind, cards: Cards, kube: KubeClient) -> None:
    cards.add("a", v="1", kept="k")
    changed = kube.patch(cards.path("a"), change(kind), kind=kind)
    assert changed["data"] == {"v": "2", "kept": "k"}


@pytest.mark.parametrize("kind", list(PatchKind))
def test_a_patch_decided_on_an_old_version_changes_nothing(
    kind: PatchKind, cards: Cards, kube: KubeClient
) -> None:
    old = cards.add("a", v="1")["metadata"]["resourceVersion"]
    new = cards.change("a", v="3")["metadata"]["resourceVersion"]
    with pytest.raises(errors.Conflict) as caught:
        kube.patch(cards.path("a"), change(kind), kind=kind, resource_version=old)
    assert not caught.value.is_existing
    assert kube.get(cards.path("a"))["data"] == {"v": "3"}
    kube.patch(cards.path("a"), change(kind), kind=kind, resource_version=new)
    assert kube.get(cards.path("a"))["data"] == {"v": "2"}


def test_a_replacement_of_an_old_version_changes_nothing(cards: Cards, kube: KubeClient) -> None:
    old = cards.add("a", v="1")
    cards.change("a", v="2")
    with pytest.raises(errors.Conflict):
        kube.replace(cards.path("a"), {**old, "data": {"v": "9"}})
    now = kube.get(cards.path("a"))
    assert kube.replace(cards.path("a"), {**now, "data": {"v": "3"}})["data"] == {"v": "3"}


def test_a_deletion_meant_for_another_object_deletes_nothing(
    cards: Cards, kube: KubeClient
) -> None:
    cards.add("a")
    with pytest.raises(errors.Conflict):
        kube.delete(cards.path("a"), uid="00000000-0000-0000-0000-000000000000")
    assert kube.get(cards.path("a"))


def test_the_server_learns_which_process_asks(
    cards: Cards, kubeconfig: Path, witness: AuditLog
) -> None:
    client = KubeClient.from_kubeconfig(kubeconfig, process="some-process")
    made = client.create(
        cards.collection, {"metadata": {"name": cards.name("a")}, "data": {"v": "1"}}
    )
    client.delete(cards.path("a"), uid=made["metadata"]["uid"])
    client.close()
    assert [entry["manager"] for entry in made["metadata"]["managedFields"]] == ["fleetmend"]
    mine = [event for event in witness.events() if event.name == cards.name("a")]
    assert {event.raw["userAgent"] for event in mine} == {"fleetmend/some-process"}


def test_refuses_what_the_api_refuses_with_its_words(kube: KubeClient) -> None:
    with pytest.raises(errors.Invalid, match=r"metadata\.name"):
        kube.create(paths.config_maps("default"), {"metadata": {"name": "Not_A_Name"}})


@pytest.mark.parametrize(
    ("fault", "kind", "maybe_done", "done"),
    [
        (Answer(409), errors.Conflict, False, False),
        (Answer(429, retry_after_s=60), errors.TooMany, False, False),
        (Answer(500), errors.ServerError, True, False),
        (Answer(500, forwarded=True), errors.ServerError, True, True),
        (Answer(503, retry_after_s=60), errors.ServerError, True, False),
        (Answer(201, body=b"<html>"), errors.BadAnswer, True, False),
        (Answer(201, body=b"[1]"), errors.BadAnswer, True, False),
        (Answer(201, body=b"[" * 100_000), errors.BadAnswer, True, False),
        (Drop(), errors.Unreachable, True, False),
        (Drop(forwarded=True), errors.Unreachable, True, True),
        (Hang(), errors.Unreachable, True, False),
        (Hang(forwarded=True), errors.Unreachable, True, True),
        (Rewrite(lambda body: body[:-5]), errors.BadAnswer, True, True),
    ],
    ids=[
        "conflict",
        "too-many",
        "failed",
        "failed-though-done",
        "unavailable",
        "no-json",
        "no-object",
        "nested-too-deep",
        "dropped",
        "dropped-though-done",
        "silent",
        "silent-though-done",
        "cut",
    ],
)
def test_a_failed_write_says_whether_it_may_have_been_done(
    fault: Answer | Drop | Hang | Rewrite,
    kind: type[errors.ApiError],
    maybe_done: bool,
    done: bool,
    cards: Cards,
    faulty: KubeClient,
    proxy: FaultProxy,
) -> None:
    cards.add("a", v="1")
    proxy.add(fault, method="PATCH")
    timeout = SHORT if fault == Hang() else PATIENT
    body = {"data": {"v": "2"}}
    begun = time.monotonic()
    with pytest.raises(errors.ApiError) as caught:
        faulty.patch(cards.path("a"), body, kind=PatchKind.MERGE, timeout=timeout)
    assert type(caught.value) is kind
    assert caught.value.maybe_done is maybe_done
    assert "PATCH namespaces/default/configmaps/" in str(caught.value)
    assert cards.kube.get(cards.path("a"))["data"]["v"] == ("2" if done else "1")
    # One request and no waiting inside the call, Retry-After or not.
    assert len(proxy.seen(method="PATCH")) == 1
    assert time.monotonic() - begun < 15


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_does_not_sleep_out_a_retry_after(
    method: str, cards: Cards, faulty: KubeClient, proxy: FaultProxy
) -> None:
    made = cards.add("a")
    proxy.add(Answer(429, retry_after_s=3), method=method, times=None)
    calls: dict[str, Callable[[], object]] = {
        "GET": lambda: faulty.get(cards.path("a")),
        "PUT": lambda: faulty.replace(cards.path("a"), made),
        "DELETE": lambda: faulty.delete(cards.path("a"), uid=None),
    }
    begun = time.monotonic()
    with pytest.raises(errors.TooMany) as caught:
        calls[method]()
    assert time.monotonic() - begun < 2.9
    assert caught.value.retry_after_s == 3.0
    assert len(proxy.seen(method=method)) == 1


def test_a_refused_connection_was_surely_not_done(
    cards: Cards, faulty: KubeClient, proxy: FaultProxy
) -> None:
    proxy.refuse()
    begun = time.monotonic()
    with pytest.raises(errors.Unreachable) as caught:
        faulty.create(cards.collection, CARD)
    assert not caught.value.maybe_done
    assert time.monotonic() - begun < 3
    proxy.accept()
    assert faulty.get(paths.version())["major"]


def test_a_connection_that_died_while_idle_costs_no_call(
    cards: Cards, faulty: KubeClient, proxy: FaultProxy
) -> None:
    cards.add("a")
    faulty.get(cards.path("a"))
    proxy.refuse()
    proxy.accept()
    assert faulty.get(cards.path("a"))


def test_an_answer_that_drips_ends_in_time(tmp_path: Path) -> None:
    client = KubeClient.from_kubeconfig(drip(tmp_path))
    begun = time.monotonic()
    with pytest.raises(errors.BadAnswer, match="did not end"):
        client.get(paths.version(), timeout=SHORT)
    assert time.monotonic() - begun < 4.0


def drip(folder: Path) -> Path:
    """A kubeconfig of a server that sends a byte every 0.1 s, and never all that it promised."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n")
            with suppress(OSError):
                for _ in range(100):
                    connection.sendall(b" ")
                    time.sleep(0.1)

    threading.Thread(target=serve, daemon=True).start()
    cluster = {"server": f"http://127.0.0.1:{listener.getsockname()[1]}"}
    config = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    kubeconfig = folder / "drip"
    kubeconfig.write_text(json.dumps(config))
    return kubeconfig


def test_close_ends_the_calls_of_other_threads(faulty: KubeClient, proxy: FaultProxy) -> None:
    rule = proxy.add(Hang(), method="GET")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(faulty.get, paths.version())
        assert rule.wait_fired(5)
        begun = time.monotonic()
        faulty.close()
        with pytest.raises(errors.Unreachable, match="was closed"):
            waiting.result(5)
    # By itself the call would end after its 10 s.
    assert time.monotonic() - begun < 5
    with pytest.raises(errors.Unreachable, match="was closed"):
        faulty.get(paths.version())


def test_many_threads_get_their_own_answers(cards: Cards, kube: KubeClient) -> None:
    for number in range(8):
        cards.add(str(number), v=str(number))
    barrier = threading.Barrier(8)

    def read_often(number: int) -> set[str]:
        barrier.wait(10)
        return {kube.get(cards.path(str(number)))["data"]["v"] for _ in range(20)}

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(read_often, range(8)))
    assert answers == [{str(number)} for number in range(8)]


def test_says_what_is_missing_when_there_is_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(errors.KubeconfigError, match=r"KUBECONFIG is not set.*set KUBECONFIG"):
        load_configuration({})
    missing = tmp_path / "none"
    with pytest.raises(errors.KubeconfigError, match=f"{missing}.*no such file"):
        load_configuration({"KUBECONFIG": str(missing)})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "a: [",
        "\x00\x01",
        "{}",
        "current-context: x",
        json.dumps({"current-context": "x", "contexts": [{"name": "x"}], "clusters": []}),
        json.dumps({"current-context": "x", "contexts": "x", "clusters": 7}),
        "users: [{name: a, user: {token: 's3cret}}]",
    ],
)
def test_a_broken_kubeconfig_is_named_and_not_shown(text: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text(text)
    with pytest.raises(errors.KubeconfigError) as caught:
        load_configuration({"KUBECONFIG": str(broken)})
    assert str(broken) in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_pod_without_its_token_is_told_so() -> None:
    with pytest.raises(errors.KubeconfigError, match="ServiceAccount"):
        load_configuration({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
