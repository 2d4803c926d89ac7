"""The processes' data converter: the SDK's own wire, and one memory of types for all workflows."""

from datetime import UTC, datetime

from temporalio.contrib.pydantic import pydantic_data_converter

from workers.payloads import DATA_CONVERTER
from workflows.contracts.messages import NodeFacts

FACTS = NodeFacts(
    uid="u",
    resource_version="7",
    ready=True,
    boot_id="b",
    unschedulable=False,
    marker_episode="",
    gpus={"nvidia.com/gpu": 8},
    conditions={"GPUHealthy": "False"},
    paused=False,
    at=datetime(2026, 11, 30, tzinfo=UTC),
)


def test_what_is_written_is_the_sdks_and_read_as_it() -> None:
    ours, sdks = DATA_CONVERTER.payload_converter, pydantic_data_converter.payload_converter
    (payload,) = ours.to_payloads([FACTS])
    assert payload == sdks.to_payloads([FACTS])[0]
    assert ours.from_payloads([payload], [NodeFacts]) == [FACTS]


def test_each_workflow_has_its_converter_and_none_learns_the_types_anew() -> None:
    made = DATA_CONVERTER.payload_converter_class
    first, second = made(), made()
    assert first is not second
    assert first.converters[b"json/plain"] is second.converters[b"json/plain"]  # type: ignore[attr-defined]  # of the composite
