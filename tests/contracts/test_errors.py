"""The closed set of failure types: each is used where failures are made."""

import ast

import pytest

from tests.architecture.sources import ROOT, Source, sources
from workflows.contracts import errors
from workflows.runtime import exception_of

TYPES = {
    name: value for name, value in vars(errors).items() if name.isupper() and isinstance(value, str)
}
MAPPING = Source(ROOT / "activities" / "errors.py")


def names_of_errors(source: Source) -> set[str]:
    """Constants that the module takes from `errors`."""
    return {
        node.attr
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "errors"
    }


@pytest.mark.parametrize("name", sorted(TYPES))
def test_each_type_is_made_in_the_one_module_that_makes_failures(name: str) -> None:
    assert name in names_of_errors(MAPPING)


def test_no_other_activity_spells_a_type() -> None:
    spelled = {
        source.name
        for source in sources("activities")
        if source.path != MAPPING.path
        for node in ast.walk(source.tree)
        if isinstance(node, ast.keyword)
        and node.arg == "type"
        and isinstance(node.value, ast.Constant)
        and node.value.value in TYPES.values()
    }
    assert not spelled


def test_types_are_distinct_and_final_ones_are_types() -> None:
    assert len(set(TYPES.values())) == len(TYPES)
    assert set(errors.FINAL) < set(TYPES.values())
    assert errors.NOT_YET not in errors.FINAL


@pytest.mark.parametrize("type_", errors.FINAL)
def test_the_runbook_knows_every_final_type(type_: str) -> None:
    from temporalio.exceptions import ApplicationError  # noqa: PLC0415 - the one use

    known = exception_of(ApplicationError("why", type=type_))
    assert (known is None) == (type_ == errors.NOT_PERMITTED), "that one waits instead"
