"""The fleet as watch knows it: every Node as a value, what is remembered about it, and who counts.

Owns the views, the membership of pools and the count of reflex marks in each, kept up to date one
change at a time so that a budget is known without a walk over the fleet. A view that we wrote
ourselves is ahead of the cluster's stream for a moment and is not overwritten by what came before
it. Does not decide. Only the holder of `Lookout`'s lock changes it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic

from workers.watch.facts import FactsKey
from workers.watch.machine import Mark
from workflows.model.identity import NodeRef, machine_id
from workflows.model.node import NodeView
from workflows.model.policy import Policy
from workflows.model.remediation.marks import Marker, Quarantine, marker_or_problem

AHEAD_S = 10.0
"""How long a view that we wrote may be ahead of the stream. After that the stream counts, even if
its versions are older: etcd was restored from a backup."""


@dataclass
class Tracked:
    """One Node and what is remembered about it.

    Attributes:
        view: the Node as it was last seen.
        pool: its pool; "" = out of scope.
        reported: ids of the matches that were last given to the outbox; None = nothing to report.
        episode: the id minted for its next episode, if watch has not written a marker.
        has_run: an open workflow is known or presumed: it is told what changes.
        told: what that was last told; None = not yet.
        overruled: what a person undid in front of our eyes, until the machine record says so.
        refused: ids of matches for which a quarantine at once was refused for good.
        would: id of the match that was last announced in observe mode.
        withheld: the match and the refusal that were last announced for a protected node.
        waits: what its admission was last said to wait for.
        unreadable: the match and the unreadable marker that were last announced.
        silent_since: when its agent was first found silent; None = it speaks.
        again_at: when it must be judged again though nothing changes.
        retry: it must be judged again at the next tick.
        trouble: why the last quarantine at once failed, as it was logged.
        ahead_until: until when (monotonic) `view` may be ahead of the stream.
        machine: name of its machine's record.
    """

    view: NodeView
    pool: str = ""
    marker: Marker | None = None
    reported: frozenset[str] | None = None
    episode: str = ""
    has_run: bool = False
    told: FactsKey | None = None
    overruled: frozenset[Mark] = frozenset()
    refused: frozenset[str] = frozenset()
    would: str = ""
    withheld: tuple[str, str] = ("", "")
    waits: str = ""
    unreadable: tuple[str, str] = ("", "")
    silent_since: datetime | None = None
    again_at: datetime | None = None
    retry: bool = False
    trouble: str = ""
    ahead_until: float = float("-inf")
    machine: str = ""

    @property
    def ref(self) -> NodeRef:
        """Name and UID."""
        return NodeRef(self.view.name, self.view.uid)


@dataclass
class Fleet:
    """All Nodes by UID."""

    nodes: dict[str, Tracked] = field(default_factory=dict)
    _members: dict[str, set[str]] = field(default_factory=dict)
    _reflex: dict[str, set[str]] = field(default_factory=dict)
    _machines: dict[str, set[str]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Tracked]:
        return iter(tuple(self.nodes.values()))

    def put(self, view: NodeView, policy: Policy, *, is_ours: bool = False) -> Tracked:
        """Note a Node as it is now; what is remembered about it stays.

        Args:
            view: the Node.
            policy: gives it its pool.
            is_ours: it is the answer to a request of ours, and so may be ahead of the stream.
        """
        tracked = self.nodes.get(view.uid)
        if tracked is None:
            tracked = self.nodes[view.uid] = Tracked(view)
        elif _is_older(view, tracked.view) and (is_ours or monotonic() < tracked.ahead_until):
            return tracked
        if is_ours:
            tracked.ahead_until = monotonic() + AHEAD_S
        tracked.view = view
        self._file(tracked, policy)
        return tracked

    def remove(self, uid: str) -> Tracked | None:
        """Forget a Node; what was known of it last."""
        tracked = self.nodes.pop(uid, None)
        if tracked is not None:
            self._unfile(tracked)
        return tracked

    def refile(self, policy: Policy) -> None:
        """Another policy: every node gets its pool again."""
        for tracked in self:
            self._file(tracked, policy)

    def nodes_of_machine(self, machine: str) -> tuple[Tracked, ...]:
        """The Nodes that are this machine: one, or two for a moment."""
        return tuple(self.nodes[uid] for uid in self._machines.get(machine, ()))

    def nodes_named(self, name: str) -> tuple[Tracked, ...]:
        """The Nodes of this name: one, or two for a moment."""
        return tuple(tracked for tracked in self if tracked.view.name == name)

    def pool_size(self, pool: str) -> int:
        """How many Nodes the pool has now."""
        return len(self._members.get(pool, ()))

    def reflex_marks(self, pool: str) -> int:
        """How many Nodes of the pool carry a mark that counts against its reflex budget."""
        return len(self._reflex.get(pool, ()))

    def _file(self, tracked: Tracked, policy: Policy) -> None:
        self._unfile(tracked)
        pool = policy.pool_of(tracked.view.labels)
        tracked.pool = pool.name if pool else ""
        tracked.marker = readable_marker(tracked.view)
        view = tracked.view
        tracked.machine = machine_id(view.system_uuid, view.provider_id, view.uid)
        self._machines.setdefault(tracked.machine, set()).add(view.uid)
        self._members.setdefault(tracked.pool, set()).add(view.uid)
        if counts_as_reflex(tracked.marker):
            self._reflex.setdefault(tracked.pool, set()).add(tracked.view.uid)

    def _unfile(self, tracked: Tracked) -> None:
        for index, key in (
            (self._members, tracked.pool),
            (self._reflex, tracked.pool),
            (self._machines, tracked.machine),
        ):
            uids = index.get(key)
            if uids is not None:
                uids.discard(tracked.view.uid)
                if not uids:
                    del index[key]


def readable_marker(view: NodeView) -> Marker | None:
    """Our marker on a Node, or None if there is none that can be read."""
    return marker_or_problem(view)[0]


def counts_as_reflex(marker: Marker | None) -> bool:
    """True if this mark counts against the reflex budget."""
    return marker is not None and marker.quarantine is Quarantine.REFLEX and not marker.handed_over


def _is_older(view: NodeView, than: NodeView) -> bool:
    """True if both versions can be ordered and `view` is the earlier one."""
    new, known = view.resource_version, than.resource_version
    return new.isdecimal() and known.isdecimal() and int(new) < int(known)
