"""Whatever comes from outside becomes one error of the tree, bounded and without secrets."""

import json
from typing import Any

import pytest
import urllib3.exceptions as outside

from activities.kube import errors


def answer(status: int, body: bytes = b"", retry_after: str | None = None) -> errors.ApiError:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return errors.from_answer("PATCH nodes/gpu-1", status, headers, body)


def status_body(**fields: Any) -> bytes:
    return json.dumps(
        {"kind": "Status", "apiVersion": "v1", "status": "Failure", **fields}
    ).encode()


@pytest.mark.parametrize(
    ("status", "kind", "maybe_done"),
    [
        (400, errors.Invalid, False),
        (401, errors.Forbidden, False),
        (403, errors.Forbidden, False),
        (404, errors.NotFound, False),
        (405, errors.Invalid, False),
        (409, errors.Conflict, False),
        (410, errors.Gone, False),
        (413, errors.Invalid, False),
        (415, errors.Invalid, False),
        (418, errors.Invalid, False),
        (422, errors.Invalid, False),
        (429, errors.TooMany, False),
        (301, errors.BadAnswer, True),
        (500, errors.ServerError, True),
        (502, errors.ServerError, True),
        (503, errors.ServerError, True),
        (504, errors.ServerError, True),
        (599, errors.ServerError, True),
    ],
)
@pytest.mark.parametrize(
    "body", [b"", b"404 page not found\n", b"{", b"[]", b'"x"', b'{"kind":1}', b"\xff" * 9000]
)
def test_every_status_has_its_error_whatever_the_body(
    status: int, kind: type[errors.ApiError], maybe_done: bool, body: bytes
) -> None:
    error = answer(status, body)
    assert type(error) is kind
    assert error.maybe_done is maybe_done
    assert error.status == status
    assert str(error).startswith("PATCH nodes/gpu-1: ")
    assert ". Next: " in str(error)
    assert len(str(error)) <= errors.MESSAGE_LIMIT
    assert str(error).isprintable()


def test_tells_a_name_that_is_taken_from_a_version_that_changed() -> None:
    taken = answer(409, status_body(reason="AlreadyExists", message="exists"))
    changed = answer(409, status_body(reason="Conflict", message="modified"))
    assert isinstance(taken, errors.Conflict)
    assert taken.is_existing
    assert isinstance(changed, errors.Conflict)
    assert not changed.is_existing


def test_tells_a_missing_object_from_a_missing_kind() -> None:
    missing = answer(404, status_body(reason="NotFound", message='nodes "x" not found'))
    unserved = answer(404, b"404 page not found\n")
    assert isinstance(missing, errors.NotFound)
    assert not missing.is_unserved
    assert isinstance(unserved, errors.NotFound)
    assert unserved.is_unserved


def test_tells_a_disruption_budget_from_a_busy_server() -> None:
    cause = {
        "reason": "DisruptionBudget",
        "message": "The disruption budget b needs 2 healthy pods",
    }
    blocked = answer(429, status_body(message="Cannot evict pod", details={"causes": [cause]}))
    busy = answer(429, status_body(message="slow down"), retry_after="1")
    assert isinstance(blocked, errors.TooMany)
    assert blocked.is_disruption_budget
    assert blocked.budget == cause["message"]
    assert blocked.retry_after_s is None
    assert isinstance(busy, errors.TooMany)
    assert not busy.is_disruption_budget
    assert busy.retry_after_s == 1.0


def test_knows_a_budget_that_its_controller_has_not_seen() -> None:
    message = "The disruption budget b is still being processed by the server."
    cause = {"reason": "DisruptionBudget", "message": message}
    error = answer(429, status_body(details={"causes": [cause], "retryAfterSeconds": 10}))
    assert isinstance(error, errors.TooMany)
    assert error.is_budget_pending
    assert error.retry_after_s == 10.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("5", 5.0), ("-1", 0.0), ("1e9", 300.0), ("inf", 300.0), ("nan", 0.0), ("Mon, 1 Jan", None)],
)
def test_bounds_what_the_server_asks_to_wait(header: str, seconds: float | None) -> None:
    assert answer(503, retry_after=header).retry_after_s == seconds


def test_never_shows_a_token() -> None:
    error = answer(400, b'bad header "Authorization: Bearer eyJhbGciOi.x.y" in request')
    assert "eyJ" not in str(error)
    assert "Bearer ***" in str(error)


def test_a_hostile_message_cannot_draw_on_the_terminal() -> None:
    error = answer(500, status_body(message="\x1b[2J\nnode \u202e gone" + "x" * 10_000))
    assert str(error).isprintable()
    assert "\x1b" not in str(error)


@pytest.mark.parametrize(
    ("error", "maybe_done", "is_timeout"),
    [
        (outside.NewConnectionError(None, "refused"), False, False),  # type: ignore[arg-type]
        (outside.ConnectTimeoutError("slow"), False, True),
        (outside.NameResolutionError("h", None, OSError("x")), False, False),  # type: ignore[arg-type]
        (outside.SSLError("CERTIFICATE_VERIFY_FAILED"), False, False),
        (outside.SSLError("tlsv1 alert"), True, False),
        (outside.ReadTimeoutError(None, "", "read"), True, True),  # type: ignore[arg-type]
        (outside.ProtocolError("reset"), True, False),
        (ConnectionResetError("reset"), True, False),
        (ValueError("odd"), True, False),
    ],
)
def test_says_whether_a_lost_request_may_have_been_done(
    error: Exception, maybe_done: bool, is_timeout: bool
) -> None:
    found = errors.from_network("POST nodes", "https://10.0.0.1:6443", error)
    assert found.maybe_done is maybe_done
    assert found.is_timeout is is_timeout
    assert "https://10.0.0.1:6443" in str(found)
    assert "KUBECONFIG" in str(found)
