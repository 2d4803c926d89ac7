"""The one way in which fleetmend asks the API server for anything.

Owns the verbs of the API: raw JSON in, raw JSON out. Every method raises the errors of `errors.py`;
nothing is retried here, and what stands in the objects is not its business. Talks to `wire.py`.
`stream.py` reads watches over it, `reflector.py` keeps caches with it.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from kubernetes.client.configuration import Configuration

from activities.kube import errors, paths
from activities.kube.kubeconfig import load_configuration
from activities.kube.paths import CollectionPath, ObjectPath, describe
from activities.kube.wire import DEFAULT_TIMEOUT, CallTimeout, JsonObject, Request, Wire

__all__ = [
    "DEFAULT_TIMEOUT",
    "EVERYTHING",
    "CallTimeout",
    "JsonObject",
    "KubeClient",
    "Listing",
    "Page",
    "PatchKind",
    "Selector",
]

FIELD_MANAGER: Final = "fleetmend"
PAGE_SIZE: Final = 500
"""Objects a page of a list; client-go's own choice, and about 3 MB of Nodes."""
PAGES_LIMIT: Final = 1_000
"""Pages of one list: 500,000 objects, ten times what one cluster is tested for."""


class PatchKind(StrEnum):
    """How the body of a patch is understood; the value is its content type."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True)
class Listing:
    """A list of objects as they were at one moment.

    Attributes:
        items: the objects, in the server's order. They carry no kind and apiVersion.
        resource_version: where a watch goes on.
    """

    items: list[JsonObject]
    resource_version: str


@dataclass(frozen=True)
class Page:
    """One page of a list; `items` unchecked, as one bad object must not hide the others."""

    items: list[Any]
    resource_version: str
    next_page: str | None


@dataclass(frozen=True)
class Selector:
    """Which objects of a collection are meant; None means all."""

    label: str | None = None
    field: str | None = None

    def query(self) -> dict[str, str]:
        """The selector as parts of a query."""
        parts = {"labelSelector": self.label, "fieldSelector": self.field}
        return {name: value for name, value in parts.items() if value is not None}


EVERYTHING: Final = Selector()


class KubeClient:
    """Raw, bounded calls to one API server. Thread-safe: one per process is enough.

    Every method raises `errors.ApiError`; `maybe_done` of the error says whether a write may have
    taken effect. A client that was closed raises `errors.Unreachable`.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        process: str = "unknown",
        pool_size: int = 10,
        timeout: CallTimeout = DEFAULT_TIMEOUT,
    ) -> None:
        """A client for a configuration that is already loaded; see `from_environment`.

        Args:
            configuration: address and credential; copied.
            process: which fleetmend process this is, for the server's audit log.
            pool_size: connections kept open: as many as there are calling threads.
            timeout: for each call that gives none of its own.
        """
        self._timeout = timeout
        self.wire = Wire(configuration, process=process, pool_size=pool_size)
        self._configuration = configuration
        self._process = process
        self._watching: KubeClient | None = None
        self._watching_lock = threading.Lock()

    @classmethod
    def from_environment(cls, *, process: str = "unknown", pool_size: int = 10) -> Self:
        """A client for the cluster of KUBECONFIG, else of the pod it runs in.

        Does not talk to the server yet.

        Raises:
            errors.KubeconfigError: neither is there or usable; the message says what is missing.
        """
        configuration = load_configuration(os.environ)
        return cls(configuration, process=process, pool_size=pool_size)

    @classmethod
    def from_kubeconfig(
        cls,
        kubeconfig: Path,
        *,
        process: str = "unknown",
        pool_size: int = 10,
        timeout: CallTimeout = DEFAULT_TIMEOUT,
    ) -> Self:
        """A client for the current context of a kubeconfig file.

        Raises:
            errors.KubeconfigError: the file is missing or not usable.
        """
        configuration = load_configuration({"KUBECONFIG": str(kubeconfig)})
        return cls(configuration, process=process, pool_size=pool_size, timeout=timeout)

    @property
    def watching(self) -> "KubeClient":
        """The client for this one's watches, closed with it.

        It has connections of its own, as a watch holds one for minutes.
        """
        with self._watching_lock:
            if self._watching is None:
                self._watching = self.sibling()
            return self._watching

    def sibling(self, *, pool_size: int = 4) -> "KubeClient":
        """Another client with the same address and credential, and connections of its own.

        For whoever both lists and watches and must be able to end both at once: its watches use
        its own connections, so that one connection serves a list and the watch after it.
        """
        other = KubeClient(self._configuration, process=self._process, pool_size=pool_size)
        other._watching = other
        return other

    def close(self) -> None:
        """End every connection at once, also those on which other threads are waiting.

        Their calls raise `errors.Unreachable`, and so do later ones.
        """
        with self._watching_lock:
            watching = self._watching
        if watching is not None and watching is not self:
            watching.close()
        self.wire.close()

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self.wire.is_closed

    # Reading

    def get(self, path: ObjectPath, *, timeout: CallTimeout | None = None) -> JsonObject:
        """One object, as it is now (never from a cache).

        Raises:
            errors.NotFound: it is not there; `is_unserved` if its kind is unknown.
        """
        return self.wire.ask(Request("GET", path, {}, timeout=timeout or self._timeout))

    def list(
        self,
        path: CollectionPath,
        *,
        selector: Selector = EVERYTHING,
        page_size: int = PAGE_SIZE,
        timeout: CallTimeout | None = None,
    ) -> Listing:
        """All objects of a collection that the selector takes, as they are now.

        Raises:
            errors.Gone: the pages took so long that the server forgot the moment; list again.
            errors.BadAnswer: an item is no object.
        """
        items: list[JsonObject] = []
        resource_version = ""
        for page in self.pages(path, selector=selector, page_size=page_size, timeout=timeout):
            for item in page.items:
                if not isinstance(item, dict):
                    raise errors.BadAnswer(
                        f"GET {describe(path)}", f"an item of the list is {type(item).__name__}"
                    )
                items.append(item)
            resource_version = page.resource_version
        return Listing(items, resource_version)

    def pages(
        self,
        path: CollectionPath,
        *,
        selector: Selector = EVERYTHING,
        page_size: int = PAGE_SIZE,
        timeout: CallTimeout | None = None,
    ) -> Iterator[Page]:
        """The pages of a list, one request each, all of the same moment; items unchecked."""
        query = {**selector.query(), "limit": str(page_size)}
        for _ in range(PAGES_LIMIT):
            request = Request("GET", path, query, timeout=timeout or self._timeout)
            page = _as_page(request.name, self.wire.ask(request))
            yield page
            if page.next_page is None:
                return
            query["continue"] = page.next_page
        raise errors.BadAnswer(
            f"GET {describe(path)}", f"the list has more than {PAGES_LIMIT} pages"
        )

    # Writing

    def create(
        self,
        path: CollectionPath | ObjectPath,
        body: JsonObject,
        *,
        timeout: CallTimeout | None = None,
    ) -> JsonObject:
        """Create an object in a collection, or post to a subresource; what the server made of it.

        Raises:
            errors.Conflict: `is_existing`: the name is taken.
        """
        query = {"fieldManager": FIELD_MANAGER}
        content = msgspec.json.encode(body)
        return self.wire.ask(
            Request("POST", path, query, content, timeout=timeout or self._timeout)
        )

    def patch(
        self,
        path: ObjectPath,
        body: JsonObject | Sequence[JsonObject],
        *,
        kind: PatchKind,
        resource_version: str | None = None,
        timeout: CallTimeout | None = None,
    ) -> JsonObject:
        """Change an object; what it is now.

        Args:
            path: the object or its status.
            body: for PatchKind.JSON the list of operations, else an object. PatchKind.APPLY takes
                over the fields named in it (force).
            kind: how the body is meant.
            resource_version: the version that the change was decided on; None if it is right on
                any version.
            timeout: for this call.

        Raises:
            errors.Conflict: the object is not at `resource_version` any more; nothing was changed.
        """
        if resource_version is not None:
            body = _at_version(body, resource_version)
        query = {"fieldManager": FIELD_MANAGER}
        if kind is PatchKind.APPLY:
            query["force"] = "true"
        content = msgspec.json.encode(body)
        return self.wire.ask(
            Request("PATCH", path, query, content, kind.value, timeout or self._timeout)
        )

    def replace(
        self, path: ObjectPath, body: JsonObject, *, timeout: CallTimeout | None = None
    ) -> JsonObject:
        """Put a whole object in the place of the old one; what it is now.

        For Leases: the move of the holder must be one write. With metadata.resourceVersion in the
        body it is refused with `errors.Conflict` if that is not the version any more.
        """
        query = {"fieldManager": FIELD_MANAGER}
        content = msgspec.json.encode(body)
        return self.wire.ask(Request("PUT", path, query, content, timeout=timeout or self._timeout))

    def delete(
        self,
        path: ObjectPath,
        *,
        uid: str | None,
        grace_s: int | None = None,
        timeout: CallTimeout | None = None,
    ) -> JsonObject:
        """Delete one object; its last form, or a Status.

        Args:
            path: the object.
            uid: only if it still has this UID; None for objects that are nobody else's.
            grace_s: seconds for a pod to end; None for the pod's own.
            timeout: for this call.

        Raises:
            errors.NotFound: it is gone already.
            errors.Conflict: another object has this name now; nothing was deleted.
        """
        content = msgspec.json.encode(_delete_options(uid, grace_s))
        return self.wire.ask(Request("DELETE", path, {}, content, timeout=timeout or self._timeout))

    def evict(
        self,
        namespace: str,
        name: str,
        *,
        uid: str,
        grace_s: int | None = None,
        timeout: CallTimeout | None = None,
    ) -> None:
        """Evict one pod, as its disruption budgets allow.

        Returns when the pod has its deletion timestamp; evicting it again then succeeds as well.

        Args:
            namespace: of the pod.
            name: of the pod.
            uid: UID of the pod, just re-read: a precondition that fails is charged to the budget
                for two minutes (facts of the API server).
            grace_s: seconds for the pod to end; None for its own.
            timeout: for this call.

        Raises:
            errors.NotFound: the pod is gone.
            errors.Conflict: another pod has this name now.
            errors.TooMany: a budget holds (`is_disruption_budget`), or slow down.
            errors.ServerError: `is_two_budgets`: blocked by configuration.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": _delete_options(uid, grace_s),
        }
        self.create(paths.pod_eviction(namespace, name), body, timeout=timeout)


def _as_page(request: str, answer: JsonObject) -> Page:
    metadata = answer.get("metadata")
    items = answer.get("items")
    if items is None:
        items = []  # Go writes an empty slice as null
    if not isinstance(metadata, dict) or not isinstance(items, list):
        raise errors.BadAnswer(request, "the answer is no list: metadata or items is missing")
    version = metadata.get("resourceVersion")
    if not isinstance(version, str) or not version:
        raise errors.BadAnswer(request, "the list has no resourceVersion")
    token = metadata.get("continue")
    return Page(items, version, token if isinstance(token, str) and token else None)


def _at_version(
    body: JsonObject | Sequence[JsonObject], resource_version: str
) -> JsonObject | list[JsonObject]:
    if isinstance(body, dict):
        metadata = {**body.get("metadata", {}), "resourceVersion": resource_version}
        return {**body, "metadata": metadata}
    # Not "test": a test that fails is answered with 422, like any malformed patch; writing the
    # version is checked like an update and answered with 409.
    lock = {"op": "replace", "path": "/metadata/resourceVersion", "value": resource_version}
    return [lock, *body]


def _delete_options(uid: str | None, grace_s: int | None) -> JsonObject:
    options: JsonObject = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if uid is not None:
        options["preconditions"] = {"uid": uid}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    return options
