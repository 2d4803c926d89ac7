"""What an Xid means: the line before the table, the table total, the root before its echoes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.model.detection.fault import SEVERITY, Fault
from workflows.model.detection.verdict import APPLICATION, INTERCONNECT, NONE
from workflows.model.detection.xid import (
    XID,
    Cause,
    Recovery,
    classify_xid,
    is_echo,
    parent_of,
    recovery_of_line,
    recovery_of_number,
    verdict_of_recovery,
)

LAST_KNOWN = 176


def test_the_table_has_every_code_of_the_catalog_once() -> None:
    assert sorted(XID) == list(range(1, LAST_KNOWN + 1))


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (79, Fault.GPU_LOST),
        (143, Fault.GPU_LOST),
        (48, Fault.GPU_MEMORY_UNCORRECTABLE),
        (64, Fault.GPU_MEMORY_UNCORRECTABLE),
        (95, Fault.GPU_MEMORY_UNCORRECTABLE),
        (140, Fault.GPU_MEMORY_UNCORRECTABLE),
        (94, Fault.GPU_MEMORY_CONTAINED),
        (74, Fault.INTERCONNECT),
        (62, Fault.GPU_DRIVER),
        (109, Fault.GPU_DRIVER),
        (119, Fault.GPU_DRIVER),
        (120, Fault.GPU_DRIVER),
        (54, Fault.THERMAL),
        *((code, APPLICATION) for code in (13, 31, 32, 43, 45, 68, 69, 108, 137)),
        *((code, NONE) for code in (14, 63, 92, 121, 122, 157, 162)),
    ],
)
def test_a_code_without_words_is_judged_by_the_table(code: int, fault: str) -> None:
    assert classify_xid(code).fault == fault


@given(st.integers(), st.text(), st.sampled_from([None, *Recovery]))
def test_any_line_has_a_verdict_and_an_unknown_code_is_never_healthy(
    code: int, body: str, recovery: Recovery | None
) -> None:
    verdict = classify_xid(code, body, recovery)
    if code not in XID:
        assert (verdict.fault, verdict.status) == (Fault.DIAGNOSTIC_UNKNOWN, "Unknown")
        assert verdict.condition is not None


def test_n24_nonfatal_in_the_line_of_an_xid_145_costs_no_node() -> None:
    body = "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000)"
    assert classify_xid(145, body).fault == NONE
    assert classify_xid(145, body.replace("Nonfatal", "Fatal")).fault == Fault.INTERCONNECT


@pytest.mark.parametrize("code", range(144, 151))
@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("Fatal", Fault.INTERCONNECT),
        ("Nonfatal", NONE),
        ("Non-fatal", NONE),
        ("Degraded", Fault.INTERCONNECT),
    ],
)
def test_the_severity_word_of_an_nvlink_line_wins(code: int, word: str, fault: str) -> None:
    verdict = classify_xid(code, f"UNIT_EVENT  {word}   XC0 i0 Link 08 (0x004505c6 0x0")
    assert verdict.fault == fault
    assert verdict.condition == (INTERCONNECT if fault != NONE else None)


def test_an_nvlink_line_cut_before_its_word_is_not_known_where_both_happen() -> None:
    assert classify_xid(145, "RLW_RXP").status == "Unknown"
    assert classify_xid(149, "NETIR").fault == Fault.INTERCONNECT


@pytest.mark.parametrize(
    ("body", "recovery", "fault"),
    [
        (
            "from 0x0 (None) to 0x4 (Drain and Reset)",
            Recovery.DRAIN_AND_RESET,
            Fault.GPU_MEMORY_CONTAINED,
        ),
        ("from 0x0 (None) to 0x2 (Node Reboot Required)", Recovery.NODE_REBOOT, Fault.GPU_DRIVER),
        ("from 0x1 (GPU Reset Required) to 0x0 (None)", Recovery.NONE, NONE),
        ("from 0x0 (None) to 0x3 (Drain P2P)", Recovery.DRAIN_P2P, Fault.INTERCONNECT),
        ("from 0x0 (None) to 0x1 (A new name)", Recovery.GPU_RESET, Fault.GPU_DRIVER),
        ("from 0x0 (None) to 0x9 (Newer)", Recovery.UNREADABLE, Fault.DIAGNOSTIC_UNKNOWN),
        ("from 0x4 (Drain and Re", Recovery.UNREADABLE, Fault.DIAGNOSTIC_UNKNOWN),
        ("", Recovery.UNREADABLE, Fault.DIAGNOSTIC_UNKNOWN),
    ],
)
def test_of_an_xid_154_only_the_action_it_changes_to_counts(
    body: str, recovery: Recovery, fault: str
) -> None:
    line = f"GPU recovery action changed {body}" if body else ""
    assert recovery_of_line(line) is recovery
    assert classify_xid(154, line).fault == fault


def test_every_recovery_action_has_a_verdict_and_a_newer_number_has_too() -> None:
    assert [recovery_of_number(n) for n in range(8)] == list(Recovery)[:8]
    assert recovery_of_number(8) is recovery_of_number(-1) is Recovery.UNREADABLE
    assert verdict_of_recovery(Recovery.UNREADABLE).status == "Unknown"
    assert all(verdict_of_recovery(action) for action in Recovery)


@pytest.mark.parametrize(
    ("parent", "fault"),
    [
        (79, Fault.GPU_LOST),
        (48, Fault.GPU_MEMORY_UNCORRECTABLE),
        (13, APPLICATION),
        (45, APPLICATION),
        (9999, APPLICATION),
    ],
)
def test_an_xid_45_is_what_its_line_names_as_its_cause(parent: int, fault: str) -> None:
    body = f"Ch 00000009 caused by previous Xid {parent}"
    assert parent_of(body) == parent
    assert classify_xid(45, body).fault == fault
    assert classify_xid(45, body).certainty == "likely"


def test_a_contained_error_whose_line_wants_a_reset_now_is_not_waited_for() -> None:
    assert classify_xid(94, "Contained: SM (0x1). RST: No, D-RST: Yes").fault == (
        Fault.GPU_MEMORY_CONTAINED
    )
    assert classify_xid(94, "Contained: SM (0x1). RST: Yes, D-RST: No").fault == (
        Fault.GPU_MEMORY_UNCORRECTABLE
    )


@pytest.mark.parametrize(
    ("words", "fault", "certainty"),
    [
        ("0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0", Fault.INTERCONNECT, "certain"),
        ("0x800001, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", NONE, "certain"),
        ("0x2, 0x0, 0x0, 0x30000, 0x0, 0x0, 0x0", Fault.INTERCONNECT, "likely"),
        ("0x2, 0x0, 0x0, 0x10, 0x0, 0x0, 0x0", Fault.INTERCONNECT, "certain"),
        ("0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", Fault.INTERCONNECT, "likely"),
    ],
)
def test_the_register_words_of_an_xid_74_are_read(words: str, fault: str, certainty: str) -> None:
    verdict = classify_xid(74, f"NVLink: fatal error detected on link 14({words})")
    assert (verdict.fault, verdict.certainty) == (fault, certainty)


def test_a_context_switch_timeout_after_which_the_driver_asks_for_nothing_is_the_jobs() -> None:
    assert classify_xid(109, "Ch 8", Recovery.NONE).fault == APPLICATION
    assert classify_xid(109, "Ch 8", Recovery.GPU_RESET).fault == Fault.GPU_DRIVER


def _cause(code: int, device: str = "GPU-a") -> Cause:
    return Cause(device, code, classify_xid(code, "U Fatal X").fault)


def test_the_root_of_a_burst_is_the_gravest() -> None:
    order = [79, 48, 149, 74, 119, 109, 94, 31, 45]
    ranks = [_cause(code).rank for code in order]
    assert ranks == sorted(ranks, reverse=True)
    assert len(set(ranks)) == len(ranks)


def test_no_echo_hides_a_class_that_is_worse_than_its_root() -> None:
    for later, root in itertools.permutations(XID, 2):
        a, b = _cause(later), _cause(root)
        if is_echo(a, b) and a.fault in set(Fault):
            assert SEVERITY[Fault(a.fault)] <= SEVERITY[Fault(b.fault)]


@pytest.mark.parametrize(
    ("later", "root", "echo"),
    [
        (_cause(45), _cause(79), True),
        (_cause(45, "GPU-b"), _cause(79), True),
        (_cause(74, "GPU-b"), _cause(79), True),
        (Cause("0000:06:00", 20034, Fault.INTERCONNECT), _cause(79), True),
        (_cause(48, "GPU-b"), _cause(79), False),
        (_cause(79, "GPU-b"), _cause(79), False),
        (_cause(74, "GPU-b"), _cause(48), False),
        (_cause(79), _cause(45), False),
        (_cause(94), _cause(48), True),
    ],
)
def test_a_gpu_off_the_bus_takes_its_peers_lines_with_it(
    later: Cause, root: Cause, *, echo: bool
) -> None:
    assert is_echo(later, root) is echo
