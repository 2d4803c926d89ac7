"""Writing down what happened: the machine record, one Event, one log line, one metric.

Owns the activities `record_phase` and `record_baseline`. They touch no Node and no Pod, so observe
mode allows them. The record's changes are `record.py`, its storage is `store.py`.
"""

import hashlib
import threading
from collections import OrderedDict
from typing import Any, Final

import structlog
from opentelemetry import metrics

from activities.kube import paths
from activities.kube.client import KubeClient
from activities.kube.errors import Conflict, Invalid
from activities.machines.record import baseline_change, baseline_of, phase_change
from activities.machines.store import MachineStore
from activities.policy_file import PolicySource
from workflows.contracts.kube import Owner
from workflows.contracts.machines import BaselineRequest, PhaseRecord, Recorded
from workflows.model.detection.finding import printable
from workflows.model.policy import PolicyError
from workflows.model.remediation.marks import EPISODE

EVENT_NAMESPACE: Final = "default"
"""Where Events about cluster-scoped objects live (Kubernetes)."""
MAX_EVENT_MESSAGE: Final = 1_000
"""The API refuses a message above 1,024 bytes."""
MAX_TOLD: Final = 4_096
"""Phase changes remembered as logged and counted, against repetition by a second run."""

_log = structlog.get_logger(__name__)
_phase_changes = metrics.get_meter("fleetmend").create_counter(
    "fleetmend.phase_changes", unit="1", description="phase changes of episodes"
)


class RecordActivities:
    """Writes the long record of machines."""

    def __init__(self, kube: KubeClient, store: MachineStore, policies: PolicySource) -> None:
        self._kube = kube
        self._store = store
        self._policies = policies
        self._told: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def record_phase(self, record: PhaseRecord) -> Recorded:
        """Implements `record_phase`: record, Event, log line and metric of one phase change.

        A phase that `passed` is recorded first, in the same way.

        Idempotent: the record's lists are keyed, the Event's name is made from run and sequence;
        log line and metric are given once a process.
        """
        refused = ""
        for one in record.in_order:
            refused = self._record(one)
            self._write_event(one)
            self._tell_once(one)
        return Recorded(record.machine_id, refused)

    def _record(self, record: PhaseRecord) -> str:
        """Why it could not be written; "" = it stands."""
        if not record.machine_id:
            return "the machine is not known: the node was never read"
        node = {"name": record.owner.node.name, "uid": record.owner.node.uid}
        self._store.change(
            record.machine_id, record.pool, node, lambda body: phase_change(body, record)
        )
        return ""

    def record_baseline(self, request: BaselineRequest) -> Recorded:
        """Implements `record_baseline`: the machine has a baseline, this one if it had none.

        Idempotent: a baseline that stands is never overwritten.
        """
        refused = self._refusal(request)
        if refused:
            return Recorded(request.machine_id, refused)
        node = {"name": request.owner.node.name, "uid": request.owner.node.uid}
        if request.provider_id:
            node["providerID"] = request.provider_id[:1024]

        def change(body: Any) -> dict[str, Any]:
            known = baseline_of(body.get("status") or {})
            return {} if known is not None else baseline_change(request)

        self._store.change(request.machine_id, request.pool, node, change)
        return Recorded(request.machine_id)

    def _refusal(self, request: BaselineRequest) -> str:
        """Why this inventory is no baseline; "" = it is what the pool expects."""
        try:
            pool = self._policies.read().pool_named(request.pool)
        except PolicyError as error:
            return f"the policy cannot be used: {error}"
        expected = pool.expected_gpus if pool else None
        if expected is None:
            return f"pool {request.pool} expects no number of GPUs: set expected_gpus in the policy"
        counted = len(set(request.baseline.gpus))
        if counted != expected:
            return f"{counted} GPUs were counted, pool {request.pool} expects {expected}"
        return ""

    def _write_event(self, record: PhaseRecord) -> None:
        try:
            self._kube.create(paths.events(EVENT_NAMESPACE), event_of(record))
        except Conflict as error:
            if not error.is_existing:
                raise
            # A former run wrote it.
        except Invalid as error:
            # An Event is for people; an episode does not stop because one is malformed.
            _log.warning("event_refused", node=record.owner.node.name, error=str(error))

    def _tell_once(self, record: PhaseRecord) -> None:
        key = f"{record.run_id}/{record.sequence}"
        with self._lock:
            if key in self._told:
                return
            self._told[key] = None
            while len(self._told) > MAX_TOLD:
                self._told.popitem(last=False)
        _log.info(
            "phase_changed",
            node=record.owner.node.name,
            uid=record.owner.node.uid,
            episode=record.owner.episode,
            phase=record.phase,
            fault=record.fault,
            outcome=record.outcome,
            held=record.held,
            detail=printable(record.detail, 300),
        )
        labels = {"phase": record.phase, "fault": record.fault, "outcome": record.outcome}
        _phase_changes.add(1, labels)


def event_of(record: PhaseRecord) -> dict[str, Any]:
    """The Event of one phase change; its name is the same for a second run."""
    at = record.at.isoformat(timespec="seconds").replace("+00:00", "Z")
    prefix = f"{record.fault}: "
    is_bad = record.held or record.outcome in ("retired", "vanished", "yielded")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": _event_name(record.owner, f"{record.run_id}/{record.sequence}"),
            "namespace": EVENT_NAMESPACE,
            "annotations": {EPISODE: record.owner.episode},
        },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Node",
            "name": record.owner.node.name,
            "uid": record.owner.node.uid,
        },
        "type": "Warning" if is_bad else "Normal",
        "reason": _camel_case("held" if record.held else record.outcome or record.phase),
        # A detail that is a match's text begins with the fault already.
        "message": printable(prefix + record.detail.removeprefix(prefix), MAX_EVENT_MESSAGE),
        "source": {"component": "fleetmend"},
        "reportingComponent": "fleetmend",
        "reportingInstance": "worker",
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def _event_name(owner: Owner, key: str) -> str:
    digest = hashlib.sha256(f"{owner.episode}/{key}".encode()).hexdigest()[:16]
    return f"{owner.node.name[:230]}.{digest}"


def _camel_case(word: str) -> str:
    return "".join(part.capitalize() for part in word.split("-")) or "Recorded"
