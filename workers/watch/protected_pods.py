"""The pods of the protected namespaces, by the node they run on.

Owns one reflector for each namespace that the policy names, the index over what they tell, and the
answer "cannot tell" while one of them has not listed yet or has gone deaf. Which of the pods protect
their node is `workflows/model/remediation/protection.py`'s. Asking costs no request.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, Final

import structlog

from activities.kube import paths
from activities.kube.backoff import Backoff
from activities.kube.client import JsonObject, KubeClient, Selector
from activities.kube.protected_pods import BOUND_AND_NOT_ENDED
from activities.kube.reflector import Reflector, ReflectorSource, ReflectorTiming
from workers.watch.metrics import Counter, Gauge, Metrics
from workflows.model.node import BadObject, PodView, parse_pod
from workflows.model.remediation.protection import PROTECTING_CONTROLLERS

DEAF_S: Final = 180.0
"""Silence after which a namespace counts as unknown: bookmarks come about once a minute."""
GRACE_S: Final = 5.0
"""How long the first list may take before a person is told."""
BACKOFF: Final = Backoff(first_s=0.25, limit_s=30.0)
"""Long: a right that is missing is missing until a person has acted."""

_log = structlog.get_logger(__name__)


class PodsByNode:
    """Pods that may protect the node they are bound to. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[str, dict[str, PodView]] = {}

    def on_node(self, name: str) -> tuple[PodView, ...]:
        """The pods on this node."""
        with self._lock:
            return tuple(self._nodes.get(name, {}).values())

    def put(self, pod: PodView) -> None:
        """A pod is there; it never changes its node."""
        with self._lock:
            self._nodes.setdefault(pod.node_name, {})[pod.uid] = pod

    def remove(self, node_name: str, uid: str) -> bool:
        """A pod is gone; True if it was known."""
        with self._lock:
            pods = self._nodes.get(node_name, {})
            found = pods.pop(uid, None)
            if not pods:
                self._nodes.pop(node_name, None)
        return found is not None

    def forget(self, namespace: str) -> tuple[str, ...]:
        """Nothing of this namespace counts any more; the nodes that this changes."""
        with self._lock:
            gone = [
                pod
                for pods in self._nodes.values()
                for pod in pods.values()
                if pod.namespace == namespace
            ]
        for pod in gone:
            self.remove(pod.node_name, pod.uid)
        return tuple({pod.node_name for pod in gone})


@dataclass
class _Followed:
    """One namespace."""

    reflector: Reflector
    since: float = field(default_factory=monotonic)
    was_known: bool = False
    is_told: bool = False

    @property
    def is_known(self) -> bool:
        contact = self.reflector.last_contact
        if contact is None or not self.reflector.has_synced:
            return False
        return datetime.now(UTC) - contact < timedelta(seconds=DEAF_S)


class ProtectedPods:
    """Follows the namespaces. `follow` and `tick` are for one thread, `on_node` for any."""

    def __init__(
        self, client: KubeClient, metrics: Metrics, on_change: Callable[[str], None]
    ) -> None:
        """Nothing is followed until `follow`.

        Args:
            client: gives address and credential.
            metrics: where pods are counted that cannot be read.
            on_change: told the name of a node whose pods are others than before.
        """
        self._client = client
        self._metrics = metrics
        self._on_change = on_change
        self._pods = PodsByNode()
        self._followed: Mapping[str, _Followed] = {}

    def on_node(self, name: str, namespaces: tuple[str, ...]) -> tuple[PodView, ...] | None:
        """The pods of these namespaces on a node; None = cannot tell."""
        followed = self._followed
        if all(ns in followed and followed[ns].is_known for ns in namespaces):
            return self._pods.on_node(name)
        return None

    def follow(self, namespaces: tuple[str, ...]) -> None:
        """Follow exactly these namespaces from now on."""
        before = self._followed
        if before.keys() == set(namespaces):
            return
        # Replaced as a whole: `on_node` reads it without a lock.
        self._followed = {ns: before.get(ns) or self._start(ns) for ns in namespaces}
        for namespace in before.keys() - set(namespaces):
            before[namespace].reflector.stop()
            for node in self._pods.forget(namespace):
                self._on_change(node)

    def wait(self, timeout_s: float) -> None:
        """Returns when every namespace has listed, or after `timeout_s`."""
        until = monotonic() + timeout_s
        for one in self._followed.values():
            one.reflector.wait_synced(max(0.0, until - monotonic()))

    def tick(self) -> bool:
        """Tell people what cannot be told; True if something can be told again that could not."""
        is_news = False
        for namespace, one in self._followed.items():
            is_known = one.is_known
            is_news = is_news or (is_known and not one.was_known)
            one.was_known = is_known
            self._tell(namespace, one)
        self._metrics.set_gauge(Gauge.PROTECTED_UNREADABLE, len(self.unreadable()))
        return is_news

    def unreadable(self) -> tuple[str, ...]:
        """The namespaces of which, after a moment of grace, nothing is known."""
        now = monotonic()
        return tuple(
            namespace
            for namespace, one in self._followed.items()
            if not one.is_known and now - one.since > GRACE_S
        )

    def stop(self) -> None:
        """End all."""
        for one in self._followed.values():
            one.reflector.stop()

    def _start(self, namespace: str) -> _Followed:
        source = ReflectorSource(
            paths.pods(namespace), Selector(field=BOUND_AND_NOT_ENDED), trim=_trimmed
        )
        sink = _PodSink(self._pods, self._metrics, self._on_change)
        timing = ReflectorTiming(backoff=BACKOFF)
        reflector = Reflector(self._client, source, sink, timing=timing)
        reflector.start()
        return _Followed(reflector)

    def _tell(self, namespace: str, one: _Followed) -> None:
        if one.is_known:
            if one.is_told:
                _log.info("protected_namespace_readable", namespace=namespace)
            one.is_told = False
        elif not one.is_told and monotonic() - one.since > GRACE_S:
            one.is_told = True
            _log.warning(
                "protected_namespace_unreadable",
                namespace=namespace,
                effect="no node is quarantined at once; reports go out, the worker decides",
                remedy="name it in the chart's value protectedNamespaces (deploy/chart/README.md), "
                "or take it out of the policy's scope.protected_namespaces",
            )


class _PodSink:
    """Pods of one namespace, into the index."""

    def __init__(
        self, pods: PodsByNode, metrics: Metrics, on_change: Callable[[str], None]
    ) -> None:
        self._pods = pods
        self._metrics = metrics
        self._on_change = on_change

    def on_event(self, old: JsonObject | None, new: JsonObject) -> None:
        """A pod is there. It is bound and not ended, so only its controller can change."""
        if old is not None and _owners(old) == _owners(new):
            return
        try:
            pod = parse_pod(new)
        except BadObject as error:
            self.on_bad_object(str(new["metadata"]["name"]), str(error))
            return
        if pod.owner_kind in PROTECTING_CONTROLLERS:
            self._pods.put(pod)
        else:
            self._pods.remove(pod.node_name, pod.uid)
        if old is not None or pod.owner_kind in PROTECTING_CONTROLLERS:
            self._on_change(pod.node_name)

    def on_delete(self, old: JsonObject) -> None:
        """A pod is gone, or has ended."""
        node_name = str(old["spec"]["nodeName"])
        if self._pods.remove(node_name, str(old["metadata"]["uid"])):
            self._on_change(node_name)

    def on_bad_object(self, key: str | None, problem: str) -> None:
        """One pod was passed over."""
        self._metrics.count(Counter.BAD_OBJECTS)
        _log.warning("object_passed_over", object=key, problem=problem[:300])


def _trimmed(item: JsonObject) -> JsonObject:
    """What the index needs of a pod: an agent's pod on each of thousands of nodes is kept, too."""
    meta: Any = item["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "ownerReferences")
    return {
        "metadata": {name: meta[name] for name in kept if name in meta},
        "spec": {"nodeName": _part(item, "spec").get("nodeName") or ""},
        "status": {"phase": _part(item, "status").get("phase") or "Unknown"},
    }


def _part(item: JsonObject, name: str) -> Mapping[str, Any]:
    found = item.get(name)
    return found if isinstance(found, dict) else {}


def _owners(item: JsonObject) -> object:
    return item["metadata"].get("ownerReferences")
