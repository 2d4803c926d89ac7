"""Kubernetes Events about Nodes, from watch: what it did at once, and what it would have done.

Owns their names (made from what they tell, so that a repetition finds the first) and the bound of
what waits to be sent. An Event that cannot be sent is dropped and counted: it never delays a
quarantine. Talks to `activities/kube`.
"""

import hashlib
import queue
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from activities.kube import errors, paths
from activities.kube.client import CallTimeout, KubeClient
from workers.watch.metrics import Counter, Metrics
from workflows.model.detection.finding import printable
from workflows.model.identity import NodeRef

EVENTS_NAMESPACE: Final = "default"
"""Where Events about cluster-scoped objects live."""
MAX_WAITING: Final = 256
MAX_MESSAGE: Final = 900
"""The API takes 1,024 bytes of a message; ours may hold a few characters of more than one."""
_TIMEOUT: Final = CallTimeout(connect_s=1.0, read_s=3.0)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Notice:
    """One Event. `key` is the fact: the same key of the same node is told once."""

    node: NodeRef
    key: str
    reason: str
    message: str
    is_warning: bool


class Notices:
    """Sends Events in a thread of its own. `tell` never waits."""

    def __init__(self, client: KubeClient, metrics: Metrics) -> None:
        self._client = client
        self._metrics = metrics
        self._waiting: queue.Queue[Notice | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Send what waits, for a moment, and end."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        if self._thread.is_alive():
            self._thread.join(_TIMEOUT.read_s)

    def tell(self, notice: Notice) -> None:
        """Send this Event as soon as may be."""
        try:
            self._waiting.put_nowait(notice)
        except queue.Full:
            self._metrics.count(Counter.EVENTS_DROPPED)

    def _run(self) -> None:
        while (notice := self._waiting.get()) is not None:
            try:
                self._client.create(paths.events(EVENTS_NAMESPACE), _body(notice), timeout=_TIMEOUT)
            except errors.Conflict:
                continue  # told before
            except errors.ApiError as error:
                self._metrics.count(Counter.EVENTS_DROPPED)
                _log.warning("event_dropped", node=notice.node.name, problem=str(error))


def _body(notice: Notice) -> dict[str, Any]:
    digest = hashlib.sha256(f"{notice.node.uid}|{notice.reason}|{notice.key}".encode())
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"fleetmend-watch.{digest.hexdigest()[:24]}",
            "namespace": EVENTS_NAMESPACE,
        },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Node",
            "name": notice.node.name,
            "uid": notice.node.uid,
        },
        "reason": notice.reason,
        "message": printable(notice.message, MAX_MESSAGE),
        "type": "Warning" if notice.is_warning else "Normal",
        "source": {"component": "fleetmend-watch"},
        "reportingComponent": "fleetmend-watch",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
