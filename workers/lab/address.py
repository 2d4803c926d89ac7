"""lab.json: how to reach a lab, and which processes it consists of.

Owns the typed content of lab.json and the question whether its supervisor still lives.
Does not start, stop or change anything: `controlplane` does. Every process of the lab, the tests
and the commands read a lab through `read_address`.
"""

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from workers.lab.paths import LabPaths

NAMESPACE: Final = "fleetmend"


class LabNotRunning(Exception):
    """No live lab in that directory; the message names it and the remedy."""

    def __init__(self, directory: Path, reason: str) -> None:
        """Say which directory was looked at, and what was found there."""
        super().__init__(
            f"no lab is running in {directory} ({reason}); start one with: fleetmend lab up"
        )


class LabAccount(StrEnum):
    """Identities for which a lab keeps a kubeconfig."""

    ADMIN = "admin"
    WATCH = "watch"
    WORKER = "worker"
    OPERATOR = "operator"


class Component(StrEnum):
    """Processes of a lab, in the order in which they start."""

    ETCD = "etcd"
    API_SERVER = "kube-apiserver"
    CONTROLLER_MANAGER = "kube-controller-manager"
    SCHEDULER = "kube-scheduler"
    TEMPORAL = "temporal"
    KARPENTER = "karpenter"
    FLEET = "fleet"


class ComponentStage(StrEnum):
    """Where one process of the lab stands."""

    STARTING = "starting"
    READY = "ready"
    STOPPED = "stopped"  # on request
    DIED = "died"  # by itself


class ProcessId(BaseModel):
    """A process that can't be mistaken for a later one with the same number."""

    model_config = ConfigDict(frozen=True)

    pid: int
    started_ticks: int  # field 22 of /proc/PID/stat
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """The process that has this number now, or None."""
        started = _started_ticks(pid)
        return None if started is None else cls(pid=pid, started_ticks=started, boot_id=boot_id())

    def is_alive(self) -> bool:
        """Whether exactly this process still runs (a zombie does not)."""
        return self.boot_id == boot_id() and _started_ticks(self.pid) == self.started_ticks


class ComponentReport(BaseModel):
    """One process of the lab as its supervisor sees it."""

    model_config = ConfigDict(frozen=True)

    component: Component
    stage: ComponentStage
    process: ProcessId | None = None
    address: str = ""
    log: Path
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()  # of the log, when it died


class LabAddress(BaseModel):
    """How to reach one lab. Values stay the same over a restart of the lab where they can."""

    model_config = ConfigDict(frozen=True)

    directory: Path
    cluster: str
    api_url: str
    ca_file: Path
    temporal_address: str  # "" = this lab has no Temporal
    temporal_ui_url: str
    audit_log: Path
    kubeconfigs: Path
    fleet_socket: Path
    node_monitor_grace_s: float  # kubelets are to renew their Lease at least thrice within it

    @property
    def paths(self) -> LabPaths:
        """The layout of the lab's directory."""
        return LabPaths(self.directory)

    def kubeconfig(self, account: LabAccount) -> Path:
        """Path of an account's kubeconfig."""
        return self.paths.kubeconfig(account)

    def environment(self, account: LabAccount) -> Mapping[str, str]:
        """The variables that a fleetmend process needs to work on this lab as `account`."""
        return {
            "KUBECONFIG": str(self.kubeconfig(account)),
            "TEMPORAL_ADDRESS": self.temporal_address,
            "FLEETMEND_CLUSTER": self.cluster,
            "FLEETMEND_LAB": str(self.directory),
        }


class LabFile(BaseModel):
    """The whole of lab.json."""

    model_config = ConfigDict(frozen=True)

    address: LabAddress
    supervisor: ProcessId
    components: tuple[ComponentReport, ...] = ()
    ending: bool = False

    def report(self, component: Component) -> ComponentReport | None:
        """One component's report, or None if this lab has no such component."""
        return next((r for r in self.components if r.component is component), None)


def read_lab_file(directory: Path) -> LabFile:
    """lab.json of a lab whose supervisor lives.

    Raises:
        LabNotRunning: there is none, it is unreadable, or its supervisor is gone.
    """
    path = LabPaths(directory.absolute()).lab_file
    try:
        content = LabFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise LabNotRunning(directory, "it holds no lab.json") from None
    except OSError as error:
        raise LabNotRunning(directory, f"its lab.json can't be read: {error}") from error
    except ValidationError as error:
        reason = error.errors()[0]["msg"][:200]
        raise LabNotRunning(directory, f"its lab.json is damaged: {reason}") from error
    if not content.supervisor.is_alive():
        raise LabNotRunning(directory, f"its supervisor {content.supervisor.pid} is gone")
    return content


def read_address(directory: Path) -> LabAddress:
    """The address of the lab that runs in `directory`.

    Raises:
        LabNotRunning: nothing runs there; the message says how to start it.
    """
    return read_lab_file(directory).address


def boot_id() -> str:
    """This machine's boot, so that a file from before a reboot is recognised."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _started_ticks(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name may hold spaces and brackets; what follows its last bracket is regular.
    fields = stat[stat.rindex(")") + 2 :].split()
    if fields[0] in ("Z", "X"):
        return None
    return int(fields[19])


def write_atomically(path: Path, content: str, *, mode: int = 0o600) -> None:
    """Replace a small file so that a reader sees the old or the new one, never a part."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
    part.replace(path)
