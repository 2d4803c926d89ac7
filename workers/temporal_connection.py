"""The way to Temporal, for every process: address, converter, tracing, and patience.

Owns the connection as `temporalio.envconfig` describes it (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE,
TLS, API key, or a profile of the user's own file), the pydantic converter, the bounds of a first
call, and the registration of search attributes. Does not own what is sent over it.
A connection attempt can hang (server stopped, packets dropped), so each one has a deadline of its
own: the SDK's time-outs bound single tries, not the whole.
"""

import asyncio
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import structlog
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError, RPCStatusCode

from workers.payloads import DATA_CONVERTER
from workers.telemetry import trace_interceptors
from workflows import search_attributes

DEFAULT_ADDRESS: Final = "localhost:7233"
"""Temporal's own default, as its CLI uses it."""
EXPLAIN_WITHIN_S: Final = 5.0
"""How long a person waits for an answer or an explanation."""
BACKOFF_FIRST_S: Final = 0.2
BACKOFF_LIMIT_S: Final = 5.0
"""Longest pause between two tries; short, as P10 wants work to go on by itself soon."""
REGISTERED_WITHIN_S: Final = 30.0
_LOOK_AGAIN_S: Final = 0.1

SEARCH_ATTRIBUTES: Final[Mapping[str, IndexedValueType.ValueType]] = MappingProxyType(
    {key.name: IndexedValueType.ValueType(key.indexed_value_type) for key in search_attributes.ALL}
)
"""An upsert of one that is not registered wedges its workflow for good."""

_log = structlog.get_logger(__name__)


class TemporalUnreachable(Exception):
    """Temporal did not answer in time; the message names the address and the remedy."""


class TemporalMisconfigured(Exception):
    """The connection's settings, or the server's search attributes, cannot work as they are."""


@dataclass(frozen=True)
class TemporalTarget:
    """Where Temporal is, by the environment."""

    address: str
    namespace: str
    options: Mapping[str, Any]


def read_target(environment: Mapping[str, str] = os.environ) -> TemporalTarget:
    """What the environment, or the profile that it names, says about Temporal.

    Raises:
        TemporalMisconfigured: the profile or its file cannot be read.
    """
    try:
        # A plain dict: the SDK's native part takes no other mapping.
        variables = dict(environment)
        config = dict(ClientConfig.load_client_connect_config(override_env_vars=variables))
    except (RuntimeError, ValueError, TypeError, OSError) as error:
        raise TemporalMisconfigured(
            f"the Temporal client configuration cannot be read: {error}; check "
            "TEMPORAL_CONFIG_FILE, TEMPORAL_PROFILE and the TEMPORAL_TLS_* variables"
        ) from error
    address = str(config.pop("target_host", None) or DEFAULT_ADDRESS)
    namespace = str(config.pop("namespace", None) or "default")
    return TemporalTarget(address, namespace, MappingProxyType(config))


async def connect_or_explain(
    target: TemporalTarget | None = None, *, timeout_s: float = EXPLAIN_WITHIN_S
) -> Client:
    """A connected client, or within `timeout_s` an error that says what to do.

    Raises:
        TemporalUnreachable: nothing answers at the address.
        TemporalMisconfigured: the settings cannot be read.
    """
    target = target or read_target()
    try:
        # Not `wait_for`: in Python 3.11 it swallows a cancellation that meets the answer.
        async with asyncio.timeout(timeout_s):
            return await _connect(target)
    except TimeoutError:
        why = f"no answer within {timeout_s:g} s (the server hangs, or a firewall drops packets)"
    except (RuntimeError, RPCError) as error:
        why = _first_line(error)
    raise TemporalUnreachable(unreachable_message(target, why))


async def connect_forever(
    target: TemporalTarget | None = None, *, try_timeout_s: float = EXPLAIN_WITHIN_S
) -> Client:
    """A connected client, however long that takes. Cancel the task to give up.

    Each failure is logged with what to do; pauses grow to BACKOFF_LIMIT_S, with jitter.
    """
    target = target or read_target()
    pause_s = BACKOFF_FIRST_S
    tries = 0
    while True:
        try:
            return await connect_or_explain(target, timeout_s=try_timeout_s)
        except TemporalUnreachable as error:
            tries += 1
            _log.warning("waiting for Temporal", problem=str(error), attempt=tries)
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
        pause_s = min(BACKOFF_LIMIT_S, pause_s * 2)


async def ensure_search_attributes(
    client: Client, *, deadline_s: float = REGISTERED_WITHIN_S
) -> None:
    """Register what is missing, and return when the server lists all seven with their types.

    Call it before a worker starts. Safe to run in several processes at once.

    Raises:
        TemporalMisconfigured: a name is taken by another type, or may not be registered.
        TemporalUnreachable: the server stopped answering, or did not list them in time.
    """
    missing = tuple(SEARCH_ATTRIBUTES)
    try:
        async with asyncio.timeout(deadline_s):
            missing = await _missing_attributes(client)
            if missing:
                await _register(client, missing)
            # The server has no event for this: it lists an attribute when its cache has it.
            while missing := await _missing_attributes(client):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_AGAIN_S)
    except TimeoutError:
        raise TemporalUnreachable(
            f"Temporal did not list the search attributes {', '.join(missing)} within "
            f"{deadline_s:g} s; look with: temporal operator search-attribute list "
            f"--namespace {client.namespace}"
        ) from None
    except RPCError as error:
        raise TemporalUnreachable(
            f"the search attributes cannot be read from Temporal: {_first_line(error)}"
        ) from error


async def _connect(target: TemporalTarget) -> Client:
    return await Client.connect(
        target.address,
        namespace=target.namespace,
        data_converter=DATA_CONVERTER,
        interceptors=trace_interceptors(),
        **target.options,
    )


def unreachable_message(target: TemporalTarget, why: str) -> str:
    """What a person reads when Temporal does not answer."""
    return (
        f"cannot reach Temporal at {target.address} (namespace {target.namespace}): {why}. "
        "Next: start it, or set TEMPORAL_ADDRESS to where it runs"
    )


async def _missing_attributes(client: Client) -> tuple[str, ...]:
    answer = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    for name, kind in SEARCH_ATTRIBUTES.items():
        found = answer.custom_attributes.get(name)
        if found is not None and found != kind:
            raise TemporalMisconfigured(
                f"search attribute {name} has the type {_type_name(found)} in namespace "
                f"{client.namespace}, fleetmend needs {_type_name(kind)}; remove it with: "
                f"temporal operator search-attribute remove --name {name}"
            )
    return tuple(name for name in SEARCH_ATTRIBUTES if name not in answer.custom_attributes)


async def _register(client: Client, names: tuple[str, ...]) -> None:
    request = AddSearchAttributesRequest(
        namespace=client.namespace,
        search_attributes={name: SEARCH_ATTRIBUTES[name] for name in names},
    )
    try:
        await client.operator_service.add_search_attributes(request)
    except RPCError as error:
        if error.status is RPCStatusCode.ALREADY_EXISTS:
            return  # another worker was faster
        if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.INVALID_ARGUMENT):
            wanted = " ".join(f"--name {n} --type {_cli_type(n)}" for n in names)
            raise TemporalMisconfigured(
                f"the search attributes {', '.join(names)} cannot be registered: "
                f"{_first_line(error)}; ask an administrator for: "
                f"temporal operator search-attribute create {wanted}"
            ) from error
        raise


def _type_name(kind: int) -> str:
    name = IndexedValueType.Name(IndexedValueType.ValueType(kind))
    return name.removeprefix("INDEXED_VALUE_TYPE_").capitalize()


def _cli_type(name: str) -> str:
    return _type_name(SEARCH_ATTRIBUTES[name])


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
