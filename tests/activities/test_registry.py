"""The wiring: every contract has exactly one implementation, with the contract's types."""

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any, cast

import pytest
from temporalio import activity
from temporalio.client import Client

from activities.kube.client import KubeClient
from activities.policy_file import PolicySource
from activities.registry import Dependencies, build_activities
from tests.activities.desk import name_of
from workflows.contracts import Contract, fleet, guard, karpenter, kube, machines, node_tasks
from workflows.contracts.options import OPTIONS

MODULES = (kube, karpenter, node_tasks, machines, guard, fleet)


def contracts_of(module: ModuleType) -> Iterator[Contract[Any, Any]]:
    return (value for value in vars(module).values() if isinstance(value, Contract))


CONTRACTS = [contract for module in MODULES for contract in contracts_of(module)]


def built() -> list[Any]:
    nothing = cast("KubeClient", None)
    deps = Dependencies(nothing, cast("Client", None), PolicySource(nothing), "test")
    return build_activities(deps)


def test_each_contract_has_exactly_one_implementation() -> None:
    assert sorted(name_of(one) for one in built()) == sorted(c.name for c in CONTRACTS)


def test_each_contract_has_a_row_of_options() -> None:
    assert set(OPTIONS) == {contract.name for contract in CONTRACTS}


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda c: c.name)
def test_the_types_are_the_contracts(contract: Contract[Any, Any]) -> None:
    one = next(each for each in built() if name_of(each) == contract.name)
    definition = activity._Definition.must_from_callable(one)
    assert definition.arg_types == [contract.request]
    assert definition.ret_type is contract.result


def test_what_runs_in_a_thread_is_not_interrupted_between_two_lines() -> None:
    for one in built():
        if not inspect.iscoroutinefunction(one):
            assert activity._Definition.must_from_callable(one).no_thread_cancel_exception
