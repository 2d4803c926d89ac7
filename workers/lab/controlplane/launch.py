"""The way from a lab directory to a supervisor whose processes are all ready.

Owns the launch plan (settings, programs, ports that are kept), the start of the supervisor process
and the wait for readiness. `lab.py` decides when; `supervisor.py` is what runs.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from workers.lab.address import (
    Component,
    ComponentReport,
    ComponentStage,
    LabAddress,
    LabFile,
    LabNotRunning,
    read_lab_file,
    write_atomically,
)
from workers.lab.controlplane.child import is_port_free, last_lines
from workers.lab.controlplane.child_spec import LOOPBACK
from workers.lab.controlplane.errors import LabStartFailed
from workers.lab.controlplane.programs import Programs
from workers.lab.controlplane.settings import LabPorts, LabSettings, LaunchPlan, ReleaseSettings
from workers.lab.paths import LabPaths

POLL_S: Final = 0.05
END_LIMIT_S: Final = 30.0
# Below the range from which the kernel gives ports to outgoing connections (32768 and up by
# default): a port of a lab whose API server is down for a moment is then not taken.
PORT_RANGE: Final = (18000, 32000)
PORT_ATTEMPTS: Final = 200
PORT_PATIENCE_S: Final = 3.0
PORT_PAUSE_S: Final = 0.05


def address_of(paths: LabPaths, plan: LaunchPlan) -> LabAddress:
    """The address that a lab with this plan has."""
    ports, settings = plan.ports, plan.settings
    return LabAddress(
        directory=paths.directory,
        cluster=settings.cluster,
        api_url=f"https://{LOOPBACK}:{ports.api}",
        ca_file=paths.pki / "ca.crt",
        temporal_address=f"{LOOPBACK}:{ports.temporal}" if settings.temporal else "",
        temporal_ui_url=f"http://{LOOPBACK}:{ports.temporal_ui}" if settings.temporal else "",
        audit_log=paths.audit_log,
        kubeconfigs=paths.kubeconfigs,
        fleet_socket=paths.fleet_socket,
        node_monitor_grace_s=settings.node_monitor_grace_s,
    )


def remembered_plan(paths: LabPaths) -> LaunchPlan | None:
    """The plan of the directory's last start, or None."""
    try:
        return LaunchPlan.model_validate_json(paths.settings_file.read_bytes())
    except (FileNotFoundError, ValidationError):
        # One of an older version is worth no more than none: ports are chosen anew.
        return None


def wanted_settings(paths: LabPaths, named: LabSettings | None) -> LabSettings:
    """The named settings, else those of the directory's last start, else the defaults."""
    if named is not None:
        return named
    remembered = remembered_plan(paths)
    return LabSettings() if remembered is None else remembered.settings


def remember_release(paths: LabPaths, release: ReleaseSettings | None) -> None:
    """From now on this runs as pods of the lab: the one setting that a running lab takes."""
    plan = remembered_plan(paths)
    if plan is not None and plan.settings.release != release:
        settings = plan.settings.model_copy(update={"release": release})
        changed = plan.model_copy(update={"settings": settings})
        write_atomically(paths.settings_file, changed.model_dump_json(indent=2))


def make_plan(paths: LabPaths, settings: LabSettings, programs: Programs) -> LaunchPlan:
    """The plan of a new start, written down."""
    remembered = remembered_plan(paths)
    plan = LaunchPlan(
        settings=settings,
        ports=_choose_ports(settings, None if remembered is None else remembered.ports),
        programs_source=programs.source,
        programs=dict(programs.paths),
    )
    write_atomically(paths.settings_file, plan.model_dump_json(indent=2))
    return plan


def _choose_ports(settings: LabSettings, remembered: LabPorts | None) -> LabPorts:
    """The named ports, else those of the last start, else free ones."""
    chosen: set[int] = set()

    def choose(named: int | None, last: int | None) -> int:
        if named is not None:
            if not is_port_free(named):
                raise LabStartFailed(f"port {named} is taken by another process", None, ())
            port = named
        elif last is not None and _is_soon_free(last):
            port = last
        else:
            port = _free_port(chosen)
        chosen.add(port)
        return port

    return LabPorts(
        api=choose(settings.api_port, remembered.api if remembered else None),
        temporal=choose(settings.temporal_port, remembered.temporal if remembered else None),
        temporal_ui=choose(
            settings.temporal_ui_port, remembered.temporal_ui if remembered else None
        ),
        karpenter=choose(None, (remembered.karpenter or None) if remembered else None)
        if settings.karpenter
        else 0,
    )


def _is_soon_free(port: int) -> bool:
    """Whether a remembered port is free; what was killed a moment ago may still hold it."""
    deadline = time.monotonic() + PORT_PATIENCE_S
    while not is_port_free(port):
        if time.monotonic() > deadline:
            return False
        time.sleep(PORT_PAUSE_S)
    return True


def _free_port(taken: set[int]) -> int:
    for _ in range(PORT_ATTEMPTS):
        # Not seeded on purpose: labs that start at the same moment are to choose differently.
        port = random.SystemRandom().randrange(*PORT_RANGE)
        if port not in taken and is_port_free(port):
            return port
    raise LabStartFailed(f"no free port on {LOOPBACK} between {PORT_RANGE}", None, ())


def spawn_supervisor(paths: LabPaths, *, detached: bool) -> "subprocess.Popen[bytes]":
    """Start the supervisor of the plan that was written down."""
    paths.logs.mkdir(mode=0o700, exist_ok=True)
    # -P: the lab directory, where it runs, is no place to import from.
    command = [
        sys.executable,
        "-P",
        "-m",
        f"{__package__}.supervisor",
        "--lab",
        str(paths.directory),
    ]
    if not detached:
        command += ["--tied-to", str(os.getpid())]
    # Found by the child whatever the working directory: the folder that holds `workers`.
    root = str(Path(__file__).parents[3])
    search_path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    with paths.log("supervisor").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=paths.directory,
            env=os.environ | {"PYTHONPATH": search_path},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def await_ready(
    paths: LabPaths,
    awaited: Collection[Component],
    deadline: float,
    supervisor: "subprocess.Popen[bytes] | None",
) -> None:
    """Return when the awaited components are ready; one that this lab doesn't have counts as such.

    Args:
        paths: the lab's directory.
        awaited: whom to wait for; one of the others that died is an error all the same.
        deadline: on the monotonic clock.
        supervisor: the process that this start has made; None = it was there before.

    Raises:
        LabStartFailed: a component or the supervisor ended, or the time is over.
    """
    waiting_for: tuple[ComponentReport, ...] = ()
    while time.monotonic() < deadline:
        content = None
        with suppress(LabNotRunning):
            content = read_lab_file(paths.directory)
        if content is not None:
            _refuse_dead(content)
            waiting_for = tuple(
                report
                for report in content.components
                if report.component in awaited and report.stage is not ComponentStage.READY
            )
            if content.components and not waiting_for:
                return
        elif supervisor is None or supervisor.poll() is not None:
            log = paths.log("supervisor")
            raise LabStartFailed("the lab's supervisor ended", log, last_lines(log))
        time.sleep(POLL_S)
    slow = ", ".join(r.component.value for r in waiting_for) or "the supervisor"
    log = waiting_for[0].log if waiting_for else paths.log("supervisor")
    raise LabStartFailed(f"{slow}: not ready in time", log, last_lines(log))


def _refuse_dead(content: LabFile) -> None:
    for report in content.components:
        if report.stage is ComponentStage.DIED:
            raise LabStartFailed(
                f"{report.component.value} died (exit code {report.exit_code})",
                report.log,
                report.last_lines,
            )


def end_supervisor(supervisor: "subprocess.Popen[bytes]") -> None:
    """End a lab that did not become ready, with all its processes."""
    supervisor.terminate()
    try:
        supervisor.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        supervisor.kill()
        supervisor.wait()
