"""Counters and gauges of the watch process, in the text form that Prometheus reads.

Owns the names and their closed sets of labels (never a node, a pod or a UID: a fleet has thousands
of them). Does not decide what is counted. `health.py` serves them.
"""

import threading
from enum import StrEnum


class Counter(StrEnum):
    """What is counted; the value is the metric's name without prefix and `_total`."""

    NODE_EVENTS = "node_events"
    BAD_OBJECTS = "bad_objects"
    REFLEX_QUARANTINES = "reflex_quarantines"
    REFLEX_CONFLICTS = "reflex_conflicts"
    REFLEX_FAILURES = "reflex_failures"
    REFLEX_BUDGET_FULL = "reflex_budget_full"
    REFLEX_PROTECTED = "reflex_protected"
    REFLEX_PROTECTION_UNKNOWN = "reflex_protection_unknown"
    WOULD_QUARANTINE = "would_quarantine"
    REPORTS_SENT = "reports_sent"
    REPORTS_DROPPED = "reports_dropped"
    FACTS_SENT = "node_changed_sent"
    SEND_FAILURES = "send_failures"
    EVENTS_DROPPED = "kubernetes_events_dropped"
    LEASE_TAKEN = "lease_taken"


class Gauge(StrEnum):
    """What is measured at the moment it is asked for."""

    NODES = "nodes"
    OUTBOX = "outbox_entries"
    IS_WRITER = "is_writer"
    TEMPORAL_CONNECTED = "temporal_connected"
    PROTECTED_UNREADABLE = "protected_namespaces_unreadable"


PREFIX = "fleetmend_watch_"
NO_POOL = ""


class Metrics:
    """The process's figures. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[Counter, str], int] = {(c, NO_POOL): 0 for c in Counter}
        self._gauges: dict[Gauge, float] = dict.fromkeys(Gauge, 0.0)

    def count(self, counter: Counter, pool: str = NO_POOL) -> None:
        """One more; `pool` is a name of the policy, of which there are at most 64."""
        with self._lock:
            self._counts[counter, pool] = self._counts.get((counter, pool), 0) + 1

    def set_gauge(self, gauge: Gauge, value: float) -> None:
        """The present value."""
        with self._lock:
            self._gauges[gauge] = value

    def total(self, counter: Counter) -> int:
        """How often so far, over all pools."""
        with self._lock:
            return sum(n for (name, _), n in self._counts.items() if name is counter)

    def render(self) -> str:
        """All figures, as Prometheus reads them."""
        lines = []
        with self._lock:
            counts, gauges = sorted(self._counts.items()), sorted(self._gauges.items())
        for name in dict.fromkeys(counter for (counter, _), _ in counts):
            lines.append(f"# TYPE {PREFIX}{name}_total counter")
            for (counter, pool), n in counts:
                if counter is name:
                    label = f'{{pool="{pool}"}}' if pool else ""
                    lines.append(f"{PREFIX}{name}_total{label} {n}")
        for gauge, value in gauges:
            lines += [f"# TYPE {PREFIX}{gauge} gauge", f"{PREFIX}{gauge} {value:g}"]
        return "\n".join(lines) + "\n"
