"""The verdict of a node task: hostile text in, an answer out, and every defect UNKNOWN by name."""

import json
from typing import Any

import pytest
from hypothesis import given

from tests.model.views import ANY_JSON, TEXT, mutated
from workflows.contracts.node_tasks import (
    MAX_VERDICT_BYTES,
    VERDICT_SCHEMA,
    Result,
    TaskAnswer,
    TaskKind,
    read_verdict,
)

BODY: dict[str, Any] = {
    "schema": VERDICT_SCHEMA,
    "kind": "inventory",
    "episode": "ep-1",
    "task": "t-1",
    "boot_id": "b",
    "result": "done",
    "detail": "8 GPUs",
    "gpus": ["GPU-1"],
    "model": "H100",
}


def read(message: str) -> TaskAnswer:
    return read_verdict(message, kind=TaskKind.INVENTORY, episode="ep-1", task="t-1")


def test_a_verdict_is_read() -> None:
    assert read(json.dumps(BODY)) == TaskAnswer(Result.DONE, "8 GPUs", "b", ("GPU-1",), "H100")


@pytest.mark.parametrize(
    ("message", "says"),
    [
        pytest.param("", "without a verdict", id="nothing"),
        pytest.param("panic: out of memory", "is not fleetmend.io/node-task/v1 JSON", id="no-json"),
        pytest.param("x" * 2_000_000, f"longer than {MAX_VERDICT_BYTES} bytes", id="2-MB"),
        pytest.param("[" * 3900, "is not", id="deeply-nested"),
        pytest.param(json.dumps({**BODY, "schema": "v2"}), "schema", id="another-schema"),
        pytest.param(json.dumps({**BODY, "extra": 1}), "extra", id="extra-field"),
        pytest.param(json.dumps({**BODY, "gpus": ["../x"]}), "gpus.0", id="gpu-that-is-none"),
        pytest.param(json.dumps({**BODY, "gpus": ["GPU-1"] * 65}), "gpus", id="too-many-gpus"),
        pytest.param(json.dumps({**BODY, "episode": "ep-0"}), "episode ep-0", id="another-episode"),
        pytest.param(json.dumps({**BODY, "task": "t-0"}), "not about this task", id="another-task"),
        pytest.param(json.dumps({**BODY, "kind": "reboot"}), "about reboot", id="another-kind"),
        pytest.param(json.dumps({**BODY, "result": "fine"}), "result", id="unknown-result"),
    ],
)
def test_a_defect_is_unknown_and_named(message: str, says: str) -> None:
    answer = read(message)
    assert answer.result is Result.UNKNOWN
    assert says in answer.detail
    assert not answer.gpus


@given(TEXT | ANY_JSON.map(json.dumps) | mutated(BODY).map(json.dumps))
def test_any_message_gives_an_answer_that_can_be_shown(message: str) -> None:
    answer = read(message)
    assert len(answer.detail) <= 500
    assert answer.detail.isprintable()
    assert answer.model.isprintable()


def test_what_the_node_wrote_is_escaped() -> None:
    answer = read(json.dumps({**BODY, "detail": "a\n<b>[x](y)", "model": "H\x1b100"}))
    assert (answer.detail, answer.model) == ("a bx(y)", "H 100")
