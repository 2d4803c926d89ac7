"""The way from a command to Temporal: connected, or explained; each call bounded.

Owns the words and exit codes for a Temporal that is away, hung, or misconfigured. What is asked of
it is the caller's.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from workers.cli.outcome import refused, unreachable, wrong_usage
from workers.cli.patience import patience_s
from workers.temporal_connection import (
    TemporalMisconfigured,
    TemporalUnreachable,
    connect_or_explain,
    read_target,
    unreachable_message,
)

CALL_S: Final = 5.0
"""For one call of a connected client."""

Answer = TypeVar("Answer")


class NotThere(Exception):
    """Temporal has no such workflow or Schedule, or it has closed."""


async def connected() -> Client:
    """A client, within a person's patience.

    Raises:
        CommandError: Temporal cannot be reached (3), or what is set for it is wrong (2).
    """
    try:
        return await connect_or_explain(timeout_s=patience_s())
    except TemporalUnreachable as error:
        raise unreachable(str(error)) from error
    except TemporalMisconfigured as error:
        raise wrong_usage(str(error)) from error


async def bounded(call: Awaitable[Answer], doing: str) -> Answer:
    """The call's answer within `CALL_S`.

    Raises:
        CommandError: no answer in time (3), or Temporal refused (1).
        NotThere: what it is about does not exist.
    """
    try:
        return await asyncio.wait_for(call, CALL_S)
    except TimeoutError:
        why = f"{doing}: no answer within {CALL_S:g} s"
        raise unreachable(unreachable_message(read_target(), why)) from None
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise NotThere(f"{doing}: {error}") from error
        raise refused(f"{doing}: Temporal said: {error}") from error
