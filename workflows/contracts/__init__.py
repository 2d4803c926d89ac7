"""What workflows may ask the outside world for: typed contracts without bodies.

Owns `Contract` (name, effect, request and result types); the sibling modules declare them by
outside system, `options` holds every timeout and retry, `errors` the closed set of failure types,
`messages` what is signalled. Implementations live in `activities`, which import from here and
never the other way round.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from workflows.model.remediation.permit import Effect

Request = TypeVar("Request")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Contract(Generic[Request, Result]):
    """One activity: its name in histories, its effect, and its types.

    `summary` is what a person reads beside the step in the Temporal UI.
    """

    name: str
    effect: Effect
    request: type[Request]
    result: type[Result]
    summary: str


__all__ = ["Contract", "Effect"]
