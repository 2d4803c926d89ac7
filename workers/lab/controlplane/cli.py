"""`fleetmend lab up | down | status | kubeconfig`.

Owns the words, tables and exit codes of these commands. Everything they do is `lab.py`'s. Exit
codes: 0 done, 1 it failed, 2 wrong usage, 3 no lab is running there.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from workers.lab.address import (
    NAMESPACE,
    ComponentStage,
    LabAccount,
    LabAddress,
    LabNotRunning,
    read_address,
)
from workers.lab.controlplane.chart import RELEASE
from workers.lab.controlplane.errors import LabError
from workers.lab.controlplane.lab import LabStatus, lab_status, start_lab, stop_lab
from workers.lab.controlplane.launch import wanted_settings
from workers.lab.controlplane.programs import find_helm
from workers.lab.controlplane.progress import build_on_terminal
from workers.lab.controlplane.release import SYSTEM_NODE, await_pods
from workers.lab.controlplane.settings import AuditMode, LabSettings, ReleaseSettings
from workers.lab.paths import LAB_DIRECTORY_VARIABLE, LabPaths, default_lab_directory
from workers.tables import open_console, plain_table

EXIT_FAILED: Final = 1
EXIT_NOT_RUNNING: Final = 3
FOREGROUND_POLL_S: Final = 0.5

lab_app = typer.Typer(
    name="lab",
    help="A real control plane on this machine, with simulated nodes.",
    no_args_is_help=True,
)

DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        help="The lab's directory.",
        show_default=f"${LAB_DIRECTORY_VARIABLE}, else the user's state folder",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON to standard output.")]


@lab_app.command()
def up(  # noqa: PLR0913 - typer's options are arguments
    directory: DirectoryOption = None,
    *,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay, and end the lab with Ctrl-C.")
    ] = False,
    node_monitor_grace_s: Annotated[
        float | None, typer.Option(min=2, max=600, help="Silence after which a node is Unknown.")
    ] = None,
    audit_mode: Annotated[
        AuditMode | None, typer.Option(help="Audit log after (batch) or before each answer.")
    ] = None,
    karpenter: Annotated[
        bool | None,
        typer.Option("--karpenter/--no-karpenter", help="With Karpenter."),
    ] = None,
    node_repair: Annotated[
        bool | None,
        typer.Option("--node-repair/--no-node-repair", help="Let Karpenter repair by itself."),
    ] = None,
    install: Annotated[
        bool | None,
        typer.Option(
            "--install/--no-install",
            help="All of fleetmend as pods, by its Helm chart; without: its rights and agents.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start the lab, or find the one that runs; the first time its programs are built."""
    directory = directory or default_lab_directory()
    given: dict[str, object] = {
        "node_monitor_grace_s": node_monitor_grace_s,
        "audit_mode": audit_mode,
        "karpenter": karpenter,
        "node_repair": node_repair,
    }
    named = {name: value for name, value in given.items() if value is not None}
    if install is not None:
        named["release"] = ReleaseSettings() if install else None
    with _failures_told(as_json=as_json):
        is_running_before = _is_running(directory)
        started = time.monotonic()
        settings = _settings(named)
        address = start_lab(directory, settings, detached=not foreground)
        if install:
            await_pods(address)
        took_s = time.monotonic() - started
        if as_json:
            _write_json({**address.model_dump(mode="json"), "ready_after_s": round(took_s, 2)})
        else:
            if is_running_before and named.keys() - {"release"}:
                Console(stderr=True).print(
                    "its settings stay as they are; to change them, first: fleetmend lab down"
                )
            _tell_next_steps(address, took_s, is_running_before=is_running_before)
        if foreground:
            _stay(directory)


@lab_app.command()
def down(directory: DirectoryOption = None, *, as_json: JsonOption = False) -> None:
    """End the lab with all its processes; its files stay, and `up` goes on from there."""
    directory = directory or default_lab_directory()
    with _failures_told(as_json=as_json):
        stop_lab(directory)
    if as_json:
        _write_json({"directory": str(directory), "ended": True})
    else:
        open_console().print(f"the lab in {escape(str(directory))} has ended", soft_wrap=True)


@lab_app.command()
def status(directory: DirectoryOption = None, *, as_json: JsonOption = False) -> None:
    """Show the lab's processes; exit code 1 if one of them is not ready."""
    directory = directory or default_lab_directory()
    with _failures_told(as_json=as_json):
        found = lab_status(directory)
    if as_json:
        _write_json(_status_as_json(found))
    else:
        _show_status(found)
    if not found.is_whole:
        raise typer.Exit(EXIT_FAILED)


@lab_app.command()
def kubeconfig(
    directory: DirectoryOption = None,
    account: Annotated[LabAccount, typer.Option("--as", help="Whose.")] = LabAccount.ADMIN,
    *,
    content: Annotated[
        bool, typer.Option("--content", help="Print the file itself instead of its path.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the path of a kubeconfig: export KUBECONFIG=$(fleetmend lab kubeconfig)."""
    directory = directory or default_lab_directory()
    with _failures_told(as_json=as_json):
        path = read_address(directory).kubeconfig(account)
        if not path.exists():
            raise LabError(
                f"the lab has no ServiceAccount fleetmend-{account.value} (deploy/chart makes "
                "it); then run: fleetmend lab up"
            )
        text = path.read_text() if content else str(path)
    if as_json:
        _write_json({"account": account.value, "path": str(path)})
    else:
        typer.echo(text)


def _settings(named: dict[str, object]) -> LabSettings | None:
    """What was named, None = nothing.

    Raises:
        LabError: the settings contradict each other.
    """
    try:
        return LabSettings.model_validate(named) if named else None
    except ValidationError as error:
        raise LabError(error.errors()[0]["msg"]) from error


@contextmanager
def _failures_told(*, as_json: bool) -> Iterator[None]:
    """Turn the lab's own errors into one message and an exit code."""
    try:
        yield
    except (LabNotRunning, LabError) as error:
        if as_json:
            _write_json({"error": str(error)})
        Console(stderr=True, highlight=False).print(
            f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True
        )
        is_missing = isinstance(error, LabNotRunning)
        raise typer.Exit(EXIT_NOT_RUNNING if is_missing else EXIT_FAILED) from None


def _is_running(directory: Path) -> bool:
    try:
        read_address(directory)
    except LabNotRunning:
        return False
    return True


def _stay(directory: Path) -> None:
    Console(stderr=True).print("Ctrl-C ends it")
    try:
        while _is_running(directory):
            time.sleep(FOREGROUND_POLL_S)
    except KeyboardInterrupt:
        with suppress(LabNotRunning):
            stop_lab(directory)


def _tell_next_steps(address: LabAddress, took_s: float, *, is_running_before: bool) -> None:
    console = open_console()
    what = "the lab runs already" if is_running_before else f"the lab is ready after {took_s:.1f} s"
    console.print(f"[bold]{what}[/]: {escape(str(address.directory))}", soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for name, value in (
        ("API server", address.api_url),
        ("Temporal", address.temporal_address),
        ("Temporal UI", address.temporal_ui_url),
        ("audit log", str(address.audit_log)),
    ):
        if value:
            table.add_row(f"  {name}", escape(value))
    console.print(table)
    option = ""
    if address.directory != default_lab_directory():
        option = f" --dir {address.directory}"
    exports = [f"KUBECONFIG=$(fleetmend lab kubeconfig{option})"]
    if address.temporal_address:
        exports += [f"FLEETMEND_CLUSTER={address.cluster}"]
        exports += [f"TEMPORAL_ADDRESS={address.temporal_address}"]
    _show_steps(
        "next:",
        f"export {' '.join(exports)}",
        f"fleetmend lab status{option}",
        f"fleetmend lab down{option}",
    )
    settings = wanted_settings(address.paths, None)
    if settings.deploy is None or not address.temporal_address:
        return
    if settings.release is not None:
        _show_steps(
            "fleetmend runs in it, installed by Helm:",
            "fleetmend status",
            f"kubectl -n {NAMESPACE} get pods",
            f"fleetmend lab logs fleetmend-worker{option}",
            f"{_helm()} uninstall {RELEASE} --namespace {NAMESPACE}",
        )
        return
    _show_steps(
        f"to install fleetmend by Helm (or: fleetmend lab up --install{option}):",
        f"fleetmend lab node add {SYSTEM_NODE} --system{option}",
        f"{_helm()} upgrade --install {RELEASE} {settings.deploy} --namespace {NAMESPACE} "
        f"--values {address.paths.pod_values}",
    )


def _helm() -> str:
    return str(find_helm(build_on_terminal))


def _show_steps(title: str, *steps: str) -> None:
    console = open_console()
    console.print(title, style="bold")
    for step in steps:
        console.print(f"  {step}", markup=False, soft_wrap=True)


def _show_status(found: LabStatus) -> None:
    console = open_console()
    table = plain_table("COMPONENT", "STAGE", "PID", "RSS MIB", "ADDRESS")
    for number in (2, 3):
        table.columns[number].justify = "right"
    for component in found.components:
        report = component.report
        stage = "frozen" if component.is_frozen else report.stage.value
        is_good = report.stage is ComponentStage.READY and not component.is_frozen
        table.add_row(
            report.component.value,
            f"[{'green' if is_good else 'red'}]{stage}[/]",
            "" if report.process is None else str(report.process.pid),
            "" if component.rss_mib is None else f"{component.rss_mib:.0f}",
            escape(report.address),
        )
    console.print(table)
    for component in found.components:
        report = component.report
        if report.stage is ComponentStage.DIED:
            console.print(
                f"\n{report.component.value} died, exit code {report.exit_code}; the end of "
                f"{escape(str(report.log))}:",
                style="red",
                soft_wrap=True,
            )
            for line in report.last_lines:
                console.print(f"  | {line}", markup=False, highlight=False, soft_wrap=True)


def _status_as_json(found: LabStatus) -> dict[str, object]:
    return {
        "address": found.address.model_dump(mode="json"),
        "supervisor_pid": found.supervisor.pid,
        "supervisor_log": str(LabPaths(found.address.directory).log("supervisor")),
        "is_whole": found.is_whole,
        "components": [
            {
                **component.report.model_dump(mode="json"),
                "rss_mib": None if component.rss_mib is None else round(component.rss_mib, 1),
                "is_frozen": component.is_frozen,
            }
            for component in found.components
        ],
    }


def _write_json(content: object) -> None:
    typer.echo(json.dumps(content, indent=2))
