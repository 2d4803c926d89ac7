"""The fleet's socket: reads requests, asks the fleet, answers.

Owns the Unix socket and the mapping of errors to answers. One request after the other on a
connection, any number of connections at once.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import ValidationError

from workers.lab.controlplane.errors import LabError
from workers.lab.devices.devices import NoSuchDevice
from workers.lab.faults.fault import NeedsFullNode, NoSuchGpu, NotKarpenters
from workers.lab.faults.registry import BadFault
from workers.lab.kubelet.api import ApiError
from workers.lab.kubelet.commands import (
    MAX_LINE_BYTES,
    REQUEST,
    AddNodes,
    Answer,
    Clear,
    Inject,
    ListNodes,
    Reboot,
    RemoveNodes,
    Request,
)
from workers.lab.kubelet.fleet import BadRequest, Fleet
from workers.lab.kubelet.full_node import NodeRefused
from workers.lab.kubelet.launcher import AgentMissing, NeedsStandIn
from workers.lab.paths import listen_unix

ASKERS_FAULTS: Final = (
    BadRequest,
    BadFault,
    NeedsFullNode,
    NoSuchGpu,
    NotKarpenters,
    AgentMissing,
    NeedsStandIn,
    NodeRefused,
    NoSuchDevice,
    LabError,
)
"""Their messages say what to do; no traceback is wanted."""

_log = structlog.get_logger(__name__)


async def serve(fleet: Fleet, socket_path: Path) -> asyncio.Server:
    """Listen; the caller closes the server."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                answer = await _answer(fleet, line)
                writer.write(answer.model_dump_json().encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError) as error:
            # ValueError: a line beyond the bound. Nothing can be answered to either.
            _log.warning("fleet connection ended", error=repr(error))
        finally:
            writer.close()

    return await asyncio.start_unix_server(
        talk, sock=listen_unix(socket_path), limit=MAX_LINE_BYTES
    )


async def _answer(fleet: Fleet, line: bytes) -> Answer:
    try:
        request = REQUEST.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return Answer(ok=False, error=f"bad request, field {where}: {first['msg']}")
    try:
        return Answer(ok=True, result=await _do(fleet, request))
    except ASKERS_FAULTS as error:
        return Answer(ok=False, error=str(error))
    except ApiError as error:
        return Answer(ok=False, error=f"the lab's API server refused: {error}")
    except Exception as error:  # noqa: BLE001 - the process's main loop: told and logged
        _log.exception("request failed", op=request.op)
        return Answer(ok=False, error=f"the fleet failed at {request.op}: {error!r}; see its log")


async def _do(fleet: Fleet, request: Request) -> Any:
    match request:
        case AddNodes():
            return [view.model_dump(mode="json") for view in await fleet.add(request)]
        case RemoveNodes():
            await fleet.remove(request.names)
        case ListNodes():
            return [view.model_dump(mode="json") for view in fleet.views()]
        case Inject():
            receipt = await fleet.inject(request.node, request.fault, request.options)
            return receipt.model_dump(mode="json")
        case Clear():
            receipt = await fleet.clear(request.node, request.fault)
            return receipt.model_dump(mode="json")
        case Reboot():
            await fleet.reboot(request.node, request.why)
    return None
