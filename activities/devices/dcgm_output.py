"""Reading the JSON of `dcgmi diag`: one flat list of results out of five shapes.

Owns the shapes of DCGM 2.x to 4.6 (no stable schema is promised: they are recorded by release in
the tests) with their traps: text beside the JSON, `warning` or `warnings`, ids as numbers or texts,
null entries, results without a GPU, several iterations. Everything is hostile: bounded, and what
does not fit is a named problem, never left out silently. Pure; judged by `dcgm_diag.py`.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from workflows.model.detection.finding import printable

MAX_OUTPUT: Final = 1024 * 1024
MAX_RUNS: Final = 16
MAX_RESULTS: Final = 4_096
MAX_STARTS: Final = 64
"""Lines that begin with a brace and are tried as the start of the document."""
TOPS: Final = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
"""The top key in DCGM 4, and in DCGM 2 and 3."""
STATUSES: Final = frozenset({"pass", "fail", "warn", "skip", "not run"})
NOT_EVERYWHERE: Final = frozenset({"eud", "cpu_eud"})
"""Extra packages: a skip says only that they are not installed."""
NAMES: Final = {"gpu_memory": "memory", "sm_performance": "sm_stress", "input_edpp": "pulse_test"}
"""Names that plugins of DCGM 2 and 3 show, as DCGM 4 calls them."""


class Unreadable(Exception):
    """The output is no result of a diagnostic; the message says what is wrong with it."""


@dataclass(frozen=True)
class Warned:
    """One warning; None = the release does not say it."""

    text: str
    severity: int | None
    category: int | None


@dataclass(frozen=True)
class Outcome:
    """One result of one test, on these GPUs.

    `test` is what a level requires ("software" for every check of category Deployment), `name` the
    check itself. `is_of_all` = it speaks of all GPUs and names none (level 1 before DCGM 4).
    `entity` names what is tested if it is no GPU.
    """

    test: str
    name: str
    status: str
    gpus: tuple[str, ...] = ()
    is_of_all: bool = False
    entity: str = ""
    warnings: tuple[Warned, ...] = ()
    told: str = ""

    @property
    def is_pass(self) -> bool:
        """Neither Pass nor Warn speaks against a GPU; a skipped extra package neither."""
        is_extra = self.status in ("skip", "not run") and self.test in NOT_EVERYWHERE
        return self.status in ("pass", "warn") or is_extra

    @property
    def words(self) -> str:
        """DCGM's own words, on one line."""
        warned = "; ".join(one.text for one in self.warnings if one.text)
        return printable(warned or self.told, 400)


@dataclass(frozen=True)
class DiagRun:
    """One pass of the diagnostic. `gpu_count` 0 = the release does not list the GPUs apart."""

    version: str
    runtime_error: str
    outcomes: tuple[Outcome, ...]
    gpu_count: int
    problems: tuple[str, ...]


def read_runs(output: str) -> tuple[DiagRun, ...]:
    """The passes in the output; one unless iterations were asked for.

    Raises:
        Unreadable: there is no document under a known key, or it is too large.
    """
    if len(output) > MAX_OUTPUT:
        raise Unreadable(f"the output is longer than {MAX_OUTPUT} characters; not read")
    body = _document(output)
    iterations = body.get("iterations")
    if not isinstance(iterations, list):
        return (_run(body),)
    if not 0 < len(iterations) <= MAX_RUNS:
        raise Unreadable(f"{len(iterations)} iterations; 1 to {MAX_RUNS} can be read")
    runs = [_run(one if isinstance(one, dict) else {}) for one in iterations]
    overall = body.get("Overall Result")
    if overall != "Pass":
        word = printable(str(overall), 40)
        runs.append(DiagRun("", "", (), 0, (f"the overall result is {word}",)))
    return tuple(runs)


def _document(output: str) -> dict[str, Any]:
    """The first JSON object under a known key: a banner or an error may stand before it."""
    decoder = json.JSONDecoder()
    starts = [m.start() for m in re.finditer(r"^[ \t]*\{", output, re.MULTILINE)]
    for start in starts[:MAX_STARTS]:
        if any(f'"{key}"' in output[:start] for key in (*TOPS, "iterations")):
            break  # the document began above and is cut: a part of it would be half the truth
        try:
            body, _ = decoder.raw_decode(output, output.index("{", start))
        except (ValueError, RecursionError):
            continue
        if isinstance(body, dict) and ("iterations" in body or _top(body) is not None):
            return body
    said = printable(output.strip(), 200)
    raise Unreadable(f"no JSON of a diagnostic in the output{f': {said}' if said else ''}")


def _top(body: dict[str, Any]) -> dict[str, Any] | None:
    found = next((body[key] for key in TOPS if key in body), None)
    return found if isinstance(found, dict) else None


def _run(body: dict[str, Any]) -> DiagRun:
    top = _top(body)
    if top is None:
        return DiagRun("", "", (), 0, ("an iteration without a diagnostic",))
    problems: list[str] = []
    outcomes: list[Outcome] = []
    for category, test in _tests(top, problems):
        outcomes += _outcomes(category, test, problems)
        if len(outcomes) > MAX_RESULTS:
            problems.append(f"over {MAX_RESULTS} results; the rest is not read")
            break
    runtime_error = top.get("runtime_error")
    metadata = body.get("metadata")
    named = metadata if isinstance(metadata, dict) else body
    version = named.get("version") or top.get("version") or ""
    return DiagRun(
        version=printable(str(version), 32),
        runtime_error=printable(str(runtime_error), 300) if runtime_error else "",
        outcomes=tuple(outcomes[:MAX_RESULTS]),
        gpu_count=_listed_gpus(body),
        problems=tuple(problems[:8]),
    )


def _listed_gpus(body: dict[str, Any]) -> int:
    """GPUs that the document lists apart from its results; 0 = it has no such list."""
    serials, devices = body.get("GPU Device Serials"), body.get("GPU Device IDs")
    if isinstance(serials, dict) and serials:
        return len(serials)
    if isinstance(devices, list) and devices:
        return len(devices)
    groups = body.get("entity_groups")
    for group in groups if isinstance(groups, list) else []:
        if isinstance(group, dict) and group.get("entity_group") == "GPU":
            entities = group.get("entities")
            return len(entities) if isinstance(entities, list) else 0
    return 0


def _tests(top: dict[str, Any], problems: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    categories = top.get("test_categories")
    if not isinstance(categories, list):
        if not top.get("runtime_error"):
            problems.append("test_categories is missing")
        return
    for category in categories:
        tests = category.get("tests") if isinstance(category, dict) else None
        if not isinstance(tests, list):
            problems.append("a category without tests")
            continue
        for test in tests:
            if isinstance(test, dict) and isinstance(test.get("name"), str):
                yield str(category.get("category", "")), test
            else:
                problems.append("a test without a name")


def _outcomes(category: str, test: dict[str, Any], problems: list[str]) -> list[Outcome]:
    check = re.sub(r"[^a-z0-9]+", "_", test["name"].lower()).strip("_")[:64]
    name = NAMES.get(check, check)
    required = "software" if category.lower() == "deployment" else name
    results = test.get("results")
    if not isinstance(results, list) or not any(r is not None for r in results):
        problems.append(f"test {name} has no results")
        return []
    found = [_outcome(required, name, result, problems) for result in results if result is not None]
    summary = test.get("test_summary")
    if isinstance(summary, dict):
        verdict = _outcome(required, name, {**summary, "entity_group": "summary"}, problems)
        if verdict.status != "pass" and all(one.is_pass for one in found):
            found.append(verdict)  # results are capped; the summary is not
    return found


def _outcome(test: str, name: str, result: Any, problems: list[str]) -> Outcome:
    if not isinstance(result, dict):
        problems.append(f"test {name}: a result that is no object")
        return Outcome(test, name, "unreadable")
    status = str(result.get("status", "")).lower()
    if status not in STATUSES:
        problems.append(f"test {name}: unknown status {printable(str(result.get('status')), 40)}")
        status = "unreadable"
    group = result.get("entity_group")
    gpus = _gpus(result) if group in (None, "GPU") else ()
    entity = "" if group in (None, "GPU") else f"{group} {result.get('entity_id', '')}".strip()
    return Outcome(
        test=test,
        name=name,
        status=status,
        gpus=gpus,
        is_of_all=not gpus and group is None and test == "software",
        entity=printable(entity, 40),
        warnings=_warnings(result.get("warnings")),
        told=_told(result.get("info")),
    )


def _gpus(result: dict[str, Any]) -> tuple[str, ...]:
    """Ids as texts: a number or a text, one or a list with commas."""
    given = next((result[k] for k in ("entity_id", "gpu_id", "gpu_ids") if k in result), None)
    if isinstance(given, bool) or given is None:
        return ()
    parts = [part.strip() for part in str(given).split(",")][:1_024]
    return tuple(part for part in parts if re.fullmatch(r"[0-9]{1,4}", part))


def _warnings(given: Any) -> tuple[Warned, ...]:
    items = given if isinstance(given, list) else [given] if given else []
    found = []
    for item in items[:16]:
        if isinstance(item, dict):
            text = item.get("warning") or item.get("warnings") or ""
            severity, category = item.get("error_severity"), item.get("error_category")
            found.append(Warned(printable(str(text), 300), _number(severity), _number(category)))
        elif isinstance(item, str):
            found.append(Warned(printable(item, 300), None, None))
    return tuple(found)


def _told(given: Any) -> str:
    items = given if isinstance(given, list) else [given] if given else []
    return printable("; ".join(str(item) for item in items[:8]), 300)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
