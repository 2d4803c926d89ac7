"""The watch process: its wiring, its start and its end.

Owns which parts there are and the order in which they start and stop. It starts and works without
Temporal: whatever speaks to Temporal lives in one event loop that nothing else waits for. Talks to
everything in this package; the CLI calls `run_watch`.
"""

import asyncio
import gc
import signal
import threading
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from activities.kube import errors, paths
from activities.kube.backoff import Backoff
from activities.kube.client import KubeClient
from activities.kube.reflector import Reflector, ReflectorSource, ReflectorTiming, Sink
from activities.policy_reader import read_policy_file
from workers.health import Probes, served
from workers.listening import SettingsError
from workers.telemetry import TelemetryError, set_up_telemetry
from workers.temporal_connection import TemporalMisconfigured, read_target
from workers.watch.current_rules import CurrentRules
from workers.watch.fleet import Fleet
from workers.watch.lease import WriterLease
from workers.watch.lookout import Hands, Lookout
from workers.watch.metrics import Counter, Gauge, Metrics
from workers.watch.notices import Notices
from workers.watch.outbox import Outbox
from workers.watch.post import Connection, TemporalPost
from workers.watch.protected_pods import DEAF_S, ProtectedPods
from workers.watch.reflex import Reflex
from workers.watch.settings import WatchSettings
from workers.watch.sinks import ConfigSink, MachineSink, NodeSink
from workflows.model.node import BadObject, NodeView, parse_node
from workflows.model.policy import Policy, PolicyError

TICK_S: Final = 0.5
"""How soon a quarantine whose request failed is tried again; a walk over 5,000 nodes takes 1 ms."""
PROTECTED_WAIT_S: Final = 0.1
"""How long a new writer waits for the pods of protected namespaces, which list within some 10 ms:
one that may not be read must not keep it from reporting."""
REFLECTOR_BACKOFF: Final = Backoff(first_s=0.25, limit_s=3.0)
"""Short: while the reflector stays away, no fault is seen. Two replicas, three lists each."""
END_S: Final = 5.0
"""How long the senders may take to stop."""
EXIT_OK: Final = 0
EXIT_BAD_SETTINGS: Final = 2

_log = structlog.get_logger(__name__)


def run_watch(settings: WatchSettings) -> int:
    """Watch the fleet until SIGTERM or SIGINT; the exit code.

    Raises:
        PolicyError: the policy file is wrong.
        KubeconfigError: there is no usable address or credential of a cluster.
        TemporalMisconfigured: the connection's settings cannot be read.
    """
    target = read_target()
    with Watch(settings) as watch:
        asyncio.run(_serve(watch, Connection(target, watch.metrics), settings))
    _log.info("watch_ended", identity=settings.identity)
    return EXIT_OK


def main() -> int:
    """Logs and settings from the environment; an error of theirs is one line of the log."""
    try:
        set_up_telemetry("watch")
        return run_watch(WatchSettings.from_environment())
    except (
        SettingsError,
        PolicyError,
        errors.KubeconfigError,
        TemporalMisconfigured,
        TelemetryError,
    ) as error:
        _log.error("watch cannot start", problem=str(error))
        return EXIT_BAD_SETTINGS


async def _serve(watch: "Watch", connection: Connection, settings: WatchSettings) -> None:
    """Send what waits for Temporal, until a signal asks for the end."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    post = TemporalPost(connection, settings.cluster)
    sending = asyncio.create_task(watch.outbox.run(post, watch.lookout))
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait((sending, stop), return_when=asyncio.FIRST_COMPLETED)
    connection.close()
    stop.cancel()
    sending.cancel()
    await asyncio.wait((sending,), timeout=END_S)
    if sending.done() and not sending.cancelled():
        sending.result()  # it ended by itself: a bug, and the process says so


class Watch:
    """All parts of the process but the event loop. Use as a context."""

    def __init__(self, settings: WatchSettings) -> None:
        """Wire the parts; nothing is started.

        Raises:
            PolicyError, KubeconfigError: as `run_watch` says.
        """
        self.settings = settings
        self.metrics = Metrics()
        file = settings.policy_file
        self.rules = CurrentRules(read_policy_file(file) if file else Policy())
        self.fleet = Fleet()
        self.outbox = Outbox(self.metrics)
        self._client = KubeClient.from_environment(process="watch", pool_size=6)
        self._lease_client = self._client.sibling(pool_size=1)
        self._lease = WriterLease(
            self._lease_client,
            settings.namespace,
            settings.identity,
            settings.cluster,
            self._note_taken,
        )
        self._notices = Notices(self._client, self.metrics)
        reflex = Reflex(self._client, self.fleet, self._lease.is_writer)
        hands = Hands(reflex, self.outbox, self._notices, self.metrics)
        self._protected = ProtectedPods(self._client, self.metrics, self._note_pods)
        self.lookout = Lookout(
            self.rules, self.fleet, hands, self._lease.is_writer, self._protected.on_node
        )
        self._config = self._reflector(
            paths.config_maps(settings.namespace),
            ConfigSink(self.rules, self.lookout, self.metrics),
        )
        self._machines = self._reflector(
            paths.gpu_machines(), MachineSink(self.rules, self.lookout, self.metrics)
        )
        self._nodes = self._reflector(paths.nodes(), NodeSink(self.lookout, self.metrics))
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._is_due = False
        self._has_no_machines = False
        self._ticker = threading.Thread(target=self._tick_forever, name="ticker", daemon=True)
        self._cleanup = ExitStack()

    def __enter__(self) -> "Watch":
        """Start everything but the event loop."""
        cleanup = self._cleanup
        cleanup.callback(self._client.close)
        cleanup.callback(self._lease_client.close)
        probes = Probes(self._unhealthy, self._unready, self._limits, self.metrics.render)
        cleanup.enter_context(served(self.settings.listen, probes))
        self._notices.start()
        cleanup.callback(self._notices.stop)
        for reflector in (self._config, self._machines, self._nodes):
            reflector.start()
            cleanup.callback(reflector.stop)
        cleanup.callback(self._protected.stop)
        self._ticker.start()
        cleanup.callback(self._stop_ticking)
        self._lease.start()
        # First of all at the end: nothing is written any more, and a standby may begin.
        cleanup.callback(self._lease.stop)
        _log.info("watch_started", identity=self.settings.identity, cluster=self.settings.cluster)
        return self

    def __exit__(self, *_error: object) -> None:
        """Give the Lease back, then end the rest."""
        self._cleanup.close()

    def _reflector(self, path: paths.CollectionPath, sink: Sink) -> Reflector:
        timing = ReflectorTiming(backoff=REFLECTOR_BACKOFF)
        return Reflector(self._client, ReflectorSource(path), sink, timing=timing)

    # Becoming the writer

    def _note_taken(self) -> None:
        """In the lease's thread: the ticker reads the fleet anew, then the lookout begins."""
        self.lookout.stand_by()
        self.metrics.count(Counter.LEASE_TAKEN)
        self._is_due = True
        self._wake.set()

    def _note_pods(self, node_name: str) -> None:
        _log.info("protecting_pods_changed", node=node_name)
        self.lookout.see_pods(node_name)

    def _tick_forever(self) -> None:
        while not self._stopping.is_set():
            try:
                self._tick()
            except errors.ApiError as error:
                _log.warning("tick_failed", problem=str(error))
            except Exception:  # noqa: BLE001 - a main loop; logged with its traceback
                _log.exception("tick_failed")
            self._wake.wait(TICK_S)
            self._wake.clear()

    def _tick(self) -> None:
        self.metrics.set_gauge(Gauge.NODES, len(self.fleet.nodes))
        self.metrics.set_gauge(Gauge.OUTBOX, len(self.outbox))
        self.metrics.set_gauge(Gauge.IS_WRITER, float(self._lease.is_writer()))
        file = self.settings.policy_file
        if file is not None and self.rules.take_file(file):
            self.lookout.change_rules()
        policy = self.rules.policy or self.rules.fallback
        self._protected.follow(policy.scope.protected_namespaces)
        if self._is_due:
            # The caches first: what is armed and what people have undone decides what may be done.
            if not self._are_caches_filled():
                self._wait_for_caches()
                return
            self._is_due = False
            self._protected.wait(PROTECTED_WAIT_S)
            try:
                self.lookout.take_over(self._read_nodes())
            except BaseException:
                self._is_due = True
                raise
            _log.info("writing", identity=self.settings.identity, nodes=len(self.fleet.nodes))
            # The long-lived cache is not walked by every collection, which would delay a patch.
            gc.collect()
            gc.freeze()
        if self._protected.tick():
            self.lookout.look_at_all()
        self.lookout.tick()

    def _are_caches_filled(self) -> bool:
        return (
            self._config.has_synced
            and self._nodes.has_synced
            and (self._machines.has_synced or self._has_no_machines)
        )

    def _wait_for_caches(self) -> None:
        for reflector in (self._config, self._machines, self._nodes):
            if not reflector.wait_synced(TICK_S / 3):
                self._has_no_machines = self._are_machines_unknown()
                return
        self._wake.set()

    def _are_machines_unknown(self) -> bool:
        """True if the cluster has no machine records at all: then nothing can be overruled."""
        try:
            next(iter(self._client.pages(paths.gpu_machines(), page_size=1)))
        except errors.NotFound:
            _log.warning(
                "no_machine_records", remedy="install the chart (deploy/chart): it brings the CRD"
            )
            return True
        return False

    def _read_nodes(self) -> list[NodeView]:
        views = []
        for page in self._client.pages(paths.nodes()):
            for item in page.items:
                # The reflector counts and logs those that cannot be read.
                with suppress(BadObject):
                    views.append(parse_node(item))
        return views

    def _stop_ticking(self) -> None:
        self._stopping.set()
        self._wake.set()
        self._ticker.join(5.0)

    # Probes

    def _unhealthy(self) -> str:
        contact = self._nodes.last_contact
        if contact is not None and datetime.now(UTC) - contact > timedelta(seconds=DEAF_S):
            return f"the API server has said nothing for {DEAF_S:g} s"
        return ""

    def _unready(self) -> str:
        if not self._are_caches_filled():
            return "the first lists of Nodes, ConfigMaps and GPUMachines are not complete"
        if self.rules.policy is None:
            return f"no usable policy: {self.rules.policy_problem}"
        return ""

    def _limits(self) -> str:
        unreadable = ", ".join(self._protected.unreadable())
        if not unreadable:
            return ""
        return (
            f"no node is quarantined at once: the pods of {unreadable} cannot be read "
            "(deploy/chart/README.md, protected namespaces)"
        )
