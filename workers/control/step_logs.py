"""What the log says about one step: which node it is about, and a refusal in one line.

Owns the node, uid and episode that stand on every line of a step, and the form of failures that
are outcomes: a paused node, somebody else's marker, a node that is gone are answers that the
workflow waits for, not faults of fleetmend. Real failures keep their traceback. `process.py` puts
both to work; which type is which says `workflows/contracts/errors.py`.
"""

import logging
from typing import Any, Final

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from workers.telemetry import EPISODE, NODE, UID
from workflows.contracts import errors
from workflows.model.identity import NodeRef

OUTCOMES: Final = frozenset(errors.FINAL) - {errors.BAD_REQUEST}
"""Types of failures that are answers: all that are final, but for a request that is a defect."""
REFUSED: Final = "step refused"


class StepFacts(Interceptor):
    """Puts node, uid and episode of a step's request on each line that is logged during it."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        return _Bind(next)


class _Bind(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - as above
        # Each step runs in a task of its own, so the SDK's line about its failure has them too.
        structlog.contextvars.bind_contextvars(**facts_of(input.args[0] if input.args else None))
        return await super().execute_activity(input)


def facts_of(request: object) -> dict[str, str]:
    """Which node and episode a step's request is about; empty for steps about the whole cluster."""
    owner = getattr(request, "owner", request)
    node = owner if isinstance(owner, NodeRef) else getattr(owner, "node", None)
    episode = getattr(owner, "episode", None)
    facts = {NODE: node.name, UID: node.uid} if isinstance(node, NodeRef) else {}
    return {**facts, EPISODE: episode} if isinstance(episode, str) and episode else facts


def tell_refusals_in_one_line() -> None:
    """From now on, for the SDK's lines about steps of this process; again changes nothing."""
    lines = activity.logger.base_logger
    if not any(isinstance(each, _RefusalsInOneLine) for each in lines.filters):
        lines.addFilter(_RefusalsInOneLine())


class _RefusalsInOneLine(logging.Filter):
    """Makes an outcome's warning with traceback a line of level info without one."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, ApplicationError) or error.type not in OUTCOMES:
            return True
        record.levelno, record.levelname = logging.INFO, "INFO"
        record.msg, record.args, record.exc_info = REFUSED, (), None
        record.refusal, record.problem = error.type, error.message
        # The record was let in as a warning.
        return logging.getLogger(record.name).isEnabledFor(logging.INFO)
