"""The pods of one node, kept true by a watch, and woken on every change.

Owns listing them and a reflector over them (`reflector.py`) with a bell that rings at each change;
for blocked evictions also one over the PodDisruptionBudgets. Judges nothing. Used by `drain.py` and
`activities/node_tasks`.
"""

import threading
from typing import Any

import structlog

from activities.kube import paths
from activities.kube.client import JsonObject, KubeClient, Selector
from activities.kube.reflector import Reflector, ReflectorSource
from workflows.model.node import BadObject, PodView, parse_pod

_log = structlog.get_logger(__name__)


def list_pods_on(kube: KubeClient, node_name: str) -> tuple[PodView, ...]:
    """Every pod bound to a node that has not ended, as they are now.

    A pod that cannot be read counts as running work: it is never passed over in silence. What has
    ended stays out at the server: thousands of pods may have failed on a node before one is removed.

    Raises:
        ApiError: they could not be listed.
    """
    selector = Selector(field=f"{paths.field_on_node(node_name)},{paths.NOT_ENDED}")
    return tuple(view_of(item) for item in kube.list(paths.pods(), selector=selector).items)


def view_of(item: JsonObject) -> PodView:
    """A pod as a view; an unreadable one as running work without a name we could use."""
    try:
        return parse_pod(item)
    except BadObject as error:
        _log.warning("bad_pod", problem=str(error))
        meta = item.get("metadata") if isinstance(item.get("metadata"), dict) else {}
        return PodView(
            namespace=str((meta or {}).get("namespace", "")),
            name=str((meta or {}).get("name", "")),
            uid=str((meta or {}).get("uid", "")),
            phase="Unknown",
            deleting=False,
            running_containers=1,
            requests_gpu=True,
            owner_kind="",
            owner_name="",
        )


class Bell:
    """Rings at every change of what a reflector follows. Any thread may wait for it."""

    def __init__(self) -> None:
        self._rung = threading.Event()

    def ring(self) -> None:
        self._rung.set()

    def wait(self, timeout_s: float) -> bool:
        """True as soon as it has rung since the last wait, False after `timeout_s`."""
        rung = self._rung.wait(timeout_s)
        self._rung.clear()
        return rung


class _Ringing:
    """A sink that only rings; the reflector's own cache is the answer."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell

    def on_event(self, old: JsonObject | None, new: JsonObject) -> None:  # noqa: ARG002 - Sink's
        self._bell.ring()

    def on_delete(self, old: JsonObject) -> None:  # noqa: ARG002 - as above
        self._bell.ring()

    def on_bad_object(self, key: str | None, problem: str) -> None:  # noqa: ARG002 - as above
        self._bell.ring()


class Followed:
    """A collection that is followed until `close`; use it as a context manager."""

    def __init__(self, kube: KubeClient, source: ReflectorSource, bell: Bell) -> None:
        self._reflector = Reflector(kube, source, _Ringing(bell))
        self._reflector.start()

    def __enter__(self) -> "Followed":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        self._reflector.stop()

    @property
    def has_synced(self) -> bool:
        """True once the first list is in."""
        return self._reflector.has_synced

    def items(self) -> list[JsonObject]:
        """Everything as it was last seen."""
        return list(self._reflector.snapshot().values())


def follow_pods_on(kube: KubeClient, node_name: str, bell: Bell) -> Followed:
    """The pods bound to a node."""
    selector = Selector(field=paths.field_on_node(node_name))
    return Followed(kube, ReflectorSource(paths.pods(), selector), bell)


def follow_pod(kube: KubeClient, namespace: str, name: str, bell: Bell) -> Followed:
    """One pod by its name."""
    selector = Selector(field=paths.field_named(name))
    return Followed(kube, ReflectorSource(paths.pods(namespace), selector), bell)


def follow_budgets(kube: KubeClient, bell: Bell) -> Followed:
    """Every PodDisruptionBudget: what holds a pod of one node opens by pods on others."""
    return Followed(kube, ReflectorSource(paths.pod_disruption_budgets()), bell)


def namespaces_with_room(budgets: list[JsonObject]) -> frozenset[str]:
    """Namespaces in which a PodDisruptionBudget allows a disruption now."""
    open_ones = set()
    for budget in budgets:
        status: Any = budget.get("status")
        allowed = status.get("disruptionsAllowed") if isinstance(status, dict) else None
        if isinstance(allowed, int) and allowed > 0:
            open_ones.add(str(budget["metadata"].get("namespace", "")))
    return frozenset(open_ones)
