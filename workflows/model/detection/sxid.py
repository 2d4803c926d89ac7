"""NVIDIA's SXid codes: what a line of the NVSwitch driver means for the node.

Owns the table of codes by how fatal they are (total: what it does not name is "cannot tell") and
the word in the line that outranks it. Reads no log (`activities/devices` does). Pure.
Sources: open-gpu-kernel-modules 595.45.04 `src/common/nvswitch` (A100 and H100 switches) and the
Fabric Manager User Guide DU-09883 v1.3, appendix D.
"""

from workflows.model.detection.fault import Fault
from workflows.model.detection.verdict import (
    INTERCONNECT,
    Verdict,
    cannot_tell,
    certain,
    likely,
    nothing,
)


def _codes(*codes: int | tuple[int, int]) -> frozenset[int]:
    """The codes given one by one or as (first, last)."""
    pairs = (code if isinstance(code, tuple) else (code, code) for code in codes)
    return frozenset(n for first, last in pairs for n in range(first, last + 1))


ALWAYS_FATAL = _codes(
    *(10003, 10006, 10008, 12020, 22003, (22010, 22011), (23001, 23017), 28005),
)
FATAL = _codes(
    *(11001, 11009, 11013, (11017, 11020), (11028, 11030), (12001, 12002), 12014, 12022),
    *((12024, 12027), (12029, 12035), 12039, 12041, 12043, 12047, (14001, 14002), 14008, 14010),
    *((14017, 14018), 15001, 15006, (15009, 15010), (15012, 15013), 15015, 15017, 15019),
    *((18018, 18020), 19004, 19009, (19013, 19015), (19018, 19023), (19026, 19028)),
    *((19030, 19033), (19036, 19039), (19046, 19048), (19050, 19054), 19056, 19058),
    *((19060, 19061), (19063, 19064), (19066, 19067), (19069, 19070), (19080, 19081), 19083),
    *((20004, 20008), 20014, (20034, 20038), 22012, (24004, 24010), (25007, 25009), 28003),
    *(29002, (29004, 29005), 30002, (30004, 30005)),
)
"""Printed as Fatal only while the error is not contained, otherwise as Non-fatal."""
NON_FATAL = _codes(
    *((10001, 10002), (10004, 10005), 10010, 11004, (11011, 11012), (11014, 11016)),
    *((11021, 11027), (11031, 11047), 12021, 12023, 12028, (12036, 12038), 12040, 12042),
    *((12044, 12046), (12048, 12051), 14007, 14009, (15002, 15003), 15008, 15011, 15018, 15020),
    *(19049, 19055, 19057, 19059, 19062, 19065, 19068, (19071, 19079), 19082, 19084),
    *((20001, 20002), (20009, 20012), (22006, 22007), 22013, (24001, 24003), (25001, 25006)),
    *(25010, (28001, 28002), 28004, 29001, 29003, 29006, 30001, 30003, 30006),
)
_NO_MESSAGE = _codes(
    *(10007, 10009, (11002, 11003), (11005, 11008), 11010, (12003, 12013), (12015, 12019)),
    *((13001, 13008), (14003, 14006), (14011, 14016), (15004, 15005), 15007, 15014, 15016),
    *((16001, 16003), (17001, 17008), (18001, 18017), (19001, 19003), (19005, 19008)),
    *((19010, 19012), (19016, 19017), (19024, 19025), 19029, (19034, 19035), (19040, 19045)),
    *(20003, 20013, (20015, 20033), (21001, 21010), (22001, 22002), (22004, 22005)),
    *((22008, 22009), (26001, 26008), (27001, 27007)),
)
KNOWN = ALWAYS_FATAL | FATAL | NON_FATAL | _NO_MESSAGE
"""Every code of the driver; those in none of the three sets above have no published fatality."""


def classify_sxid(code: int, body: str = "") -> Verdict:
    """What `code` means; the line's own "Fatal" or "Non-fatal" comes before the table.

    Args:
        code: five digits on today's switches.
        body: the line after the code; its continuation lines ("Severity 1 ...", "Data {...}")
            carry no such word and are judged by the table.
    """
    word = body.lstrip()[:9].lower()
    if word.startswith(("non-fatal", "nonfatal")):
        return nothing()
    if word.startswith("fatal"):
        return certain(Fault.INTERCONNECT, INTERCONNECT)
    if code in NON_FATAL:
        return nothing()
    if code in ALWAYS_FATAL:
        return likely(Fault.INTERCONNECT, INTERCONNECT)
    return cannot_tell(INTERCONNECT)


def is_continuation(body: str) -> bool:
    """True for the second and third line of one SXid, which belong to the first."""
    return body.lstrip().startswith(("Severity ", "Data {"))
