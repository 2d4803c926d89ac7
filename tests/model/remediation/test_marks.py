"""Marks: what is read is what was written, and what was there before comes back."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.views import ANY_JSON, NOW, TEXT, mutated, node
from workflows.model.node import NodeView
from workflows.model.remediation.marks import (
    DO_NOT_DISRUPT,
    DO_NOT_REPAIR,
    EPISODE,
    KARPENTER_NODEPOOL_LABEL,
    MAX_MARKER_BYTES,
    VETOES,
    Marker,
    MarkerError,
    Quarantine,
    Slot,
    entry_marker,
    entry_patch,
    exit_patch,
    is_marked,
    marker_of,
    marker_patch,
    other_healer,
    parse_marker,
)

MARKER = Marker("ep-1", "uid-1", NOW, "gpu-lost", "gpu-lost", Quarantine.CONFIRMED)
WORDS = st.text("abcdefghij0123456789-", min_size=1, max_size=20)
VETO_VALUES = st.sampled_from(["true", "false", "", "30m"])
MARKERS = st.builds(
    Marker,
    episode=WORDS,
    node_uid=WORDS,
    since=st.just(NOW),
    rule=WORDS,
    fault=WORDS,
    quarantine=st.sampled_from(Quarantine),
    was_unschedulable=st.booleans(),
    vetoes_before=st.dictionaries(st.sampled_from(VETOES), VETO_VALUES).map(
        lambda found: tuple(sorted(found.items()))
    ),
    slot=st.none() | st.builds(Slot, epoch=WORDS, at=st.just(NOW)),
    handed_over=st.sampled_from(["", "operator:alice: replace a fan"]),
)


@st.composite
def nodes(draw: st.DrawFn) -> NodeView:
    """Any node before us: cordoned or not, on Karpenter or not, with vetoes of others or not."""
    labels = {"pool": "training"}
    if draw(st.booleans()):
        labels[KARPENTER_NODEPOOL_LABEL] = "gpu"
    vetoes = draw(st.dictionaries(st.sampled_from(VETOES), VETO_VALUES))
    return node(labels=labels, annotations=vetoes, unschedulable=draw(st.booleans()))


def merged(view: NodeView, patch: dict[str, Any], version: str = "8") -> NodeView:
    """The node after a JSON merge patch, as the API server would leave it."""
    annotations: dict[str, str | None] = {**view.annotations, **patch["metadata"]["annotations"]}
    cordon = patch.get("spec", {"unschedulable": view.unschedulable})["unschedulable"]
    return replace(
        view,
        resource_version=version,
        annotations={k: v for k, v in annotations.items() if v is not None},
        unschedulable=cordon is True,
    )


@given(MARKERS)
def test_a_marker_is_read_as_it_was_written(marker: Marker) -> None:
    assert parse_marker(marker.encode()) == marker
    assert len(marker.encode()) < MAX_MARKER_BYTES


@given(nodes())
def test_entry_quarantines_and_exit_restores_exactly_what_was_there(before: NodeView) -> None:
    """R10, R39: an admin's cordon and a person's veto outlive us; nothing of ours does."""
    marker = entry_marker(before, MARKER)
    during = merged(before, entry_patch(before, marker))
    assert during.unschedulable
    assert marker_of(during) == marker
    slotted = replace(marker, slot=Slot("epoch", NOW))
    during = merged(during, marker_patch(during, slotted), "9")
    read = marker_of(during)
    assert read == slotted
    assert read is not None
    after = merged(during, exit_patch(during, read), before.resource_version)
    assert after == before


@pytest.mark.parametrize("text", ["x" * 2000, "\u20ac" * 2000])
def test_a_veto_of_any_length_leaves_our_marker_readable(text: str) -> None:
    """Else the run that wrote it would take it for a stranger's, and nobody would have the node."""
    labels = {"pool": "training", KARPENTER_NODEPOOL_LABEL: "gpu"}
    before = node(labels=labels, annotations=dict.fromkeys(VETOES, text))
    marker = entry_marker(before, MARKER)
    assert marker_of(merged(before, entry_patch(before, marker))) == marker


@given(nodes())
def test_on_karpenter_both_vetoes_stand_while_we_have_the_node(before: NodeView) -> None:
    during = merged(before, entry_patch(before, entry_marker(before, MARKER)))
    if KARPENTER_NODEPOOL_LABEL in before.labels:
        assert all(during.annotations[key] == "true" for key in VETOES)
    else:
        assert all(during.annotations.get(key) == before.annotations.get(key) for key in VETOES)


@given(nodes())
def test_a_cordon_that_a_person_took_off_does_not_come_back(before: NodeView) -> None:
    marker = entry_marker(before, MARKER)
    during = replace(merged(before, entry_patch(before, marker)), unschedulable=False)
    assert not merged(during, exit_patch(during, marker)).unschedulable


def test_a_veto_that_a_person_changed_meanwhile_is_theirs() -> None:
    before = node(labels={"pool": "training", KARPENTER_NODEPOOL_LABEL: "gpu"})
    marker = entry_marker(before, MARKER)
    during = merged(before, entry_patch(before, marker))
    during = replace(during, annotations={**during.annotations, DO_NOT_REPAIR: "2h"})
    after = merged(during, exit_patch(during, marker))
    assert after.annotations.get(DO_NOT_REPAIR) == "2h"
    assert DO_NOT_DISRUPT not in after.annotations


@given(nodes())
def test_every_patch_is_bound_to_the_node_and_the_version_that_was_read(view: NodeView) -> None:
    marker = entry_marker(view, MARKER)
    for patch in (entry_patch(view, marker), marker_patch(view, marker), exit_patch(view, marker)):
        assert patch["metadata"]["uid"] == view.uid
        assert patch["metadata"]["resourceVersion"] == view.resource_version


def test_the_marker_names_the_node_it_was_written_on() -> None:
    """R39: a draft made for another Node of this name never keeps that UID."""
    assert entry_marker(node(uid="uid-2"), MARKER).node_uid == "uid-2"


BODY = json.loads(replace(MARKER, slot=Slot("epoch", NOW)).encode())


@given(
    TEXT
    | ANY_JSON.map(json.dumps)
    | mutated(BODY).map(json.dumps)
    | mutated(BODY["before"]).map(lambda before: json.dumps({**BODY, "before": before}))
    | mutated(BODY["slot"]).map(lambda slot: json.dumps({**BODY, "slot": slot}))
)
def test_any_text_gives_a_marker_or_the_named_error(text: str) -> None:
    try:
        marker = parse_marker(text)
    except MarkerError:
        return
    assert marker.episode
    assert parse_marker(marker.encode()) == marker
    marker.encode().encode()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("x" * (MAX_MARKER_BYTES + 1), "longer than", id="too-long"),
        pytest.param("handed-over", "cannot be read", id="no-json"),
        pytest.param("[" * 4000, "cannot be read", id="deeply-nested"),
        pytest.param("{}", "episode", id="no-episode"),
        pytest.param(json.dumps({**BODY, "v": 2}), "version", id="a-newer-version"),
        pytest.param(json.dumps({**BODY, "episode": "a\nb"}), "1 to 128", id="two-lines"),
        pytest.param(json.dumps({**BODY, "episode": ""}), "1 to 128", id="empty-episode"),
        pytest.param(json.dumps({**BODY, "rule": "\ud800"}), "cannot be read", id="surrogate"),
        pytest.param(json.dumps({**BODY, "quarantine": "x"}), "cannot be read", id="quarantine"),
    ],
)
def test_a_defect_of_a_marker_is_named_with_the_remedy(text: str, names: str) -> None:
    with pytest.raises(MarkerError, match=names):
        parse_marker(text)


def test_an_unreadable_marker_still_marks_the_node() -> None:
    view = node(annotations={EPISODE: "garbage"})
    assert is_marked(view)
    with pytest.raises(MarkerError):
        marker_of(view)
    assert marker_of(node()) is None
    assert not is_marked(node())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ""),
        ({"deleting": True}, "being deleted"),
        ({"taints": ("karpenter.sh/disrupted:NoSchedule",)}, "Karpenter"),
        ({"taints": ("karpenter.sh/disruptedly:NoSchedule",)}, ""),
        ({"taints": ("nvidia.com/gpu:NoSchedule",)}, ""),
    ],
    ids=["nobody", "deleting", "karpenter", "a-longer-name", "another-taint"],
)
def test_another_healer_is_seen(changes: dict[str, Any], says: str) -> None:
    found = other_healer(node(**changes))
    assert says in found
    assert bool(found) == bool(says)
