"""The pods for which the scheduler found no node: listed, or followed by a watch.

Owns the selector and what an unreadable pod counts for. Which node would do for a pod is
`workflows/model/remediation/demand.py`'s. Used by validations, which make way.
"""

from collections.abc import Iterable
from typing import Final

import structlog

from activities.kube import paths
from activities.kube.client import JsonObject, KubeClient, Selector
from activities.kube.node_pods import Bell, Followed
from activities.kube.reflector import ReflectorSource
from workflows.model.node import BadObject
from workflows.model.remediation.demand import WaitingPod, parse_waiting_pod

UNBOUND: Final = Selector(field="spec.nodeName=,status.phase=Pending")

_log = structlog.get_logger(__name__)


def waiting_pods(kube: KubeClient) -> tuple[WaitingPod, ...]:
    """Those that ask for GPUs, as they are now.

    Raises:
        ApiError: they could not be listed.
    """
    found: list[WaitingPod] = []
    for page in kube.pages(paths.pods(), selector=UNBOUND):
        found += waiting_among(page.items)
    return tuple(found)


def waiting_among(items: Iterable[JsonObject]) -> list[WaitingPod]:
    """Those of `items` that ask for GPUs and found no node.

    One that cannot be read is passed over: the API server has checked every Pod, and a single odd
    one may not keep a whole fleet from being validated.
    """
    found = []
    for item in items:
        try:
            pod = parse_waiting_pod(item)
        except BadObject as error:
            _log.warning("bad_pod", problem=str(error))
            continue
        if pod is not None:
            found.append(pod)
    return found


def follow_waiting_pods(kube: KubeClient, bell: Bell) -> Followed:
    """All unbound pods; most of them come and go within a second."""
    return Followed(kube, ReflectorSource(paths.pods(), UNBOUND), bell)
