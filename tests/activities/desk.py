"""The desk: carries out one contract in this thread, as a worker would, without Temporal.

Owns the activity context (attempt, heartbeat details, cancellation) and retries as Temporal does
them. Talks to `activities/registry.py` only, so tests meet activities as they are wired.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.registry import Dependencies, build_activities
from workflows.contracts import Contract

Request = TypeVar("Request")
Result = TypeVar("Result")

ATTEMPTS = 6


@dataclass
class Attempts:
    """What a retried step came to: its result, and the failures before it."""

    result: Any
    failures: list[ApplicationError]


@dataclass
class Desk:
    """All activities by the name of their contract."""

    dependencies: Dependencies
    told: list[Any] = field(default_factory=list)
    """Heartbeat details of the last run, oldest first."""

    def __post_init__(self) -> None:
        self.activities: dict[str, Callable[..., Any]] = {
            name_of(one): one for one in build_activities(self.dependencies)
        }

    def do(
        self,
        contract: Contract[Request, Result],
        request: Request,
        *,
        details: Sequence[Any] = (),
        environment: ActivityEnvironment | None = None,
    ) -> Result:
        """One attempt.

        Args:
            contract: what to carry out.
            request: its request.
            details: heartbeat details of the attempt before.
            environment: one made beforehand, to cancel it from outside.
        """
        env = environment or ActivityEnvironment()
        env.info = replace(
            env.info, heartbeat_details=list(details), schedule_to_close_timeout=None
        )
        self.told = []
        env.on_heartbeat = lambda *details: self.told.extend(details)
        result: Result = env.run(self.activities[contract.name], request)
        return result

    def do_as_temporal(self, contract: Contract[Request, Result], request: Request) -> Attempts:
        """Attempts until one succeeds or fails for good, each told the heartbeat of the last."""
        failures: list[ApplicationError] = []
        details: list[Any] = []
        for _ in range(ATTEMPTS):
            try:
                return Attempts(self.do(contract, request, details=details), failures)
            except ApplicationError as error:
                failures.append(error)
                if error.non_retryable:
                    raise
                details = self.told[-1:] or details
        raise AssertionError(f"{contract.name} failed {ATTEMPTS} times: {failures}")


def name_of(one: Callable[..., Any]) -> str:
    """The activity's name in histories."""
    definition = activity._Definition.must_from_callable(one)
    assert definition.name is not None
    return definition.name
