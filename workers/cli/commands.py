"""`fleetmend`: the words of the command line.

Owns names, options and help of every command. Each body stands in the module that its import
names, and is imported when it runs, so that `--help` and `node-task` (which runs on sick nodes)
start fast. Exit codes: 0 done; 1 refused or failed; 2 wrong usage; 3 Temporal or the cluster could
not be reached (in a lab: no lab is running).
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="fleetmend",
    help="Durable remediation of GPU nodes on Kubernetes.",
    epilog="Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 Temporal or the cluster "
    "could not be reached.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
policy_app = typer.Typer(name="policy", help="Check a policy file.", no_args_is_help=True)
app.add_typer(policy_app)
setup_app = typer.Typer(name="setup", help="Make what must stand first.", no_args_is_help=True)
app.add_typer(setup_app)
schedules_app = typer.Typer(
    name="schedules", help="What is done by itself: sweep, validate.", no_args_is_help=True
)
app.add_typer(schedules_app)

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name of the Node.")]
MaybeNode = Annotated[
    str | None, typer.Argument(metavar="[NODE]", help="Name of the Node.", show_default=False)
]
Reason = Annotated[
    str, typer.Option("--reason", help="Why; recorded with your name.", show_default=False)
]
PoolOption = Annotated[str | None, typer.Option("--pool", help="A whole pool.", show_default=False)]
FleetFlag = Annotated[bool, typer.Option("--fleet", help="The whole fleet.")]
Question = Annotated[
    str,
    typer.Option("--question", help="The question this answers.", show_default="the open one"),
]
ScheduleName = Annotated[
    str, typer.Argument(metavar="SCHEDULE", help="sweep or validate.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON to standard output.")]


@app.command()
def status(as_json: Json = False) -> None:
    """Show every node: pool, phase, fault, step, what it waits for, and the marks on it."""
    from workers.cli.status import show_status

    _run(lambda: show_status(as_json=as_json), as_json=as_json)


@app.command()
def node(name: NodeName, as_json: Json = False) -> None:
    """Show one node: its facts, its episode's story, what comes next, and its machine's record."""
    from workers.cli.status import show_node

    _run(lambda: show_node(name, as_json=as_json), as_json=as_json)


@app.command()
def pause(
    name: MaybeNode = None,
    pool: PoolOption = None,
    fleet: FleetFlag = False,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Stop a node's episode before its next step, or all new disruption in a pool or the fleet."""
    _pause_or_resume("pause", _Target(name, pool, fleet), reason, as_json=as_json)


@app.command()
def resume(
    name: MaybeNode = None,
    pool: PoolOption = None,
    fleet: FleetFlag = False,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Lift a pause; for a held node: try the gate again."""
    _pause_or_resume("resume", _Target(name, pool, fleet), reason, as_json=as_json)


@app.command()
def retire(name: NodeName, reason: Reason = "", as_json: Json = False) -> None:
    """Drain a node, keep it cordoned and hand it over to people; needs no open episode."""
    _say("retire", name, reason, as_json=as_json)


@app.command()
def approve(
    name: NodeName, reason: Reason = "", question: Question = "", as_json: Json = False
) -> None:
    """Allow a held node's next repair action."""
    _say("approve", name, reason, question=question, as_json=as_json)


@app.command()
def deny(
    name: NodeName, reason: Reason = "", question: Question = "", as_json: Json = False
) -> None:
    """Answer a held node's question with no: it stays held."""
    _say("deny", name, reason, question=question, as_json=as_json)


@app.command()
def arm(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="A pool of the policy.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what matches.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask, at a terminal, when nodes match.")
    ] = False,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Let fleetmend act on a pool; shows first what matches right now and what would be done.

    At a terminal it asks if anything does. Refused while more of the pool matches than the policy's
    arming_share.
    """
    from workers.cli.arming import arm as body

    _run(
        lambda: body(pool, reason=reason, dry_run=dry_run, as_json=as_json, is_agreed=yes),
        as_json=as_json,
    )


@app.command()
def disarm(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="A pool that is armed.")],
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Let fleetmend only observe a pool again."""
    from workers.cli.arming import disarm as body

    _run(lambda: body(pool, reason=reason, as_json=as_json), as_json=as_json)


@app.command()
def leave(
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without it, only show.")] = False,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Before an uninstallation: disarm all, end all runs, hand every marked node over to people."""
    from workers.cli.leave import leave_cluster

    _run(lambda: leave_cluster(yes=yes, reason=reason, as_json=as_json), as_json=as_json)


@app.command()
def validate(
    name: MaybeNode = None,
    pool: PoolOption = None,
    level: Annotated[
        int | None,
        typer.Option(
            "--level", min=1, max=4, help="Of DCGM's diagnostic.", show_default="the pool's"
        ),
    ] = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Validate an idle node, or every idle node of a pool; evicts nothing."""
    from workers.cli.validate import validate as body

    if (name is None) == (pool is None):
        raise typer.BadParameter("name exactly one of NODE and --pool POOL")
    _run(
        lambda: body(
            node=name or "", pool=pool or "", level=level or 0, reason=reason, as_json=as_json
        ),
        as_json=as_json,
    )


@setup_app.command("temporal")
def setup_temporal(
    correct: Annotated[
        bool,
        typer.Option("--correct", help="Write your environment's settings where they differ."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Register the search attributes and make the Schedules that are missing; safe to repeat.

    A Schedule that differs from your environment's settings is told, and left as it is.
    """
    from workers.cli.schedules import set_up_temporal

    _run(lambda: set_up_temporal(correct=correct, as_json=as_json), as_json=as_json)


@schedules_app.command("list")
def schedules_list(as_json: Json = False) -> None:
    """Show each schedule: whether it runs, how often, when last and next."""
    from workers.cli.schedules import list_schedules

    _run(lambda: list_schedules(as_json=as_json), as_json=as_json)


@schedules_app.command("pause")
def schedules_pause(name: ScheduleName, reason: Reason = "", as_json: Json = False) -> None:
    """Start nothing more by itself until resume; what is open goes on."""
    _tell_schedule("pause", name, reason, as_json=as_json)


@schedules_app.command("resume")
def schedules_resume(name: ScheduleName, reason: Reason = "", as_json: Json = False) -> None:
    """Go on with a schedule that was paused."""
    _tell_schedule("resume", name, reason, as_json=as_json)


@schedules_app.command("trigger")
def schedules_trigger(name: ScheduleName, as_json: Json = False) -> None:
    """Start one run now, unless one is open."""
    _tell_schedule("trigger", name, "", as_json=as_json)


@policy_app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A policy file (YAML).")],
    as_json: Json = False,
) -> None:
    """Check a policy file; each defect with its field, its value and what is allowed."""
    from workers.cli.policy import check as body

    _run(lambda: body(file, as_json=as_json), as_json=as_json)


@policy_app.command()
def schema() -> None:
    """Write the JSON schema of the policy file."""
    from workers.cli.policy import schema as body

    _run(body, as_json=True)


@app.command()
def demo(
    once: Annotated[
        bool, typer.Option("--once", help="End by itself; exit 0 only if all went as it should.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything up afterwards, to look around.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Watch faults on simulated nodes go through a real control plane, on this machine."""
    from workers.cli.demo import play

    _run(lambda: play(once=once, keep=keep, as_json=as_json), as_json=as_json)


@app.command()
def worker(
    settings: Annotated[
        bool, typer.Option("--settings", help="Only list the variables that set it up.")
    ] = False,
) -> None:
    """Run the Temporal worker, a process that is set up by variables (see --settings)."""
    if settings:
        from workers.cli.settings import show_worker_settings

        _run(show_worker_settings, as_json=False)
    from workers.control.process import main as body
    from workers.leaving import leave

    leave(body())


@app.command()
def watch() -> None:
    """Run the watch process, which needs no Temporal (a process; see workers/watch)."""
    from workers.leaving import leave
    from workers.watch.process import main as body

    leave(body())


@app.command()
def agent() -> None:
    """Run the node's agent (a process, set up by variables; see workers/agent)."""
    from workers.cli.main import run_agent

    sys.exit(run_agent())


@app.command("node-task")
def node_task(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="inventory, reboot, diagnose or kernel-log.")
    ],
) -> None:
    """Do one node-local job, as a node task's pod runs it (its order is in FLEETMEND_TASK)."""
    from workers.cli.main import run_node_task

    sys.exit(run_node_task(kind))


def run_app(arguments: Sequence[str]) -> None:
    """Run one command line, and leave the process with its exit code."""
    app.add_typer(_lab_commands(is_called=list(arguments[:1]) == ["lab"]))
    try:
        app(list(arguments))
    except OSError as error:
        if error.filename is None:
            raise  # no path that somebody gave: a defect of ours, with its traceback
        from workers.cli.outcome import end_at_path

        end_at_path(error, as_json="--json" in arguments)


class _Target:
    """What a pause is for: exactly one of node, pool and fleet."""

    def __init__(self, name: str | None, pool: str | None, fleet: bool) -> None:
        if sum((name is not None, pool is not None, fleet)) != 1:
            raise typer.BadParameter("name exactly one of NODE, --pool POOL and --fleet")
        self.node = name
        self.scope = "*" if fleet else pool or ""


def _pause_or_resume(command: str, target: _Target, reason: str, *, as_json: bool) -> None:
    if target.node is not None:
        _say(command, target.node, reason, as_json=as_json)
        return
    from workers.cli.arming import change_pause

    paused = command == "pause"
    _run(
        lambda: change_pause(target.scope, paused=paused, reason=reason, as_json=as_json),
        as_json=as_json,
    )


def _say(command: str, node: str, reason: str, *, question: str = "", as_json: bool) -> None:
    from workers.cli.words import say
    from workflows.contracts.messages import Command

    word = Command(command)
    _run(
        lambda: say(word, node, reason=reason, question=question, as_json=as_json),
        as_json=as_json,
    )


def _tell_schedule(word: str, name: str, reason: str, *, as_json: bool) -> None:
    from workers.cli.schedules import tell_schedule

    _run(lambda: tell_schedule(word, name, reason=reason, as_json=as_json), as_json=as_json)


def _run(body: Any, *, as_json: bool) -> None:
    from workers.cli.outcome import run_command

    run_command(body, as_json=as_json)


def _lab_commands(*, is_called: bool) -> typer.Typer:
    """The group `lab`; only its name and help unless it is called."""
    if not is_called:
        return typer.Typer(name="lab", help="A real control plane with simulated nodes, here.")
    from workers.cli.lab import lab_commands

    return lab_commands()
