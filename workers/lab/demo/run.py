"""The course of the demo, from an empty directory to the verdict.

Owns the order of things, the deadlines, and the exit. What each thing is stands in the modules
beside this one. The CLI calls `run_demo`.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from rich.console import Console
from temporalio.client import Client

from workers.lab.controlplane.api import LabApi
from workers.lab.controlplane.release import unready
from workers.lab.demo import scene as stage_setting
from workers.lab.demo.cast import (
    ELASTIC,
    POOLS,
    RETIRE_REASON,
    Ending,
    Part,
    named,
    own_cast,
)
from workers.lab.demo.chronicle import OPEN, Chronicle, read_chronicles
from workers.lab.demo.scene import CLUSTER, Scene, SceneFailed, start_scene
from workers.lab.demo.sight import Seen, gone, look
from workers.lab.demo.verdict import (
    AuditCounts,
    Evidence,
    is_over,
    read_audit,
    successor_of,
    wrongs,
)
from workers.lab.demo.view import (
    Findings,
    Line,
    NodeReport,
    Report,
    Stage,
    line_of,
    node_report,
    short,
    show_report,
)
from workers.lab.kubelet.host_root import BootEvent, read_boot_log
from workers.tables import open_console
from workers.temporal_connection import connect_or_explain, read_target

BASELINES_LIMIT_S: Final = 60.0
ENDINGS_LIMIT_S: Final = 150.0
JUDGE_LIMIT_S: Final = 15.0
"""For what mends itself after the last episode has closed: pods wait up to 10 s in the scheduler's
back-off, and a Lease that comes late makes any node not Ready for a moment."""
LOOK_S: Final = 0.5
CONNECT_S: Final = 15.0


@dataclass
class Course:
    """What the demo has come to."""

    scene: Scene
    stage: Stage
    api: LabApi
    client: Client
    cast: tuple[Part, ...] = field(default_factory=own_cast)
    """Karpenter's node joins when it is there."""
    befell: dict[str, datetime] = field(default_factory=dict)
    stood_on: dict[str, str] = field(default_factory=dict)
    seen: Mapping[str, Seen] = field(default_factory=dict)
    chronicles: Mapping[str, Chronicle] = field(default_factory=dict)
    audit_offset: int = 0


def run_demo(*, keep: bool, stays: bool, write: Callable[[Report], None] | None) -> bool:
    """Play the demo; whether each node ended as it should.

    Args:
        keep: leave everything up afterwards.
        stays: wait for Ctrl-C before everything ends.
        write: told the report in place of a terminal (then nothing else is shown).

    Raises:
        SceneFailed, LabError: something did not come about.
    """
    begun = time.monotonic()
    console = open_console()
    with Stage(console, is_silent=write is not None) as stage:
        stage.say(
            f"starting a control plane, fleetmend by its Helm chart, {stage_setting.node_count()} "
            f"GPU nodes in {len(POOLS)} pools, and training pods"
        )
        scene = start_scene(detached=keep)
        try:
            report = asyncio.run(_play(scene, stage, begun))
        except BaseException:
            if keep:
                _tell_kept(console, scene)
            else:
                scene.end()
            raise
    if not keep and not stays:
        report = report.without_addresses()
    try:
        if write is not None:
            write(report)
        else:
            show_report(console, report)
            if keep:
                _tell_kept(console, scene)
            elif stays:
                _stay(console)
    finally:
        if not keep:
            scene.end()
    return report.passed


async def _play(scene: Scene, stage: Stage, begun: float) -> Report:
    stage.say(f"Temporal UI, while this runs: {scene.address.temporal_ui_url}")
    stage.say("arming the pools, as the operator")
    arming = [scene.command("arm", pool, "--reason", "demo") for pool in POOLS]
    await asyncio.gather(*arming)
    target = read_target({"TEMPORAL_ADDRESS": scene.address.temporal_address})
    client = await connect_or_explain(target, timeout_s=CONNECT_S)
    course = Course(scene, stage, scene.api, client)
    try:
        await _until_baselines(course)
        await _let_it_happen(course)
        await _until_endings(course)
        return await _judge(course, begun)
    finally:
        course.api.close()


async def _until_baselines(course: Course) -> None:
    course.stage.say("fleetmend counts the GPUs of the healthy nodes: their baselines")

    def missing() -> str:
        course.seen = look(course.api)
        bought = [seen.node for seen in course.seen.values() if seen.pool == ELASTIC]
        if len(bought) != 1:
            return f"{len(bought)} nodes of pool {ELASTIC} in place of one"
        course.cast = (*own_cast(), named(bought[0]))
        wanted = {part.node for part in course.cast}
        without = sorted(n for n in wanted if not _has_baseline(course.seen.get(n)))
        short = stage_setting.pods_wanted() - stage_setting.running_pods(course.api)
        return (
            ", ".join(without)
            or (f"{short} training pods are not Ready" if short > 0 else "")
            or ", ".join(unready(course.api))
        )

    await _until(course, missing, BASELINES_LIMIT_S, "no baseline yet")


async def _let_it_happen(course: Course) -> None:
    course.audit_offset = course.scene.address.audit_log.stat().st_size
    listed = course.api.request("GET", f"/api/v1/namespaces/{stage_setting.NAMESPACE}/pods")
    course.stood_on = {
        str(pod["metadata"]["name"]): str((pod.get("spec") or {}).get("nodeName", ""))
        for pod in listed.get("items") or []
    }
    parts = [part for part in course.cast if part.befalls]
    with course.scene.fleet as fleet:
        for part in parts:
            if part.fault:
                course.befell[part.node] = datetime.now(UTC)
                fleet.inject(part.node, part.fault, part.options)
                course.stage.say(f"{short(part.node)}: {part.what} ({part.fault})")
    for part in parts:
        if not part.fault:
            course.befell[part.node] = datetime.now(UTC)
            course.stage.say(f"{part.node}: {part.what}")
    words = (
        course.scene.command("retire", part.node, "--reason", RETIRE_REASON)
        for part in parts
        if part.ending is Ending.RETIRED
    )
    tick = course.scene.command("schedules", "trigger", "validate")
    await asyncio.gather(*words, tick, _follow_while_told(course))


async def _follow_while_told(course: Course) -> None:
    """The table moves while the retire command still starts."""
    for _ in range(2):
        await _follow(course)
        await asyncio.sleep(LOOK_S)


async def _until_endings(course: Course) -> None:
    def missing() -> str:
        return ", ".join(
            part.node
            for part in course.cast
            if not is_over(part, course.seen.get(part.node), course.chronicles.get(part.node))
        )

    deadline = time.monotonic() + ENDINGS_LIMIT_S
    while True:
        course.scene.refuse_dead(course.api)
        await _follow(course)
        if not missing() or time.monotonic() > deadline:
            return  # what is missing is told by the verdict
        await asyncio.sleep(LOOK_S)


async def _follow(course: Course) -> None:
    course.seen = look(course.api)
    course.chronicles = await _chronicles(course)
    steps = await _steps(course.client)
    now = datetime.now(UTC)
    course.stage.show([_line(course, part, steps, now) for part in course.cast])


async def _chronicles(course: Course) -> Mapping[str, Chronicle]:
    """The episodes of what befell; not of a hiccup at a node's start."""
    found = await read_chronicles(course.client, CLUSTER)
    return {
        node: chronicle
        for node, chronicle in found.items()
        if node not in course.befell or chronicle.started >= course.befell[node]
    }


def _line(course: Course, part: Part, steps: Mapping[str, str], now: datetime) -> Line:
    seen = course.seen.get(part.node) or _last_seen(course, part)
    return line_of(part, seen, steps, course.befell.get(part.node), now)


def _last_seen(course: Course, part: Part) -> Seen | None:
    """What the history tells of a node that is gone."""
    chronicle = course.chronicles.get(part.node)
    if chronicle is None or not chronicle.phases:
        return None
    outcome = "" if chronicle.outcome == OPEN else chronicle.outcome
    return gone(part.node, part.pool, chronicle.phases[-1].phase, outcome)


async def _steps(client: Client) -> dict[str, str]:
    """What runs now on each node: the attribute that people filter by in the UI."""
    query = "WorkflowType = 'RemediateNode' AND ExecutionStatus = 'Running'"
    found: dict[str, str] = {}
    async for run in client.list_workflows(query, limit=100):
        attributes = run.search_attributes
        node, step = attributes.get("FleetmendNode"), attributes.get("FleetmendStep")
        if node and step:
            found[str(node[0])] = str(step[0])
    return found


async def _judge(course: Course, begun: float) -> Report:
    """The verdict as soon as nothing is wrong, or what still is when the time is over."""
    deadline = time.monotonic() + JUDGE_LIMIT_S
    nodes = await _judge_nodes(course)
    while any(node.wrongs for node in nodes) and time.monotonic() < deadline:
        await asyncio.sleep(LOOK_S)
        nodes = await _judge_nodes(course)
    return Report(
        passed=all(not node.wrongs for node in nodes),
        took_s=round(time.monotonic() - begun, 1),
        temporal_ui=course.scene.address.temporal_ui_url,
        directory=str(course.scene.address.directory),
        nodes=nodes,
    )


async def _judge_nodes(course: Course) -> tuple[NodeReport, ...]:
    course.seen = look(course.api)
    course.chronicles = await _chronicles(course)
    counts = read_audit(course.scene.address.audit_log, course.audit_offset)
    boots = {part.node: _boots(course, part.node) for part in course.cast}
    return tuple(_judge_node(course, part, boots, counts) for part in course.cast)


def _boots(course: Course, node: str) -> int:
    """The machine's own count, which stays when it is gone; the first boot isn't one."""
    log = read_boot_log(course.scene.address.paths.nodes / node)
    return sum(1 for record in log if record.event is BootEvent.BOOT)


def _judge_node(
    course: Course, part: Part, boots: Mapping[str, int], counts: AuditCounts
) -> NodeReport:
    evicted = sum(
        number for pod, number in counts.evictions.items() if course.stood_on.get(pod) == part.node
    )
    chronicle = course.chronicles.get(part.node)
    successor = successor_of(chronicle)
    evidence = Evidence(
        part=part,
        seen=course.seen.get(part.node),
        chronicle=chronicle,
        boots=boots.get(part.node, -1),
        writes=counts.writes.get(part.node, 0),
        evictions=evicted,
        successor=course.seen.get(successor),
        work_on_successor=stage_setting.running_pods(course.api, successor) if successor else 0,
    )
    cordoned = counts.cordoned.get(part.node)
    found = Findings(wrongs(evidence), evidence.boots, evicted, cordoned)
    befell = course.befell.get(part.node, datetime.now(UTC))
    ui = course.scene.address.temporal_ui_url
    report = node_report(part, chronicle, befell, found, ui)
    return replace(report, successor=successor, pods_on_successor=evidence.work_on_successor)


async def _until(course: Course, missing: Callable[[], str], limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while True:
        course.scene.refuse_dead(course.api)
        lack = missing()
        if not lack:
            return
        if time.monotonic() > deadline:
            raise SceneFailed(
                f"{what} after {limit_s:g} s: {lack}. The end of a worker's log (--keep keeps "
                f"it):\n{course.scene.log_end('fleetmend-worker')}"
            )
        await asyncio.sleep(LOOK_S)


def _has_baseline(seen: Seen | None) -> bool:
    return seen is not None and seen.has_baseline


def _tell_kept(console: Console, scene: Scene) -> None:
    address = scene.address
    environment = {
        "FLEETMEND_LAB": str(address.directory),
        "FLEETMEND_CLUSTER": address.cluster,
        "KUBECONFIG": str(address.paths.kubeconfig("operator")),
        "TEMPORAL_ADDRESS": address.temporal_address,
    }
    console.print("\n[bold]everything stays up; to look around:[/]")
    for name, value in environment.items():
        console.print(f"  export {name}={value}", markup=False, soft_wrap=True)
    for line in (
        "fleetmend status",
        "fleetmend node inference-1",
        "fleetmend lab inject training-4 xid-48",
        "fleetmend lab logs fleetmend-worker",
        "kubectl -n fleetmend get pods -o wide",
    ):
        console.print(f"  {line}", markup=False, soft_wrap=True)
    console.print("[bold]to end it, fleetmend's pods with it:[/]")
    console.print(f"  fleetmend lab down --dir {address.directory}", markup=False, soft_wrap=True)


def _stay(console: Console) -> None:
    console.print("Ctrl-C ends it (next time: --once ends by itself, --keep leaves all up)")
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)


def is_watched() -> bool:
    """True if a person looks at a terminal."""
    return sys.stdout.isatty() and os.environ.get("CI", "") == ""
