"""The words that cross the fleet's socket: one JSON line to ask, one JSON line to answer.

Owns the requests and the answer. `server` reads and answers them, `client` writes them; nobody else
knows the socket's language.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter

from workers.lab.kubelet.spec import NodeSpec, WireModel

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""A request for some thousands of nodes fits; anything longer is a mistake."""
MAX_NODES: Final = 5_000
"""Nodes one fleet process may host: far above what two cores can keep alive."""
ADD_DEADLINE_S: Final = 60.0


class AddNodes(WireModel):
    """Add nodes; answered when each is registered and, with `await_agents`, has its agent."""

    op: Literal["add-nodes"] = "add-nodes"
    specs: tuple[NodeSpec, ...] = Field(min_length=1, max_length=MAX_NODES)
    await_agents: bool = False
    deadline_s: float = Field(default=ADD_DEADLINE_S, gt=0, le=3_600)


class RemoveNodes(WireModel):
    """Switch nodes off for good and delete their Node objects."""

    op: Literal["remove-nodes"] = "remove-nodes"
    names: tuple[str, ...] = Field(min_length=1, max_length=MAX_NODES)


class ListNodes(WireModel):
    """All nodes as seen from inside the machines."""

    op: Literal["list-nodes"] = "list-nodes"


class Inject(WireModel):
    """Inject one fault; answered when it is so."""

    op: Literal["inject"] = "inject"
    node: str
    fault: str
    options: dict[str, str] = Field(default_factory=dict)


class Clear(WireModel):
    """Clear every active fault of that name."""

    op: Literal["clear"] = "clear"
    node: str
    fault: str


class Reboot(WireModel):
    """Ask the machine to reboot, as a provider's API or a hand at the switch would."""

    op: Literal["reboot"] = "reboot"
    node: str
    why: str = Field(default="asked through the fleet's socket", max_length=200)


Request = Annotated[
    AddNodes | RemoveNodes | ListNodes | Inject | Clear | Reboot, Field(discriminator="op")
]
REQUEST: Final[TypeAdapter[Request]] = TypeAdapter(Request)


class Answer(WireModel):
    """Either a result or an error that says what to do."""

    ok: bool
    result: Any = None
    error: str = ""
