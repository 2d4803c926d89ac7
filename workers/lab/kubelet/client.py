"""How the rest of the lab, the tests and the command line speak to the fleet. Synchronous.

Owns the connection to the fleet's socket and the errors a caller sees. Each call is one request; a
client may be kept and used from one thread, or made for each call.
"""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pydantic import TypeAdapter

from workers.lab.kubelet.commands import (
    ADD_DEADLINE_S,
    AddNodes,
    Answer,
    Clear,
    Inject,
    ListNodes,
    Reboot,
    RemoveNodes,
)
from workers.lab.kubelet.spec import NodeSpec, NodeView, Receipt, WireModel
from workers.lab.paths import LabPaths, connect_unix

ANSWER_DEADLINE_S: Final = 40.0
"""Longer than a fault waits for its agent."""

_VIEWS: Final = TypeAdapter(list[NodeView])


class FleetError(Exception):
    """The fleet refused or failed; the message says what to do."""


class FleetUnreachable(FleetError):
    """Nobody answers on the socket."""


class FleetClient:
    """A connection to the fleet of the lab in `lab_directory`."""

    def __init__(self, lab_directory: Path) -> None:
        self._path = LabPaths(lab_directory).fleet_socket
        self._connection: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back; the next call opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def add_node(self, spec: NodeSpec, *, await_agent: bool = False) -> NodeView:
        """Add one node; it is registered when this returns.

        Args:
            spec: what to simulate.
            await_agent: wait also until the agent's pod runs there (full nodes).
        """
        return self.add_nodes([spec], await_agents=await_agent)[0]

    def add_nodes(
        self,
        specs: Iterable[NodeSpec],
        *,
        await_agents: bool = False,
        deadline_s: float = ADD_DEADLINE_S,
    ) -> list[NodeView]:
        """Add many nodes at once; all are registered when this returns.

        Raises:
            FleetError: a name is taken, or the deadline passed (nodes added so far stay).
        """
        request = AddNodes(specs=tuple(specs), await_agents=await_agents, deadline_s=deadline_s)
        return _VIEWS.validate_python(self._ask(request, timeout_s=deadline_s + 10))

    def remove_node(self, name: str) -> None:
        """Switch the node off and delete its Node object; its host root with boot.log stays."""
        self.remove_nodes([name])

    def remove_nodes(self, names: Iterable[str]) -> None:
        """As `remove_node`, for many."""
        self._ask(RemoveNodes(names=tuple(names)), timeout_s=ADD_DEADLINE_S)

    def nodes(self) -> list[NodeView]:
        """All nodes, in the order in which they were added."""
        return _VIEWS.validate_python(self._ask(ListNodes()))

    def node(self, name: str) -> NodeView:
        """One node.

        Raises:
            FleetError: there is none of that name.
        """
        for view in self.nodes():
            if view.name == name:
                return view
        raise FleetError(f"no simulated node {name!r}: see `fleetmend lab node list`")

    def inject(self, node: str, fault: str, options: Mapping[str, object] | None = None) -> Receipt:
        """Inject a fault; it is so, and reported where the agent reports, when this returns.

        Args:
            node: name.
            fault: name, see `workers.lab.faults.registry`.
            options: by key as on the command line, for example {"for": 3}.
        """
        words = {key: _word(value) for key, value in (options or {}).items()}
        request = Inject(node=node, fault=fault, options=words)
        return Receipt.model_validate(self._ask(request))

    def clear(self, node: str, fault: str) -> Receipt:
        """End every active fault of that name on the node."""
        return Receipt.model_validate(self._ask(Clear(node=node, fault=fault)))

    def reboot(self, node: str, why: str = "asked through the fleet's socket") -> None:
        """Ask the machine to reboot; returns at once."""
        self._ask(Reboot(node=node, why=why))

    def _ask(self, request: WireModel, *, timeout_s: float = ANSWER_DEADLINE_S) -> Any:
        line = request.model_dump_json().encode() + b"\n"
        try:
            if self._connection is not None and _is_closed(self._connection):
                # The fleet was restarted since the last call; nothing was asked on it yet.
                self.close()
            if self._connection is None:
                self._connection = connect_unix(self._path, timeout_s=timeout_s)
            self._connection.settimeout(timeout_s)
            self._connection.sendall(line)
            raw = self._read_line(self._connection)
        except OSError as error:
            self.close()
            raise FleetUnreachable(
                f"the simulated nodes' process does not answer on {self._path} ({error}): "
                "start the lab with `fleetmend lab up`, or look at `fleetmend lab status`"
            ) from error
        answer = Answer.model_validate(json.loads(raw))
        if not answer.ok:
            raise FleetError(answer.error)
        return answer.result

    def _read_line(self, connection: socket.socket) -> bytes:
        parts = []
        while True:
            part = connection.recv(1 << 20)
            if not part:
                raise ConnectionError("it closed the connection")
            parts.append(part)
            if part.endswith(b"\n"):
                return b"".join(parts)


def _is_closed(connection: socket.socket) -> bool:
    """Whether the other side has gone: an answered connection has nothing to read but its end."""
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
