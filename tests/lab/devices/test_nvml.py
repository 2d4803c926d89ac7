"""The stand-in for libnvidia-ml.so.1 as the real pynvml meets it."""

import signal
import subprocess

import pytest

from tests.lab.devices.conftest import ANSWER_LIMIT_S, BOARDS, Machine
from workers.lab.devices.state import (
    Behaviour,
    Ecc,
    Fabric,
    GpuProcess,
    NvLink,
    PcieLink,
    RecoveryAction,
    RemappedRows,
)

FIRST = "n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\n"


def _value(code: str) -> str:
    """Code that tells the NVMLError's number, or what the code told."""
    body = code.strip().replace("\n", "\n    ")
    return f"try:\n    {body}\nexcept n.NVMLError as e:\n    tell(['error', e.value])"


def test_gpus_are_counted_and_named(machine: Machine) -> None:
    told = machine.ask(
        """
        n.nvmlInit()
        handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
        text = lambda v: v.decode() if isinstance(v, bytes) else v
        tell([[text(n.nvmlDeviceGetUUID(h)), text(n.nvmlDeviceGetPciInfo(h).busId),
               text(n.nvmlDeviceGetName(h)), n.nvmlDeviceGetMinorNumber(h),
               n.nvmlDeviceGetIndex(h)] for h in handles])
        """
    )
    assert told == [
        [b.uuid, f"0000{b.bus_id.upper()}", "NVIDIA H100 80GB HBM3", b.index, b.index]
        for b in BOARDS
    ]


def test_a_gpu_is_found_by_uuid_and_by_both_forms_of_its_bus_id(machine: Machine) -> None:
    told = machine.ask(
        f"""
        n.nvmlInit()
        found = [n.nvmlDeviceGetHandleByUUID(b"{BOARDS[2].uuid}"),
                 n.nvmlDeviceGetHandleByPciBusId(b"{BOARDS[2].bus_id}"),
                 n.nvmlDeviceGetHandleByPciBusId(b"0000{BOARDS[2].bus_id.upper()}")]
        tell([n.nvmlDeviceGetIndex(h) for h in found])
        """
    )
    assert told == [2, 2, 2]


def test_versions_are_the_states(machine: Machine) -> None:
    machine.devices.change_nvml(driver="570.133.20", cuda=12080)
    told = machine.ask(
        "n.nvmlInit()\n"
        "tell([n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetCudaDriverVersion_v2()])"
    )
    assert told == ["570.133.20", 12080]


@pytest.mark.parametrize(
    ("field", "value", "call", "expected"),
    [
        ("ecc", Ecc(volatile_uncorrected=3), "n.nvmlDeviceGetTotalEccErrors(h, 1, 0)", 3),
        ("ecc", Ecc(aggregate_corrected=9), "n.nvmlDeviceGetTotalEccErrors(h, 0, 1)", 9),
        ("ecc", Ecc(volatile_uncorrected=4), "n.nvmlDeviceGetMemoryErrorCounter(h, 1, 0, 2)", 4),
        (
            "remapped_rows",
            RemappedRows(corrected=1, uncorrected=2, pending=True, failure=True),
            "n.nvmlDeviceGetRemappedRows(h)",
            [1, 2, 1, 1],
        ),
        (
            "remapped_rows",
            RemappedRows(histogram=(636, 1, 1, 1, 1)),
            "n.nvmlDeviceGetRowRemapperHistogram(h).none",
            1,
        ),
        ("clocks_event_reasons", 0x48, "n.nvmlDeviceGetCurrentClocksEventReasons(h)", 0x48),
        ("temperature", 91, "n.nvmlDeviceGetTemperature(h, 0)", 91),
        ("temperature", 91, "n.nvmlDeviceGetTemperatureV(h, 0)", 91),
        ("power_mw", 650_000, "n.nvmlDeviceGetPowerUsage(h)", 650_000),
        ("pcie", PcieLink(width=8), "n.nvmlDeviceGetCurrPcieLinkWidth(h)", 8),
        ("pcie", PcieLink(generation=3), "n.nvmlDeviceGetCurrPcieLinkGeneration(h)", 3),
        ("pcie", PcieLink(replays=77), "n.nvmlDeviceGetPcieReplayCounter(h)", 77),
        ("nvlinks", (NvLink(), NvLink(active=False)), "n.nvmlDeviceGetNvLinkState(h, 1)", 0),
        ("nvlinks", (NvLink(crc_flit=5),), "n.nvmlDeviceGetNvLinkErrorCounter(h, 0, 2)", 5),
        ("mig", True, "n.nvmlDeviceGetMigMode(h)", [1, 1]),
        ("persistence", False, "n.nvmlDeviceGetPersistenceMode(h)", 0),
        (
            "recovery_action",
            RecoveryAction.NODE_REBOOT,
            "n.nvmlDeviceGetFieldValues(h, [230])[0].value.uiVal",
            2,
        ),
        (
            "processes",
            (GpuProcess(pid=4242),),
            "[p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)]",
            [4242],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "(" not in value else "",
)
def test_a_value_of_the_state_is_what_nvml_answers(
    machine: Machine, field: str, value: object, call: str, expected: object
) -> None:
    machine.devices.change_gpu(0, **{field: value})
    assert machine.ask(FIRST + f"tell({call})") == expected


@pytest.mark.parametrize("version", ["", "v2", "v3"])
def test_the_fabric_is_told_in_every_version_of_the_struct(machine: Machine, version: str) -> None:
    machine.devices.change_gpu(0, fabric=Fabric(state=2, status=999, mask=0x1A9))
    struct = f"c_nvmlGpuFabricInfo_{version + '_' if version else ''}t"
    call = "nvmlDeviceGetGpuFabricInfoV" if version else "nvmlDeviceGetGpuFabricInfo"
    mask = "f.healthMask" if version else "0x1A9"
    told = machine.ask(
        FIRST + f"f = n.{struct}()\nn.{call}(h, n.byref(f))\ntell([f.state, f.status, {mask}])"
    )
    assert told == [2, 999, 0x1A9]


def test_sram_errors_over_the_threshold_are_told(machine: Machine) -> None:
    machine.devices.change_gpu(0, sram_uncorrected=2, sram_threshold_exceeded=True)
    told = machine.ask(
        FIRST
        + "s = n.c_nvmlEccSramErrorStatus_v1_t()\n"
        + "n.nvmlDeviceGetSramEccErrorStatus(h, n.byref(s))\n"
        + "tell([s.aggregateUncParity, s.bThresholdExceeded])"
    )
    assert told == [2, 1]


def test_a_change_is_seen_by_a_process_that_runs(machine: Machine) -> None:
    with machine.start(
        FIRST + "for _ in range(2):\n    tell(n.nvmlDeviceGetTemperature(h, 0))\n    input()"
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "34\n"
        machine.devices.change_gpu(0, temperature=80)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "80\n"
        process.stdin.write("\n")
        process.stdin.close()


@pytest.mark.parametrize("field", ["ecc", "remapped_rows", "mig"])
def test_what_a_gpu_does_not_support_is_not_supported(machine: Machine, field: str) -> None:
    calls = {
        "ecc": "n.nvmlDeviceGetTotalEccErrors(h, 1, 0)",
        "remapped_rows": "n.nvmlDeviceGetRemappedRows(h)",
        "mig": "n.nvmlDeviceGetMigMode(h)",
    }
    machine.devices.change_gpu(0, **{field: None})
    assert machine.ask(FIRST + _value(f"tell({calls[field]})")) == ["error", 3]


def test_a_lost_gpu_counts_and_answers_that_it_is_lost(machine: Machine) -> None:
    machine.devices.change_gpu(1, behaviour=Behaviour.LOST)
    told = machine.ask(
        "n.nvmlInit()\nseen = [n.nvmlDeviceGetCount()]\n"
        "for i in range(4):\n"
        "    try:\n        seen.append(n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByIndex(i)))\n"
        "    except n.NVMLError_GpuIsLost:\n        seen.append('lost')\n"
        "tell(seen)"
    )
    assert told == [4, 0, "lost", 2, 3]


def test_a_handle_from_before_the_loss_answers_that_the_gpu_is_lost(machine: Machine) -> None:
    with machine.start(
        FIRST + "tell(0)\ninput()\n" + _value("tell(n.nvmlDeviceGetTemperature(h, 0))")
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "0\n"
        machine.devices.change_gpu(0, behaviour=Behaviour.LOST)
        process.stdin.write("\n")
        process.stdin.close()
        assert process.stdout.readline() == '["error", 15]\n'


def test_a_gpu_that_a_boot_missed_is_not_counted(machine: Machine) -> None:
    machine.devices.boot((BOARDS[0], *BOARDS[2:]))
    told = machine.ask(
        "n.nvmlInit()\n"
        "tell([n.nvmlDeviceGetMinorNumber(n.nvmlDeviceGetHandleByIndex(i))"
        " for i in range(n.nvmlDeviceGetCount())])"
    )
    assert told == [0, 2, 3]


def test_a_slow_gpu_takes_its_time_for_each_call(machine: Machine) -> None:
    machine.devices.change_gpu(0, slow_ms=300)
    told = machine.ask(
        FIRST
        + "import time\nb = time.monotonic()\nn.nvmlDeviceGetTemperature(h, 0)\n"
        + "tell(time.monotonic() - b)"
    )
    assert 0.3 <= told < ANSWER_LIMIT_S


def test_a_hanging_gpu_hangs_until_it_is_changed(machine: Machine) -> None:
    machine.devices.change_gpu(0, behaviour=Behaviour.HANG)
    with machine.start(FIRST + "tell(0)\ntell(n.nvmlDeviceGetTemperature(h, 0))") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        machine.devices.change_gpu(0, behaviour=Behaviour.OK)
        assert process.stdout.readline() == "34\n"


def test_a_crashing_gpu_takes_its_reader_with_it(machine: Machine) -> None:
    machine.devices.change_gpu(0, behaviour=Behaviour.CRASH)
    with machine.start(FIRST + "n.nvmlDeviceGetTemperature(h, 0)") as process:
        process.communicate(timeout=ANSWER_LIMIT_S)
    assert process.returncode == -signal.SIGSEGV


@pytest.mark.parametrize("code", [9, 18, 999])
def test_init_fails_with_the_code_it_is_given(machine: Machine, code: int) -> None:
    machine.devices.change_nvml(init_code=code)
    assert machine.ask(_value("n.nvmlInit()")) == ["error", code]


def test_init_crashes_when_the_library_does(machine: Machine) -> None:
    machine.devices.change_nvml(behaviour=Behaviour.CRASH)
    with machine.start("n.nvmlInit()") as process:
        process.communicate(timeout=ANSWER_LIMIT_S)
    assert process.returncode == -signal.SIGSEGV


@pytest.mark.parametrize(
    "call",
    [
        "n.nvmlDeviceGetCurrentClocksEventReasons(h)",
        "n.nvmlDeviceGetGpuFabricInfoV(h, n.byref(n.c_nvmlGpuFabricInfo_v2_t()))",
        "n.nvmlDeviceGetSramEccErrorStatus(h, n.byref(n.c_nvmlEccSramErrorStatus_v1_t()))",
    ],
    ids=["clocks", "fabric", "sram"],
)
def test_an_old_driver_lacks_the_newer_functions(machine: Machine, call: str) -> None:
    machine.devices.change_nvml(is_old=True, driver="470.256.02")
    assert machine.ask(FIRST + _value(f"tell({call})")) == ["error", 13]


def test_an_old_driver_has_the_older_functions_and_no_recovery_action(machine: Machine) -> None:
    machine.devices.change_nvml(is_old=True)
    told = machine.ask(
        FIRST
        + "tell([n.nvmlDeviceGetCurrentClocksThrottleReasons(h),"
        + " n.nvmlDeviceGetFieldValues(h, [230])[0].nvmlReturn])"
    )
    assert told == [0, 3]


def test_a_boot_heals_and_boards_remember(machine: Machine) -> None:
    machine.devices.change_gpu(
        0,
        behaviour=Behaviour.LOST,
        ecc=Ecc(volatile_uncorrected=1, aggregate_uncorrected=1),
        remapped_rows=RemappedRows(pending=True),
    )
    machine.devices.boot(BOARDS)
    gpu = machine.devices.gpu(0)
    assert gpu.behaviour is Behaviour.OK
    assert gpu.ecc == Ecc(aggregate_uncorrected=1)
    assert gpu.remapped_rows == RemappedRows(uncorrected=1)
