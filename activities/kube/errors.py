"""The errors of the Kubernetes API, as fleetmend knows them.

Owns the tree below `ApiError` and is the one module that maps what comes from outside to it: HTTP
answers, `Status` objects inside a watch, and the errors of urllib3. Knows nothing of retries: who
calls decides. `workers` and `activities/errors.py` read `maybe_done` and `retry_after_s` from here.
Talks to no other module of fleetmend.
"""

import math
import re
from collections.abc import Mapping
from typing import ClassVar

import msgspec
import urllib3.exceptions as outside

MESSAGE_LIMIT = 500
"""Longest message of an error, in characters (style guide, rule 21)."""
SAID_LIMIT = 300
"""Longest quotation of what the server said; the rest of the message is ours."""
RETRY_AFTER_LIMIT_S = 300.0
"""A server that asks for a longer pause than this is answered with this: a broken header must not
park an episode for a day."""

_TWO_BUDGETS = "more than one PodDisruptionBudget"
"""Words of pods/eviction in Kubernetes 1.36 for a pod under two budgets; it comes as a bare 500."""
_BUDGET_PENDING = "is still being processed"
"""Words of pods/eviction in Kubernetes 1.36 for a budget its controller has not looked at yet."""
_BEARER = re.compile(r"(?i)(bearer\s+)\S+")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]+")


class ApiError(Exception):
    """Something that was asked of the API server did not come out.

    Attributes:
        request: method and object, as in "PATCH nodes/gpu-1".
        said: what the server or the network said, printable and bounded.
        status: HTTP status; None if there was no answer.
        reason: `reason` of the server's Status ("AlreadyExists"), or empty.
        maybe_done: True if the request may have taken effect all the same. Then the world must be
            read again before the same thing is asked for once more.
        retry_after_s: seconds the server asks to wait, 0 to RETRY_AFTER_LIMIT_S; None if it does
            not say.
    """

    remedy: ClassVar[str] = "look at the API server's log"
    maybe_done: bool = False

    def __init__(
        self,
        request: str,
        said: str,
        *,
        status: int | None = None,
        reason: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        self.request = printable(request, 150)
        self.said = printable(said, SAID_LIMIT)
        self.status = status
        self.reason = printable(reason, 60)
        self.retry_after_s = retry_after_s
        answer = " ".join(str(part) for part in (status, self.reason) if part)
        head = (
            f"{self.request}: {answer}: {self.said}" if answer else f"{self.request}: {self.said}"
        )
        room = MESSAGE_LIMIT - len(self.remedy) - 8
        super().__init__(f"{head[:room]}. Next: {self.remedy}")


class KubeconfigError(ApiError):
    """No usable address or credential of a cluster: the process cannot start."""

    remedy = "set KUBECONFIG to a readable kubeconfig file, or run in a pod with a ServiceAccount"


class NotFound(ApiError):
    """404: the object is not there, or (`is_unserved`) the cluster does not know its kind."""

    remedy = "treat the object as gone; if its kind is unknown, install fleetmend's CRD"

    def __init__(
        self, request: str, said: str, *, status: int | None = 404, reason: str = ""
    ) -> None:
        super().__init__(request, said, status=status, reason=reason)
        # Objects that are missing get a Status; paths that nobody serves get a bare text.
        self.is_unserved = self.reason != "NotFound" or "requested resource" in self.said


class Conflict(ApiError):
    """409: changed since it was read, a precondition (UID) failed, or it exists already."""

    remedy = "read the object again and decide anew"

    @property
    def is_existing(self) -> bool:
        """True if a create found the name taken; False if a version or UID did not match."""
        return self.reason == "AlreadyExists"


class Gone(ApiError):
    """410: the resourceVersion or the page token is too old."""

    remedy = "list again from the start"


class Invalid(ApiError):
    """400, 405, 406, 413, 415 or 422: the server does not accept the request as it stands."""

    remedy = "correct the request; the same one will be refused again"


class Forbidden(ApiError):
    """401 or 403: the credential is not accepted, or may not do this, or a policy refuses it."""

    remedy = "check the token, the RBAC in deploy/chart and the admission policies"


class TooMany(ApiError):
    """429: a disruption budget holds (`is_disruption_budget`), or the server asks to slow down."""

    remedy = "wait and ask again; a disruption budget opens when its pods are healthy elsewhere"

    def __init__(
        self, request: str, said: str, *, retry_after_s: float | None = None, budget: str | None
    ) -> None:
        super().__init__(
            request,
            said,
            status=429,
            reason="TooManyRequests",
            retry_after_s=retry_after_s,
        )
        self.budget = None if budget is None else printable(budget, SAID_LIMIT)
        """What the budget said ("The disruption budget x needs 2 healthy pods and has 2
        currently"); None if no budget is the cause."""

    @property
    def is_disruption_budget(self) -> bool:
        """True if a PodDisruptionBudget refused an eviction; then slowing down does not help."""
        return self.budget is not None

    @property
    def is_budget_pending(self) -> bool:
        """True if the budget's controller has not looked yet; in a few seconds it will have."""
        return self.budget is not None and _BUDGET_PENDING in self.budget


class ServerError(ApiError):
    """5xx: the server, or something in front of it, failed."""

    remedy = "read the object again, then ask again"
    maybe_done = True

    @property
    def is_two_budgets(self) -> bool:
        """True if an eviction failed because two PodDisruptionBudgets select the pod.

        Asking again is of no use: a person must remove one of them.
        """
        return _TWO_BUDGETS in self.said


class Unreachable(ApiError):
    """No answer: refused, timed out, reset, or the name or certificate is wrong."""

    remedy = "check that the API server runs and that its address and CA in KUBECONFIG are right"

    def __init__(
        self, request: str, said: str, *, maybe_done: bool, is_timeout: bool = False
    ) -> None:
        super().__init__(request, said)
        self.maybe_done = maybe_done
        self.is_timeout = is_timeout


class BadAnswer(ApiError):
    """The answer is not what the API promises: no JSON, another shape, or without end."""

    remedy = "check what stands between fleetmend and the API server; read the object again"
    maybe_done = True


class _Cause(msgspec.Struct):
    reason: str | None = None
    message: str | None = None
    field: str | None = None


class _Details(msgspec.Struct):
    causes: list[_Cause] | None = None
    retryAfterSeconds: int | None = None  # noqa: N815 - the API's spelling


class Status(msgspec.Struct):
    """The API's own account of a failure: body of an answer, or object of an ERROR frame."""

    kind: str | None = None
    message: str | None = None
    reason: str | None = None
    code: int | None = None
    details: _Details | None = None


_status_decoder = msgspec.json.Decoder(Status)


def from_answer(request: str, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error for an HTTP answer that is not a success.

    Args:
        request: method and object, for the message.
        status: HTTP status, 300 or more.
        headers: only Retry-After is read; names in any case.
        body: a Status object as a rule; anything else is quoted, shortened.
    """
    try:
        parsed = _status_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        parsed = Status()
    if parsed.kind != "Status":
        parsed = Status(message=body[:SAID_LIMIT].decode("utf-8", "replace"))
    return from_status(request, status, parsed, _seconds(headers.get("Retry-After")))


def from_status(
    request: str, code: int, status: Status, retry_after_s: float | None = None
) -> ApiError:
    """The error for a Status object, as an ERROR frame of a watch carries it."""
    said = status.message or "no message"
    reason = status.reason or ""
    details = status.details or _Details()
    if retry_after_s is None and details.retryAfterSeconds:
        retry_after_s = _bounded(float(details.retryAfterSeconds))
    if code == 429:
        budget = next(
            (c.message or said for c in details.causes or [] if c.reason == "DisruptionBudget"),
            None,
        )
        return TooMany(request, said, retry_after_s=retry_after_s, budget=budget)
    if code == 404:
        return NotFound(request, said, reason=reason)
    if 300 <= code < 400:
        return BadAnswer(request, f"a redirect: {said}", status=code)
    kind: type[ApiError] = _BY_CODE.get(code, Invalid if code < 500 else ServerError)
    return kind(request, said, status=code, reason=reason, retry_after_s=retry_after_s)


_BY_CODE: Mapping[int, type[ApiError]] = {
    401: Forbidden,
    403: Forbidden,
    409: Conflict,
    410: Gone,
}


def from_network(request: str, host: str, error: Exception) -> Unreachable:
    """The error for a request that got no answer.

    Args:
        request: method and object, for the message.
        host: address of the API server, for the message.
        error: what urllib3 or the socket raised.
    """
    if isinstance(error, outside.MaxRetryError) and error.reason is not None:
        error = error.reason
    never_sent = isinstance(
        error,
        # Only these are certain: nothing was written before the connection stood. A time-out or
        # reset in the TLS handshake looks like one after it, and so counts as perhaps done.
        outside.ConnectTimeoutError | outside.NameResolutionError | outside.LocationValueError,
    ) or "CERTIFICATE_VERIFY_FAILED" in str(error)
    timed_out = isinstance(error, outside.TimeoutError) and not isinstance(
        error, outside.NewConnectionError
    )
    said = f"no answer from {host}: {type(error).__name__}: {error}"
    return Unreachable(request, said, maybe_done=not never_sent, is_timeout=timed_out)


def printable(text: str, limit: int) -> str:
    """`text` in printable ASCII without credentials, at most `limit` characters.

    What servers and nodes say goes into logs, terminals and histories.
    """
    clean = _BEARER.sub(r"\1***", _UNPRINTABLE.sub(" ", text[: 4 * limit])).strip()
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


def _seconds(header: str | None) -> float | None:
    if header is None:
        return None
    try:
        return _bounded(float(header))
    except ValueError:
        return None  # the date form of the header: the API server never sends it


def _bounded(seconds: float) -> float:
    return 0.0 if math.isnan(seconds) else min(max(seconds, 0.0), RETRY_AFTER_LIMIT_S)
