"""The one place where failures become Temporal's `ApplicationError`.

Owns the mapping of the API's error tree (`activities/kube/errors.py`), of refusals of the permit
and of waits to the closed set of `workflows/contracts/errors.py`: which type, whether a retry can
help, and when the next one comes. Does not decide whether something is refused. Every activity
runs inside `failures_mapped` (`registry.py`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.kube.errors import ApiError, Invalid
from activities.kube.paths import BadName
from workflows.contracts import errors
from workflows.model.node import BadObject
from workflows.model.policy import PolicyError
from workflows.model.remediation.permit import Permit, Refusal

MESSAGE_LIMIT: Final = 500
"""Longest message, in characters (style guide, rule 21)."""
LAST_MOMENT_S: Final = 0.5
"""How long before the end of the time left a clamped retry comes: a `next_retry_delay` beyond
schedule-to-close would fail the step at once."""

TYPE_OF_REFUSAL: Final[Mapping[Refusal, str]] = MappingProxyType(
    {
        Refusal.NODE_GONE: errors.NODE_GONE,
        Refusal.NOT_OWNER: errors.NOT_OWNER,
        Refusal.OVERRULED: errors.OVERRULED,
        Refusal.OTHER_HEALER: errors.OTHER_HEALER,
        Refusal.OUT_OF_SCOPE: errors.NOT_PERMITTED,
        Refusal.OBSERVING: errors.NOT_PERMITTED,
        Refusal.PAUSED_NODE: errors.NOT_PERMITTED,
        Refusal.PAUSED: errors.NOT_PERMITTED,
        Refusal.PROTECTED: errors.NOT_PERMITTED,
        Refusal.PROTECTION_UNKNOWN: errors.NOT_PERMITTED,
        # No person can lift it: a run that disrupts without a slot is a defect, and stops.
        Refusal.NO_SLOT: errors.BAD_REQUEST,
    }
)


def refused(permit: Permit) -> ApplicationError:
    """The failure for a permit that was refused; details are the refusal and its words.

    Raises:
        ValueError: the permit is no refusal.
    """
    if permit.refusal is None:
        raise ValueError("an allowed request was treated as refused")
    return ApplicationError(
        _short(permit.detail or permit.refusal.value),
        permit.refusal.value,
        _short(permit.detail),
        type=TYPE_OF_REFUSAL[permit.refusal],
        non_retryable=True,
    )


def node_gone(detail: str) -> ApplicationError:
    """The Node does not exist any more, or another one has its name."""
    return refused(Permit(Refusal.NODE_GONE, detail))


def not_owner(detail: str) -> ApplicationError:
    """Another episode, or a person it was handed to, owns the node."""
    return refused(Permit(Refusal.NOT_OWNER, detail))


def overruled(detail: str) -> ApplicationError:
    """Somebody took our marker or cordon off."""
    return refused(Permit(Refusal.OVERRULED, detail))


def bad_request(detail: str) -> ApplicationError:
    """The request cannot be carried out as it stands; a person must look."""
    return ApplicationError(_short(detail), type=errors.BAD_REQUEST, non_retryable=True)


def not_yet(detail: str) -> ApplicationError:
    """What is waited for has not come: retried by the step's own interval, not logged as error."""
    return ApplicationError(
        _short(detail),
        type=errors.NOT_YET,
        next_retry_delay=_next_wait(),
        category=ApplicationErrorCategory.BENIGN,
    )


def try_again(detail: str, retry_after_s: float | None = None) -> ApplicationError:
    """Something outside failed; the same step is retried."""
    return ApplicationError(
        _short(detail), type=errors.API_FAILED, next_retry_delay=_clamped(retry_after_s)
    )


def from_api(error: ApiError) -> ApplicationError:
    """The failure for an error of the API server; only a malformed request is final."""
    if isinstance(error, Invalid):
        return bad_request(str(error))
    return try_again(str(error), error.retry_after_s)


@contextmanager
def failures_mapped() -> Iterator[None]:
    """Turns what adapters raise into `ApplicationError`, with the cause chained."""
    try:
        yield
    except ApiError as error:
        raise from_api(error) from error
    except BadName as error:
        raise bad_request(str(error)) from error
    except (BadObject, PolicyError) as error:
        raise try_again(str(error)) from error


def time_left() -> timedelta | None:
    """Until the step's schedule-to-close; None = no limit (or not inside an activity)."""
    if not activity.in_activity():
        return None
    info = activity.info()
    if not info.schedule_to_close_timeout:
        return None
    return info.scheduled_time + info.schedule_to_close_timeout - datetime.now(UTC)


def _next_wait() -> timedelta | None:
    """The step's own interval, if it must be cut to the time left; None = as it is."""
    if not activity.in_activity():
        return None
    policy = activity.info().retry_policy
    if policy is None:
        return None
    clamped = _clamped(policy.initial_interval.total_seconds())
    return clamped if clamped is not None and clamped < policy.initial_interval else None


def _clamped(delay_s: float | None) -> timedelta | None:
    if delay_s is None:
        return None
    delay, left = timedelta(seconds=delay_s), time_left()
    if left is None:
        return delay
    return max(timedelta(0), min(delay, left - timedelta(seconds=LAST_MOMENT_S)))


def _short(text: str) -> str:
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"
