"""NVML through the real pynvml, over a library that is driven: what each state of a GPU tells."""

import signal

import pytest

from tests.activities.devices.conftest import Poller, Pollers
from tests.harness.waiting import wait_until
from tests.lab.devices.conftest import BOARDS, Machine
from workers.lab.devices.state import (
    Behaviour,
    Ecc,
    Fabric,
    NvLink,
    RecoveryAction,
    RemappedRows,
)

SETUP = "from activities.devices.nvml import NvmlSource\nsource = NvmlSource(root)"
FIRST = BOARDS[0].uuid


@pytest.fixture
def nvml(pollers: Pollers) -> Poller:
    """A source that has read a healthy machine once."""
    poller = pollers.start(SETUP)
    assert poller.poll() == []
    return poller


def _only(nvml: Poller) -> tuple[str, str, str, str]:
    (told,) = nvml.poll()
    return told.device, told.code, told.fault, told.status


def test_a_lost_gpu_is_lost_by_name_and_the_others_are_looked_at(
    nvml: Poller, machine: Machine
) -> None:
    machine.devices.change_gpu(0, behaviour=Behaviour.LOST)
    machine.devices.change_gpu(1, clocks_event_reasons=0x40)
    told = {(t.device, t.code, t.fault) for t in nvml.poll()}
    assert told == {
        (FIRST, "nvml-gpu-lost", "gpu-lost"),
        (BOARDS[1].uuid, "nvml-hw-thermal", "thermal"),
    }
    machine.devices.change_gpu(0, behaviour=Behaviour.OK)
    assert nvml.codes() == ["nvml-hw-thermal"]


def test_a_gpu_that_was_lost_before_the_agent_came_is_lost(
    pollers: Pollers, machine: Machine
) -> None:
    machine.devices.change_gpu(2, behaviour=Behaviour.LOST)
    (told,) = pollers.start(SETUP).poll()
    assert (told.code, told.fault, told.condition) == ("nvml-gpu-lost", "gpu-lost", "GPUHealthy")
    assert told.device in {BOARDS[2].uuid, "0000:1d:00"}


def test_a_gpu_that_the_boot_missed_is_missed_by_count(pollers: Pollers, machine: Machine) -> None:
    machine.devices.boot(BOARDS[1:])
    setup = SETUP.replace("(root)", "(root, 4)")
    (told,) = pollers.start(setup).poll()
    assert (told.device, told.code, told.fault) == ("", "nvml-gpu-count", "gpu-lost")
    assert "3 of 4" in told.text


def test_uncorrectable_errors_are_compared_with_the_first_reading_not_with_zero(
    pollers: Pollers, machine: Machine
) -> None:
    machine.devices.change_gpu(0, ecc=Ecc(volatile_uncorrected=7))
    nvml = pollers.start(SETUP)
    assert nvml.poll() == []
    machine.devices.change_gpu(0, ecc=Ecc(volatile_uncorrected=9))
    (told,) = nvml.poll()
    assert (told.code, told.lasting, "2 more" in told.text) == (
        "nvml-ecc-uncorrectable",
        True,
        True,
    )
    machine.devices.change_gpu(0, ecc=Ecc(volatile_uncorrected=0))
    assert nvml.poll() == [], "a counter that fell was reset"
    machine.devices.change_gpu(0, ecc=Ecc(volatile_uncorrected=1))
    assert nvml.codes() == ["nvml-ecc-uncorrectable"]


@pytest.mark.parametrize(
    ("change", "code", "fault", "status"),
    [
        (
            {"remapped_rows": RemappedRows(failure=True, pending=True)},
            "nvml-remap-failure",
            "gpu-memory-uncorrectable",
            "False",
        ),
        (
            {"remapped_rows": RemappedRows(pending=True)},
            "nvml-remap-pending",
            "gpu-memory-contained",
            "False",
        ),
        (
            {"sram_threshold_exceeded": True},
            "nvml-sram-threshold",
            "gpu-memory-uncorrectable",
            "False",
        ),
        ({"clocks_event_reasons": 0x48}, "nvml-hw-thermal", "thermal", "False"),
        ({"clocks_event_reasons": 0x80}, "nvml-power-brake", "thermal", "False"),
        (
            {"fabric": Fabric(state=2)},
            "nvml-fabric-not-joined",
            "diagnostic-unknown",
            "Unknown",
        ),
        ({"fabric": Fabric(status=999)}, "nvml-fabric-failed", "interconnect", "False"),
        ({"fabric": Fabric(mask=0x19A)}, "nvml-fabric-unhealthy", "interconnect", "False"),
        (
            {"recovery_action": RecoveryAction.GPU_RESET},
            "nvml-recovery-action",
            "gpu-driver",
            "False",
        ),
        (
            {"recovery_action": RecoveryAction.DRAIN_AND_RESET},
            "nvml-recovery-action",
            "gpu-memory-contained",
            "False",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_gpu_says_is_told_and_no_longer_when_it_no_longer_says_it(
    nvml: Poller, machine: Machine, change: dict[str, object], code: str, fault: str, status: str
) -> None:
    before = machine.devices.gpu(0)
    machine.devices.change_gpu(0, **change)
    assert _only(nvml) == (FIRST, code, fault, status)
    machine.devices.change_gpu(0, **{name: getattr(before, name) for name in change})
    assert nvml.poll() == []


@pytest.mark.parametrize(
    "change",
    [
        {"clocks_event_reasons": 0x1 | 0x4 | 0x20},
        {"ecc": Ecc(volatile_corrected=1_000_000, aggregate_uncorrected=5)},
        {"remapped_rows": RemappedRows(corrected=3, uncorrected=1)},
        {"fabric": Fabric(state=0, status=3)},
        {
            "ecc": None,
            "remapped_rows": None,
            "fabric": None,
            "recovery_action": None,
            "nvlinks": (),
        },
    ],
    ids=["slow, not broken", "corrected", "remapped long ago", "no fabric", "supports nothing"],
)
def test_what_is_no_fault_is_not_told(
    pollers: Pollers, machine: Machine, change: dict[str, object]
) -> None:
    machine.devices.change_gpu(0, **change)
    if change.get("nvlinks") == ():
        for gpu in range(1, len(BOARDS)):
            machine.devices.change_gpu(gpu, nvlinks=())
    nvml = pollers.start(SETUP)
    assert [nvml.poll(), nvml.poll()] == [[], []]


def _links(down: int) -> tuple[NvLink, ...]:
    return (*(NvLink(),) * (18 - down), *(NvLink(active=False),) * down)


def test_a_link_that_went_down_is_told_with_its_number(nvml: Poller, machine: Machine) -> None:
    machine.devices.change_gpu(0, nvlinks=_links(1))
    (told,) = nvml.poll()
    assert (told.code, told.fault) == ("nvml-nvlink-down", "interconnect")
    assert (told.condition, "NVLink 17 went down" in told.text) == ("InterconnectHealthy", True)


def test_a_link_that_was_down_before_the_agent_came_is_seen_beside_the_peers(
    pollers: Pollers, machine: Machine
) -> None:
    machine.devices.change_gpu(0, nvlinks=_links(2))
    (told,) = pollers.start(SETUP).poll()
    assert (told.device, told.certainty) == (FIRST, "likely")
    assert "its peers have 18" in told.text


def test_an_old_driver_lacks_much_and_nothing_is_wrong(pollers: Pollers, machine: Machine) -> None:
    machine.devices.change_nvml(is_old=True, driver="470.256.02")
    nvml = pollers.start(SETUP)
    assert nvml.poll() == []
    machine.devices.change_gpu(0, clocks_event_reasons=0x40)
    assert nvml.codes() == ["nvml-hw-thermal"], "under the name that it knows"


@pytest.mark.parametrize(
    ("code", "words"),
    [(9, "driver is not loaded"), (18, "different versions"), (999, "error 999")],
)
def test_d40_a_driver_that_does_not_start_cannot_tell_until_it_does(
    pollers: Pollers, machine: Machine, code: int, words: str
) -> None:
    machine.devices.change_nvml(init_code=code)
    nvml = pollers.start(SETUP)
    assert words in nvml.refusal()
    assert words in nvml.refusal()
    machine.devices.change_nvml(init_code=0)
    assert nvml.poll() == []


def test_an_absent_library_cannot_tell(pollers: Pollers) -> None:
    assert "libnvidia-ml.so.1 is not found" in pollers.start(SETUP, LD_LIBRARY_PATH="").refusal()


def test_d43_a_crash_in_the_library_is_the_childs_alone(nvml: Poller, machine: Machine) -> None:
    machine.devices.change_gpu(0, behaviour=Behaviour.CRASH)
    nvml.ask()
    assert nvml.process.wait(20) == -signal.SIGSEGV


_DOUBT = """
import pynvml
inits, real = [], (pynvml.nvmlInit, pynvml.nvmlDeviceGetTotalEccErrors)
def init():
    inits.append(1)
    real[0]()
def ecc(*arguments):
    code = root / "code"
    if code.exists():
        (root / "inits").write_text(str(len(inits)))
        raise pynvml.NVMLError(int(code.read_text()))
    return real[1](*arguments)
pynvml.nvmlInit, pynvml.nvmlDeviceGetTotalEccErrors = init, ecc
"""
"""The real pynvml, with one function that fails with the number in a file."""


def test_an_unknown_error_is_a_fault_only_when_a_fresh_session_meets_it_too(
    pollers: Pollers, machine: Machine
) -> None:
    nvml, root = pollers.start(_DOUBT + SETUP), machine.devices.root
    assert nvml.poll() == []
    (root / "code").write_text("999")
    assert {(t.code, t.fault, t.status) for t in nvml.poll()} == {
        ("nvml-no-answer", "diagnostic-unknown", "Unknown")
    }
    assert {(t.code, t.fault, t.status) for t in nvml.poll()} == {
        ("nvml-no-answer", "gpu-driver", "False")
    }
    assert int((root / "inits").read_text()) == 2
    (root / "code").unlink()
    assert nvml.poll() == []


@pytest.mark.parametrize(
    ("number", "code", "fault"),
    [
        (16, "nvml-reset-required", "gpu-driver"),
        (11, "nvml-irq-or-power", "gpu-driver"),
        (14, "nvml-inforom-corrupt", "diagnostic-unknown"),
    ],
)
def test_an_error_of_a_gpu_is_what_its_number_says(
    pollers: Pollers, machine: Machine, number: int, code: str, fault: str
) -> None:
    nvml = pollers.start(_DOUBT + SETUP)
    (machine.devices.root / "code").write_text(str(number))
    assert {(told.code, told.fault) for told in nvml.poll()} == {(code, fault)}


@pytest.mark.parametrize("number", [3, 13, 21, 25])
def test_a_feature_that_is_absent_is_no_fault(
    pollers: Pollers, machine: Machine, number: int
) -> None:
    nvml = pollers.start(_DOUBT + SETUP)
    (machine.devices.root / "code").write_text(str(number))
    assert nvml.poll() == []


def test_an_agent_that_may_not_ask_cannot_tell(pollers: Pollers, machine: Machine) -> None:
    nvml = pollers.start(_DOUBT + SETUP)
    (machine.devices.root / "code").write_text("4")
    assert "may not ask" in nvml.refusal()


def test_a_hang_in_the_library_is_the_childs_alone(nvml: Poller, machine: Machine) -> None:
    machine.devices.change_gpu(0, behaviour=Behaviour.HANG)
    nvml.ask()
    assert nvml.process.poll() is None
    machine.devices.change_gpu(0, behaviour=Behaviour.OK)
    wait_until(lambda: nvml.process.poll() is None, 5, "it lives")
    assert nvml.process.stdout is not None
    assert nvml.process.stdout.readline() == "[]\n"
