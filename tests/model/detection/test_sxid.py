"""What an SXid means: the word in the line before the table, the table total."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.model.detection import sxid
from workflows.model.detection.fault import Fault
from workflows.model.detection.sxid import classify_sxid, is_continuation
from workflows.model.detection.verdict import INTERCONNECT, NONE


def test_the_tables_sets_do_not_overlap_and_hold_every_code_of_the_driver() -> None:
    sets = (sxid.ALWAYS_FATAL, sxid.FATAL, sxid.NON_FATAL, sxid._NO_MESSAGE)
    assert all(not a & b for a, b in itertools.combinations(sets, 2))
    assert [len(codes) for codes in sets] == [25, 119, 104, 151]


@given(st.sampled_from(sorted(sxid.KNOWN)), st.sampled_from(["Fatal", "Non-fatal"]))
def test_the_word_of_the_line_wins(code: int, word: str) -> None:
    verdict = classify_sxid(code, f"{word}, Link 48 LTSSM Fault Up")
    assert verdict.fault == (Fault.INTERCONNECT if word == "Fatal" else NONE)


@pytest.mark.parametrize(
    ("code", "fault", "status"),
    [
        (22013, NONE, "False"),
        (23001, Fault.INTERCONNECT, "False"),
        (20034, Fault.DIAGNOSTIC_UNKNOWN, "Unknown"),
        (10007, Fault.DIAGNOSTIC_UNKNOWN, "Unknown"),
        (99999, Fault.DIAGNOSTIC_UNKNOWN, "Unknown"),
    ],
)
def test_a_line_without_a_word_is_judged_by_the_table(code: int, fault: str, status: str) -> None:
    verdict = classify_sxid(code, "Severity 1 Engine instance 60 Sub-engine instance 00")
    assert (verdict.fault, verdict.status) == (fault, status)
    assert verdict.condition == (None if fault == NONE else INTERCONNECT)


def test_the_second_and_third_line_of_one_sxid_are_its_continuation() -> None:
    assert is_continuation("Severity 1 Engine instance 60 Sub-engine instance 00")
    assert is_continuation("Data {0x50610002, 0x10100030}")
    assert not is_continuation("Fatal, Link 48 LTSSM Fault Up")
