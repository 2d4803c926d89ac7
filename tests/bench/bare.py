"""One client without fleetmend: it reports, cordons and watches Nodes by its own hands.

Owns the walk of one fault that both sides of a measurement share, and the floor: the way on which
the client itself does what fleetmend would. One connection for patches and one bare watch.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from time import perf_counter

from activities.kube import paths
from activities.kube.client import JsonObject, KubeClient, PatchKind
from activities.kube.stream import Frame, WatchRequest, WatchStream
from workflows.model.remediation.marks import EPISODE

ROUND_LIMIT_S = 30


class BareClient:
    """All Nodes through one connection for patches and one bare watch."""

    def __init__(self, kube: KubeClient) -> None:
        self.kube = kube
        version = kube.list(paths.nodes()).resource_version
        self._stream = WatchStream(kube, WatchRequest(paths.nodes(), version, duration_s=3000))
        self._frames = iter(self._stream)

    def __enter__(self) -> "BareClient":
        return self

    def __exit__(self, *_error: object) -> None:
        self._stream.close()

    def until(self, node: str, is_so: Callable[[JsonObject], bool]) -> JsonObject:
        """The first form of this Node that the watch shows to be so."""
        deadline = perf_counter() + ROUND_LIMIT_S
        for frame in self._frames:
            if _is_about(frame, node) and is_so(frame.object):
                found: JsonObject = frame.object
                return found
            assert perf_counter() < deadline, f"{node} did not become as expected"
        raise AssertionError("the watch ended")

    def report(self, node: str, status: str, reason: str) -> None:
        """The agent's PATCH: one condition."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": "GPUHealthy",
            "status": status,
            "reason": reason,
            "message": "bench",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        self.kube.patch(
            paths.node_status(node),
            {"status": {"conditions": [condition]}},
            kind=PatchKind.STRATEGIC,
        )

    def mark(self, node: str, marker: str | None, *, version: str | None = None) -> None:
        """Cordon and mark, or take both off."""
        body = {
            "metadata": {"annotations": {EPISODE: marker}},
            "spec": {"unschedulable": True if marker else None},
        }
        self.kube.patch(paths.node(node), body, kind=PatchKind.MERGE, resource_version=version)


Finish = Callable[[BareClient, str], None]


def walk(fleet: BareClient, node: str, finish: Finish) -> float:
    """One fault, timed in milliseconds; the node is healthy and unmarked afterwards."""
    begun = perf_counter()
    fleet.report(node, "False", "GpuLost")
    finish(fleet, node)
    took_ms = (perf_counter() - begun) * 1000
    # Healed before the marks go: otherwise it would look like a person who overrules.
    fleet.report(node, "True", "Healthy")
    fleet.mark(node, None)
    fleet.until(node, lambda item: not is_cordoned(item) and not is_bad(item))
    return took_ms


def wait_for_cordon(fleet: BareClient, node: str) -> None:
    fleet.until(node, is_cordoned)


def cordon_ourselves(fleet: BareClient, node: str) -> None:
    seen = fleet.until(node, is_bad)
    fleet.mark(node, "bench", version=seen["metadata"]["resourceVersion"])


def _is_about(frame: Frame, node: str) -> bool:
    return frame.type == "MODIFIED" and frame.object["metadata"]["name"] == node


def is_cordoned(item: JsonObject) -> bool:
    return bool((item.get("spec") or {}).get("unschedulable"))


def is_bad(item: JsonObject) -> bool:
    conditions = item["status"]["conditions"]
    return any(c["type"] == "GPUHealthy" and c["status"] == "False" for c in conditions)
