"""`fleetmend lab node add|rm|list`, `lab inject`, `lab clear`, `lab faults`, `lab logs`.

Owns the words and tables of these commands. Everything they do is asked of the fleet through
`client`. Exit codes as for `fleetmend lab up`: 0 done, 1 it failed, 2 wrong usage, 3 no lab.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape

from workers.lab.address import NAMESPACE
from workers.lab.faults.registry import BadFault, describe_faults, make_fault, split_options
from workers.lab.kubelet.client import FleetClient, FleetError, FleetUnreachable
from workers.lab.kubelet.pod_logs import find_pod_logs
from workers.lab.kubelet.spec import DEFAULT_MODEL, NodeKind, NodeSpec, NodeView, Power, Receipt
from workers.lab.paths import LAB_DIRECTORY_VARIABLE, default_lab_directory
from workers.tables import open_console, plain_table

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_RUNNING: Final = 3
MAX_COUNT: Final = 2_000

node_app = typer.Typer(name="node", help="Simulated nodes of the lab.", no_args_is_help=True)

DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        help="The lab's directory.",
        show_default=f"${LAB_DIRECTORY_VARIABLE}, else the user's state folder",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON to standard output.")]
NodeArgument = Annotated[str, typer.Argument(help="Name of a simulated node.")]
FaultArgument = Annotated[str, typer.Argument(help="Name of a fault, see `fleetmend lab faults`.")]
OptionsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Options of the fault.")
]


def mount(lab_app: typer.Typer) -> None:
    """Put these commands under `fleetmend lab`."""
    lab_app.add_typer(node_app)
    lab_app.command()(inject)
    lab_app.command()(clear)
    lab_app.command()(faults)
    lab_app.command()(logs)


@node_app.command()
def add(  # noqa: PLR0913 - typer's options are arguments
    name: Annotated[str, typer.Argument(help="Name; with --count the stem: NAME-0, NAME-1, ...")],
    *,
    pool: Annotated[str, typer.Option(help="Pool (label fleetmend.io/pool).")] = "default",
    gpus: Annotated[int, typer.Option(min=0, max=16, help="GPUs of each node.")] = 8,
    model: Annotated[str, typer.Option(help="GPU model.")] = DEFAULT_MODEL,
    light: Annotated[
        bool, typer.Option("--light", help="Object and heartbeat only: cheap, by the hundred.")
    ] = False,
    count: Annotated[int | None, typer.Option(min=1, max=MAX_COUNT, help="How many.")] = None,
    boot_time: Annotated[float, typer.Option(min=0, help="Seconds that a boot takes.")] = 1.0,
    label: Annotated[list[str] | None, typer.Option(help="KEY=VALUE, repeatable.")] = None,
    system: Annotated[
        bool, typer.Option("--system", help="For fleetmend's own pods: no GPUs, agent or pool.")
    ] = False,
    agent: Annotated[
        Literal["real", "stand-in"],
        typer.Option(help="The real agent, or its stand-in, which faults tell what to say."),
    ] = "stand-in",
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add nodes; they are registered when this returns."""
    with _failures_told():
        labels = split_options(label or [])
        names = [name] if count is None else [f"{name}-{i}" for i in range(count)]
        specs = [
            NodeSpec.system(each)
            if system
            else NodeSpec(
                name=each,
                pool=pool,
                kind=NodeKind.LIGHT if light else NodeKind.FULL,
                gpus=gpus,
                model=model,
                boot_time_s=boot_time,
                labels=labels,
                agent=agent,
            )
            for each in names
        ]
        with _client(directory) as client:
            views = client.add_nodes(specs)
    _show_nodes(views, as_json=as_json)


@node_app.command()
def rm(
    names: Annotated[list[str], typer.Argument(help="Names of simulated nodes.")],
    *,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Switch nodes off for good and delete their Node objects; their boot logs stay."""
    with _failures_told(), _client(directory) as client:
        client.remove_nodes(names)
    if as_json:
        _write_json({"removed": names})
    else:
        open_console().print(f"removed: {escape(', '.join(names))}")


@node_app.command("list")
def list_nodes(*, directory: DirectoryOption = None, as_json: JsonOption = False) -> None:
    """Show the nodes as seen from inside the machines."""
    with _failures_told(), _client(directory) as client:
        views = client.nodes()
    _show_nodes(views, as_json=as_json)


def inject(
    node: NodeArgument,
    fault: FaultArgument,
    options: OptionsArgument = None,
    *,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Inject a fault into a simulated node."""
    with _failures_told():
        words = split_options(options or [])
        make_fault(fault, words)
        with _client(directory) as client:
            receipt = client.inject(node, fault, words)
    _show_receipt(receipt, "injected", as_json=as_json)


def clear(
    node: NodeArgument,
    fault: FaultArgument,
    *,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a fault of a simulated node."""
    with _failures_told(), _client(directory) as client:
        receipt = client.clear(node, fault)
    _show_receipt(receipt, "cleared", as_json=as_json)


def faults(*, as_json: JsonOption = False) -> None:
    """List the faults that can be injected, with their options."""
    lines = describe_faults()
    if as_json:
        _write_json(
            [
                {
                    "name": line.name,
                    "description": line.description,
                    "needs_full": line.needs_full,
                    "options": [
                        {"key": o.key, "default": o.default, "description": o.description}
                        for o in line.options
                    ],
                }
                for line in lines
            ]
        )
        return
    table = plain_table("FAULT", "WHAT HAPPENS", "OPTIONS")
    table.columns[0].no_wrap = True
    for line in lines:
        text = line.description + (" (full nodes)" if line.needs_full else "")
        options = "\n".join(f"{o.key}={o.default or '...'}  {o.description}" for o in line.options)
        table.add_row(line.name, escape(text), escape(options))
    open_console().print(table)


def logs(
    pod: Annotated[str, typer.Argument(help="Name of a pod, or the beginning of some names.")],
    *,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")] = NAMESPACE,
    tail: Annotated[int | None, typer.Option(min=0, help="Only so many lines of each.")] = None,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what the processes of pods have written, also of pods that are gone."""
    found = find_pod_logs(directory or default_lab_directory(), namespace, pod)
    if not found:
        _fail(
            f"no pod of namespace {namespace} whose name begins with {pod!r} has a log: only "
            "processes of the fleetmend image write one",
            EXIT_FAILED,
        )
    if as_json:
        _write_json(
            [{**asdict(log), "path": str(log.path), "text": log.text(tail)} for log in found]
        )
        return
    for log in found:
        if len(found) > 1:
            typer.echo(f"==> {log.pod}/{log.container} on {log.node} <==")
        typer.echo(log.text(tail), nl=False)


def _client(directory: Path | None) -> FleetClient:
    return FleetClient(directory or default_lab_directory())


@contextmanager
def _failures_told() -> Iterator[None]:
    """One line and an exit code for what can go wrong."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        _fail(f"{field}: {first['msg']}", EXIT_USAGE)
    except BadFault as error:
        _fail(str(error), EXIT_USAGE)
    except FleetUnreachable as error:
        _fail(str(error), EXIT_NOT_RUNNING)
    except FleetError as error:
        _fail(str(error), EXIT_FAILED)


def _fail(message: str, code: int) -> None:
    Console(stderr=True).print(f"[red]error:[/red] {escape(message)}", soft_wrap=True)
    raise typer.Exit(code)


def _show_nodes(views: list[NodeView], *, as_json: bool) -> None:
    if as_json:
        _write_json([view.model_dump(mode="json") for view in views])
        return
    table = plain_table("NODE", "KIND", "POOL", "POWER", "GPUS", "PODS", "BOOTS", "AGENT", "FAULTS")
    for view in views:
        table.add_row(
            view.name,
            view.kind,
            escape(view.pool),
            view.power if view.is_kubelet_running else f"{view.power}, no kubelet",
            str(view.gpus),
            str(view.pods),
            str(view.boots),
            _agent_of(view),
            ", ".join(view.faults),
        )
    open_console().print(table)


def _agent_of(view: NodeView) -> str:
    """Which agent runs. Its DaemonSet's pod comes a moment after the node, and after each boot."""
    if view.is_agent_running:
        return view.agent
    is_up = view.power is Power.ON and view.is_kubelet_running
    return f"{view.agent} starts" if is_up and view.agent != "none" else "no"


def _show_receipt(receipt: Receipt, verb: str, *, as_json: bool) -> None:
    if as_json:
        _write_json(receipt.model_dump(mode="json"))
        return
    text = f"{verb} {receipt.fault} on {receipt.node}"
    if receipt.sent_at is not None and receipt.patched_at is not None:
        took_ms = 1_000 * (receipt.patched_at - receipt.sent_at)
        text += f": conditions written in {took_ms:.1f} ms"
    open_console().print(escape(text))


def _write_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))
