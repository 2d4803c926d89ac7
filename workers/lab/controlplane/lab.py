"""Starting, finding, inspecting and ending a lab.

Owns what a person or a test does to a lab as a whole, and `Lab`, its handle for fault tests. The
processes belong to the supervisor (`supervisor.py`), which this module starts and talks to; what
is installed in the fresh cluster is `install.py`'s.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from filelock import FileLock, Timeout

from workers.lab.address import (
    Component,
    ComponentReport,
    ComponentStage,
    LabAddress,
    LabFile,
    LabNotRunning,
    ProcessId,
    read_lab_file,
)
from workers.lab.controlplane.build import BuildListener
from workers.lab.controlplane.child import last_lines
from workers.lab.controlplane.control import ControlRequest, LabCommand, LabSignal, lab_control
from workers.lab.controlplane.errors import LabError, LabStartFailed
from workers.lab.controlplane.install import install, is_installed
from workers.lab.controlplane.launch import (
    address_of,
    await_ready,
    end_supervisor,
    make_plan,
    remember_release,
    remembered_plan,
    spawn_supervisor,
    wanted_settings,
)
from workers.lab.controlplane.programs import CONTROL_PLANE, Announce, find_programs
from workers.lab.controlplane.progress import announce_on_terminal, build_on_terminal
from workers.lab.controlplane.release import ensure_system_node
from workers.lab.controlplane.settings import LabSettings
from workers.lab.paths import LabPaths

POLL_S: Final = 0.05
STOP_LIMIT_S: Final = 30.0
LOCK_LIMIT_S: Final = 7500.0  # the holder may be building the programs


@dataclass(frozen=True)
class ComponentStatus:
    """One process of a lab, as seen from outside."""

    report: ComponentReport
    rss_mib: float | None  # None = it doesn't run
    is_frozen: bool  # by SIGSTOP


@dataclass(frozen=True)
class LabStatus:
    """A running lab."""

    address: LabAddress
    supervisor: ProcessId
    components: tuple[ComponentStatus, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every component is ready and none is frozen."""
        return all(
            c.report.stage is ComponentStage.READY and not c.is_frozen for c in self.components
        )


@dataclass(frozen=True)
class StartListeners:
    """Who is told about a start that takes longer: by default standard error."""

    announce: Announce = announce_on_terminal
    build: BuildListener = build_on_terminal


def start_lab(
    directory: Path,
    settings: LabSettings | None = None,
    *,
    detached: bool,
    listeners: StartListeners | None = None,
) -> LabAddress:
    """Start the lab of a directory, or find the one that runs there; returns when it is ready.

    Ready: the API server is, the manifests are installed and act, namespace fleetmend has its
    default ServiceAccount, Temporal answers and knows the search attributes.

    Args:
        directory: the lab's own directory; it is made, and survives `stop_lab`.
        settings: None = those of the directory's last start, else the defaults. A lab that runs
            already keeps its own, but for `release`, if that is named.
        detached: True = the lab outlives this process; False = it ends when this process ends.
        listeners: who is told about passed-over programs and a build.

    Raises:
        LabStartFailed: something did not become ready; the message shows the end of its log, and
            nothing that this call started is left running.
        ProgramsUnavailable, BuildFailed: there are no programs to run.
    """
    if not sys.platform.startswith("linux"):
        raise LabError("the lab needs Linux: it ties processes together by the kernel's means")
    paths = LabPaths(directory.absolute())
    paths.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _start_lock(paths):
        running = _running(paths)
        if running is not None:
            if settings is not None and "release" in settings.model_fields_set:
                remember_release(paths, settings.release)
            _finish_start(running.address, None)
            return running.address
        told = listeners or StartListeners()
        wanted = wanted_settings(paths, settings)
        programs = find_programs(told.announce, told.build)
        if wanted.karpenter:
            programs = programs.with_karpenter(told.build)
        plan = make_plan(paths, wanted, programs)
        paths.installed_file.unlink(missing_ok=True)
        supervisor = spawn_supervisor(paths, detached=detached)
        address = address_of(paths, plan)
        try:
            _finish_start(address, supervisor)
        except BaseException:
            end_supervisor(supervisor)
            raise
    return address


def stop_lab(directory: Path) -> None:
    """End the lab of a directory with all its processes; its files stay.

    Raises:
        LabNotRunning: nothing runs there.
    """
    paths = LabPaths(directory.absolute())
    content = read_lab_file(paths.directory)
    with suppress(LabNotRunning):
        lab_control(paths.directory, ControlRequest(command=LabCommand.SHUTDOWN))
    deadline = time.monotonic() + STOP_LIMIT_S
    while content.supervisor.is_alive():
        if time.monotonic() > deadline:
            # Its children are tethered to it.
            with suppress(ProcessLookupError):
                os.kill(content.supervisor.pid, signal.SIGKILL)
            break
        time.sleep(POLL_S)


def lab_status(directory: Path) -> LabStatus:
    """Every process of the lab that runs in a directory.

    Raises:
        LabNotRunning: nothing runs there.
    """
    content = read_lab_file(directory)
    return LabStatus(
        address=content.address,
        supervisor=content.supervisor,
        components=tuple(_component_status(report) for report in content.components),
    )


@dataclass(frozen=True)
class Lab:
    """Handle on a running lab for tests that disturb it. Each call returns when it is done."""

    directory: Path

    @property
    def address(self) -> LabAddress:
        """How to reach it.

        Raises:
            LabNotRunning: it has ended.
        """
        return read_lab_file(self.directory).address

    def status(self) -> LabStatus:
        """Every process of it."""
        return lab_status(self.directory)

    def kill(self, component: Component) -> None:
        """SIGKILL a component; it is gone afterwards."""
        self._ask(LabCommand.KILL, component)

    def stop_component(self, component: Component) -> None:
        """End a component in order; it is gone afterwards."""
        self._ask(LabCommand.STOP, component)

    def start(self, component: Component) -> None:
        """Start a component that was ended: same data, same port; it is ready afterwards."""
        self._ask(LabCommand.START, component)

    def restart(self, component: Component) -> None:
        """Kill and start a component: same data, same port; it is ready afterwards."""
        self._ask(LabCommand.RESTART, component)

    def stop_signal(self, component: Component) -> None:
        """Freeze a component (SIGSTOP): it keeps its connections and answers nothing."""
        self._ask(LabCommand.SIGNAL, component, LabSignal.STOP)

    def continue_signal(self, component: Component) -> None:
        """Thaw a frozen component (SIGCONT)."""
        self._ask(LabCommand.SIGNAL, component, LabSignal.CONTINUE)

    def stop(self) -> None:
        """End the whole lab."""
        stop_lab(self.directory)

    def _ask(
        self, command: LabCommand, component: Component, number: LabSignal | None = None
    ) -> None:
        request = ControlRequest(command=command, component=component, signal=number)
        lab_control(self.directory, request)


@contextmanager
def _start_lock(paths: LabPaths) -> Iterator[None]:
    lock = FileLock(paths.start_lock)
    try:
        lock.acquire(timeout=LOCK_LIMIT_S)
    except Timeout:
        raise LabStartFailed(
            f"another start holds {paths.start_lock} for too long", None, ()
        ) from None
    try:
        yield
    finally:
        lock.release()


def _running(paths: LabPaths) -> LabFile | None:
    """The lab that runs here; waits for one that is just ending."""
    deadline = time.monotonic() + STOP_LIMIT_S
    while True:
        try:
            content = read_lab_file(paths.directory)
        except LabNotRunning:
            return None
        if not content.ending:
            return content
        if time.monotonic() > deadline:
            raise LabStartFailed(
                f"the lab in {paths.directory} has begun to end, but its supervisor "
                f"{content.supervisor.pid} still runs",
                paths.log("supervisor"),
                last_lines(paths.log("supervisor")),
            )
        time.sleep(POLL_S)


def _finish_start(address: LabAddress, supervisor: "subprocess.Popen[bytes] | None") -> None:
    paths = address.paths
    plan = remembered_plan(paths)
    settings = LabSettings() if plan is None else plan.settings
    deadline = time.monotonic() + settings.ready_timeout_s
    # Temporal and the simulated nodes' process still load while the manifests are installed.
    await_ready(paths, CONTROL_PLANE, deadline, supervisor)
    if not is_installed(address, settings.deploy, settings.release):
        install(address, settings.deploy, settings.release)
    await_ready(paths, tuple(Component), deadline, supervisor)
    if settings.release is not None and settings.fleet:
        ensure_system_node(address)


def _component_status(report: ComponentReport) -> ComponentStatus:
    if report.process is None or not report.process.is_alive():
        return ComponentStatus(report, None, is_frozen=False)
    try:
        process = psutil.Process(report.process.pid)
        return ComponentStatus(
            report,
            rss_mib=process.memory_info().rss / 2**20,
            is_frozen=process.status() == psutil.STATUS_STOPPED,
        )
    except psutil.Error:
        return ComponentStatus(report, None, is_frozen=False)
