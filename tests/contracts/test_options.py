"""The options table: one row for each contract, and nothing that policy may not stretch."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from workflows.contracts import (
    Contract,
    errors,
    fleet,
    guard,
    karpenter,
    kube,
    machines,
    node_tasks,
)
from workflows.contracts.options import NOTE_S, OPTIONS, options_of, read_policy_for_steps
from workflows.model.policy import PolicyError, StepOptions
from workflows.model.remediation.permit import Effect


def contracts() -> Iterator[Contract]:  # type: ignore[type-arg]  # of any types
    for module in (fleet, guard, karpenter, kube, machines, node_tasks):
        yield from (value for value in vars(module).values() if isinstance(value, Contract))


CONTRACTS = sorted(contracts(), key=lambda contract: contract.name)


def test_each_contract_has_a_row_and_each_row_a_contract() -> None:
    names = [contract.name for contract in CONTRACTS]
    assert len(set(names)) == len(names)
    assert set(names) == set(OPTIONS)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda c: c.name)
def test_a_row_is_consistent(contract: Contract) -> None:  # type: ignore[type-arg]  # of any types
    row = options_of(contract.name)
    assert timedelta() < row.retry_initial <= row.retry_maximum
    assert row.non_retryable == errors.FINAL
    assert row.heartbeat is None or row.heartbeat < row.start_to_close
    if row.start_to_close > timedelta(minutes=2):
        assert row.heartbeat is not None, "a dead worker would be noticed only at the end"


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda c: c.name)
def test_a_contract_says_what_it_does(contract: Contract) -> None:  # type: ignore[type-arg]  # of any types
    assert contract.effect in Effect
    assert 0 < len(contract.summary) <= 80


def test_waits_are_reads() -> None:
    waiting = {c.effect for c in CONTRACTS if options_of(c.name).waits}
    assert waiting == {Effect.READ}


def test_policy_overrides_a_row() -> None:
    override = StepOptions(
        start_to_close_s=1, heartbeat_s=0.5, retry_initial_s=0.1, retry_maximum_s=2
    )
    row = options_of("drain", {"drain": override})
    assert row.start_to_close == timedelta(seconds=1)
    assert row.heartbeat == timedelta(seconds=0.5)
    assert (row.retry_initial, row.retry_maximum) == (timedelta(seconds=0.1), timedelta(seconds=2))
    assert options_of("drain", {"reboot": override}) == OPTIONS["drain"]


@pytest.mark.parametrize("step", ["quarantine", "note_slot", "drop_slot"])
@pytest.mark.parametrize(("asked_s", "given_s"), [(1, 1), (60, NOTE_S)])
def test_policy_cannot_stretch_a_note_beyond_what_a_fresh_guard_waits_out(
    step: str, asked_s: float, given_s: float
) -> None:
    row = options_of(step, {step: StepOptions(start_to_close_s=asked_s)})
    assert row.start_to_close == timedelta(seconds=given_s)


def test_an_unknown_step_is_a_defect() -> None:
    with pytest.raises(KeyError):
        options_of("drian")


def test_a_policy_that_names_no_step_is_refused_by_name() -> None:
    with pytest.raises(PolicyError, match=r"steps\.drian: no such step; one of .*drain"):
        read_policy_for_steps({"steps": {"drian": {"heartbeat_s": 5}}})
    assert "drain" in read_policy_for_steps({"steps": {"drain": {"heartbeat_s": 5}}}).steps
