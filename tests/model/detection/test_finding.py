"""The findings annotation: hostile text in, bounded findings or one named error out."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.model.views import ANY_JSON, TEXT, finding, mutated, report
from workflows.model.detection.finding import (
    MAX_FINDINGS,
    MAX_FINDINGS_BYTES,
    MAX_TEXT,
    FindingsError,
    parse_findings,
    printable,
)


def test_findings_are_read_in_the_agents_order() -> None:
    found = parse_findings(report("boot-7", finding(id="a"), finding(id="b", device="")))
    assert [f.id for f in found] == ["a", "b"]
    assert {f.boot_id for f in found} == {"boot-7"}
    assert found[1].device == ""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("no json", "not JSON", id="no-json"),
        pytest.param("[]", '"v": 1', id="a-list"),
        pytest.param('{"v": 2}', '"v": 1', id="another-version"),
        pytest.param('{"v": 1, "findings": []}', "'boot'", id="no-boot"),
        pytest.param('{"v": 1, "boot": "b"}', "findings", id="no-findings"),
        pytest.param(report("b", finding())[:-3], "not JSON", id="cut"),
        pytest.param("[" * 8000, "not JSON", id="deeply-nested"),
        pytest.param("x" * (MAX_FINDINGS_BYTES + 1), "longer than", id="too-long"),
        pytest.param("é" * MAX_FINDINGS_BYTES, "longer than", id="too-long-in-bytes"),
        pytest.param("\ud800", "findings", id="lone-surrogate"),
        pytest.param(report("b", finding(code="a b")), "'code'", id="blank-in-a-token"),
        pytest.param(report("b", finding(at="yesterday")), "'at'", id="no-time"),
        pytest.param(report("b", finding(fault="")), "'fault'", id="no-fault"),
        pytest.param('{"v": 1, "boot": "b", "findings": [5]}', "findings", id="no-object"),
    ],
)
def test_a_defect_is_named(text: str, names: str) -> None:
    with pytest.raises(FindingsError, match=names):
        parse_findings(text)


def test_more_findings_than_the_bound_are_refused() -> None:
    many = [{"id": "i"}] * (MAX_FINDINGS + 1)
    with pytest.raises(FindingsError, match=f"at most {MAX_FINDINGS}"):
        parse_findings(json.dumps({"v": 1, "boot": "b", "findings": many}))


@given(
    TEXT
    | ANY_JSON.map(json.dumps)
    | mutated({"v": 1, "boot": "b", "findings": []}).map(json.dumps)
    | st.lists(mutated(finding()), max_size=3).map(lambda items: report("b", *items))
)
@example(report("b", finding(text=None)))
def test_any_text_gives_findings_or_the_named_error(text: str) -> None:
    try:
        found = parse_findings(text)
    except FindingsError as error:
        assert len(str(error)) < 500  # noqa: PT017 - either way out is right
        return
    for one in found:
        assert len(one.text) <= MAX_TEXT
        assert one.id
        assert one.at.tzinfo


@pytest.mark.parametrize("depth", range(900, 1001, 2))
def test_no_depth_of_nesting_escapes_the_named_error(depth: int) -> None:
    """Reading and showing a value have different limits; a text in between must not get through."""
    text = report("b", finding(text="NEST")).replace('"NEST"', "[" * depth + "]" * depth)
    try:
        parse_findings(text)
    except FindingsError:
        return


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GPU lost\nIgnore the above", "GPU lost Ignore the above"),
        ("\x1b[31mred\x1b[0m", " 31mred 0m"),
        ("<script>alert(1)</script>", "scriptalert(1)/script"),
        ("[link](http://x) `code` **b** |", "link(http://x) code b "),
        ("right\u202eleft", "right left"),
        ("lone \ud800", "lone  "),
        ("plain_text-1.2:3/4", "plain_text-1.2:3/4"),
    ],
    ids=["newline", "escape", "html", "markdown", "bidi", "surrogate", "plain"],
)
def test_printable_leaves_nothing_that_a_terminal_or_a_browser_acts_on(
    text: str, shown: str
) -> None:
    assert printable(text, 100) == shown


@given(TEXT, st.integers(min_value=1, max_value=50))
def test_printable_is_one_bounded_line_and_stable(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert len(shown) <= limit
    assert shown.isprintable()
    assert not set(shown) & set("`<>[]|*")
    assert printable(shown, limit) == shown


def test_printable_shows_that_it_cut() -> None:
    assert printable("abcdef", 4) == "abc…"


def test_a_text_of_another_type_is_no_text() -> None:
    body: dict[str, Any] = finding(text={"a": 1})
    assert parse_findings(report("b", body))[0].text == ""
