"""One watch: its frames, its ends, and closing it from another thread."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from activities.kube import errors
from activities.kube.client import CallTimeout, KubeClient
from activities.kube.stream import Frame, WatchRequest, WatchStream
from tests.activities.kube.conftest import Cards
from tests.harness.proxy import FaultProxy
from tests.harness.proxy_faults import (
    GARBAGE_FRAME,
    GONE_FRAME,
    Answer,
    CutWatch,
    Hang,
    InsertFrame,
    StallWatch,
)


def request_of(cards: Cards, *, duration_s: int = 60, stall_after_s: float = 60) -> WatchRequest:
    """A watch from now on."""
    version = cards.kube.list(cards.collection, selector=cards.selector).resource_version
    return WatchRequest(cards.collection, version, cards.selector, duration_s, stall_after_s)


def watch_frames(client: KubeClient, request: WatchRequest) -> list[Frame]:
    """All frames of one watch, to its end."""
    with WatchStream(client, request) as stream:
        return list(stream)


def test_ends_in_good_order_when_its_time_is_over(cards: Cards, kube: KubeClient) -> None:
    request = request_of(cards, duration_s=2)
    cards.add("a", v="1")
    cards.change("a", v="2")
    cards.remove("a")
    types = [frame.type for frame in watch_frames(kube, request)]
    assert types[:3] == ["ADDED", "MODIFIED", "DELETED"]
    assert set(types[3:]) <= {"BOOKMARK"}


def test_reads_a_frame_that_comes_in_many_pieces(cards: Cards, kube: KubeClient) -> None:
    request = request_of(cards, duration_s=2)
    big = "x" * 900_000
    cards.add("a", v=big)
    cards.add("b", v="small")
    frames = [frame for frame in watch_frames(kube, request) if frame.type == "ADDED"]
    assert [frame.object["data"]["v"] for frame in frames] == [big, "small"]


def test_close_from_another_thread_ends_the_wait_for_a_frame(
    cards: Cards, kube: KubeClient
) -> None:
    stream = WatchStream(kube, request_of(cards))
    reading = threading.Event()

    def read() -> list[Frame]:
        reading.set()
        with stream:
            return list(stream)

    with ThreadPoolExecutor(1) as pool:
        frames = pool.submit(read)
        assert reading.wait(5)
        begun = time.monotonic()
        stream.close()
        assert frames.result(5) == []
    assert time.monotonic() - begun < 5
    # Only this watch has ended; the client and its other connections go on.
    cards.add("a", v="1")
    assert kube.get(cards.path("a"))
    request = request_of(cards, duration_s=1)
    cards.change("a", v="2")
    assert [frame.type for frame in watch_frames(kube, request)][:1] == ["MODIFIED"]


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Answer(410), errors.Gone),
        (Answer(403), errors.Forbidden),
        (Answer(429), errors.TooMany),
        (Answer(500), errors.ServerError),
        (InsertFrame(line=GONE_FRAME), errors.Gone),
        (InsertFrame(line=GARBAGE_FRAME), errors.BadAnswer),
        (InsertFrame(line=b'{"type":"ERROR","object":7}\n'), errors.BadAnswer),
        (
            InsertFrame(
                line=json.dumps(
                    {"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "m"}}
                ).encode()
                + b"\n"
            ),
            errors.ServerError,
        ),
        (CutWatch(), errors.Unreachable),
        (StallWatch(), errors.Unreachable),
    ],
    ids=repr,
)
def test_a_broken_watch_has_its_error(
    fault: Answer | InsertFrame | CutWatch | StallWatch,
    kind: type[errors.ApiError],
    cards: Cards,
    faulty: KubeClient,
    proxy: FaultProxy,
) -> None:
    proxy.add(fault, method="WATCH")
    # Only silence may be told by the time: the others must not be taken for a stall.
    request = request_of(cards, stall_after_s=0.5 if isinstance(fault, StallWatch) else 60)
    begun = time.monotonic()
    with pytest.raises(errors.ApiError) as caught:
        watch_frames(faulty, request)
    assert type(caught.value) is kind
    assert time.monotonic() - begun < 10


def test_a_server_that_never_accepts_the_watch_is_noticed(
    cards: Cards, faulty: KubeClient, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "activities.kube.stream.OPEN_TIMEOUT", CallTimeout(connect_s=1.0, read_s=0.5)
    )
    proxy.add(Hang(), method="WATCH")
    with pytest.raises(errors.Unreachable) as caught:
        WatchStream(faulty, request_of(cards))
    assert caught.value.is_timeout


def test_watches_do_not_take_the_connections_of_calls(
    cards: Cards, faulty: KubeClient, proxy: FaultProxy
) -> None:
    request = request_of(cards)
    streams = [WatchStream(faulty, request) for _ in range(6)]
    begun = time.monotonic()
    cards.add("a", v="1")
    assert faulty.get(cards.path("a"))
    # The watches last a minute: no call waits for one of their connections.
    assert time.monotonic() - begun < 10
    for stream in streams:
        with stream:
            assert next(iter(stream)).type == "ADDED"
    assert len(proxy.seen(method="WATCH")) == 6
