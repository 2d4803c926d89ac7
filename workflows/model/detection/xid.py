"""NVIDIA's Xid codes: what a line of the GPU driver means for the node.

Owns the table of codes (total: what it does not name is "cannot tell"), the words in a line that
outrank it, and which code of a burst is the root. Reads no log (`activities/devices` does). Pure.
Sources: NVIDIA Xid catalog (docs.nvidia.com/deploy/xid-errors, capture of 2025-10-29) for actions,
open-gpu-kernel-modules 595.45.04 `nverror.h` for codes 173 to 176 and for the lines' grammar.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from workflows.model.detection.fault import SEVERITY, Fault
from workflows.model.detection.verdict import (
    APPLICATION,
    INTERCONNECT,
    NONE,
    Verdict,
    application,
    cannot_tell,
    certain,
    likely,
    nothing,
)

MAX_BODY = 1024
"""How much of a line's free text is looked at; the longest known line has 200 characters."""


class Recovery(StrEnum):
    """The driver's own verdict (Xid 154 text; NVML_GPU_RECOVERY_ACTION of nvml.h, R570+)."""

    NONE = "None"
    GPU_RESET = "GPU Reset Required"
    NODE_REBOOT = "Node Reboot Required"
    DRAIN_P2P = "Drain P2P"
    DRAIN_AND_RESET = "Drain and Reset"
    RECOVER_IMEX = "Recover IMEX Domain"
    BUS_RESET = "Bus Reset"
    SYSTEM_REBOOT = "System Reboot"
    UNREADABLE = "unreadable"


_RECOVERIES = tuple(Recovery)[:-1]  # in the order of NVML's numbers, 0 to 7

_OF_RECOVERY: Mapping[Recovery, Verdict] = MappingProxyType(
    {
        Recovery.NONE: nothing(),
        Recovery.GPU_RESET: certain(Fault.GPU_DRIVER),
        Recovery.NODE_REBOOT: certain(Fault.GPU_DRIVER),
        Recovery.DRAIN_P2P: certain(Fault.INTERCONNECT, INTERCONNECT),
        # The work on it may end first (nvml.h): so it is with a row that was contained.
        Recovery.DRAIN_AND_RESET: certain(Fault.GPU_MEMORY_CONTAINED),
        # The domain's daemon is restarted, not this node.
        Recovery.RECOVER_IMEX: cannot_tell(INTERCONNECT),
        Recovery.BUS_RESET: certain(Fault.GPU_DRIVER),
        Recovery.SYSTEM_REBOOT: certain(Fault.GPU_DRIVER),
        Recovery.UNREADABLE: cannot_tell(),
    }
)


def verdict_of_recovery(recovery: Recovery) -> Verdict:
    """What the driver's recovery action says about the GPU."""
    return _OF_RECOVERY[recovery]


def recovery_of_number(number: int) -> Recovery:
    """The action that NVML calls `number`; a newer one than these is `UNREADABLE`."""
    return _RECOVERIES[number] if 0 <= number < len(_RECOVERIES) else Recovery.UNREADABLE


def recovery_of_line(body: str) -> Recovery:
    """The action that an Xid 154 changed *to*; a line that was cut is `UNREADABLE`."""
    found = _RECOVERY_TO.search(body[:MAX_BODY])
    if found is None:
        return Recovery.UNREADABLE
    try:
        return Recovery(found["name"])
    except ValueError:
        return recovery_of_number(int(found["number"], 16))


_RECOVERY_TO = re.compile(r" to 0x(?P<number>[0-9a-fA-F]{1,8}) \((?P<name>[^)]{1,64})\)")
_SEVERITY_WORD = re.compile(r"(?:^|\s)(Fatal|Non-?fatal|Degraded)(?=\s|$)", re.IGNORECASE)
_PARENT = re.compile(r"caused by previous Xid (\d{1,4})\b")
_RESET_NOW = re.compile(r"(?<![-\w])RST: Yes\b")
_NVLINK_WORDS = re.compile(r"\((0x[0-9a-fA-F]{1,8}(?:, 0x[0-9a-fA-F]{1,8}){0,15})\)")


def _rows(verdict: Verdict, *codes: int | range) -> dict[int, Verdict]:
    flat = (n for code in codes for n in (code if isinstance(code, range) else (code,)))
    return dict.fromkeys(flat, verdict)


XID: Mapping[int, Verdict] = MappingProxyType(
    {
        # Gone from the bus, or never started. 167 (PCIe fatal timeout) has no published action.
        **_rows(certain(Fault.GPU_LOST), 79, 143),
        **_rows(likely(Fault.GPU_LOST), 167),
        # Uncorrectable memory; 64 = no spare row, 171 and 172 qualify 48, 57, 58, 90: older boards.
        **_rows(certain(Fault.GPU_MEMORY_UNCORRECTABLE), 48, 64, 95, 140, 171, 172),
        **_rows(likely(Fault.GPU_MEMORY_UNCORRECTABLE), 57, 58, 90),
        # Contained (94), or a retirement that the next reset activates (156): work may end first.
        **_rows(certain(Fault.GPU_MEMORY_CONTAINED), 94, 156),
        # Links. 144 to 150 are told by their line; without a readable one, by these rows: all that
        # is published for 149 and 150 is fatal, 144 to 148 are both.
        **_rows(certain(Fault.INTERCONNECT, INTERCONNECT), 74, 136),
        **_rows(likely(Fault.INTERCONNECT, INTERCONNECT), 149, 150, 155, 173),
        **_rows(cannot_tell(INTERCONNECT), range(144, 149), 166, 170),
        # Firmware and driver that only a reset or reboot brings back.
        **_rows(certain(Fault.GPU_DRIVER), 46, 59, 61, 62, 110, 119, 120, 151, 158, 169),
        **_rows(likely(Fault.GPU_DRIVER), 109),
        # The auxiliary power cable: no boot plugs it in.
        **_rows(certain(Fault.THERMAL), 54),
        # NVIDIA: restart the application (codes of code, channels, copy and media engines).
        **_rows(application(), 1, 8, 11, 13, 25, 31, 32, range(39, 44), 45, 60, 68, 69, 70, 71, 72),
        **_rows(application(), 75, 76, 77, 80, range(82, 87), 88, 89, range(96, 106), 108),
        **_rows(application(), range(126, 136), 137, 139, 174),
        **_rows(application(), 20, 21, 22, 27, 28, 29, 34, 35, 36, 47, 65, 73, 138),
        # NVIDIA: ignore. 63, 157: NVML's remap state is what counts; 92: corrected; 162 to 165:
        # power smoothing; 78: versions of vGPU; 122: a flash read that failed, alone a nuisance.
        **_rows(nothing(), 14, 23, 37, 38, 44, 49, 50, 52, 53, 63, 66, 67, 78, 87, 92, 93, 106),
        **_rows(nothing(), 107, 121, 122, 141, 152, 153, 157, range(160, 166), 168, 176),
        # Only its line says (the action it changed to).
        **_rows(cannot_tell(), 154),
        # In the catalog, but without an action that a machine may take ("contact support").
        **_rows(cannot_tell(), range(2, 8), 9, 10, 12, range(15, 20), 24, 26, 30, 33, 51, 55, 56),
        **_rows(cannot_tell(), 81, 91, range(111, 119), 123, 124, 125, 142, 159, 175),
    }
)
"""Every code of the catalog; a code that is not here is `cannot_tell`."""


def classify_xid(code: int, body: str = "", recovery: Recovery | None = None) -> Verdict:
    """What `code` means; the words of its line come before the table.

    Args:
        code: 1 to 4 digits.
        body: the line after the code and the process; "" = not readable.
        recovery: the action that the driver last asked for on this GPU (Xid 154); None = none seen.
    """
    body = body[:MAX_BODY]
    table = XID.get(code, cannot_tell())
    if 144 <= code <= 150:
        return _by_severity_word(body, table)
    if code == 154:
        return verdict_of_recovery(recovery_of_line(body))
    if code == 45:
        return _by_parent(body, table)
    if code == 94 and _RESET_NOW.search(body):
        return certain(Fault.GPU_MEMORY_UNCORRECTABLE)
    if code == 74:
        return _by_link_words(body, table)
    if code == 109 and recovery is Recovery.NONE:
        # Linked to 154 since R570: a driver that asks for nothing means a hung kernel of the job.
        return application()
    return table


def parent_of(body: str) -> int | None:
    """The code that a line names as its cause ("caused by previous Xid N", R575+)."""
    found = _PARENT.search(body[:MAX_BODY])
    return int(found[1]) if found else None


def _by_severity_word(body: str, table: Verdict) -> Verdict:
    found = _SEVERITY_WORD.search(body)
    if found is None:
        return table
    if found[1].lower().startswith("non"):
        return nothing()
    return certain(Fault.INTERCONNECT, INTERCONNECT)


def _by_parent(body: str, solo: Verdict) -> Verdict:
    """An effect: a parent named by the line decides, if its code alone can."""
    parent = parent_of(body)
    verdict = XID.get(parent, solo) if parent not in (None, 45) else solo
    if verdict.severity != "fatal":
        return solo
    return Verdict(verdict.fault, verdict.condition, "likely", "fatal")


_IGNORED_BITS: Mapping[int, int] = MappingProxyType({0: (1 << 0) | (1 << 23) | (1 << 30)})
_ECHO_BITS: Mapping[int, int] = MappingProxyType(
    {0: (1 << 1) | (1 << 20), 3: (1 << 16) | (1 << 17)}
)
"""Register bits of an Xid 74 by word, first = 0 (A100/H100; NVIDIA GPU debug guidelines): what may
be ignored, and what only says that the other end of the link failed."""


def _by_link_words(body: str, table: Verdict) -> Verdict:
    found = _NVLINK_WORDS.search(body)
    words = [int(word, 16) for word in found[1].split(", ")] if found else []
    left = [w & ~_IGNORED_BITS.get(i, 0) for i, w in enumerate(words)]
    if any(words) and not any(left):
        return nothing()
    own = [w & ~_ECHO_BITS.get(i, 0) for i, w in enumerate(left)]
    return table if any(own) else likely(Fault.INTERCONNECT, INTERCONNECT)


_RANK_OF_CODE: Mapping[int, int] = MappingProxyType(
    {79: 100, 48: 90, 95: 90, 140: 90, 74: 70, 119: 60, 120: 60, 109: 50, 94: 40, 45: 1, 43: 1}
)
_RANK_OF_FAULT: Mapping[str, int] = MappingProxyType(
    {
        Fault.GPU_LOST: 95,
        Fault.GPU_MEMORY_UNCORRECTABLE: 85,
        Fault.INTERCONNECT: 80,
        Fault.GPU_DRIVER: 45,
        Fault.GPU_MEMORY_CONTAINED: 35,
        Fault.THERMAL: 30,
        Fault.DIAGNOSTIC_UNKNOWN: 20,
        APPLICATION: 10,
        NONE: 0,
    }
)


@dataclass(frozen=True)
class Cause:
    """One member of a burst: the device, the Xid or SXid (0 = a text without one), its class."""

    device: str
    code: int
    fault: str

    @property
    def rank(self) -> int:
        """79 > 48, 95, 140 > 144 to 150 > 74 > 119, 120 > 109 > 94 > 13, 31 > 43, 45."""
        if self.code in _RANK_OF_CODE and self.fault != NONE:
            return _RANK_OF_CODE[self.code]
        return _RANK_OF_FAULT[self.fault]


_ECHO_ON_OTHERS = frozenset({45, 74, 20034})


def is_echo(later: Cause, root: Cause) -> bool:
    """True if `later`, in the same burst, carries no weight of its own beside `root`.

    A GPU that fell off the bus takes its peers' channels and links down with it, so 45 and 74 on
    other GPUs and SXid 20034 of a switch are its echo; on the same device all of a lower rank is.
    """
    if later.device != root.device:
        return root.code == 79 and later.code in _ECHO_ON_OTHERS
    return later.rank < root.rank and _severity(later.fault) <= _severity(root.fault)


def _severity(fault: str) -> int:
    return SEVERITY[Fault(fault)] if fault not in (APPLICATION, NONE) else -1
