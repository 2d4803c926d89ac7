"""The policy's file: what is allowed, and for each mistake its path, its value and the remedy."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.model.views import ANY_JSON
from workflows.model.detection.fault import UNKNOWN_KIND, Fault
from workflows.model.policy import (
    LATER_DRAIN_WAYS,
    LATER_RUNGS,
    MAX_POOLS,
    DrainWay,
    Policy,
    PolicyError,
    Pool,
    Rung,
    expected_gpus,
)
from workflows.model.policy_document import read_policy

POOL = {"name": "training", "selector": {"pool": "training"}}
RULE = {"name": "r", "condition": "C", "status": "False", "fault": "thermal"}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param("[]", ["policy: expected a mapping at the top, found list"], id="a-list"),
        pytest.param(
            "poools: []", ["poools: no such field; see `fleetmend policy schema`"], id="typo"
        ),
        pytest.param(
            "timing: {probation_s: long}",
            ["timing.probation_s: Input should be a valid number", "found 'long'"],
            id="a-word-for-a-number",
        ),
        pytest.param(
            "timing: {probation_s: -1}",
            ["timing.probation_s: ", "greater than or equal to 0 (found -1"],
            id="negative",
        ),
        pytest.param(
            "timing: {boot_deadline_s: .inf}", ["timing.boot_deadline_s: ", "finite"], id="infinite"
        ),
        pytest.param(
            "timing: {reminder_s: 1.0e+300}",
            ["timing.reminder_s: ", "(found 1e+300)"],
            id="overflows",
        ),
        pytest.param(
            "steps: {drain: {start_to_close_s: .inf}}",
            ["steps.drain.start_to_close_s: "],
            id="infinite-timeout",
        ),
        pytest.param(
            "faults: {gpu-lost: {drain: gently}}",
            ["faults.gpu-lost.drain: ", "'now'", "'finish-work'", "'none'", "found 'gently'"],
            id="unknown-drain-way",
        ),
        pytest.param(
            "faults: {gpu-lost: {drain: [now]}}", ["faults.gpu-lost.drain: "], id="drain-is-a-list"
        ),
        pytest.param(
            "faults: {gpu-lost: {ladder: 5}}", ["faults.gpu-lost.ladder: "], id="ladder-is-a-number"
        ),
        pytest.param(
            "faults: {gpu-lost: {ladder: [[reboot]]}}",
            ["faults.gpu-lost.ladder.0: "],
            id="ladder-in-a-ladder",
        ),
        pytest.param(
            yaml.safe_dump({"pools": [{**POOL, "validation": {"period_s": 60, "level": 5}}]}),
            [
                "pools.0.validation.period_s: ",
                "greater than or equal to 600 (found 60",
                "pools.0.validation.level: ",
                "less than or equal to 4 (found 5",
            ],
            id="validation-out-of-range",
        ),
        pytest.param(
            yaml.safe_dump({"pools": [{**POOL, "admission": {"untainted": True}}]}),
            [
                "pools.0.admission.untainted: true needs expected_gpus",
                "set pools.0.expected_gpus of 'training', or untainted: false",
            ],
            id="untainted-without-a-count",
        ),
        pytest.param(
            yaml.safe_dump({"pools": [{**POOL, "validation": {"share": "x", "every": 1}}]}),
            [
                'pools.0.validation.share: a count of at least 1, or a share like "10%"',
                "pools.0.validation.every: no such field",
            ],
            id="validation-of-other-words",
        ),
        pytest.param("faults: {gpu-gone: {}}", ["faults.gpu-gone", "gpu-lost"], id="unknown-fault"),
        pytest.param(
            yaml.safe_dump({"rules": [{**RULE, "status": "Unknown", "immediate": True}]}),
            ["rules.0: immediate: Unknown and Stale are never immediate; remove it"],
            id="immediate-on-unknown",
        ),
        pytest.param(
            yaml.safe_dump({"rules": [{**RULE, "status": "Stale", "immediate": True}]}),
            ["never immediate"],
            id="immediate-on-stale",
        ),
        pytest.param(
            yaml.safe_dump({"pools": [POOL, POOL]}),
            ["pools: name 'training' is used twice; names are unique"],
            id="pool-twice",
        ),
        pytest.param(
            yaml.safe_dump({"rules": [RULE, RULE]}),
            ["rules: name 'r' is used twice"],
            id="rule-twice",
        ),
        pytest.param(
            yaml.safe_dump({"pools": [{**POOL, "name": "GPU/all"}]}),
            ["pools.0.name: ", "found 'GPU/all'"],
            id="pool-name",
        ),
        pytest.param(
            yaml.safe_dump({"pools": [{**POOL, "selector": {}}]}),
            ["pools.0.selector: "],
            id="selector-that-fits-every-node",
        ),
        pytest.param(
            yaml.safe_dump(
                {"pools": [{"name": f"p{n}", "selector": {"a": "b"}} for n in range(MAX_POOLS + 1)]}
            ),
            ["pools: ", f"at most {MAX_POOLS} items"],
            id="too-many-pools",
        ),
    ],
)
def test_a_mistake_is_named_by_path_value_and_remedy(text: str, lines: list[str]) -> None:
    with pytest.raises(PolicyError) as raised:
        read_policy(yaml.safe_load(text))
    for line in lines:
        assert line in str(raised.value)


@pytest.mark.parametrize(
    "share", [0, -1, True, 0.1, "10", "10 %", "101%", "-1%", "", None, [1]], ids=repr
)
def test_a_budget_is_a_count_or_a_share(share: Any) -> None:
    body = {"pools": [{**POOL, "budgets": {"disruption": share}}]}
    with pytest.raises(PolicyError) as raised:
        read_policy(body)
    assert str(raised.value).startswith(
        'pools.0.budgets.disruption: a count of at least 1, or a share like "10%"'
    )


@pytest.mark.parametrize("share", [1, 500, "0%", "1%", "10%", "100%"])
def test_counts_and_shares_are_taken(share: int | str) -> None:
    policy = read_policy({"pools": [{**POOL, "budgets": {"disruption": share}}]})
    assert policy.pools[0].budgets.disruption == share


@pytest.mark.parametrize("way", sorted(LATER_DRAIN_WAYS))
def test_a_drain_way_of_a_later_release_is_refused_by_name(way: str) -> None:
    with pytest.raises(PolicyError) as raised:
        read_policy({"faults": {"gpu-lost": {"drain": way}}})
    assert str(raised.value) == (
        f"faults.gpu-lost: drain: '{way}' is not in this release yet; "
        "use one of now, finish-work, none"
    )


@pytest.mark.parametrize("rung", sorted(LATER_RUNGS))
def test_a_rung_of_a_later_release_is_refused_by_name(rung: str) -> None:
    with pytest.raises(PolicyError) as raised:
        read_policy({"faults": {"gpu-lost": {"ladder": ["reboot", rung]}}})
    assert str(raised.value) == (
        f"faults.gpu-lost: ladder: '{rung}' is not in this release yet; use reboot, replace"
    )


def test_what_comes_later_is_not_there_already() -> None:
    assert {"checkpoint"} == LATER_DRAIN_WAYS
    assert "reset-gpu" in LATER_RUNGS
    assert not LATER_DRAIN_WAYS & set(DrainWay)
    assert not LATER_RUNGS & set(Rung)


@pytest.mark.parametrize("fault", sorted(UNKNOWN_KIND))
@pytest.mark.parametrize(
    "row", [{"drain": "now"}, {"drain": "none"}, {"drain": "now", "ladder": []}], ids=str
)
def test_unknown_health_may_neither_evict_nor_reboot(fault: Fault, row: dict[str, Any]) -> None:
    """P6: a row for it must say both, for the defaults of a row are those of a hard fault."""
    with pytest.raises(
        PolicyError, match="unknown health never evicts, reboots or replaces by itself"
    ):
        read_policy({"faults": {fault.value: row}})


def test_faults_left_out_keep_their_defaults() -> None:
    policy = read_policy({"faults": {"thermal": {"drain": "now"}}})
    assert set(policy.faults) == set(Fault)
    assert policy.faults[Fault.GPU_LOST] == Policy().faults[Fault.GPU_LOST]
    assert policy.faults[Fault.THERMAL].drain is DrainWay.NOW


def test_every_wrong_field_has_a_line() -> None:
    with pytest.raises(PolicyError) as raised:
        read_policy({"timing": {"probation_s": -1, "silence_s": -1}, "gates": {}})
    assert len(str(raised.value).splitlines()) == 3


@pytest.mark.parametrize("body", [None, {}])
def test_an_empty_file_is_the_built_in_policy(body: Any) -> None:
    assert read_policy(body) == Policy()


def test_a_snapshot_is_read_as_it_was_written() -> None:
    assert Policy.model_validate_json(Policy().model_dump_json()) == Policy()


FIELDS = st.sampled_from([*sorted(Policy.model_fields), "other"])
FAULTS = st.dictionaries(
    st.sampled_from([f.value for f in Fault]),
    st.dictionaries(st.sampled_from(["drain", "ladder", "drain_deadline_s"]), ANY_JSON, max_size=3),
    max_size=3,
)


@given(
    ANY_JSON | st.dictionaries(FIELDS, ANY_JSON, max_size=3) | FAULTS.map(lambda f: {"faults": f})
)
def test_any_document_gives_a_policy_or_the_named_error(body: Any) -> None:
    try:
        policy = read_policy(body)
    except PolicyError as error:
        assert str(error)  # noqa: PT017 - either way out is right
        return
    assert set(policy.faults) == set(Fault)


@pytest.mark.parametrize(
    ("labels", "pool"),
    [
        ({"a": "1", "b": "2"}, "both"),
        ({"a": "1"}, "first"),
        ({"b": "2"}, None),
        ({}, None),
    ],
    ids=["most-specific-first", "one-label", "other", "none"],
)
def test_the_first_pool_whose_every_label_fits_counts(
    labels: dict[str, str], pool: str | None
) -> None:
    policy = Policy(
        pools=(
            Pool(name="both", selector={"a": "1", "b": "2"}),
            Pool(name="first", selector={"a": "1"}),
        )
    )
    found = policy.pool_of(labels)
    assert (found.name if found else None) == pool


@pytest.mark.parametrize(
    ("given_by_pool", "label", "expected"),
    [
        (8, None, 8),
        (8, "4", 8),
        (None, "4", 4),
        (None, None, None),
        (None, "0", None),
        (None, "many", None),
        (None, "-8", None),
        (None, "9" * 40, None),
        (None, "²", None),
    ],
)
def test_expected_gpus_come_from_the_pool_then_the_label(
    given_by_pool: int | None, label: str | None, expected: int | None
) -> None:
    pool = Pool(name="p", selector={"a": "b"}, expected_gpus=given_by_pool)
    labels = {} if label is None else {"nvidia.com/gpu.count": label}
    assert expected_gpus(pool, labels) == expected
