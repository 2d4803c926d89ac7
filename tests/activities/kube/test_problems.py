"""What the reflector says of an object that cannot be one of the API's."""

import pytest

from activities.kube.reflector import problem_of


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (None, "is NoneType, not an object"),
        ({}, "has no metadata"),
        ({"metadata": []}, "has no metadata"),
        ({"metadata": {"name": "n", "uid": "", "resourceVersion": "1"}}, "has no metadata.uid"),
        ({"metadata": {"name": 1, "uid": "u", "resourceVersion": "1"}}, "has no metadata.name"),
        ({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}}, None),
    ],
)
def test_says_what_is_wrong_with_an_object(item: object, problem: str | None) -> None:
    assert problem_of(item) == problem
