"""Names made of nodes and machines."""

import re

import pytest
from hypothesis import given

from tests.model.views import TEXT
from workflows.model.identity import (
    SHARED_SYSTEM_UUIDS,
    NodeRef,
    guard_workflow_id,
    machine_id,
    workflow_id,
)

UUID = "4C4C4544-0042-3510-8047-B4C04F4E4D32"
DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@pytest.mark.parametrize(
    ("system_uuid", "expected"),
    [
        pytest.param(UUID, UUID.lower(), id="upper-case"),
        pytest.param(f" {UUID}\n", UUID.lower(), id="blanks-around"),
        pytest.param("ec2a1b2c", "ec2a1b2c", id="no-uuid-but-a-name"),
    ],
)
def test_a_machine_is_named_by_its_system_uuid_in_lower_case(
    system_uuid: str, expected: str
) -> None:
    assert machine_id(system_uuid, "aws:///i-1", "uid-1") == expected


@pytest.mark.parametrize(
    "system_uuid",
    [
        *sorted(SHARED_SYSTEM_UUIDS),
        "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
        "   ",
        "../../etc",
        "a..b",
        "a.-b",
        "x" * 64,
        "uuid\n4c4c",
    ],
    ids=repr,
)
def test_an_empty_shared_or_unusable_system_uuid_falls_back_to_the_provider(
    system_uuid: str,
) -> None:
    name = machine_id(system_uuid, "aws:///i-1", "uid-1")
    assert name.startswith("machine-")
    assert name == machine_id("", "aws:///i-1", "another Node of the same machine")
    assert name != machine_id("", "aws:///i-2", "uid-1")


def test_without_provider_two_nodes_are_never_taken_for_one_machine() -> None:
    assert machine_id("", "", "uid-1") == machine_id("", " ", "uid-1")
    assert machine_id("", "", "uid-1") != machine_id("", "", "uid-2")


@given(TEXT, TEXT, TEXT)
def test_a_machine_id_is_always_a_name_that_kubernetes_takes(
    system_uuid: str, provider: str, uid: str
) -> None:
    name = machine_id(system_uuid, provider, uid)
    assert len(name) <= 63
    assert DNS_SUBDOMAIN.fullmatch(name)


def test_r42_a_recreated_node_gets_another_workflow_id() -> None:
    """NVSentinel#1678: a name that is used again met the object of its forerunner."""
    first, second = NodeRef("n", "uid-1"), NodeRef("n", "uid-2")
    assert workflow_id("lab", first) == "node/lab/n/uid-1"
    assert workflow_id("lab", first) != workflow_id("lab", second)
    assert guard_workflow_id("lab") == "guard/lab"
