"""One watch on a collection: frames as they come, until it ends, fails or is closed.

Owns the bytes of a watch: splitting, decoding, ERROR frames, silence, size. Keeps no cache, does
not reconnect and does not list: `reflector.py` does. Talks to `client.py`.
"""

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import urllib3

from activities.kube import errors
from activities.kube.client import EVERYTHING, KubeClient, Selector
from activities.kube.connections import shut_down
from activities.kube.paths import CollectionPath, describe
from activities.kube.wire import CallTimeout, Request

FRAME_LIMIT_BYTES: Final = 16 * 1024 * 1024
"""Longest frame; etcd takes no object above 1.5 MiB, unless it is configured to."""
STALL_AFTER_S: Final = 75.0
"""Silence after which a watch counts as dead: the API server sends a bookmark about once a minute
(bookmarkFrequency in its watch cache, Kubernetes 1.36)."""
OPEN_TIMEOUT: Final = CallTimeout(connect_s=3.0, read_s=10.0)
"""A watch is answered at once with its header, before the first frame."""
_LATE_S: Final = 30.0
"""How much longer than it was asked for a watch may last, before it counts as broken."""
_READ_BYTES: Final = 256 * 1024


class Frame(msgspec.Struct, frozen=True):
    """One frame of a watch.

    Attributes:
        type: ADDED, MODIFIED, DELETED or BOOKMARK (ERROR frames are raised as errors).
        object: the object as it came; checked by nobody yet.
    """

    type: str
    object: Any


_decoder = msgspec.json.Decoder(Frame)


@dataclass(frozen=True)
class WatchRequest:
    """What to watch.

    Attributes:
        path: the collection.
        resource_version: where to go on, from a list or an earlier frame.
        selector: which objects; an object that leaves the selection comes as DELETED.
        duration_s: seconds after which the server ends the watch cleanly.
        stall_after_s: seconds of silence after which it counts as dead.
    """

    path: CollectionPath
    resource_version: str
    selector: Selector = EVERYTHING
    duration_s: int = 270
    stall_after_s: float = STALL_AFTER_S

    def query(self) -> dict[str, str]:
        """The query of the request."""
        return {
            **self.selector.query(),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.resource_version,
            "timeoutSeconds": str(self.duration_s),
        }


class WatchStream:
    """A watch that stands. Iterate over it in one thread; `close` it from any.

    The iteration ends when the server ends the watch in good order or after `close`. It raises
    `errors.Gone` when the resourceVersion is too old, `errors.Unreachable` when the connection
    broke or fell silent, `errors.BadAnswer` when something came that is no frame: then a change
    may have been lost, and only a new list knows.
    """

    def __init__(self, client: KubeClient, request: WatchRequest) -> None:
        """Open the watch; returns when the server has accepted it.

        Raises:
            errors.ApiError: it was not accepted (errors.Gone: list again).
        """
        self._wire = client.watching.wire
        self._request = request
        self._name = f"WATCH {describe(request.path)}"
        self._deadline = monotonic() + request.duration_s + _LATE_S
        self._closed = threading.Event()
        self._socket_lock = threading.Lock()
        self._answer = self._wire.open(
            Request("GET", request.path, request.query(), timeout=OPEN_TIMEOUT)
        )
        connection = self._answer.connection
        # A server that closes its side after the answer leaves no socket here; then only the
        # silence limit and the end of the client stop the reader.
        self._socket: socket.socket | None = getattr(connection, "sock", None)
        if self._socket is not None:
            self._socket.settimeout(request.stall_after_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        self._answer.close()

    def close(self) -> None:
        """End the watch at once; a thread that waits for a frame gets the end of the iteration."""
        self._closed.set()
        with self._socket_lock:
            if self._socket is not None:
                shut_down(self._socket)
                self._socket = None

    def __iter__(self) -> Iterator[Frame]:
        for line in self._lines():
            if self._closed.is_set():
                return
            yield self._decode(line)

    def _lines(self) -> Iterator[bytes]:
        """The lines of the body, each as soon as its last byte is here."""
        rest = bytearray()
        while part := self._next_part():
            *lines, tail = part.split(b"\n")
            if lines and rest:
                lines[0] = bytes(rest) + lines[0]
                rest.clear()
            rest += tail
            if len(rest) > FRAME_LIMIT_BYTES:
                raise errors.BadAnswer(self._name, f"a frame above {FRAME_LIMIT_BYTES} bytes")
            yield from (line for line in lines if line)
            if monotonic() > self._deadline:
                raise errors.Unreachable(
                    self._name, "the watch outlasts its time", maybe_done=False, is_timeout=True
                )
        if rest and not self._closed.is_set():
            raise errors.Unreachable(self._name, "cut in mid frame", maybe_done=False)

    def _next_part(self) -> bytes:
        try:
            part: bytes = self._answer.read1(_READ_BYTES)
            if not part:
                # The connection is the pool's again, and `close` must not end whose it is next.
                with self._socket_lock:
                    self._socket = None
            return part
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
            self._answer.close()
            if self._closed.is_set():
                return b""
            raise self._wire.network_error(self._name, error) from error

    def _decode(self, line: bytes) -> Frame:
        try:
            frame = _decoder.decode(line)
            if frame.type != "ERROR":
                return frame
            status = msgspec.convert(frame.object, errors.Status)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise errors.BadAnswer(self._name, f"a frame that is none: {error}") from error
        raise errors.from_status(self._name, status.code or 500, status)
