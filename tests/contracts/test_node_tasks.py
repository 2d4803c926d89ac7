"""The verdict of a node task: hostile text in, an answer out, and every defect UNKNOWN by name."""

import json
from typing import Any

import pytest
from hypothesis import given

from tests.model.views import ANY_JSON, TEXT, mutated
from workflows.contracts.node_tasks import TaskAnswer, read_verdict
from workflows.model.node_task import (
    MAX_VERDICT_BYTES,
    VERDICT_SCHEMA,
    Failure,
    Health,
    Result,
    TaskKind,
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
        pytest.param(json.dumps({**BODY, "gpus": ["GPU-1\n"]}), "gpus.0", id="gpu-and-newline"),
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


JUDGED: dict[str, Any] = {
    **{key: BODY[key] for key in ("schema", "episode", "task", "boot_id", "result")},
    "kind": "diagnose",
    "detail": "",
    "health": "faulty",
    "failures": [{"what": "pcie", "device": "GPU 1", "words": "slow\n`link`"}],
}


def judge(body: dict[str, Any]) -> TaskAnswer:
    return read_verdict(json.dumps(body), kind=TaskKind.DIAGNOSE, episode="ep-1", task="t-1")


def test_a_diagnosis_is_read_and_escaped() -> None:
    answer = judge(JUDGED)
    assert answer.health is Health.FAULTY
    assert answer.failures == (Failure(what="pcie", device="GPU 1", words="slow link"),)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"health": None}, "no health", id="no-health"),
        pytest.param({"health": "healthy"}, "names a failure", id="healthy-with-a-failure"),
        pytest.param(
            {"health": "healthy", "failures": [], "more": 1},
            "names a failure",
            id="healthy-and-more",
        ),
        pytest.param({"failures": []}, "names no failure", id="faulty-without-one"),
        pytest.param({"health": "fine"}, "health", id="unknown-health"),
        pytest.param({"health": ""}, "health", id="empty-health"),
        pytest.param({"failures": [{"what": "x"}] * 17}, "failures", id="too-many"),
        pytest.param({"failures": [{"what": "x" * 65}]}, "failures.0.what", id="too-long"),
        pytest.param({"result": "unknown"}, "", id="unfinished"),
        pytest.param({"result": "refused"}, "", id="refused"),
    ],
)
def test_a_health_that_does_not_hold_is_unknown(changes: dict[str, Any], says: str) -> None:
    answer = judge({**JUDGED, **changes})
    assert (answer.health, answer.failures) == (Health.UNKNOWN, ())
    assert answer.result is not Result.DONE
    assert says in answer.detail


@given(mutated(JUDGED))
def test_only_a_whole_verdict_says_healthy(body: Any) -> None:
    answer = read_verdict(json.dumps(body), kind=TaskKind.DIAGNOSE, episode="ep-1", task="t-1")
    assert answer.health is not Health.HEALTHY or not answer.failures
    assert all(str(one).isprintable() for one in answer.failures)


def test_a_health_from_another_kind_of_task_counts_for_nothing() -> None:
    assert read(json.dumps({**BODY, "health": "healthy"})).health is Health.UNKNOWN
