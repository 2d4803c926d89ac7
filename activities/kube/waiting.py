"""Waiting until something in a collection has come about, by watch and not by polling.

Owns the loop list, look, watch, look again, over lost watches and a server that is away, with an
end in every case. What is waited for is the caller's function. For activities; a process that wants
a lasting cache has `reflector.py`. Talks to `client.py` and `stream.py`.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Final, TypeVar

from activities.kube import errors
from activities.kube.backoff import Backoff
from activities.kube.client import JsonObject, KubeClient, Selector
from activities.kube.paths import CollectionPath, field_named
from activities.kube.stream import WatchRequest, watch_frames

Found = TypeVar("Found")

TICK_S: Final = 2
"""Seconds between two calls of `tick` while nothing happens; whole, as the server ends each watch
then. Cancellation of the activity is seen with it."""
_SILENCE_S: Final = 5.0
"""A watch of TICK_S that is silent for this long is lost."""
_TRANSIENT: Final = (
    errors.Gone,
    errors.Unreachable,
    errors.ServerError,
    errors.BadAnswer,
    errors.TooMany,
)


@dataclass(frozen=True)
class WaitTarget:
    """Which objects are looked at.

    Attributes:
        path: the collection.
        selector: which of it.
    """

    path: CollectionPath
    selector: Selector

    @classmethod
    def one(cls, path: CollectionPath, name: str) -> "WaitTarget":
        """The one object of a collection with this name."""
        return cls(path, Selector(field=field_named(name)))


def wait_until(
    client: KubeClient,
    target: WaitTarget,
    look: Callable[[Mapping[str, JsonObject]], Found | None],
    *,
    timeout_s: float,
    tick: Callable[[], None],
) -> Found | None:
    """What `look` found, or None if it found nothing in time.

    While the server is away it waits on, as the time allows; then the last trouble is raised.

    Args:
        client: the client.
        target: what to look at.
        look: is given all objects by UID (those without one are left out), at first, after each
            change, and once more after every new list; None means: wait on.
        timeout_s: seconds, after which it gives up; 0 looks once.
        tick: called at least every few seconds; to send heartbeats. What it raises ends the wait.

    Raises:
        errors.ApiError: the server does not let us look (Forbidden, Invalid, NotFound), or was
            away when the time was over.
    """
    deadline = monotonic() + timeout_s
    pause, chance, failures = Backoff(0.2, 5.0), random.Random(), 0
    while True:
        tick()
        try:
            listing = client.list(target.path, selector=target.selector)
            objects = {uid: item for item in listing.items if (uid := _uid_of(item))}
            found = look(objects)
            place: str | None = listing.resource_version
            failures = 0
            while found is None and place is not None and monotonic() < deadline:
                found, place = _watch_once(client, target, objects, look, place)
                tick()
            if found is not None or monotonic() >= deadline:
                return found
        except _TRANSIENT:
            if monotonic() >= deadline:
                raise
            failures += 1
            sleep(min(pause.pause_s(failures, chance), max(deadline - monotonic(), 0)))


def _watch_once(
    client: KubeClient,
    target: WaitTarget,
    objects: dict[str, JsonObject],
    look: Callable[[Mapping[str, JsonObject]], Found | None],
    place: str,
) -> tuple[Found | None, str | None]:
    """What was found in one short watch, and where the next goes on; `objects` is kept true."""
    request = WatchRequest(
        target.path, place, target.selector, duration_s=TICK_S, stall_after_s=_SILENCE_S
    )
    for frame in watch_frames(client, request):
        metadata = frame.object.get("metadata") if isinstance(frame.object, dict) else None
        if not isinstance(metadata, dict):
            return None, None  # something that cannot be read changed: only a list knows
        place = str(metadata.get("resourceVersion", place))
        if frame.type == "BOOKMARK":
            continue
        uid = _uid_of(frame.object)
        if frame.type == "DELETED":
            objects.pop(uid, None)
        elif uid:
            objects[uid] = frame.object
        found = look(objects)
        if found is not None:
            return found, place
    return None, place


def _uid_of(item: JsonObject) -> str:
    metadata = item.get("metadata")
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    return uid if isinstance(uid, str) else ""
