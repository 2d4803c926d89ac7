"""How failures cross to Temporal: type, finality, next retry, details."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.testing import ActivityEnvironment

from activities import errors
from activities.kube import errors as api
from activities.kube.paths import BadName
from workflows.contracts import errors as types
from workflows.model.node import BadObject
from workflows.model.policy import PolicyError
from workflows.model.remediation.permit import PASSING, Permit, Refusal


def _within(raised: Exception) -> ApplicationError:
    with pytest.raises(ApplicationError) as caught, errors.failures_mapped():
        raise raised
    assert caught.value.__cause__ is raised
    return caught.value


@pytest.mark.parametrize(
    ("raised", "kind", "is_final"),
    [
        (api.NotFound("GET x", "no"), types.API_FAILED, False),
        (api.Conflict("PATCH x", "changed", status=409), types.API_FAILED, False),
        (api.Gone("GET x", "old", status=410), types.API_FAILED, False),
        (api.Invalid("POST x", "bad", status=422), types.BAD_REQUEST, True),
        (api.Forbidden("POST x", "no", status=403), types.API_FAILED, False),
        (api.ServerError("GET x", "broke", status=500), types.API_FAILED, False),
        (api.Unreachable("GET x", "away", maybe_done=True), types.API_FAILED, False),
        (api.BadAnswer("GET x", "no JSON"), types.API_FAILED, False),
        (BadName("name"), types.BAD_REQUEST, True),
        (BadObject("node"), types.API_FAILED, False),
        (PolicyError("policy"), types.API_FAILED, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_each_failure_has_its_type(raised: Exception, kind: str, is_final: bool) -> None:
    failure = _within(raised)
    assert (failure.type, failure.non_retryable) == (kind, is_final)
    assert len(failure.message) <= errors.MESSAGE_LIMIT


def test_the_servers_retry_after_becomes_the_next_retry() -> None:
    slow_down = api.TooMany("GET x", "slow down", retry_after_s=7, budget=None)
    assert _within(slow_down).next_retry_delay == timedelta(seconds=7)


@pytest.mark.parametrize("refusal", list(Refusal))
def test_a_refusal_is_final_and_carries_its_words(refusal: Refusal) -> None:
    failure = errors.refused(Permit(refusal, "because"))
    assert failure.non_retryable
    assert failure.type in types.FINAL
    assert list(failure.details) == [refusal.value, "because"]
    assert (failure.type == types.NOT_PERMITTED) == (refusal in PASSING)


def test_an_allowed_permit_is_no_failure() -> None:
    with pytest.raises(ValueError, match="allowed"):
        errors.refused(Permit(None))


def _waiting(interval_s: float, left_s: float | None) -> ApplicationError:
    env = ActivityEnvironment()
    env.info = replace(
        env.info,
        scheduled_time=datetime.now(UTC),
        schedule_to_close_timeout=None if left_s is None else timedelta(seconds=left_s),
        retry_policy=RetryPolicy(initial_interval=timedelta(seconds=interval_s)),
    )
    return env.run(errors.not_yet, "not booted")


def test_a_wait_is_benign_and_keeps_its_own_interval() -> None:
    failure = _waiting(20, None)
    assert failure.type == types.NOT_YET
    assert not failure.non_retryable
    assert failure.category is ApplicationErrorCategory.BENIGN
    assert failure.next_retry_delay is None


def test_a_wait_is_cut_to_the_time_left() -> None:
    delay = _waiting(20, 5).next_retry_delay
    assert delay is not None
    assert timedelta(seconds=4) < delay < timedelta(seconds=5)


def test_every_failure_type_is_used() -> None:
    made = {
        errors.node_gone("").type,
        errors.not_owner("").type,
        errors.overruled("").type,
        errors.bad_request("").type,
        errors.not_yet("").type,
        errors.try_again("").type,
        errors.refused(Permit(Refusal.PAUSED, "")).type,
        errors.refused(Permit(Refusal.OTHER_HEALER, "")).type,
    }
    declared = {value for key, value in vars(types).items() if key.isupper() and key != "FINAL"}
    assert made == declared
