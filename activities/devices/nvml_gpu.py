"""What NVML says about one GPU, compared with what it said first.

Owns the questions to one GPU and their meaning: memory, thermal and power limits, links, fabric,
the driver's own recovery action. Counters are compared with their first reading, never with zero; a
counter that fell was reset. Slow is not broken: no bandwidth, clock or corrected error here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from activities.devices.fact import Fact
from activities.devices.nvml_calls import Refusal, Session
from workflows.model.detection.fault import Fault
from workflows.model.detection.verdict import INTERCONNECT, cannot_tell, certain, likely
from workflows.model.detection.xid import Recovery, recovery_of_number, verdict_of_recovery

UNCORRECTED, VOLATILE = 1, 0
"""NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC."""
MAX_LINKS: Final = 36
"""NVML_NVLINK_MAX_LINKS."""
HW_THERMAL, HW_POWER_BRAKE = 0x40, 0x80
"""nvmlClocksEventReason: what hardware does to save itself. The bit 0x8, HW slowdown, is the OR of
both on many boards and so is not looked at."""
FABRIC_COMPLETED, FABRIC_STARTING = 3, (1, 2)
FABRIC_FAULT_SHIFTS: Final = (2, 4, 6)
"""Two bits each, 1 = true: route recovery, route unhealthy, access timeout (nvml.h)."""

REFUSALS: Final = {
    Refusal.LOST: (certain(Fault.GPU_LOST), "nvml-gpu-lost", "NVML says it is lost"),
    Refusal.RESET_REQUIRED: (
        certain(Fault.GPU_DRIVER),
        "nvml-reset-required",
        "NVML says it must be reset",
    ),
    Refusal.INFOROM: (cannot_tell(), "nvml-inforom-corrupt", "its InfoROM is corrupt; inspect it"),
    Refusal.NODE: (
        certain(Fault.GPU_DRIVER),
        "nvml-irq-or-power",
        "it gets no interrupts, or too little power",
    ),
    Refusal.AMBIGUOUS: (cannot_tell(), "nvml-no-answer", "NVML gives no answer about it"),
}


@dataclass
class Baseline:
    """What a GPU said first, and what it was seen with since."""

    uuid: str
    address: str
    uncorrected: int | None = None
    uncorrected_seen: int = 0
    links_up: frozenset[int] = frozenset()
    doubts: int = 0
    """Polls in a row without an answer that can be read."""


def links_up(session: Session, handle: Any) -> frozenset[int]:
    """The links that are active; empty = none, or no NVLink."""
    states: dict[int, Any] = {}
    for link in range(MAX_LINKS):
        state = session.ask("nvmlDeviceGetNvLinkState", handle, link)
        if state is None and not states:
            break  # no NVLink at all: 35 more questions tell nothing
        states[link] = state
    return frozenset(link for link, state in states.items() if state)


def look_at(
    session: Session, handle: Any, baseline: Baseline, links: frozenset[int], usual_links: int
) -> Iterator[Fact]:
    """Everything that is wrong with one GPU that answers.

    Args:
        session: the open library.
        handle: the GPU's, of this session.
        baseline: the GPU's; kept up to date.
        links: its active links now.
        usual_links: how many most of its peers have.

    Raises:
        Refused: it stopped to answer.
    """
    yield from _memory(session, handle, baseline)
    yield from _limits(session, handle, baseline.uuid)
    yield from _links(baseline, links, usual_links)
    yield from _fabric(session, handle, baseline.uuid)
    yield from _recovery(session, handle, baseline.uuid)


def _memory(session: Session, handle: Any, baseline: Baseline) -> Iterator[Fact]:
    uuid = baseline.uuid
    grown = _grown(
        session.ask("nvmlDeviceGetTotalEccErrors", handle, UNCORRECTED, VOLATILE), baseline
    )
    if grown:
        text = f"GPU {uuid}: {grown} more uncorrectable ECC errors; contained or not says the log"
        # Contained errors count here too: without an Xid that is all that is known.
        verdict = likely(Fault.GPU_MEMORY_CONTAINED)
        yield Fact(uuid, "nvml-ecc-uncorrectable", verdict, text, is_event=True)
    rows = session.ask("nvmlDeviceGetRemappedRows", handle)
    if rows is not None and rows[3]:
        text = f"GPU {uuid}: a row could not be remapped: no spare row is left"
        yield Fact(uuid, "nvml-remap-failure", certain(Fault.GPU_MEMORY_UNCORRECTABLE), text)
    elif rows is not None and rows[2]:
        text = f"GPU {uuid}: a row waits to be remapped by a reset"
        yield Fact(uuid, "nvml-remap-pending", certain(Fault.GPU_MEMORY_CONTAINED), text)
    if session.is_over_sram_threshold(handle):
        text = f"GPU {uuid}: more SRAM errors than NVIDIA accepts"
        yield Fact(uuid, "nvml-sram-threshold", certain(Fault.GPU_MEMORY_UNCORRECTABLE), text)


def _grown(total: int | None, baseline: Baseline) -> int:
    """By how much the counter grew since its first reading, or since it was reset."""
    if total is None:
        return 0
    if baseline.uncorrected is None or total < baseline.uncorrected_seen:
        baseline.uncorrected = total
    baseline.uncorrected_seen = total
    return total - baseline.uncorrected


def _limits(session: Session, handle: Any, uuid: str) -> Iterator[Fact]:
    reasons = session.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:  # older drivers know it by its first name
        reasons = session.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
    if reasons & HW_THERMAL:
        text = f"GPU {uuid}: hardware slows it down, it is too hot"
        yield Fact(uuid, "nvml-hw-thermal", certain(Fault.THERMAL), text)
    if reasons & HW_POWER_BRAKE:
        text = f"GPU {uuid}: the power supply's brake slows it down"
        yield Fact(uuid, "nvml-power-brake", certain(Fault.THERMAL), text)


def _links(baseline: Baseline, links: frozenset[int], usual: int) -> Iterator[Fact]:
    uuid, code = baseline.uuid, "nvml-nvlink-down"
    baseline.links_up |= links
    down = sorted(baseline.links_up - links)
    if down:
        text = f"GPU {uuid}: NVLink {', '.join(map(str, down))} went down"
        yield Fact(uuid, code, certain(Fault.INTERCONNECT, INTERCONNECT), text)
    elif len(links) < usual:
        text = f"GPU {uuid}: {len(links)} NVLinks are up, its peers have {usual}"
        yield Fact(uuid, code, likely(Fault.INTERCONNECT, INTERCONNECT), text)


def _fabric(session: Session, handle: Any, uuid: str) -> Iterator[Fact]:
    fabric = session.fabric(handle)
    if fabric is None:
        return
    state, status, mask = fabric
    broken = certain(Fault.INTERCONNECT, INTERCONNECT)
    if state in FABRIC_STARTING:
        text = f"GPU {uuid}: it has not joined the NVLink fabric; see the fabric manager"
        yield Fact(uuid, "nvml-fabric-not-joined", cannot_tell(INTERCONNECT), text)
    elif state == FABRIC_COMPLETED and status != 0:
        text = f"GPU {uuid}: joining the NVLink fabric failed with NVML error {status}"
        yield Fact(uuid, "nvml-fabric-failed", broken, text)
    elif state == FABRIC_COMPLETED and any(mask >> s & 3 == 1 for s in FABRIC_FAULT_SHIFTS):
        text = f"GPU {uuid}: the NVLink fabric is unhealthy for it (mask {mask:#x})"
        yield Fact(uuid, "nvml-fabric-unhealthy", broken, text)


def _recovery(session: Session, handle: Any, uuid: str) -> Iterator[Fact]:
    number = session.recovery_action(handle)
    if not number:
        return
    action = recovery_of_number(number)
    name = f"action number {number}" if action is Recovery.UNREADABLE else action.value
    text = f"GPU {uuid}: the driver asks for: {name}"
    yield Fact(uuid, "nvml-recovery-action", verdict_of_recovery(action), text)
