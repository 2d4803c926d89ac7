"""Lines of the kernel log that speak of GPUs, NVSwitches and the PCI path to them.

Owns the grammar of those lines over the driver's generations (open-gpu-kernel-modules, tags 515 to
595; PCI port drivers of Linux 5.x and 6.x). Says what a line states, not what it means: that is
`workflows.model.detection.xid` and `sxid`. Pure; matches anywhere in a line, never at its start.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

MAX_LINE = 1024
"""How much of a line is looked at."""

_ADDRESS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}"
_AT = rf"\((?:PCI:)?(?P<pci>{_ADDRESS})(?:\.[0-7])?"
_XID = re.compile(
    rf"(?<!S)Xid {_AT}(?: GPU-I:(?P<gi>\d{{1,4}}))?(?: GPU-CI:(?P<ci>\d{{1,4}}))?\): "
    r"(?P<code>\d{1,4})(?![\d])(?P<rest>.*)",
    re.DOTALL,
)
_XID_CUT = re.compile(rf"NVRM: Xid (?:{_AT})?")
_PROCESS = re.compile(r"pid='?(?P<pid>[^,']*)'?(?:, name=(?P<name>.*?))?(?:, |$)")
_SXID = re.compile(rf"SXid {_AT}\): (?P<code>\d{{1,6}}), (?P<body>.*)", re.DOTALL)
_UUID = re.compile(
    rf"GPU at PCI:(?P<pci>{_ADDRESS})(?:\.[0-7])?: (?P<uuid>GPU-[0-9A-Za-z-]{{8,64}})"
)
_OFF_BUS = re.compile(rf"GPU (?P<pci>{_ADDRESS})(?:\.[0-7])?: GPU has fallen off the bus")
_OFF_BUS_NAMED = re.compile(rf"The NVIDIA GPU (?P<pci>{_ADDRESS})")
_OFF_BUS_LAST = "fallen off the bus and is not responding to commands"
_INIT_FAILED = re.compile(rf"(?:GPU (?P<pci>{_ADDRESS})\S* )?RmInitAdapter failed")
_PROBE_FAILED = re.compile(
    rf"nvidia: probe of (?P<old>{_ADDRESS})\.[0-7] failed with error"
    rf"|nvidia (?P<new>{_ADDRESS})\.[0-7]: probe with driver nvidia failed with error"
)
_AER_FATAL = re.compile(
    r"AER: Uncorrect(?:ed|able) \(Fatal\) error (?:message )?received(?: from)?:? "
    rf"(?P<pci>{_ADDRESS})"
)
_SLOT_DOWN = re.compile(
    rf"(?P<pci>{_ADDRESS})\.[0-7]\S* pciehp: Slot\((?P<slot>[^)]{{1,32}})\): "
    r"(?:Link Down|Card not present)"
)
_MARKS = re.compile(rb"Xid|NVRM|AER: U|pciehp|nvidia")


class Kind(StrEnum):
    """What a line states."""

    XID = "xid"
    XID_UNREADABLE = "xid-unreadable"
    SXID = "sxid"
    UUID = "uuid"
    OFF_BUS = "off-bus"
    OFF_BUS_NAMED = "off-bus-named"
    INIT_FAILED = "init-failed"
    PROBE_FAILED = "probe-failed"
    AER_FATAL = "aer-fatal"
    SLOT_DOWN = "slot-down"
    LINK_TRAINING = "link-training"


@dataclass(frozen=True)
class KernelLine:
    """One line that was understood.

    Attributes:
        pci: "dddd:bb:dd" in lower case; of a slot, of its port; "" = the line has none.
        code: of an Xid or SXid, else 0.
        body: of an Xid or SXid, the text after code and process; of a slot, its name; of a UUID
            line, the UUID.
        instance: the MIG GPU instance; None = the whole GPU.
    """

    kind: Kind
    pci: str = ""
    code: int = 0
    body: str = ""
    instance: int | None = None


def is_of_interest(text: bytes) -> bool:
    """True if `read_line` may find something in these bytes; cheap, for floods of other lines."""
    return _MARKS.search(text) is not None


def read_line(line: str) -> KernelLine | None:
    """What `line` states; None = nothing about these devices."""
    return _read(line[:MAX_LINE])


def bus_address(text: str) -> str:
    """The form "dddd:bb:dd" of any PCI address ("00000000:9B:00.0"); "" if it is none."""
    found = re.fullmatch(rf"({_ADDRESS})(?:\.[0-7])?", text.strip())
    return _address(found[1]) if found else ""


@lru_cache(maxsize=128)
def _read(line: str) -> KernelLine | None:
    if "Xid" in line:
        return _xid(line) if _SXID.search(line) is None else _sxid(line)
    if "NVRM" in line:
        return _nvrm(line)
    for kind, pattern in ((Kind.AER_FATAL, _AER_FATAL), (Kind.SLOT_DOWN, _SLOT_DOWN)):
        found = pattern.search(line)
        if found:
            body = found["slot"] if kind is Kind.SLOT_DOWN else ""
            return KernelLine(kind, _address(found["pci"]), body=body)
    found = _PROBE_FAILED.search(line)
    if found:
        return KernelLine(Kind.PROBE_FAILED, _address(found["old"] or found["new"]))
    return None


def _xid(line: str) -> KernelLine | None:
    found = _XID.search(line)
    if found is None:
        cut = _XID_CUT.search(line)
        return KernelLine(Kind.XID_UNREADABLE, _address(cut["pci"] or "")) if cut else None
    rest = found["rest"]
    body = rest[2:] if rest.startswith(", ") else ""
    process = _PROCESS.match(body)
    return KernelLine(
        Kind.XID,
        _address(found["pci"]),
        int(found["code"]),
        body[process.end() :] if process else body,
        int(found["gi"]) if found["gi"] else None,
    )


def _sxid(line: str) -> KernelLine | None:
    found = _SXID.search(line)
    if found is None:
        return None
    return KernelLine(Kind.SXID, _address(found["pci"]), int(found["code"]), found["body"])


def _nvrm(line: str) -> KernelLine | None:
    found = _UUID.search(line)
    if found:
        return KernelLine(Kind.UUID, _address(found["pci"]), body=found["uuid"])
    for kind, pattern in (
        (Kind.OFF_BUS, _OFF_BUS),
        (Kind.OFF_BUS_NAMED, _OFF_BUS_NAMED),
        (Kind.INIT_FAILED, _INIT_FAILED),
    ):
        found = pattern.search(line)
        if found:
            return KernelLine(kind, _address(found["pci"] or ""))
    if _OFF_BUS_LAST in line:
        return KernelLine(Kind.OFF_BUS)
    if "Failed to update Rx Detect Link mask" in line:
        return KernelLine(Kind.LINK_TRAINING)
    return None


def _address(text: str) -> str:
    """Lower case, and the domain with the kernel's four digits unless it has more."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0').zfill(4)}:{rest}" if rest else ""
