"""What `dcgmi diag -j` says about the GPUs: healthy, faulty or unknown, by a fail-closed rule.

Owns the JSON shapes of DCGM 2 to 4 (`dcgm_output.py` finds the document and flattens it), the exit
codes and the judgement: healthy only if every expected GPU passed every test that the level must
have. Everything else that is no clear hardware failure is unknown. Pure; the run itself is
`workers/node_task/diagnose.py`.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from activities.devices.dcgm_output import DiagRun, Outcome, Unreadable, read_runs
from workflows.model.detection.finding import printable
from workflows.model.node_task import MAX_FAILURES, Diagnosis, Failure, Health

SOFTWARE: Final = "software"
"""DCGM 4's name for all checks of level 1; for DCGM 2 and 3 every test of category Deployment."""
REQUIRED: Final[Mapping[int, frozenset[str]]] = MappingProxyType(
    {
        1: frozenset({SOFTWARE}),
        2: frozenset({SOFTWARE, "memory", "pcie"}),
        3: frozenset(
            {SOFTWARE, "memory", "pcie", "diagnostic"}
            | {"memory_bandwidth", "targeted_stress", "targeted_power"}
        ),
        4: frozenset(
            {SOFTWARE, "memory", "pcie", "diagnostic", "memory_bandwidth", "targeted_stress"}
            | {"targeted_power", "memtest", "pulse_test"}
        ),
    }
)
"""Tests that a level must show (DCGM user guide 4.4, "Run levels and tests"; without those that
only some releases or installations have, which must pass where they are shown)."""

FAULTY_EXITS: Final[Mapping[int, str]] = MappingProxyType(
    {
        205: "a failure of isolate severity (NVVS_ISOLATE_ERROR)",
        237: "a GPU needs a reset (RESET_REQUIRED)",
        238: "a GPU is lost (GPU_IS_LOST)",
    }
)
"""Exit codes that are a verdict by themselves (dcgm_structs.h 4.4, return code & 0xFF)."""
TEST_FAILED: Final = 226
"""A test failed (NVVS_ERROR); the JSON says which, and whether it is only configuration."""
UNKNOWN_EXITS: Final[Mapping[int, str]] = MappingProxyType(
    {
        199: "the driver does not answer (NVML_DRIVER_TIMEOUT)",
        203: "the diagnostic was killed (NVVS_KILLED)",
        204: "the diagnostic's program is missing (NVVS_BINARY_NOT_FOUND): install DCGM whole",
        215: "the diagnostic could not be launched (DIAG_BAD_LAUNCH)",
        217: "another diagnostic is running (DIAG_ALREADY_RUNNING)",
        222: "a GPU is in use (IN_USE)",
        235: "no nv-hostengine answers (CONNECTION_NOT_VALID): start it",
        245: "DCGM's own timeout (TIMEOUT)",
        254: "DCGM failed without saying why",
    }
)
"""Likewise; none of these says anything about a GPU."""

MAX_SIGNAL: Final = 64
ISOLATE, TRIAGE, CONFIGURE, RESET = 2, 4, 5, 6
"""`error_severity` (dcgm_errors.h 4.4)."""
GRAVE: Final = frozenset({ISOLATE, TRIAGE, RESET})
HARDWARE: Final = frozenset({5, 7, 9, 10, 11, 12, 13, 14, 15})
"""`error_category`: XID, EUD, thermal, memory, NVLink, NVSwitch, PCIe, power, other hardware
(dcgm_errors.h 4.4)."""
CONFIGURATION: Final = frozenset({3, 4})
"""`error_category`: software configuration, library."""
SETTINGS: Final = frozenset(
    {
        "denylist",
        "blacklist",
        "nvml_library",
        "cuda_main_library",
        "permissions_and_os_blocks",
        "persistence_mode",
        "environment_variables",
        "graphics_processes",
    }
)
"""Checks of level 1 in DCGM 2 and 3 that look at the host's configuration and at no GPU."""
_BUSY = re.compile(
    r"\bMIG\b|already running|in use by|being used by|resource is in use|other processes",
    re.IGNORECASE,
)
"""Words with which a test says that it could not run on a GPU as it is now."""


class _Weight(StrEnum):
    """What a result that did not pass means."""

    FAULT = "fault"
    CANNOT_TELL = "cannot tell"
    SETTING = "a matter of configuration"
    BUSY = "busy"


def judge_diag(output: str, exit_code: int, *, level: int, expected_gpus: int) -> Diagnosis:
    """The health that one run of `dcgmi diag -r LEVEL -j` proves.

    Args:
        output: its whole standard output; hostile.
        exit_code: as Popen gives it (negative = ended by that signal).
        level: 1 to 4.
        expected_gpus: how many GPUs the healthy node has; 0 = nobody knows, so nothing is proven.
    """
    try:
        runs, problem = read_runs(output), ""
    except Unreadable as error:
        runs, problem = (), str(error)
    weighed = [(_weigh(one), one) for run in runs for one in run.outcomes if not one.is_pass]
    faults = [one for weight, one in weighed if weight is _Weight.FAULT]
    failing = [one for _, one in weighed if one.status == "fail"]
    if exit_code == TEST_FAILED and not faults:
        doubtful = (_Weight.SETTING, _Weight.BUSY)
        faults = [one for w, one in weighed if one.status == "fail" and w not in doubtful]
    if exit_code in FAULTY_EXITS or faults:
        said = FAULTY_EXITS.get(exit_code, "")
        return _faulty(faults or failing, said, runs)
    unproven = _unproven(runs, weighed, problem, exit_code)
    if not unproven:
        unproven = [line for run in runs for line in _missing(run, level, expected_gpus)]
    if unproven:
        detail = printable("; ".join(unproven), 600)
        return Diagnosis(Health.UNKNOWN, detail, *_told([one for _, one in weighed]))
    warned = [str(_failure(one)) for run in runs for one in run.outcomes if one.status == "warn"]
    detail = f"level {level} passed on {expected_gpus} GPUs{_version(runs)}"
    if warned:
        detail += f"; warnings: {'; '.join(warned[:4])}"
    return Diagnosis(Health.HEALTHY, printable(detail, 600))


def _faulty(faults: Sequence[Outcome], said: str, runs: Sequence[DiagRun]) -> Diagnosis:
    failures, more = _told(faults)
    if not failures:
        failures = (Failure(what="dcgmi", words=said),)
    detail = "; ".join(part for part in (said, str(failures[0])) if part) + _version(runs)
    return Diagnosis(Health.FAULTY, printable(detail, 600), failures, more)


def _weigh(one: Outcome) -> _Weight:
    """What a result that is neither Pass nor Warn says about the GPU."""
    if one.status != "fail":
        return _Weight.BUSY if _BUSY.search(one.words) else _Weight.CANNOT_TELL
    if any(w.severity in GRAVE and w.category in HARDWARE for w in one.warnings):
        return _Weight.FAULT
    if _BUSY.search(one.words):
        return _Weight.BUSY
    marked = [w for w in one.warnings if w.severity is not None or w.category is not None]
    if marked:
        is_setting = all(w.severity == CONFIGURE or w.category in CONFIGURATION for w in marked)
    else:
        is_setting = one.name in SETTINGS
    return _Weight.SETTING if is_setting else _Weight.CANNOT_TELL


def _unproven(
    runs: Sequence[DiagRun], weighed: Sequence[tuple[_Weight, Outcome]], problem: str, code: int
) -> list[str]:
    """Why the run proves nothing, most telling first; empty = nothing speaks against it."""
    lines = []
    if code:
        lines.append(_ending(code))
    if problem:
        lines.append(problem)
    for run in runs:
        if run.runtime_error:
            mig = "MIG mode: " if re.search(r"\bMIG\b", run.runtime_error) else ""
            lines.append(f"the diagnostic could not run: {mig}{run.runtime_error}")
        lines += run.problems
    lines += [f"{weight}: {_failure(one)} ({one.status})" for weight, one in weighed[:4]]
    return lines


def _ending(code: int) -> str:
    """Why dcgmi ended, by its exit code."""
    if code in UNKNOWN_EXITS:
        return UNKNOWN_EXITS[code]
    if code == TEST_FAILED:
        return "dcgmi says that a test failed"
    if code < 0 or 128 < code <= 128 + MAX_SIGNAL:
        return f"dcgmi was ended by signal {-code if code < 0 else code - 128}"
    return f"dcgmi ended with exit code {code}"


def _missing(run: DiagRun, level: int, expected_gpus: int) -> list[str]:
    """Tests or GPUs that the level must show and that this run doesn't."""
    if expected_gpus <= 0:
        return ["nobody says how many GPUs the node has: its machine has no baseline"]
    lines = []
    counts = {run.gpu_count} if run.gpu_count else set()
    for name in sorted(REQUIRED[level]):
        shown = [one for one in run.outcomes if one.test == name]
        tested = {gpu for one in shown for gpu in one.gpus}
        if any(one.is_of_all for one in shown):
            continue  # it speaks of every GPU; how many there are is said elsewhere
        if not tested:
            lines.append(f"test {name} is not in the output")
            continue
        counts.add(len(tested))
        if len(tested) != expected_gpus:
            lines.append(f"test {name} was run on {len(tested)} GPUs, {expected_gpus} are expected")
    if not lines and not counts:
        lines.append(
            "this DCGM does not say which GPUs it tested: use level 2, or DCGM 3.3 or newer"
        )
    elif not lines and counts != {expected_gpus}:
        said = " and ".join(str(count) for count in sorted(counts))
        lines.append(f"{said} GPUs are in the output, {expected_gpus} are expected")
    return lines


def _told(outcomes: Sequence[Outcome]) -> tuple[tuple[Failure, ...], int]:
    """Worst first (grave ones, then by the order of the run), bounded, and how many more."""
    ordered = sorted(outcomes, key=lambda one: _weigh(one) is not _Weight.FAULT)
    told = tuple(_failure(one) for one in ordered[:MAX_FAILURES])
    return told, max(0, len(ordered) - len(told))


def _failure(one: Outcome) -> Failure:
    gpus = ", ".join(one.gpus)
    return Failure(
        what=printable(one.name, 64),
        device=printable(f"GPU {gpus}" if gpus else one.entity, 64),
        words=printable(one.words or one.status, 256),
    )


def _version(runs: Sequence[DiagRun]) -> str:
    version = next((run.version for run in runs if run.version), "")
    return f" (DCGM {printable(version, 32)})" if version else ""
