"""The connections of one client, kept in sight so that they can be ended from any thread.

Owns only that: urllib3 makes, pools and checks the connections. A thread that waits for bytes is
not woken when its socket is closed elsewhere, only when the connection is shut down; a process that
is asked to stop must not wait for a watch's time limit. Used by `client.py` and `stream.py`.
"""

import socket
import threading
import weakref

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool


class OpenConnections:
    """The sockets of one client, so that `close` can wake the threads that wait on them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self.is_closed = False

    def add(self, connected: HTTPConnection) -> None:
        sock = connected.sock
        with self._lock:
            if not self.is_closed:
                if sock is not None:
                    self._sockets.add(sock)
                return
        connected.close()
        raise urllib3.exceptions.NewConnectionError(connected, "the client was closed")

    def close(self) -> None:
        with self._lock:
            self.is_closed = True
            sockets = list(self._sockets)
        for sock in sockets:
            shut_down(sock)


def shut_down(sock: socket.socket) -> None:
    """End a connection under the thread that reads from it: it sees the end of the stream."""
    try:
        # The plain socket's shutdown: that of an SSLSocket takes the TLS session away from under
        # the reader, which then fails in ways that depend on the moment.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        return  # it is not connected any more, which is what was wanted


def tracked_pools(connections: OpenConnections) -> dict[str, type[HTTPConnectionPool]]:
    """urllib3's pools, with connections that report to `connections`."""

    class Plain(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            connections.add(self)

    class Secure(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            connections.add(self)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}
