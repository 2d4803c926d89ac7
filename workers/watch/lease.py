"""The Lease that chooses the one writer among watch's replicas.

Owns acquiring, renewing, giving up and losing it. Times of other machines are never compared with
ours: a standby takes over when the Lease has not changed for a whole term by its own monotonic
clock, and a writer stops writing a second before a standby could. Who is writer changes nothing
about the cache. Talks to `activities/kube`.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final

import structlog

from activities.kube import errors, paths
from activities.kube.client import CallTimeout, KubeClient
from activities.kube.errors import printable

LEASE_NAME: Final = "fleetmend-watch"
TERM_S: Final = 4
"""A standby takes over after this long without a change. With RETRY_S and the requests it stays
below the 5 s that are promised for a restart of watch (P10)."""
CLUSTER_NOTE: Final = "fleetmend.io/cluster"
"""Annotation of the Lease: FLEETMEND_CLUSTER of whoever writes it."""
RENEW_S: Final = 1.0
RETRY_S: Final = 0.25
"""How often a standby looks; one small GET."""
HOLD_S: Final = 3.0
"""How long after the start of its last renewal a writer may still write: what is on its way then
has the rest of the term to arrive."""
_TIMEOUT: Final = CallTimeout(connect_s=1.0, read_s=1.0)

_log = structlog.get_logger(__name__)


@dataclass
class _Observed:
    """What the Lease said when it last changed, and when we saw that (monotonic)."""

    resource_version: str = ""
    holder: str = ""
    at: float = 0.0


class WriterLease:
    """This replica's part in the election. `is_writer` may be asked from any thread."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        identity: str,
        cluster: str,
        on_taken: Callable[[], None],
    ) -> None:
        """A lease that does nothing until `start`.

        Args:
            client: kept for this alone, so that a slow list does not delay a renewal.
            namespace: of the Lease.
            identity: this replica's name, another one at each start.
            cluster: the name in workflow ids, noted on the Lease for people's commands.
            on_taken: called in the lease's thread each time this replica becomes the writer.
        """
        self._client = client
        self._namespace = namespace
        self._path = paths.lease(namespace, LEASE_NAME)
        self._identity = identity
        self._cluster = cluster
        self._on_taken = on_taken
        self._valid_until = float("-inf")
        self._observed = _Observed()
        self._problem = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Begin to ask for it. Returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop writing, and give the Lease back so that a standby need not wait for it."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(2 * (_TIMEOUT.connect_s + _TIMEOUT.read_s) + RENEW_S)
        was_writer = self.is_writer()
        self._valid_until = float("-inf")
        if was_writer:
            self._release()

    def is_writer(self) -> bool:
        """True if this replica may write at this very moment."""
        return monotonic() < self._valid_until

    def _run(self) -> None:
        while not self._stopping.is_set():
            was_writer = self.is_writer()
            try:
                self._round()
                self._problem = ""
            except errors.ApiError as error:
                self._note(str(error))
            except Exception:  # noqa: BLE001 - a main loop; logged with its traceback
                _log.exception("lease_failed", lease=LEASE_NAME)
            if self.is_writer() and not was_writer:
                self._on_taken()
            self._stopping.wait(RENEW_S if self.is_writer() else RETRY_S)

    def _note(self, problem: str) -> None:
        """Log a problem once, not at each of its repetitions."""
        kind = problem[:60]
        if kind != self._problem:
            _log.warning("lease_problem", lease=LEASE_NAME, problem=problem)
        self._problem = kind

    def _round(self) -> None:
        begun = monotonic()
        try:
            lease = self._client.get(self._path, timeout=_TIMEOUT)
        except errors.NotFound:
            lease = None
        try:
            if lease is None:
                self._client.create(
                    paths.leases(self._namespace), self._body({}, None), timeout=_TIMEOUT
                )
            elif self._may_take(lease, begun):
                self._client.replace(self._path, self._renewed(lease), timeout=_TIMEOUT)
            else:
                self._valid_until = float("-inf")
                return
        except errors.Conflict:
            # Another replica was faster, or a renewal of ours arrived after its time-out.
            return
        self._valid_until = begun + HOLD_S

    def _may_take(self, lease: dict[str, Any], now: float) -> bool:
        """True if it is ours, nobody's, or was not renewed for a whole term before our eyes."""
        holder = str((lease.get("spec") or {}).get("holderIdentity") or "")
        version = str(lease["metadata"].get("resourceVersion", ""))
        if holder in ("", self._identity):
            return True
        if version != self._observed.resource_version:
            if holder != self._observed.holder:
                _log.info("standing_by", lease=LEASE_NAME, holder=printable(holder, 128))
            self._observed = _Observed(version, holder, now)
            return False
        return now - self._observed.at >= TERM_S

    def _renewed(self, lease: dict[str, Any]) -> dict[str, Any]:
        spec = lease.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        if holder != self._identity:
            _log.info(
                "lease_taken",
                lease=LEASE_NAME,
                before=printable(holder, 128),
                identity=self._identity,
            )
            spec = {**spec, "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1}
            spec.pop("acquireTime", None)
        return self._body(spec, lease["metadata"])

    def _body(self, spec: dict[str, Any], metadata: dict[str, Any] | None) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        metadata = metadata or {"name": LEASE_NAME, "namespace": self._namespace}
        notes = {**(metadata.get("annotations") or {}), CLUSTER_NOTE: self._cluster}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {**metadata, "annotations": notes},
            "spec": {
                **spec,
                "holderIdentity": self._identity,
                "leaseDurationSeconds": TERM_S,
                "acquireTime": spec.get("acquireTime") or now,
                "renewTime": now,
            },
        }

    def _release(self) -> None:
        try:
            lease = self._client.get(self._path, timeout=_TIMEOUT)
            spec = lease.get("spec") or {}
            if spec.get("holderIdentity") == self._identity:
                lease["spec"] = {**spec, "holderIdentity": "", "leaseDurationSeconds": 1}
                self._client.replace(self._path, lease, timeout=_TIMEOUT)
        except errors.ApiError as error:
            _log.warning("lease_not_released", lease=LEASE_NAME, problem=str(error))
