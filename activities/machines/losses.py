"""Losses: how many new machines of a pool were given away before any of them was proven.

Owns the count by which a pool whose newcomers all fail stops being replaced. It is read from the
machine records, so neither a restart nor a new workflow forgets it: a machine that was never proven
has no baseline, and what was given away has an attempt `replace`. Judges nothing.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from activities.machines.record import baseline_of
from activities.machines.store import MachineStore
from activities.policy_file import PolicySource
from workflows.model.node import NodeView, parse_instant
from workflows.model.policy import Rung

WITHIN: Final = timedelta(days=1)
"""How far back is counted: a bad batch or image shows within hours, a wrong policy at once."""


class Losses:
    """Counts, for one Node at a time."""

    def __init__(self, store: MachineStore, policies: PolicySource) -> None:
        self._store = store
        self._policies = policies

    def of_new(self, node: NodeView) -> int:
        """Unproven machines of the Node's pool given away within a day; 0 for a proven one's.

        Raises:
            ApiError, PolicyError: it cannot be told.
        """
        pool = self._policies.read().pool_of(node.labels)
        if pool is None or self._store.of(node, "").baseline is not None:
            return 0
        since = datetime.now(UTC) - WITHIN
        return sum(_is_lost(body, pool.name, since) for body in self._store.all())


def _is_lost(body: Mapping[str, Any], pool: str, since: datetime) -> bool:
    """True if this machine was given away since then without ever having been proven."""
    status = body.get("status") or {}
    if (body.get("spec") or {}).get("pool") != pool or baseline_of(status) is not None:
        return False
    attempts = status.get("attempts") or []
    return any(
        attempt.get("rung") == Rung.REPLACE and parse_instant(attempt.get("at")) >= since
        for attempt in attempts
    )
