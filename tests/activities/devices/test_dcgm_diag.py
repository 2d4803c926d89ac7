"""The judgement over `dcgmi diag -j`: every shape and exit code, and nothing passes by accident."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.devices.dcgm_diag import judge_diag
from tests.model.views import ANY_JSON, mutated
from workflows.model.node_task import Diagnosis, Health

LEVEL_2 = ("software", "memory", "pcie")
LEVEL_1_OF_DCGM_3 = ("Denylist", "NVML Library", "Persistence Mode", "Page Retirement/Row Remap")


def warning(severity: int, category: int, text: str = "bad") -> dict[str, Any]:
    return {
        "warning": text,
        "error_id": 1,
        "error_severity": severity,
        "error_category": category,
    }


def dcgm4(
    tests: tuple[str, ...] = LEVEL_2, gpus: int = 8, bad: dict[str, Any] | None = None, **top: Any
) -> dict[str, Any]:
    """DCGM 4; `bad` is laid over the result of pcie on GPU 1."""
    listed = []
    for name in tests:
        results: list[Any] = [
            {"entity_group_id": 0, "entity_group": "GPU", "entity_id": n, "status": "Pass"}
            for n in range(gpus)
        ]
        summary = {"status": "Pass"}
        if bad is not None and name == tests[-1]:
            results[1] = {**results[1], **bad}
            summary = {"status": bad.get("status", "Pass")}
        listed.append({"name": name, "results": results, "test_summary": summary})
    categories = [{"category": "Deployment", "tests": listed[:1]}]
    categories.append({"category": "Hardware", "tests": listed[1:]})
    return {
        "DCGM Diagnostic": {"test_categories": categories},
        "metadata": {"version": "4.4.1"},
        **top,
    }


def dcgm33(gpus: int = 8, bad: dict[str, Any] | None = None, level: int = 2) -> dict[str, Any]:
    """DCGM 3.3: level 1 names no GPU; ids are texts in plugins."""
    deployment = [{"name": n, "results": [{"status": "Pass"}]} for n in LEVEL_1_OF_DCGM_3]
    categories = [{"category": "Deployment", "tests": deployment}]
    if level > 1:
        for category, name in (("Integration", "PCIe"), ("Hardware", "GPU Memory")):
            results: list[Any] = [{"gpu_id": str(n), "status": "Pass"} for n in range(gpus)]
            results.append(None)
            if bad is not None and name == "PCIe":
                results[1] = {**results[1], **bad}
            categories.append({"category": category, "tests": [{"name": name, "results": results}]})
    return {
        "DCGM GPU Diagnostic": {"test_categories": categories},
        "version": "3.3.7",
        "GPU Device IDs": ["2330"] * gpus,
        "GPU Device Serials": {str(n): f"165{n}" for n in range(gpus)},
    }


def dcgm2(status: str = "Pass", level: int = 2) -> dict[str, Any]:
    """DCGM 2: several GPUs in one result, warnings are plain texts, no list of GPUs."""
    deployment = [{"name": n, "results": [{"status": "Pass"}]} for n in LEVEL_1_OF_DCGM_3]
    categories = [{"category": "Deployment", "tests": deployment}]
    if level > 1:
        results = [
            {"gpu_ids": "0,1,2,3", "status": "Pass"},
            {"gpu_ids": "4,5,6", "status": "Pass"},
            {"gpu_ids": "7", "status": status, "warnings": "one plain string"},
        ]
        for name in ("GPU Memory", "PCIe"):
            test = {"name": name, "results": results}
            categories.append({"category": "Hardware", "tests": [test]})
    return {"DCGM GPU Diagnostic": {"test_categories": categories}}


def judged(body: Any, code: int = 0, level: int = 2, gpus: int = 8) -> Diagnosis:
    text = body if isinstance(body, str) else json.dumps(body, indent=1)
    return judge_diag(text, code, level=level, expected_gpus=gpus)


PASSING = {
    "4": (dcgm4(), 2),
    "4-level-1": (dcgm4(("software",)), 1),
    "4-more-tests": (dcgm4((*LEVEL_2, "nvbandwidth")), 2),
    "4-with-a-banner": ("Successfully ran diagnostic for group.\n" + json.dumps(dcgm4()), 2),
    "4-warned": (dcgm4(bad={"status": "Warn", "warnings": [warning(1, 1, "slow link")]}), 2),
    "3.3": (dcgm33(), 2),
    "3.3-level-1": (dcgm33(level=1), 1),
    "2": (dcgm2(), 2),
    "iterations": ({"iterations": [dcgm4(), dcgm4()], "Overall Result": "Pass"}, 2),
    "no-extra-package": (
        dcgm4((*LEVEL_2, "eud"), bad={"status": "Skip", "info": ["not installed"]}),
        2,
    ),
}


@pytest.mark.parametrize(("body", "level"), PASSING.values(), ids=PASSING)
def test_every_expected_gpu_passed_every_test_of_the_level(body: Any, level: int) -> None:
    verdict = judged(body, level=level)
    assert (verdict.health, verdict.failures) == (Health.HEALTHY, ()), verdict.detail


def test_a_warning_is_told_and_does_not_block() -> None:
    assert "slow link" in judged(*PASSING["4-warned"][:1]).detail


FAULTY: dict[str, tuple[Any, int, str]] = {
    "isolate": (
        dcgm4(bad={"status": "Fail", "warnings": [warning(2, 10, "DBE on GPU 1")]}),
        205,
        "DBE on GPU 1",
    ),
    "reset-severity": (dcgm4(bad={"status": "Fail", "warnings": [warning(6, 11)]}), 226, "pcie"),
    "triage-but-exit-0": (dcgm4(bad={"status": "Fail", "warnings": [warning(4, 13)]}), 0, "pcie"),
    "monitor-severity": (dcgm4(bad={"status": "Fail", "warnings": [warning(1, 1)]}), 226, "pcie"),
    "no-severity": (dcgm4(bad={"status": "Fail"}), 226, "pcie on GPU 1"),
    "3.3": (dcgm33(bad={"status": "Fail", "warnings": [warning(4, 13)]}), 226, "GPU 1"),
    "2": (dcgm2("Fail"), 226, "one plain string"),
    "gpu-lost": ("", 238, "lost"),
    "reset-required": ("Error: reset required", 237, "reset"),
    "isolate-unread": ("not json", 205, "isolate"),
    "summary-only": (
        {
            "DCGM Diagnostic": {
                "test_categories": [
                    {
                        "category": "Hardware",
                        "tests": [
                            {
                                "name": "memory",
                                "results": dcgm4()["DCGM Diagnostic"]["test_categories"][0][
                                    "tests"
                                ][0]["results"],
                                "test_summary": {
                                    "status": "Fail",
                                    "warnings": [warning(2, 10, "dropped above")],
                                },
                            }
                        ],
                    }
                ]
            }
        },
        226,
        "dropped above",
    ),
}


@pytest.mark.parametrize(("body", "code", "words"), FAULTY.values(), ids=FAULTY)
def test_a_clear_hardware_failure_is_faulty_with_dcgms_words(
    body: Any, code: int, words: str
) -> None:
    verdict = judged(body, code)
    assert verdict.health is Health.FAULTY, verdict.detail
    assert verdict.failures
    assert words in f"{verdict.detail} {verdict.failures[0]}"


def without(*names: str) -> dict[str, Any]:
    return dcgm4(tuple(name for name in LEVEL_2 if name not in names))


UNKNOWN: dict[str, tuple[Any, int, str]] = {
    "nothing-said": ("", 0, "no JSON"),
    "connection": ("Error: unable to establish a connection to the host engine", 235, "hostengine"),
    "no-test": ({"DCGM Diagnostic": {"test_categories": []}}, 0, "not in the output"),
    "no-categories": ({"DCGM Diagnostic": {}}, 0, "test_categories"),
    "another-document": ({"something": 1}, 0, "no JSON"),
    "missing-test": (without("pcie"), 0, "pcie"),
    "missing-software": (dcgm4(("memory", "pcie")), 0, "memory"),
    "gpu-missing": (dcgm4(gpus=7), 0, "7 GPUs"),
    "gpu-too-many": (dcgm4(gpus=9), 0, "9 GPUs"),
    "gpu-missing-in-one": (dcgm4(bad={"entity_id": 0}), 0, "pcie"),
    "skip": (dcgm4(bad={"status": "Skip", "info": ["why"]}), 0, "why"),
    "not-run": (dcgm4(bad={"status": "Not Run"}), 0, "not run"),
    "new-word": (dcgm4(bad={"status": "Passed?"}), 0, "unknown status"),
    "no-status": (dcgm4(bad={"status": None}), 0, "unknown status"),
    "mig": (
        dcgm4(bad={"status": "Fail", "warnings": ["MIG configuration is incompatible"]}),
        226,
        "busy",
    ),
    "configuration": (
        dcgm4(bad={"status": "Fail", "warnings": [warning(5, 3, "persistence mode off")]}),
        226,
        "configuration",
    ),
    "fail-with-exit-0": (dcgm4(bad={"status": "Fail"}), 0, "pcie"),
    "failed-but-says-pass": (dcgm4(), 226, "a test failed"),
    "runtime-error": (
        {"DCGM Diagnostic": {"version": "4.4.1", "runtime_error": "MIG mode is on"}},
        226,
        "MIG",
    ),
    "timeout": (dcgm4(), 245, "timeout"),
    "already-running": ("", 217, "another diagnostic"),
    "in-use": (dcgm4(), 222, "in use"),
    "killed": ("", 203, "killed"),
    "no-nvvs": ("", 204, "install"),
    "bad-launch": ("", 215, "launched"),
    "driver-timeout": ("", 199, "driver"),
    "exception": ("", 254, "failed"),
    "sigkill": (dcgm4(), 137, "signal 9"),
    "signal-by-popen": (dcgm4(), -11, "signal 11"),
    "odd-exit": (dcgm4(), 3, "exit code 3"),
    "cut": (json.dumps(dcgm4())[:-20], 0, "no JSON"),
    "cut-iterations": (
        json.dumps({"iterations": [dcgm4(), dcgm4()], "Overall Result": "Pass"}, indent=1)[:-40],
        0,
        "no JSON",
    ),
    "no-iteration": ({"iterations": [], "Overall Result": "Pass"}, 0, "iterations"),
    "one-bad-iteration": ({"iterations": [dcgm4(), {}], "Overall Result": "Pass"}, 0, "iteration"),
    "overall-fail": ({"iterations": [dcgm4()], "Overall Result": "Fail"}, 0, "overall"),
    "overall-missing": ({"iterations": [dcgm4()]}, 0, "overall"),
    "too-long": (" " * (1024 * 1024 + 1), 0, "longer"),
    "all-null": (
        {
            "DCGM Diagnostic": {
                "test_categories": [
                    {"category": "Deployment", "tests": [{"name": "software", "results": [None]}]}
                ]
            }
        },
        0,
        "no results",
    ),
    "listed-otherwise": (
        dcgm4(entity_groups=[{"entity_group": "GPU", "entities": [{"entity_id": 0}]}]),
        0,
        "1 and 8",
    ),
    "hostile-nesting": ("[" * 100_000, 0, "no JSON"),
    "hostile-braces": ('{"a":' * 100_000, 0, "no JSON"),
}


@pytest.mark.parametrize(("body", "code", "words"), UNKNOWN.values(), ids=UNKNOWN)
def test_everything_else_is_unknown_and_says_why(body: Any, code: int, words: str) -> None:
    verdict = judged(body, code)
    assert verdict.health is Health.UNKNOWN
    assert words.lower() in verdict.detail.lower()


def test_level_1_of_an_old_dcgm_that_names_no_gpu_proves_nothing() -> None:
    verdict = judged(dcgm2(level=1), level=1)
    assert verdict.health is Health.UNKNOWN
    assert "use level 2" in verdict.detail


def test_persistence_mode_of_an_old_dcgm_is_configuration() -> None:
    body = dcgm2(level=1)
    tests = body["DCGM GPU Diagnostic"]["test_categories"][0]["tests"]
    tests[2]["results"] = [{"status": "Fail", "warnings": "Persistence mode for GPU 0 is off"}]
    verdict = judged(body, 226, level=1)
    assert (verdict.health, "configuration" in verdict.detail) == (Health.UNKNOWN, True)


def test_without_an_expectation_nothing_is_proven() -> None:
    assert judged(dcgm4(), gpus=0).health is Health.UNKNOWN


def test_level_3_wants_its_own_tests() -> None:
    assert judged(dcgm4(), level=3).health is Health.UNKNOWN


def test_failures_are_bounded_worst_first_and_escaped() -> None:
    results = [
        {"entity_group": "GPU", "entity_id": n, "status": "Fail", "warnings": [warning(1, 1)]}
        for n in range(64)
    ]
    results[63]["warnings"] = [warning(2, 10, "row `remap`\x1b[31m failed" + "x" * 5_000)]
    test = {"name": "memory", "results": results}
    body = {"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [test]}]}}
    verdict = judged(body, 205, gpus=64)
    assert verdict.failures[0].device == "GPU 63"
    assert verdict.failures[0].words.startswith("row remap 31m failed")
    assert (len(verdict.failures), verdict.more) == (1, 0), "only what is grave is told"
    for one in results:
        one["warnings"] = [warning(2, 10)]
    verdict = judged(body, 205, gpus=64)
    assert (len(verdict.failures), verdict.more) == (16, 48)


@given(st.sampled_from([dcgm4(), dcgm33(), dcgm2()]).flatmap(mutated) | ANY_JSON)
def test_any_document_gives_a_verdict_that_can_be_shown(body: Any) -> None:
    verdict = judged(body)
    assert verdict.detail.isprintable()
    assert all(str(one).isprintable() for one in verdict.failures)
    if verdict.health is Health.HEALTHY:
        text = json.dumps(body)
        assert text.count('"Pass"') >= 3
        assert '"Fail"' not in text
