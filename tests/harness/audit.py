"""The witness: what the API server itself recorded of every request.

Owns the reading of the lab's audit log into values, and its filters. Does not judge. Tests count
patches, evictions and reboots here, never in fleetmend's own counters.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from workers.lab.address import LabAddress

ACCOUNT_PREFIX = "system:serviceaccount:fleetmend:fleetmend-"
WATCH = ACCOUNT_PREFIX + "watch"
WORKER = ACCOUNT_PREFIX + "worker"
AGENT = ACCOUNT_PREFIX + "agent"
OPERATOR = ACCOUNT_PREFIX + "operator"
CUT_OFF = 504
WRITING_VERBS = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True)
class AuditEvent:
    """One finished request, in the order in which the server wrote it."""

    raw: Any

    @property
    def who(self) -> str:
        """Full user name, as in `WATCH`."""
        return str(self.raw.get("user", {}).get("username", ""))

    @property
    def verb(self) -> str:
        """get, list, watch, create, update, patch, delete."""
        return str(self.raw.get("verb", ""))

    @property
    def resource(self) -> str:
        """Plural, with the subresource: "nodes", "nodes/status", "pods/eviction"."""
        ref = self.raw.get("objectRef", {})
        sub = ref.get("subresource")
        return f"{ref.get('resource', '')}/{sub}" if sub else str(ref.get("resource", ""))

    @property
    def namespace(self) -> str:
        return str(self.raw.get("objectRef", {}).get("namespace", ""))

    @property
    def name(self) -> str:
        """Of the object; for a create also where only the body says it."""
        named = self.raw.get("objectRef", {}).get("name")
        return str(named or self.body.get("metadata", {}).get("name", ""))

    @property
    def code(self) -> int:
        """HTTP status of the answer; 0 = none was given."""
        return int(self.raw.get("responseStatus", {}).get("code", 0))

    @property
    def succeeded(self) -> bool:
        return 200 <= self.code < 300

    @cached_property
    def body(self) -> Any:
        """What was sent, {} if nothing or if the audit policy leaves it out."""
        return _as_object(self.raw.get("requestObject"))

    @cached_property
    def answer(self) -> Any:
        """What the server made of it, {} if the audit policy leaves it out."""
        return _as_object(self.raw.get("responseObject"))

    @property
    def received_at(self) -> datetime:
        return _instant(self.raw["requestReceivedTimestamp"])

    @property
    def answered_at(self) -> datetime:
        return _instant(self.raw["stageTimestamp"])

    @property
    def sets_unschedulable(self) -> bool:
        """A patch of a Node that cordons it."""
        return bool((self.body.get("spec") or {}).get("unschedulable") is True)

    @property
    def annotations_sent(self) -> dict[str, Any]:
        return dict((self.body.get("metadata") or {}).get("annotations") or {})

    def __str__(self) -> str:
        who = self.who.rpartition(":")[2]
        return f"{self.received_at:%H:%M:%S.%f} {who} {self.verb} {self.resource} {self.name} -> {self.code}"


@dataclass(frozen=True)
class Wanted:
    """Which events are meant; None = any."""

    who: str | None = None
    verb: str | None = None
    resource: str | None = None
    name: str | None = None
    succeeded: bool | None = True

    def takes(self, event: AuditEvent) -> bool:
        return all(
            wish is None or wish == has
            for wish, has in (
                (self.who, event.who),
                (self.verb, event.verb),
                (self.resource, event.resource),
                (self.name, event.name),
                (self.succeeded, event.succeeded),
            )
        )


class AuditLog:
    """The audit log from a certain point on; `audit(lab)` makes one that starts now.

    Each line is read once: waits look again and again, and a lab writes tens of megabytes.
    """

    def __init__(self, path: Path, *, offset: int = 0) -> None:
        self._path = path
        self._read_to = offset
        # A line that was being written at the start point is not of this time.
        self._is_in_line = offset > 0
        self._events: list[AuditEvent] = []

    def events(self, wanted: Wanted | None = None) -> list[AuditEvent]:
        """Every finished request since the start point that `wanted` takes, oldest first."""
        wanted = wanted or Wanted(succeeded=None)
        return [event for event in self._all() if wanted.takes(event)]

    def writes(self, who: str | None = None) -> list[AuditEvent]:
        """Successful writes of one account (None: of anybody)."""
        return [e for e in self.events(Wanted(who=who)) if e.verb in WRITING_VERBS]

    def node_writes(self, node: str) -> list[AuditEvent]:
        """Successful writes by watch and worker on one Node object."""
        return [
            e
            for e in self.writes()
            if e.resource == "nodes" and e.name == node and e.who in (WATCH, WORKER)
        ]

    def cordons(self, node: str) -> list[AuditEvent]:
        """The patches that made a node unschedulable, by whomever; see `done`."""
        patches = self.events(Wanted(verb="patch", resource="nodes", name=node, succeeded=None))
        return done(e for e in patches if e.sets_unschedulable)

    def evictions(self, pods: Iterable[str] | None = None) -> list[AuditEvent]:
        """Successful evictions (of these pods)."""
        names = None if pods is None else set(pods)
        found = self.events(Wanted(verb="create", resource="pods/eviction"))
        return [e for e in found if names is None or e.name in names]

    def node_tasks(self, node: str, kind: str | None = None) -> list[AuditEvent]:
        """Node-task pods that were created for a node (of one kind: "reboot", "inventory")."""
        created = self.events(Wanted(who=WORKER, verb="create", resource="pods", succeeded=None))
        return done(e for e in created if _is_task(e.body, node, kind))

    def reboots(self, node: str) -> list[AuditEvent]:
        """Reboot pods that were created for a node."""
        return self.node_tasks(node, "reboot")

    def claim_deletions(self) -> list[AuditEvent]:
        """Deletions of NodeClaims that the worker asked for, refused ones too."""
        return self.events(Wanted(who=WORKER, verb="delete", resource="nodeclaims"))

    def _all(self) -> list[AuditEvent]:
        with self._path.open("rb") as log:
            if self._is_in_line:
                log.seek(self._read_to - 1)
                log.readline()
                self._read_to = log.tell()
                self._is_in_line = False
            log.seek(self._read_to)
            for line in log:
                if not line.endswith(b"\n"):
                    break  # still being written
                self._read_to += len(line)
                raw = json.loads(line)
                if raw.get("stage") == "ResponseComplete":
                    self._events.append(AuditEvent(raw))
        return self._events


def audit(lab: LabAddress) -> AuditLog:
    """The audit log of a lab from now on."""
    return AuditLog(lab.audit_log, offset=lab.audit_log.stat().st_size)


def whole_audit(lab: LabAddress) -> AuditLog:
    """The audit log of a lab from its start."""
    return AuditLog(lab.audit_log)


def done(events: Iterable[AuditEvent]) -> list[AuditEvent]:
    """The successful ones.

    Without any, the first that was cut off (504): its client gave up, but the write may have been
    done, and who finds it done does not send it again.
    """
    sent = list(events)
    cut_off = [event for event in sent if event.code == CUT_OFF][:1]
    return [event for event in sent if event.succeeded] or cut_off


def _is_task(body: Any, node: str, kind: str | None) -> bool:
    spec = body.get("spec") or {}
    commands = [container.get("command") or [] for container in spec.get("containers") or []]
    return spec.get("nodeName") == node and any(
        command[:2] == ["fleetmend", "node-task"] and (kind is None or command[2:3] == [kind])
        for command in commands
    )


def _as_object(value: Any) -> Any:
    return value if isinstance(value, dict) else {}


def _instant(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    return at if at.tzinfo else at.replace(tzinfo=UTC)
