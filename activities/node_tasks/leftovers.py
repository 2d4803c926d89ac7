"""Node-task pods that nobody waits for any more.

Owns finding and deleting them: a worker that died for good, or a creation that reached the API
server after its attempt was given up, leaves a pod behind. Its own deadline has ended it long ago.
Called by the sweep.
"""

from datetime import datetime, timedelta
from typing import Final

from activities.kube import paths
from activities.kube.client import JsonObject, KubeClient, Selector
from activities.kube.errors import Conflict, NotFound
from activities.node_tasks.pod import MAX_ACTIVE_S, NAMESPACE, TASK_LABEL
from workflows.model.node import parse_instant

LEFT_AFTER: Final = timedelta(seconds=MAX_ACTIVE_S) + timedelta(minutes=30)
"""Longer than any task may run, and than any activity waits for one."""


def remove_leftovers(kube: KubeClient, now: datetime) -> tuple[str, ...]:
    """Deletes the node-task pods that are older than `LEFT_AFTER`; their names.

    Raises:
        ApiError: they could not be listed or deleted.
    """
    tasks = kube.list(paths.pods(NAMESPACE), selector=Selector(label=TASK_LABEL)).items
    removed = []
    for body in tasks:
        if _is_left_over(body, now):
            meta = body["metadata"]
            try:
                kube.delete(paths.pod(NAMESPACE, str(meta["name"])), uid=str(meta["uid"]))
            except (NotFound, Conflict):
                continue
            removed.append(str(meta["name"]))
    return tuple(removed)


def _is_left_over(body: JsonObject, now: datetime) -> bool:
    meta = body["metadata"]
    created = parse_instant(meta.get("creationTimestamp"))
    return not meta.get("deletionTimestamp") and now - created > LEFT_AFTER
