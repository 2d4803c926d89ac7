"""Search attributes: how episodes are found in the Temporal UI.

Owns the names and types (registered before a worker starts; an unregistered one would wedge its
workflow) and which values a phase change sets. Nothing secret: they are never encrypted.
"""

from typing import Any

from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

from workflows.contracts.machines import PhaseRecord

PHASE = SearchAttributeKey.for_keyword("FleetmendPhase")
STEP = SearchAttributeKey.for_keyword("FleetmendStep")
FAULT = SearchAttributeKey.for_keyword("FleetmendFault")
POOL = SearchAttributeKey.for_keyword("FleetmendPool")
NODE = SearchAttributeKey.for_keyword("FleetmendNode")
OUTCOME = SearchAttributeKey.for_keyword("FleetmendOutcome")
HELD = SearchAttributeKey.for_bool("FleetmendHeld")

KEYWORDS = (PHASE, STEP, FAULT, POOL, NODE, OUTCOME)
ALL: tuple[SearchAttributeKey[Any], ...] = (*KEYWORDS, HELD)
MAX_VALUE = 255


def step_update(step: str) -> list[tuple[SearchAttributeUpdate[Any], object]]:
    """What runs between two phase changes."""
    return [(STEP.value_set(step[:MAX_VALUE]), step)]


def phase_updates(
    record: PhaseRecord, doing: str
) -> list[tuple[SearchAttributeUpdate[Any], object]]:
    """The updates of one phase change, each with its value."""
    words = (
        (PHASE, record.phase),
        (STEP, doing),
        (FAULT, record.fault),
        (POOL, record.pool),
        (NODE, record.owner.node.name),
        (OUTCOME, record.outcome),
    )
    updates: list[tuple[SearchAttributeUpdate[Any], object]] = [
        (key.value_set(text[:MAX_VALUE]), text) for key, text in words if text
    ]
    return [*updates, (HELD.value_set(record.held), record.held)]
