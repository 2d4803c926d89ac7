"""From lines of the kernel log to readings: whose device, which class, told at once or folded.

Owns what has to be remembered between lines: addresses and UUIDs, the driver's recovery action of
each GPU, the fault that a three-line text began, and the open bursts. Reads no device;
`kernel_log.py` feeds it live, the node task `kernel-log` feeds it a part of the log.
"""

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final

from activities.devices.bursts import Bursts
from activities.devices.fact import Fact
from activities.devices.gpu_list import GpuList
from activities.devices.kernel_lines import MAX_LINE, KernelLine, Kind, read_line
from activities.devices.reading import Reading
from workflows.model.detection.fault import Fault
from workflows.model.detection.sxid import classify_sxid, is_continuation
from workflows.model.detection.verdict import (
    APPLICATION,
    INTERCONNECT,
    NONE,
    Verdict,
    cannot_tell,
    likely,
)
from workflows.model.detection.xid import (
    Cause,
    Recovery,
    classify_xid,
    parent_of,
    recovery_of_line,
)

REFRESH_GPUS_S: Final = 30.0
"""How often the list of GPUs is read again because an address is not in it."""
NAMED_FOR_S: Final = 10.0
"""How long "The NVIDIA GPU <address>" belongs to the "fallen off the bus" that follows."""
MAX_NAMES: Final = 128
MAX_UNITS: Final = 32
"""Sub-units of one code on one device that are kept apart; beyond, they count together."""

_UNIT = re.compile(r"(?:Contained|Uncontained): ([A-Za-z0-9 ]{1,24}(?:\([0-9a-fx, ]{1,24}\))?)")
_LINK = re.compile(r"\b[Ll]ink (\d{1,2})\b")
_TEXT_ONLY: Final = {
    Kind.INIT_FAILED: ("rm-init-failed", "the driver could not initialise it", likely),
    Kind.PROBE_FAILED: ("gpu-probe-failed", "the driver could not take it", likely),
    Kind.AER_FATAL: ("aer-fatal", "PCIe reported a fatal error", likely),
    Kind.SLOT_DOWN: ("pcie-link-down", "the PCIe link of its slot went down", likely),
}
"""Losses without an Xid: code, what happened, and how sure."""


class KernelReadings:
    """The memory of one kernel log.

    Args:
        list_gpus: reads the host's GPUs; called by `look`.
    """

    def __init__(self, list_gpus: Callable[[], GpuList]) -> None:
        self._list_gpus = list_gpus
        self._gpus: GpuList | None = None
        self._looked_at = 0.0
        self._uuids: dict[str, str] = {}
        self._recovery: dict[str, Recovery] = {}
        self._named = ("", 0.0)
        self._units: dict[tuple[str, str], set[str]] = {}
        self._bursts = Bursts()
        self._keys: dict[str, str] = {}
        self._noted = ""

    def look(self, now: float) -> None:
        """Read the list of GPUs: a GPU that is lost later has left it."""
        fresh = self._list_gpus()
        self._gpus = _together(self._gpus, fresh) if self._gpus else fresh
        self._looked_at = now

    def take(self, line: str, at: datetime, now: float) -> Iterator[Reading]:
        """What one line is worth telling now; the first line of a fault always is.

        Args:
            line: of the kernel, without its header.
            at: when it was written.
            now: monotonic seconds at which it is read.
        """
        known = self._keys.get(line)
        if known is not None and self._bursts.is_open(known, now):
            yield from _one_or_none(self._bursts.again(known, now))
            return
        found = read_line(line)
        if found is None:
            return
        if found.kind is Kind.UUID:
            self._remember(found)
        elif found.kind is Kind.OFF_BUS_NAMED:
            self._named = (found.pci, now)
        else:
            self._noted = ""
            yield from self._fault(found, line, at, now)
            if self._noted and found.code != 154 and len(line) <= MAX_LINE:
                self._remember_line(line)
            # Only now: these files belong to the driver, which may hang on them.
            if found.pci and not self._is_gpu(found.pci) and found.kind is not Kind.SXID:
                self._look_again(now)

    @property
    def is_quiet(self) -> bool:
        """True while no burst is open: `due` has nothing to say."""
        return self._bursts.is_empty

    def due(self, now: float) -> Iterator[Reading]:
        """Counts that have grown since they were told; ask about once a second."""
        return self._bursts.due(now)

    def lost(self, count: int, at: datetime, now: float) -> Iterator[Reading]:
        """Records were overwritten before they were read: told, and costs no node by itself."""
        many = f"{count} records" if count else "records"
        text = f"the kernel log was overrun: {many} lost; NVML and DCGM still watch"
        reading = _reading(("", "kernel-log-overrun", ""), _NO_COST, text, at)
        yield from self._told(reading, 0, now)

    def _look_again(self, now: float) -> None:
        if now - self._looked_at >= REFRESH_GPUS_S:
            self.look(now)

    def _fault(self, line: KernelLine, text: str, at: datetime, now: float) -> Iterator[Reading]:
        if line.kind is Kind.XID:
            yield from self._xid(line, at, now)
        elif line.kind is Kind.SXID:
            yield from self._sxid(line, at, now)
        elif line.kind is Kind.XID_UNREADABLE:
            said = f"an Xid whose line cannot be read: {text}"
            place = (self._device(line.pci), "xid-unreadable", "")
            yield from self._told(_reading(place, cannot_tell(), said, at), 0, now)
        elif line.kind is Kind.LINK_TRAINING:
            said = "NVLink training failed when the driver was loaded"
            place = ("", "nvlink-training", "")
            yield from self._told(_reading(place, cannot_tell(INTERCONNECT), said, at), 0, now)
        else:
            yield from self._text_only(line, at, now)

    def _xid(self, line: KernelLine, at: datetime, now: float) -> Iterator[Reading]:
        device = self._device(line.pci)
        if line.code == 154:
            self._note_recovery(device, recovery_of_line(line.body))
        verdict = classify_xid(line.code, line.body, self._recovery.get(device))
        if verdict.fault == NONE:
            return
        mig = "" if line.instance is None else f", MIG instance {line.instance}"
        said = f"Xid {line.code} on {line.pci}{mig}: {line.body or 'no text'}"
        code = line.code
        if code == 45 and verdict.severity == "fatal":
            code = parent_of(line.body) or code  # the line names its cause: one burst with it
        reading = _reading((device, f"xid-{code}", self._unit(device, line)), verdict, said, at)
        yield from self._told(reading, code, now)

    def _sxid(self, line: KernelLine, at: datetime, now: float) -> Iterator[Reading]:
        verdict = classify_sxid(line.code, line.body)
        if verdict.fault == NONE:
            return
        said = f"SXid {line.code} on NVSwitch {line.pci}: {line.body}"
        reading = _reading((line.pci, f"sxid-{line.code}", ""), verdict, said, at)
        if not (is_continuation(line.body) and self._bursts.is_open(reading.key, now)):
            yield from self._told(reading, line.code, now)

    def _text_only(self, line: KernelLine, at: datetime, now: float) -> Iterator[Reading]:
        if line.kind is Kind.OFF_BUS:
            pci = line.pci or self._named_address(now)
            # One fault with Xid 79, whichever of the two a driver prints, or both.
            place = (self._device(pci), "xid-79", "")
            said = f"GPU {pci or 'of unknown address'} has fallen off the bus"
            yield from self._told(_reading(place, classify_xid(79), said, at), 79, now)
            return
        code, happened, sure = _TEXT_ONLY[line.kind]
        for pci in self._gpus_of(line):
            said = f"GPU {pci or 'of unknown address'}: {happened}"
            place = (self._device(pci), code, "")
            yield from self._told(_reading(place, sure(Fault.GPU_LOST), said, at), 0, now)

    def _gpus_of(self, line: KernelLine) -> tuple[str, ...]:
        """The GPUs that a line of the PCI core is about; none = it is about something else."""
        gpus = self._gpus or GpuList()
        if line.kind is Kind.SLOT_DOWN:
            slotted = gpus.in_slot.get(line.body)
            return tuple(sorted(gpus.behind.get(line.pci) or ({slotted} if slotted else ())))
        if line.kind is Kind.AER_FATAL:
            below = sorted(gpus.behind.get(line.pci, ()))
            return (line.pci,) if self._is_gpu(line.pci) else tuple(below)
        return (line.pci,)

    def _is_gpu(self, pci: str) -> bool:
        return pci in self._uuids or (self._gpus is not None and pci in self._gpus.addresses)

    def _told(self, reading: Reading, code: int, now: float) -> Iterator[Reading]:
        cause = Cause(reading.device, code, reading.fault)
        yield from _one_or_none(self._bursts.note(reading, cause, now))
        self._noted = reading.key

    def _remember_line(self, line: str) -> None:
        """The short way of a flood: the same line again belongs to the same burst."""
        if len(self._keys) >= MAX_NAMES:
            self._keys.clear()
        self._keys[line] = self._noted

    def _unit(self, device: str, line: KernelLine) -> str:
        """The part of the GPU that a line names, as part of a key; "" = none, or too many."""
        found = (_LINK if line.code == 74 or 144 <= line.code <= 150 else _UNIT).search(line.body)
        if found is None:
            return ""
        unit = re.sub(r"[^a-z0-9]+", "-", found[1].lower()).strip("-")
        units = self._units.setdefault((device, f"{line.code}"), set())
        if unit not in units and len(units) >= MAX_UNITS:
            return ""
        units.add(unit)
        return unit

    def _device(self, pci: str) -> str:
        uuid = self._uuids.get(pci) or (self._gpus.uuids.get(pci, "") if self._gpus else "")
        return uuid or pci

    def _named_address(self, now: float) -> str:
        pci, named_at = self._named
        self._named = ("", 0.0)
        return pci if now - named_at <= NAMED_FOR_S else ""

    def _remember(self, line: KernelLine) -> None:
        if line.pci in self._uuids or len(self._uuids) < MAX_NAMES:
            self._uuids[line.pci] = line.body

    def _note_recovery(self, device: str, recovery: Recovery) -> None:
        if device in self._recovery or len(self._recovery) < MAX_NAMES:
            self._recovery[device] = recovery


def _one_or_none(reading: Reading | None) -> Iterator[Reading]:
    if reading is not None:
        yield reading


_NO_COST: Final = Verdict(APPLICATION, None, "certain", "warning")


def _reading(place: tuple[str, str, str], verdict: Verdict, text: str, at: datetime) -> Reading:
    device, code, unit = place
    is_event = verdict.fault != APPLICATION
    return Fact(device, code, verdict, text, unit, is_event=is_event).reading(at)


def _together(old: GpuList, new: GpuList) -> GpuList:
    known = [part for part in (old.on_bus, new.on_bus) if part is not None]
    return GpuList(
        uuids={**old.uuids, **{pci: uuid for pci, uuid in new.uuids.items() if uuid}},
        on_bus=frozenset().union(*known) if known else None,
        behind={**old.behind, **new.behind},
        in_slot={**old.in_slot, **new.in_slot},
    )
