"""Arming: which pools fleetmend may touch, and what people have paused. Read live.

Owns the reading and writing of the ConfigMap `fleetmend-arming`. A fresh install has none and
only observes; an unreadable one counts as nothing armed (fail closed). Pure.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from workflows.model.node import parse_instant

ARMING_CONFIG_MAP = "fleetmend-arming"
FLEET = "*"
"""The scope of a pause of the whole fleet."""


@dataclass(frozen=True)
class Entry:
    """One line: this pool is armed, or this scope (pool or `*`) is paused; by whom and why."""

    scope: str
    by: str
    at: datetime
    reason: str

    @property
    def what(self) -> str:
        """The scope in words."""
        return scope_in_words(self.scope)


@dataclass(frozen=True)
class Arming:
    """What is armed and what is paused right now; `problem` says why nothing could be read."""

    armed: tuple[Entry, ...] = ()
    paused: tuple[Entry, ...] = ()
    problem: str = ""

    def is_armed(self, pool: str) -> bool:
        """True if fleetmend may write to nodes and pods of this pool."""
        return any(entry.scope == pool for entry in self.armed)

    def pause_of(self, pool: str) -> Entry | None:
        """The pause that covers this pool (its own, or the fleet's); None = not paused."""
        return next(iter(self.pauses_of(pool)), None)

    def pauses_of(self, pool: str) -> tuple[Entry, ...]:
        """Every pause that covers this pool."""
        return tuple(entry for entry in self.paused if entry.scope in (FLEET, pool))


def scope_in_words(scope: str) -> str:
    """What a pause of this scope (a pool's name, or `*`) covers."""
    return "the fleet" if scope == FLEET else f"pool {scope}"


def parse_arming(text_by_key: Mapping[str, str] | None) -> Arming:
    """The arming in a ConfigMap's `data`; None or empty = nothing armed."""
    if not text_by_key:
        return Arming()
    try:
        return Arming(
            armed=_entries(text_by_key.get("armed", "[]")),
            paused=_entries(text_by_key.get("paused", "[]")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return Arming(
            problem=f"ConfigMap {ARMING_CONFIG_MAP} cannot be read ({error}): nothing is armed; "
            "set it again with `fleetmend arm` and `fleetmend pause`"
        )


def _entries(text: str) -> tuple[Entry, ...]:
    return tuple(
        Entry(
            scope=str(item["scope"]),
            by=str(item.get("by", "")),
            at=parse_instant(item.get("at")),
            reason=str(item.get("reason", "")),
        )
        for item in json.loads(text)
    )


def encode_arming(arming: Arming) -> dict[str, str]:
    """The `data` of the ConfigMap."""
    return {
        key: json.dumps(
            [
                {"scope": e.scope, "by": e.by, "at": e.at.isoformat(), "reason": e.reason}
                for e in entries
            ]
        )
        for key, entries in (("armed", arming.armed), ("paused", arming.paused))
    }
