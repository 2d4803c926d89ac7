"""Health and metrics over HTTP: /healthz, /readyz, /metrics.

Owns the answers' form and nothing else; it is plain HTTP, so by default it listens on loopback
only. Healthy = no restart is needed; ready = it does its work, as writer or standby; what is ready
but does less than it could says so behind its "ok". What is wrong is said by the process whose
probes these are (`watch.process`, `control.health`).
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import structlog

from workers.listening import Listen

READ_TIMEOUT_S = 5.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Probes:
    """What the answers come from; each gives back what is wrong, or "" if nothing is.

    `limits` is what a ready process cannot do now; `metrics` None = there are none.
    """

    unhealthy: Callable[[], str]
    unready: Callable[[], str]
    limits: Callable[[], str] = str
    metrics: Callable[[], str] | None = None


@contextmanager
def served(listen: Listen | None, probes: Probes) -> Iterator[None]:
    """The probes at this address, in threads of their own, until the block ends; None = nowhere.

    An address that can't be had is told and no reason to end: what the process does matters more
    than being asked about it.
    """
    if listen is None:
        yield
        return
    try:
        server = _Server(listen, _requests(probes))
    except OSError as error:
        address = f"{listen.host}:{listen.port}"
        _log.warning("health_not_served", address=address, problem=str(error))
        yield
        return
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    _log.info("health_served", port=server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    """Of the address's own family: the base class takes IPv4 for granted."""

    def __init__(self, listen: Listen, requests: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        super().__init__((listen.host, listen.port), requests)


def _requests(probes: Probes) -> type[BaseHTTPRequestHandler]:
    class Requests(BaseHTTPRequestHandler):
        timeout = READ_TIMEOUT_S

        def do_GET(self) -> None:
            if self.path == "/healthz":
                self._answer_probe(probes.unhealthy())
            elif self.path == "/readyz":
                self._answer_probe(probes.unready(), probes.limits())
            elif self.path == "/metrics" and probes.metrics is not None:
                self._answer(200, probes.metrics())
            else:
                also = "" if probes.metrics is None else " or /metrics"
                self._answer(404, f"ask for /healthz or /readyz{also}\n")

        def _answer_probe(self, problem: str, limits: str = "") -> None:
            fine = f"ok, but {limits}" if limits else "ok"
            self._answer(503 if problem else 200, (problem or fine) + "\n")

        def _answer(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            _log.debug("health_asked", request=format % args)

    return Requests
