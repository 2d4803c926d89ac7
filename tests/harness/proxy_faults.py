"""The faults that `tests.harness.proxy` can do to a request, as values.

Owns what each fault is; the proxy does them. One class a fault, all frozen, so that a test can put
them into a table.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

GARBAGE_FRAME = b'{"type":"MODIFIED","object":{"metadata":\n'
"""A line of a watch that is no JSON."""
NAMELESS_FRAME = b'{"type":"MODIFIED","object":{"kind":"Node","apiVersion":"v1"}}\n'
"""A frame whose object has no metadata."""
GONE_FRAME = (
    b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
    b'"message":"too old resource version","reason":"Expired","code":410}}\n'
)
"""How an API server says in a watch that stands that its place is too old."""

_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True)
class Answer:
    """Answer in the server's place.

    Attributes:
        status: of HTTP.
        message: of the Status object.
        reason: of the Status object; None for the usual one of that status.
        retry_after_s: value of the Retry-After header; None for none.
        budget: message of a DisruptionBudget cause, as a blocked eviction has; None for none.
        body: raw bytes in place of a Status object.
        forwarded: the real server gets the request first, so what was asked for is done.
    """

    status: int
    message: str = "injected by the fault proxy"
    reason: str | None = None
    retry_after_s: int | None = None
    budget: str | None = None
    body: bytes | None = None
    forwarded: bool = False

    def headers(self) -> dict[str, str]:
        """Headers besides the content type."""
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}

    def content(self) -> bytes:
        """The body."""
        if self.body is not None:
            return self.body
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason or _REASONS.get(self.status, ""),
            "code": self.status,
        }
        if self.budget is not None:
            cause = {"reason": "DisruptionBudget", "message": self.budget}
            status["details"] = {"causes": [cause]}
        return json.dumps(status).encode()


@dataclass(frozen=True)
class Delay:
    """Pass the request on after some seconds."""

    seconds: float


@dataclass(frozen=True)
class Hang:
    """Never answer; the connection stays. `forwarded`: the real server does what was asked."""

    forwarded: bool = False


@dataclass(frozen=True)
class Drop:
    """Reset the connection. `forwarded`: after the real server did what was asked."""

    forwarded: bool = False


@dataclass(frozen=True)
class Rewrite:
    """Pass the request on, and change the body of the answer. Not for watches."""

    change: Callable[[bytes], bytes]


@dataclass(frozen=True)
class WatchFault:
    """A fault of a watch, done when `after_frames` frames went through (0: at once)."""

    after_frames: int = 0


@dataclass(frozen=True)
class CutWatch(WatchFault):
    """Reset the connection."""


@dataclass(frozen=True)
class EndWatch(WatchFault):
    """End the watch in good order, long before its time."""


@dataclass(frozen=True)
class StallWatch(WatchFault):
    """Say nothing more; the connection stays."""


@dataclass(frozen=True)
class InsertFrame(WatchFault):
    """Insert a line (GARBAGE_FRAME, NAMELESS_FRAME, GONE_FRAME, or one of the test's)."""

    line: bytes = GARBAGE_FRAME


Fault: TypeAlias = Answer | Delay | Hang | Drop | Rewrite | WatchFault
