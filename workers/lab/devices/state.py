"""What the simulated devices of one node are like: the values behind NVML and DCGM.

Owns the models that are kept in `devices.json`, what a boot leaves of them, and the rendering of
NVML's drive file. Does no I/O: `devices` keeps the files, `dcgm_output` words DCGM's answers.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Annotated, Final

from pydantic import Field

from workers.lab.devices.network import RdmaDevice
from workers.lab.kubelet.spec import WireModel

DRIVER: Final = "580.95.05"
OLD_DRIVER: Final = "470.256.02"
"""The last of branch 470, without fabric, SRAM status and the recovery action."""
DCGM_VERSION: Final = "4.4.1"
NVLINKS: Final = 18
"""Of an H100 SXM."""

Count = Annotated[int, Field(ge=0)]


class Behaviour(StrEnum):
    """How a GPU, the library or a command answers."""

    OK = "ok"
    LOST = "lost"
    """Of a GPU only: NVML answers that it is lost."""
    HANG = "hang"
    """Until it is changed; what hangs meanwhile goes on then."""
    CRASH = "crash"
    """SIGSEGV in whoever asks."""


class RecoveryAction(IntEnum):
    """What NVML's field 230 asks for (nvml.h of driver 580)."""

    NONE = 0
    GPU_RESET = 1
    NODE_REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4


class Ecc(WireModel):
    """Totals of ECC errors."""

    volatile_corrected: Count = 0
    volatile_uncorrected: Count = 0
    aggregate_corrected: Count = 0
    aggregate_uncorrected: Count = 0


class RemappedRows(WireModel):
    """Row remapping, and how many banks have how many spare rows left."""

    corrected: Count = 0
    uncorrected: Count = 0
    pending: bool = False
    failure: bool = False
    histogram: tuple[Count, Count, Count, Count, Count] = (640, 0, 0, 0, 0)
    """Banks with all, most, some, few and no spare rows."""


class NvLink(WireModel):
    """One NVLink."""

    active: bool = True
    replay: Count = 0
    recovery: Count = 0
    crc_flit: Count = 0
    crc_data: Count = 0


class Fabric(WireModel):
    """Registration with the fabric manager; state 3 = completed, status 0 = success.

    The mask 0x1AA says "false" (2) in its four two-bit fields, and "nothing wrong" (1) of the
    configuration: nothing is degraded (nvml.h of driver 580).
    """

    state: Count = 3
    status: Count = 0
    mask: Count = 0x1AA
    summary: Count = 1
    clique: Count = 0
    cluster: str = Field(default="0" * 32, pattern="^[0-9a-f]{32}$")


class GpuProcess(WireModel):
    """A process that NVML shows on a GPU."""

    pid: Count
    memory: Count = 1 << 30


class PcieLink(WireModel):
    """The link of a GPU to its switch."""

    generation: Count = 5
    width: Count = 16
    max_generation: Count = 5
    max_width: Count = 16
    replays: Count = 0


class GpuState(WireModel):
    """One GPU. None where the device doesn't support a thing: NVML then says so."""

    index: Count
    """Its minor number; stays its own when an earlier GPU is missing."""
    uuid: str
    bus_id: str
    """As in sysfs: 0000:1b:00.0."""
    name: str
    serial: str
    behaviour: Behaviour = Behaviour.OK
    slow_ms: Count = 0
    ecc: Ecc | None = Ecc()
    remapped_rows: RemappedRows | None = RemappedRows()
    sram_uncorrected: Count = 0
    sram_threshold_exceeded: bool = False
    clocks_event_reasons: Count = 0
    temperature: Count = 34
    power_mw: Count = 71_000
    power_limit_mw: Count = 700_000
    pcie: PcieLink = PcieLink()
    nvlinks: tuple[NvLink, ...] = (NvLink(),) * NVLINKS
    fabric: Fabric | None = Fabric()
    mig: bool | None = False
    recovery_action: RecoveryAction | None = RecoveryAction.NONE
    persistence: bool = True
    processes: tuple[GpuProcess, ...] = ()

    def after_boot(self) -> GpuState:
        """A healthy GPU that remembers what is written into its board: aggregates and remaps."""
        ecc, rows = self.ecc, self.remapped_rows
        if ecc is not None:
            ecc = ecc.model_copy(update={"volatile_corrected": 0, "volatile_uncorrected": 0})
        if rows is not None:
            done = rows.uncorrected + rows.pending
            rows = rows.model_copy(update={"uncorrected": done, "pending": False})
        return GpuState(
            index=self.index,
            uuid=self.uuid,
            bus_id=self.bus_id,
            name=self.name,
            serial=self.serial,
            ecc=ecc,
            remapped_rows=rows,
            fabric=None if self.fabric is None else Fabric(),
            nvlinks=(NvLink(),) * len(self.nvlinks),
            mig=self.mig,
        )


class NvmlState(WireModel):
    """The driver's library and its GPUs, in the order of their index."""

    driver: str = DRIVER
    cuda: Count = 13_000
    is_old: bool = False
    """Whether the library lacks the functions that came after branch 470."""
    init_code: Count = 0
    """What nvmlInit answers: 9 = driver not loaded, 18 = library and driver don't match."""
    behaviour: Behaviour = Behaviour.OK
    """Of nvmlInit."""
    slow_ms: Count = 0
    gpus: tuple[GpuState, ...] = ()


class Manner(WireModel):
    """How one command of dcgmi behaves."""

    behaviour: Behaviour = Behaviour.OK
    ms: Count = 0
    deaf: bool = False
    """Whether it takes no notice of SIGTERM and SIGINT."""
    exit_code: int | None = None
    """None: what the real one ends with for such an answer."""


class TestStatus(StrEnum):
    """DCGM's words, and OMITTED for a GPU whose result is left out."""

    __test__ = False

    PASS = "Pass"  # noqa: S105 - DCGM's word
    FAIL = "Fail"
    WARN = "Warn"
    SKIP = "Skip"
    OMITTED = "omitted"


class Severity(IntEnum):
    """error_severity of a diagnostic's warning (dcgm_errors.h of DCGM 4)."""

    NONE = 0
    MONITOR = 1
    ISOLATE = 2
    UNKNOWN = 3
    TRIAGE = 4
    CONFIGURE = 5
    RESET = 6


class DiagResult(WireModel):
    """What one test says about one GPU; all that isn't named passes."""

    test: str
    """The plugin's name in DCGM 4: software, pcie, memory, ..."""
    gpu: Count
    status: TestStatus = TestStatus.FAIL
    text: str = "a fault made by the lab"
    error_id: Count = 14
    category: Count = 13
    severity: Severity = Severity.ISOLATE


class HealthIncident(WireModel):
    """One incident of the health watches, in dcgmi's words."""

    gpu: Count
    system: str = "Memory system"
    health: str = Field(default="Failure", pattern="^(Warning|Failure)$")
    text: str = "a fault made by the lab"


class DcgmState(WireModel):
    """The host engine."""

    version: str = DCGM_VERSION
    diag: Manner = Manner(ms=200)
    health: Manner = Manner()
    discovery: Manner = Manner()
    is_down: bool = False
    is_busy: bool = False
    """Another diagnostic runs: exit 217."""
    banner: str = ""
    """A line before the JSON."""
    results: tuple[DiagResult, ...] = ()
    incidents: tuple[HealthIncident, ...] = ()
    """On top of what NVML's values lead to."""


class DeviceState(WireModel):
    """All that is driven by files."""

    nvml: NvmlState = NvmlState()
    dcgm: DcgmState = DcgmState()
    rdma: tuple[RdmaDevice, ...] = ()
    """As a boot finds them."""


def render_nvml(state: NvmlState) -> str:
    """The drive file of the stand-in for libnvidia-ml.so.1 (native/drive.h)."""
    lines = [
        f"driver {state.driver}",
        f"nvml {state.cuda // 1000}.{state.driver}",
        f"cuda {state.cuda}",
        f"init {state.init_code}",
        f"library {state.behaviour.value}",
        f"library_slow_ms {state.slow_ms}",
    ]
    for gpu in state.gpus:
        lines += _gpu_lines(gpu)
    return "\n".join(lines) + "\n"


def _gpu_lines(gpu: GpuState) -> list[str]:
    pcie = gpu.pcie
    widest = f"{pcie.max_generation} {pcie.max_width}"
    lines = [
        f"gpu {gpu.index}",
        f"uuid {gpu.uuid}",
        f"bus {gpu.bus_id}",
        f"name {gpu.name}",
        f"serial {gpu.serial}",
        f"minor {gpu.index}",
        f"behaviour {gpu.behaviour.value}",
        f"slow_ms {gpu.slow_ms}",
        f"sram {gpu.sram_uncorrected} {gpu.sram_threshold_exceeded:d}",
        f"clocks {gpu.clocks_event_reasons}",
        f"temperature {gpu.temperature}",
        f"power {gpu.power_mw} {gpu.power_limit_mw}",
        f"pcie {pcie.generation} {pcie.width} {widest} {pcie.replays}",
        f"persistence {gpu.persistence:d}",
    ]
    lines += _optional_lines(gpu)
    lines += [
        f"link {i} {link.active:d} {link.replay} {link.recovery} {link.crc_flit} {link.crc_data}"
        for i, link in enumerate(gpu.nvlinks)
    ]
    lines += [f"process {process.pid} {process.memory}" for process in gpu.processes]
    return lines


def _optional_lines(gpu: GpuState) -> list[str]:
    lines = []
    if (ecc := gpu.ecc) is not None:
        lines.append(
            f"ecc {ecc.volatile_corrected} {ecc.volatile_uncorrected} "
            f"{ecc.aggregate_corrected} {ecc.aggregate_uncorrected}"
        )
    if (rows := gpu.remapped_rows) is not None:
        lines.append(f"remap {rows.corrected} {rows.uncorrected} {rows.pending:d} {rows.failure:d}")
        lines.append("histogram " + " ".join(str(banks) for banks in rows.histogram))
    if (fabric := gpu.fabric) is not None:
        lines.append(
            f"fabric {fabric.state} {fabric.status} {fabric.mask} {fabric.summary} "
            f"{fabric.clique} {fabric.cluster}"
        )
    if gpu.mig is not None:
        lines.append(f"mig {gpu.mig:d} {gpu.mig:d}")
    if gpu.recovery_action is not None:
        lines.append(f"recovery {gpu.recovery_action:d}")
    return lines
