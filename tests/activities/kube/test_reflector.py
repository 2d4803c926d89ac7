"""The reflector stays true through paging, outages, broken frames and broken sinks."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from activities.kube.backoff import Backoff
from activities.kube.client import JsonObject, KubeClient
from activities.kube.reflector import Reflector, ReflectorSource, ReflectorTiming
from tests.activities.kube.conftest import Cards
from tests.harness.proxy import FaultProxy
from tests.harness.proxy_faults import (
    GARBAGE_FRAME,
    GONE_FRAME,
    NAMELESS_FRAME,
    Answer,
    CutWatch,
    EndWatch,
    Hang,
    InsertFrame,
    Rewrite,
    StallWatch,
)
from tests.harness.waiting import stays_true, wait_until

QUICK = ReflectorTiming(
    watch_min_s=100, watch_max_s=100, stall_after_s=100, backoff=Backoff(0.1, 1.0)
)
"""Comes back fast; nothing but the fault under test ends a watch."""


@dataclass
class Told:
    """A sink that notes what it was told."""

    calls: list[tuple[str, str | None, JsonObject | None, JsonObject | None]] = field(
        default_factory=list
    )
    times: list[float] = field(default_factory=list)
    raises_on: str | None = None

    def on_event(self, old: JsonObject | None, new: JsonObject) -> None:
        self.times.append(time.perf_counter())
        self.calls.append(("event", new["metadata"]["name"], old, new))
        if self.raises_on and new["metadata"]["name"].endswith(self.raises_on):
            raise RuntimeError("a bug of the sink")

    def on_delete(self, old: JsonObject) -> None:
        self.calls.append(("delete", old["metadata"]["name"], old, None))

    def on_bad_object(self, key: str | None, problem: str) -> None:
        self.calls.append(("bad", key, None, {"problem": problem}))

    def has(self, kind: str, name: str | None) -> bool:
        return any(call[:2] == (kind, name) for call in self.calls)

    def content(self, name: str) -> list[object]:
        return [
            call[3]["data"].get("v")
            for call in self.calls
            if call[0] == "event" and call[1] == name and call[3] and call[3].get("data")
        ]


@dataclass
class Watched:
    """A running reflector over one test's cards, and what it told."""

    reflector: Reflector
    told: Told

    def until(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, 15, what, saw=lambda: (self.reflector.counts, self.told.calls[-5:]))


@pytest.fixture
def watch(cards: Cards) -> Iterator[Callable[..., Watched]]:
    """Starts reflectors over the test's cards."""
    running: list[Reflector] = []

    def start(
        client: KubeClient, *, timing: ReflectorTiming = QUICK, page_size: int = 500
    ) -> Watched:
        told = Told()
        source = ReflectorSource(cards.collection, cards.selector, page_size)
        reflector = Reflector(client, source, told, timing=timing)
        running.append(reflector)
        reflector.start()
        return Watched(reflector, told)

    yield start
    for reflector in running:
        assert reflector.stop()


def synced(watched: Watched) -> Watched:
    assert watched.reflector.wait_synced(15)
    return watched


def standing(watched: Watched) -> Watched:
    """Synced, and the watch is open."""
    synced(watched)
    watched.until(lambda: watched.reflector.counts.watches, "the watch stands")
    return watched


def test_delivers_every_page_of_the_first_list(
    cards: Cards, faulty: KubeClient, proxy: FaultProxy, watch: Callable[..., Watched]
) -> None:
    for number in range(7):
        cards.add(str(number))
    watched = synced(watch(faulty, page_size=3))
    assert sorted(watched.reflector.snapshot()) == [cards.key(str(n)) for n in range(7)]
    assert len(proxy.seen(method="GET", path="limit=3")) == 3


def test_delivers_changes_with_the_object_before(
    cards: Cards, kube: KubeClient, watch: Callable[..., Watched]
) -> None:
    cards.add("a", v="1")
    watched = standing(watch(kube))
    cards.change("a", v="2")
    cards.add("b", v="1")
    cards.remove("a")
    watched.until(lambda: watched.told.has("delete", cards.name("a")), "the deletion is told")
    old_and_new = [
        (old and old["data"]["v"], new["data"]["v"])
        for kind, name, old, new in watched.told.calls
        if kind == "event" and name == cards.name("a") and new
    ]
    assert old_and_new == [(None, "1"), ("1", "2")]
    assert watched.told.has("event", cards.name("b"))
    assert list(watched.reflector.snapshot()) == [cards.key("b")]


def test_a_bookmark_moves_the_place_from_which_it_goes_on(
    cards: Cards, faulty: KubeClient, proxy: FaultProxy, watch: Callable[..., Watched]
) -> None:
    cards.add("a")
    timing = ReflectorTiming(watch_min_s=2, watch_max_s=2, stall_after_s=20)
    bookmark = {
        "type": "BOOKMARK",
        "object": {"kind": "ConfigMap", "metadata": {"resourceVersion": "99999999"}},
    }
    # Bookmarks come a minute apart; this one is early, and names a version to recognise.
    proxy.add(InsertFrame(line=json.dumps(bookmark).encode() + b"\n"), method="WATCH")
    watched = synced(watch(faulty, timing=timing))
    watched.until(
        lambda: proxy.seen(method="WATCH", path="resourceVersion=99999999"),
        "the next watch starts at the bookmark",
    )
    assert watched.reflector.counts.bookmarks >= 1


@pytest.mark.parametrize("way", ["status", "frame"])
def test_lists_again_when_its_place_is_gone(
    way: str,
    cards: Cards,
    faulty: KubeClient,
    proxy: FaultProxy,
    watch: Callable[..., Watched],
) -> None:
    cards.add("a", v="1")
    cards.add("b", v="1")
    fault = Answer(410) if way == "status" else InsertFrame(line=GONE_FRAME)
    proxy.add(fault, method="WATCH")
    watched = synced(watch(faulty))
    watched.until(lambda: watched.reflector.counts.lists == 2, "it has listed again")
    cards.change("a", v="2")
    watched.until(lambda: "2" in watched.told.content(cards.name("a")), "it watches again")
    assert watched.reflector.counts.gone == 1


@pytest.mark.parametrize(
    "end", [CutWatch(), CutWatch(after_frames=1), EndWatch()], ids=["cut", "cut-later", "ended"]
)
def test_goes_on_after_the_watch_is_cut(
    end: CutWatch | EndWatch,
    cards: Cards,
    faulty: KubeClient,
    proxy: FaultProxy,
    watch: Callable[..., Watched],
) -> None:
    cards.add("a", v="1")
    proxy.add(end, method="WATCH")
    watched = standing(watch(faulty))
    cards.change("a", v="2")
    watched.until(lambda: "2" in watched.told.content(cards.name("a")), "the change is told")
    cards.change("a", v="3")
    watched.until(lambda: "3" in watched.told.content(cards.name("a")), "the next one too")


def test_deletion_and_new_uid_during_an_outage_are_delivered(
    cards: Cards, faulty: KubeClient, proxy: FaultProxy, watch: Callable[..., Watched]
) -> None:
    cards.add("kept")
    cards.add("deleted")
    first = cards.add("reborn", v="1")["metadata"]["uid"]
    watched = standing(watch(faulty))
    proxy.refuse()
    cards.remove("deleted")
    cards.remove("reborn")
    second = cards.add("reborn", v="2")["metadata"]["uid"]
    proxy.accept()
    watched.until(lambda: "2" in watched.told.content(cards.name("reborn")), "it is told")
    assert watched.told.has("delete", cards.name("deleted"))
    told = [
        (kind, (new or old or {})["metadata"]["uid"], old is None)
        for kind, name, old, new in watched.told.calls
        if name == cards.name("reborn")
    ]
    assert told == [("event", first, True), ("delete", first, False), ("event", second, True)]
    assert not watched.told.has("delete", cards.name("kept"))


def test_new_uid_under_a_watch_is_a_deletion_and_a_birth(
    cards: Cards, faulty: KubeClient, proxy: FaultProxy, watch: Callable[..., Watched]
) -> None:
    first = cards.add("a", v="1")
    watched = standing(watch(faulty))
    reborn = {**first, "metadata": {**first["metadata"], "uid": "another", "resourceVersion": ""}}
    reborn["metadata"]["resourceVersion"] = str(int(first["metadata"]["resourceVersion"]) + 1)
    frame = {"type": "MODIFIED", "object": reborn}
    wait_until(
        lambda: proxy.insert_frame("watch=true", json.dumps(frame).encode() + b"\n"),
        5,
        "the proxy has the watch",
    )
    watched.until(lambda: len(watched.told.calls) == 3, "both are told")
    assert [call[0] for call in watched.told.calls] == ["event", "delete", "event"]
    assert watched.told.calls[2][2] is None


@pytest.mark.parametrize(
    ("line", "lists"),
    [
        (NAMELESS_FRAME, 1),
        (b'{"type":"MODIFIED","object":"text"}\n', 1),
        (b'{"type":"ADDED","object":{"metadata":{"name":"x"}}}\n', 1),
        (
            b'{"type":"ODD","object":{"metadata":{"name":"x","uid":"u","resourceVersion":"1x"}}}\n',
            1,
        ),
        # What cannot be read at all may have been a change: only a new list knows.
        (GARBAGE_FRAME, 2),
        (b'["no frame"]\n', 2),
        (b"\xff\xfe\n", 2),
        (b'{"type":"MODIFIED","object":' + b"[" * 100_000 + b"\n", 2),
    ],
    ids=["nameless", "text", "no-uid", "odd-type", "cut-json", "array", "no-utf8", "deep"],
)
def test_a_bad_frame_is_counted_and_passed_over(
    line: bytes,
    lists: int,
    cards: Cards,
    faulty: KubeClient,
    proxy: FaultProxy,
    watch: Callable[..., Watched],
) -> None:
    cards.add("a", v="1")
    proxy.add(InsertFrame(line=line), method="WATCH")
    watched = standing(watch(faulty))
    watched.until(lambda: watched.reflector.counts.lists == lists, "it has dealt with the frame")
    cards.change("a", v="2")
    watched.until(lambda: "2" in watched.told.content(cards.name("a")), "the change is told")
    counts = watched.reflector.counts
    assert (counts.bad_objects, counts.bad_answers) == ((1, 0) if lists == 1 else (0, 1))
    assert counts.lists == lists


def test_a_bad_object_in_a_list_hides_no_other(
    cards: Cards, faulty: KubeClient, proxy: FaultProxy, watch: Callable[..., Watched]
) -> None:
    for short in "abc":
        cards.add(short)
    proxy.add(Rewrite(lambda body: spoil(body, cards.name("b"))), method="GET", times=None)
    watched = synced(watch(faulty))
    assert sorted(watched.reflector.snapshot()) == [cards.key("a"), cards.key("c")]
    assert watched.reflector.counts.bad_objects == 1


def test_an_object_that_turned_bad_in_a_list_does_not_count_as_deleted(
    cards: Cards, faulty: KubeClient, proxy: FaultProxy, watch: Callable[..., Watched]
) -> None:
    for short in "abc":
        cards.add(short)
    watched = standing(watch(faulty))
    proxy.add(Rewrite(lambda body: spoil(body, cards.name("b"))), method="GET")
    proxy.insert_frame("watch=true", GONE_FRAME)
    watched.until(lambda: watched.reflector.counts.lists == 2, "it has listed again")
    assert watched.reflector.counts.bad_objects == 1
    assert not [call for call in watched.told.calls if call[0] == "delete"]


def spoil(body: bytes, name: str) -> bytes:
    """A list in which the object of this name has lost its metadata."""
    listing = json.loads(body)
    for item in listing["items"]:
        if item["metadata"]["name"] == name:
            del item["metadata"]
    return json.dumps(listing).encode()


def test_a_sink_that_raises_stops_nothing(
    cards: Cards, kube: KubeClient, watch: Callable[..., Watched]
) -> None:
    watched = standing(watch(kube))
    watched.told.raises_on = "-bad"
    cards.add("bad")
    cards.add("good")
    watched.until(lambda: watched.told.has("event", cards.name("good")), "the next is told")
    assert watched.reflector.counts.sink_failures == 1
    assert watched.reflector.counts.lists == 1


def test_a_silent_watch_is_dropped_and_made_anew(
    cards: Cards, faulty: KubeClient, proxy: FaultProxy, watch: Callable[..., Watched]
) -> None:
    cards.add("a", v="1")
    proxy.add(StallWatch(), method="WATCH")
    timing = ReflectorTiming(stall_after_s=1.0, backoff=Backoff(0.1, 1.0))
    watched = standing(watch(faulty, timing=timing))
    cards.change("a", v="2")
    watched.until(lambda: "2" in watched.told.content(cards.name("a")), "the change is told")
    assert watched.reflector.counts.stalls >= 1


def test_keeps_away_from_a_server_that_is_down(
    cards: Cards, faulty: KubeClient, proxy: FaultProxy, watch: Callable[..., Watched]
) -> None:
    cards.add("a", v="1")
    timing = ReflectorTiming(stall_after_s=100, backoff=Backoff(0.5, 30.0))
    watched = standing(watch(faulty, timing=timing))
    proxy.add(Answer(503), times=None)
    before = len(proxy.seen())
    proxy.cut()
    # Pauses of at least 0.25, 0.5, 1 and 2 s: the fifth try comes after 3.75 s at the earliest.
    stays_true(lambda: len(proxy.seen()) - before <= 4, 3.5, "tries are few")
    watched.until(lambda: watched.reflector.counts.failures >= 3, "it has tried and failed")
    proxy.clear()
    cards.change("a", v="2")
    watched.until(lambda: "2" in watched.told.content(cards.name("a")), "it comes back")


def test_does_not_spin_on_a_server_that_ends_each_watch_at_once(
    cards: Cards, faulty: KubeClient, proxy: FaultProxy, watch: Callable[..., Watched]
) -> None:
    cards.add("a")
    proxy.add(EndWatch(), method="WATCH", times=None)
    timing = ReflectorTiming(stall_after_s=100, backoff=Backoff(0.5, 30.0))
    synced(watch(faulty, timing=timing))
    stays_true(lambda: len(proxy.seen(method="WATCH")) <= 4, 3.5, "watches are few")


def test_lists_again_when_the_servers_history_was_replaced(
    cards: Cards, faulty: KubeClient, proxy: FaultProxy, watch: Callable[..., Watched]
) -> None:
    cards.add("a")
    watched = standing(watch(faulty))
    back = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1"}}}\n'
    wait_until(lambda: proxy.insert_frame("watch=true", back), 5, "the proxy has the watch")
    watched.until(lambda: watched.reflector.counts.lists == 2, "it has listed again")


@pytest.mark.parametrize("where", ["silent-watch", "silent-list", "pause", "connecting"])
def test_stops_at_once(
    where: str,
    cards: Cards,
    faulty: KubeClient,
    proxy: FaultProxy,
    watch: Callable[..., Watched],
    tmp_path: Path,
) -> None:
    cards.add("a")
    if where == "silent-watch":
        reflector = standing(watch(faulty)).reflector
    elif where == "silent-list":
        rule = proxy.add(Hang(), method="GET")
        reflector = watch(faulty).reflector
        assert rule.wait_fired(5)
    elif where == "pause":
        proxy.refuse()
        timing = ReflectorTiming(backoff=Backoff(60, 60))
        reflector = watch(faulty, timing=timing).reflector
        wait_until(lambda: reflector.counts.failures, 5, "it failed once")
    else:
        reflector = watch(silent_client(tmp_path)).reflector
    begun = time.monotonic()
    assert reflector.stop(timeout_s=10)
    # The TLS handshake with a silent server cannot be interrupted; its own limit of 3 s ends it.
    assert time.monotonic() - begun < (8 if where == "connecting" else 5)


def silent_client(folder: Path) -> KubeClient:
    """A client of a server that takes connections and says nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    threading.Timer(20, listener.close).start()
    kubeconfig = folder / "silent"
    kubeconfig.write_text(
        json.dumps(
            {
                "clusters": [
                    {
                        "name": "c",
                        "cluster": {
                            "server": f"https://127.0.0.1:{port}",
                            "insecure-skip-tls-verify": True,
                        },
                    }
                ],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return KubeClient.from_kubeconfig(kubeconfig)


def test_from_the_servers_write_to_the_sink_takes_little_time(
    cards: Cards, kube: KubeClient, watch: Callable[..., Watched]
) -> None:
    cards.add("a", v="0")
    watched = standing(watch(kube))
    delays = []
    for number in range(30):
        count = len(watched.told.times) + 1
        cards.change("a", v=str(number + 1))
        answered = time.perf_counter()
        watched.until(partial(told_times, watched, count), "the change is told")
        delays.append(watched.told.times[-1] - answered)
    # A buffer that waits for more would hold the last change until the next: for ever.
    assert sorted(delays)[len(delays) // 2] < 1.0


def told_times(watched: Watched, count: int) -> bool:
    return len(watched.told.times) >= count
