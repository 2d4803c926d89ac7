"""Who needs the node that a validation keeps busy: the look before its task, and the watch beneath.

Owns the answer of a task that was not begun, or is to be ended, for a pod. What could use a node is
`workflows/model/remediation/demand.py`'s. Used by `runner.py`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from activities.kube.client import KubeClient
from activities.kube.node_pods import Bell, follow_pods_on, list_pods_on, view_of
from activities.kube.waiting_pods import follow_waiting_pods, waiting_among, waiting_pods
from activities.permit import Authority
from workflows.contracts.node_tasks import NodeTaskRequest, TaskAnswer
from workflows.model.detection.finding import printable
from workflows.model.node import NodeView
from workflows.model.node_task import Result
from workflows.model.remediation.demand import claimant_of
from workflows.model.remediation.validation import gpu_user_among

Look = Callable[[], TaskAnswer | None]


class Demand:
    """The demand for the node of one task; there is none for a task that gives no way."""

    def __init__(self, kube: KubeClient, authority: Authority, request: NodeTaskRequest) -> None:
        self._kube = kube
        self._authority = authority
        self._request = request

    def before_work(self) -> TaskAnswer | None:
        """What ends the task before it begins; None = nobody needs the node.

        Raises:
            ApplicationError: node-gone.
            ApiError: it cannot be told.
        """
        node = self._authority.look(self._request.owner.node)
        user = gpu_user_among(list_pods_on(self._kube, node.name))
        if not self._request.gives_way:
            text = f"pod {printable(user, 200)} uses the GPUs"
            return TaskAnswer(Result.REFUSED, text) if user else None
        return _gave_way(user or claimant_of(node, waiting_pods(self._kube)))

    @contextmanager
    def followed(self, bell: Bell) -> Iterator[Look]:
        """A look that costs nothing, and a bell that rings when it may have changed.

        Raises:
            ApplicationError: node-gone.
            ApiError: the Node could not be read.
        """
        if not self._request.gives_way:
            yield _nobody
            return
        node: NodeView = self._authority.look(self._request.owner.node)
        with (
            follow_waiting_pods(self._kube, bell) as waiting,
            follow_pods_on(self._kube, node.name, bell) as bound,
        ):

            def look() -> TaskAnswer | None:
                # A cordon keeps out neither who tolerates it nor who names the node.
                user = gpu_user_among(map(view_of, bound.items()))
                return _gave_way(user or claimant_of(node, waiting_among(waiting.items())))

            yield look


def _nobody() -> TaskAnswer | None:
    return None


def _gave_way(pod: str) -> TaskAnswer | None:
    if not pod:
        return None
    name = printable(pod, 200)
    return TaskAnswer(Result.UNKNOWN, f"ended for pod {name}", gave_way_to=name)
