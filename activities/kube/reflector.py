"""A cache of one collection that stays true whatever the API server and the network do.

Owns listing, watching, and coming back: after every loss it lists again and tells its sink the
difference, so a deletion during an outage is never missed. What the objects mean is the sink's
business. Level-triggered: each start and each new list delivers every object. Talks to
`client.py` and `stream.py`; `workers/watch` runs one over the Nodes.
"""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Final, Protocol

import structlog

from activities.kube import errors
from activities.kube.backoff import Backoff
from activities.kube.client import EVERYTHING, PAGE_SIZE, JsonObject, KubeClient, Selector
from activities.kube.paths import CollectionPath, describe
from activities.kube.stream import STALL_AFTER_S, Frame, WatchRequest, WatchStream

_log = structlog.get_logger(__name__)

STEADY_S: Final = 5.0
"""A watch that lived this long forgives the failures before it. Shorter ones do not: a server that
cuts each watch after its first frame must not be asked in a tight loop."""


class Sink(Protocol):
    """Who is told what changed.

    Called in the reflector's thread, one call at a time; it must not change the objects, and it
    must return soon. What it raises is logged and counted, and the object is delivered again only
    when it changes or with the next list.
    """

    def on_event(self, old: JsonObject | None, new: JsonObject) -> None:
        """An object is there. `old` is None if it is new; after a list it may equal `new`."""

    def on_delete(self, old: JsonObject) -> None:
        """An object is gone; `old` is the last that was seen of it."""

    def on_bad_object(self, key: str | None, problem: str) -> None:
        """An object could not be used and was passed over. `key` is None if it names nothing."""


@dataclass(frozen=True)
class ReflectorSource:
    """What is cached.

    Attributes:
        path: the collection.
        selector: which objects of it.
        page_size: objects a page of a list.
        trim: what of an object is kept and told; its name, namespace, uid and resourceVersion must
            stay. None = all of it.
    """

    path: CollectionPath
    selector: Selector = EVERYTHING
    page_size: int = PAGE_SIZE
    trim: Callable[[JsonObject], JsonObject] | None = None


@dataclass(frozen=True)
class ReflectorTiming:
    """When the reflector gives up on a watch, and how it comes back.

    Attributes:
        watch_min_s: shortest time that a watch is asked to last, at least 1.
        watch_max_s: longest; the spread keeps many reflectors out of step.
        stall_after_s: silence after which a watch is dropped; above the server's minute between
            bookmarks, or 3 above `watch_max_s` if that is shorter.
        backoff: pauses after failures in a row.
    """

    watch_min_s: int = 240
    watch_max_s: int = 300
    stall_after_s: float = STALL_AFTER_S
    backoff: Backoff = field(default_factory=Backoff)


@dataclass
class ReflectorCounts:
    """What happened since the start; only the reflector writes it.

    Attributes:
        lists: lists that were read to their end.
        watches: watches that the server accepted.
        frames: frames of any type, bookmarks included.
        bookmarks: frames that only moved the place.
        bad_objects: objects that were passed over.
        bad_answers: answers and frames that could not be read at all.
        sink_failures: calls of the sink that raised.
        gone: times that the place was too old, or the server's history was replaced.
        stalls: watches and calls that were given up for silence.
        failures: losses of any kind; each leads to a new list.
    """

    lists: int = 0
    watches: int = 0
    frames: int = 0
    bookmarks: int = 0
    bad_objects: int = 0
    bad_answers: int = 0
    sink_failures: int = 0
    gone: int = 0
    stalls: int = 0
    failures: int = 0


@dataclass
class _Place:
    """Where the reflector stands; only its own thread touches it."""

    resource_version: str | None = None
    """Where a watch may go on; None if only a new list will do."""
    failures_in_a_row: int = 0
    chance: random.Random = field(default_factory=random.Random)


class Reflector:
    """Keeps `objects` true to the cluster in a thread of its own, and tells the sink.

    After any end of a watch that was not in good order it lists again, though the server may still
    know the old version: if etcd was restored from a backup meanwhile, versions run again from an
    earlier point, and a watch from the old one would pass over changes in silence.
    """

    def __init__(
        self,
        client: KubeClient,
        source: ReflectorSource,
        sink: Sink,
        *,
        timing: ReflectorTiming | None = None,
    ) -> None:
        """A reflector that does nothing until `start`.

        Args:
            client: gives address and credential; the reflector has connections of its own.
            source: what to cache.
            sink: whom to tell.
            timing: when to give up on a watch.
        """
        self._client = client.sibling(pool_size=2)
        self._source = source
        self._sink = sink
        self._timing = timing or ReflectorTiming()
        self._place = _Place()
        self._objects: dict[str, JsonObject] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._synced = threading.Event()
        self._last_contact: datetime | None = None
        self._name = describe(source.path)
        self._thread = threading.Thread(
            target=self._run, name=f"reflector-{self._name}", daemon=True
        )
        self.counts = ReflectorCounts()

    def start(self) -> None:
        """Begin. Returns at once; `wait_synced` waits for the first list."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """End the thread at once, also in the middle of a silent watch; True if it has ended.

        Args:
            timeout_s: how long to wait for a sink that is in the middle of a call.
        """
        self._stopping.set()
        self._client.close()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def wait_synced(self, timeout_s: float) -> bool:
        """True when every object of the first list was delivered; False if that takes longer."""
        return self._synced.wait(timeout_s)

    @property
    def has_synced(self) -> bool:
        """True once every object of the first list was delivered."""
        return self._synced.is_set()

    @property
    def last_contact(self) -> datetime | None:
        """When the server last said anything (a list, a frame, a bookmark); None if never."""
        return self._last_contact

    def get(self, key: str) -> JsonObject | None:
        """The cached object with this key (see `key_of`); read only. None if there is none."""
        with self._lock:
            return self._objects.get(key)

    def snapshot(self) -> dict[str, JsonObject]:
        """All cached objects by key; the dict is the caller's, the objects are read only."""
        with self._lock:
            return dict(self._objects)

    # The loop

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._live()
            except errors.Gone:
                self.counts.gone += 1
                self._fail(first_pause=False)
            except errors.ApiError as error:
                if self._stopping.is_set():
                    return
                stalled = isinstance(error, errors.Unreachable) and error.is_timeout
                self.counts.stalls += stalled
                self.counts.bad_answers += isinstance(error, errors.BadAnswer)
                _log.warning("watch_lost", collection=self._name, error=str(error))
                self._fail(first_pause=True)
            except Exception:  # noqa: BLE001 - this is a main loop; logged with its traceback
                # The loop outlives its own bugs: a node that nobody watches is worse.
                _log.exception("reflector_failed", collection=self._name)
                self._fail(first_pause=True)

    def _live(self) -> None:
        """One list if it is needed, and one watch to its end in good order."""
        if self._place.resource_version is None:
            self._place.resource_version = self._relist()
        begun = monotonic()
        try:
            self._watch(self._place.resource_version)
        finally:
            if monotonic() - begun >= STEADY_S:
                self._place.failures_in_a_row = 0
        if monotonic() - begun < min(STEADY_S, self._timing.watch_min_s / 2):
            raise errors.Unreachable(
                f"WATCH {self._name}", "ended long before its time", maybe_done=False
            )

    def _fail(self, *, first_pause: bool) -> None:
        """Note a failure, forget the place, and stay away for a while."""
        self._place.resource_version = None
        self._place.failures_in_a_row += 1
        self.counts.failures += 1
        failures = self._place.failures_in_a_row - (0 if first_pause else 1)
        if failures > 0:
            self._stopping.wait(self._timing.backoff.pause_s(failures, self._place.chance))

    # Listing

    def _relist(self) -> str:
        """Make the cache what the server says, tell the sink, and give back the version."""
        listed: dict[str, JsonObject] = {}
        kept: set[str] = set()
        nameless = 0
        version = ""
        pages = self._client.pages(
            self._source.path, selector=self._source.selector, page_size=self._source.page_size
        )
        for page in pages:
            version = page.resource_version
            for item in page.items:
                problem = problem_of(item)
                key = _key_if_any(item)
                if problem is None and key is not None:
                    listed[key] = self._trimmed(item)
                    continue
                self._pass_over(key, problem or "no key")
                if key is None:
                    nameless += 1
                else:
                    kept.add(key)
        self.counts.lists += 1
        self._touch()
        self._deliver_list(listed, kept, nameless)
        self._synced.set()
        return version

    def _deliver_list(self, listed: dict[str, JsonObject], kept: set[str], nameless: int) -> None:
        """Tell the sink what a list changes, deletions first.

        Args:
            listed: the good objects.
            kept: keys of listed objects that could not be used: they are there all the same.
            nameless: how many objects could not even be named. Each may be one that seems gone:
                then nothing is deleted on this list's word.
        """
        missing = [key for key in self.snapshot() if key not in listed and key not in kept]
        if nameless and missing:
            _log.warning(
                "deletions_doubtful", collection=self._name, nameless=nameless, missing=len(missing)
            )
            missing = []
        for key in missing:
            self._remove(key)
        for key, item in listed.items():
            if self._stopping.is_set():
                return
            self._put(key, item)

    # Watching

    def _watch(self, resource_version: str) -> None:
        request = WatchRequest(
            self._source.path,
            resource_version,
            self._source.selector,
            self._place.chance.randint(self._timing.watch_min_s, self._timing.watch_max_s),
            self._timing.stall_after_s,
        )
        with WatchStream(self._client, request) as stream:
            self.counts.watches += 1
            self._touch()
            for frame in stream:
                if self._stopping.is_set():
                    return
                self._take(frame)

    def _take(self, frame: Frame) -> None:
        self.counts.frames += 1
        self._touch()
        if frame.type == "BOOKMARK":
            self.counts.bookmarks += 1
            self._move_to(_version_of(frame.object))
            return
        problem = problem_of(frame.object)
        key = _key_if_any(frame.object)
        if problem is not None or key is None:
            self._pass_over(key, problem or "no key")
        elif frame.type == "DELETED":
            self._delete(key, frame.object)
        elif frame.type in ("ADDED", "MODIFIED"):
            self._put(key, self._trimmed(frame.object))
        else:
            self._pass_over(key, f"frame of unknown type {frame.type[:40]!r}")
        self._move_to(_version_of(frame.object))

    def _move_to(self, version: str | None) -> None:
        """Note the place. Raises errors.Gone if the server has gone back behind it."""
        if version is None:
            return
        here = self._place.resource_version
        if here is not None and _is_before(version, here):
            said = f"version {version} came after {here}: the server's history was replaced"
            raise errors.Gone(f"WATCH {self._name}", said)
        self._place.resource_version = version

    # The cache and the sink

    def _trimmed(self, item: JsonObject) -> JsonObject:
        return item if self._source.trim is None else self._source.trim(item)

    def _put(self, key: str, new: JsonObject) -> None:
        with self._lock:
            old = self._objects.get(key)
        if old is not None and _uid_of(old) != _uid_of(new):
            self._remove(key)
            old = None
        with self._lock:
            self._objects[key] = new
        self._tell(lambda: self._sink.on_event(old, new), key)

    def _delete(self, key: str, last: JsonObject) -> None:
        with self._lock:
            old = self._objects.get(key)
        if old is not None and _uid_of(old) == _uid_of(last):
            self._remove(key, last)

    def _remove(self, key: str, last: JsonObject | None = None) -> None:
        with self._lock:
            old = self._objects.pop(key)
        self._tell(lambda: self._sink.on_delete(last or old), key)

    def _pass_over(self, key: str | None, problem: str) -> None:
        self.counts.bad_objects += 1
        _log.warning("bad_object", collection=self._name, key=key, problem=problem)
        self._tell(lambda: self._sink.on_bad_object(key, problem), key)

    def _tell(self, call: Callable[[], None], key: str | None) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 - a bug over one node must not blind us to all others
            self.counts.sink_failures += 1
            _log.exception("sink_failed", collection=self._name, key=key)

    def _touch(self) -> None:
        self._last_contact = datetime.now(UTC)


def key_of(item: JsonObject) -> str:
    """The key of an object in the cache: its name, or "namespace/name"."""
    metadata = item["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def problem_of(item: object) -> str | None:
    """Why an object cannot be cached, or None if it can. Only what the cache itself needs."""
    if not isinstance(item, dict):
        return f"is {type(item).__name__}, not an object"
    metadata = item.get("metadata")
    if not isinstance(metadata, dict):
        return "has no metadata"
    for name in ("name", "uid", "resourceVersion"):
        value = metadata.get(name)
        if not isinstance(value, str) or not value:
            return f"has no metadata.{name}"
    if not isinstance(metadata.get("namespace", ""), str):
        return "metadata.namespace is no text"
    return None


def _key_if_any(item: object) -> str | None:
    """The key of an object that may lack anything."""
    metadata = item.get("metadata") if isinstance(item, dict) else None
    if not isinstance(metadata, dict):
        return None
    name, namespace = metadata.get("name"), metadata.get("namespace")
    if not isinstance(name, str) or not name:
        return None
    return f"{namespace}/{name}" if isinstance(namespace, str) and namespace else name


def _uid_of(item: JsonObject) -> str:
    return str(item["metadata"]["uid"])


def _is_before(version: str, other: str) -> bool:
    """True only if both are versions that can be ordered, and the first is earlier."""
    return version.isdecimal() and other.isdecimal() and int(version) < int(other)


def _version_of(item: object) -> str | None:
    metadata = item.get("metadata") if isinstance(item, dict) else None
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    return version if isinstance(version, str) and version else None
