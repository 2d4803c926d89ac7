"""What the stand-in for dcgmi prints: NVIDIA's JSON in three generations, and a little text.

Owns the shapes of `dcgmi diag -j` of DCGM 2.x to 3.2, 3.3 and 4.x, of `dcgmi health -c -j`
(dcgmi/Health.cpp and DcgmiOutput.cpp of DCGM 4.4), the discovery table, and the exit codes. Pure:
`devices` writes the files that the program prints.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from workers.lab.devices.state import (
    Behaviour,
    DcgmState,
    DeviceState,
    DiagResult,
    GpuState,
    HealthIncident,
    Severity,
    TestStatus,
)

FAILED: Final = 226
"""DCGM_ST_NVVS_ERROR -30; as all here the return code & 0xFF (dcgm_structs.h)."""
ISOLATE: Final = 205
"""DCGM_ST_NVVS_ISOLATE_ERROR -51."""
BUSY: Final = 217
"""DCGM_ST_DIAG_ALREADY_RUNNING -39."""
GPU_LOST: Final = 238
"""DCGM_ST_GPU_IS_LOST -18."""
OVERFLOW_WIDTH: Final = 54
"""dcgmi health cuts longer texts into pieces of this width, also in JSON."""

_DEVICE_ID: Final = "2330"
_PLUGINS: Final = (
    # level, category, name in DCGM 4, name before
    (1, "Deployment", "software", ""),
    (2, "Integration", "pcie", "PCIe"),
    (2, "Hardware", "memory", "GPU Memory"),
    (3, "Hardware", "diagnostic", "Diagnostic"),
    (3, "Hardware", "nvbandwidth", ""),
    (4, "Hardware", "pulse_test", "Pulse Test"),
    (3, "Stress", "memory_bandwidth", "Memory Bandwidth"),
    (3, "Stress", "targeted_stress", "Targeted Stress"),
    (3, "Stress", "targeted_power", "Targeted Power"),
    (4, "Stress", "memtest", "Memtest"),
)
"""'' = that generation has no such test; "software" was nine of them."""
_SOFTWARE: Final = (
    "Denylist",
    "NVML Library",
    "CUDA Main Library",
    "Permissions and OS Blocks",
    "Persistence Mode",
    "Environment Variables",
    "Page Retirement/Row Remap",
    "Graphics Processes",
    "Inforom",
)
_SOFTWARE_FAULT: Final = "Page Retirement/Row Remap"
"""Under which of the nine an older DCGM shows a failed "software"."""


def diag_exit_code(state: DeviceState, level: int) -> int:
    """What `dcgmi diag -r LEVEL` ends with."""
    dcgm = state.dcgm
    if dcgm.diag.exit_code is not None:
        return dcgm.diag.exit_code
    if dcgm.is_busy:
        return BUSY
    if _has_lost(state):
        return GPU_LOST
    names = {name for at, _, name, _ in _PLUGINS if at <= level}
    failed = [r for r in dcgm.results if r.status is TestStatus.FAIL and r.test in names]
    if any(result.severity is Severity.ISOLATE for result in failed):
        return ISOLATE
    return FAILED if failed else 0


def diag_json(state: DeviceState, level: int) -> str:
    """What `dcgmi diag -r LEVEL -j` prints, in the shape of the state's version."""
    serials = tuple(gpu.serial for gpu in state.nvml.gpus)
    found = _Found(state.dcgm.version, state.nvml.driver, serials, state.dcgm.results)
    return _diag_json(found, _refusal(state), level)


@dataclass(frozen=True)
class _Found:
    """All that the JSON of a diagnostic is made of."""

    version: str
    driver: str
    serials: tuple[str, ...]
    results: tuple[DiagResult, ...]


@lru_cache(maxsize=256)  # rendering with indents is the dear part of every change
def _diag_json(found: _Found, refusal: str, level: int) -> str:
    generation = _generation(found.version)
    top = "DCGM Diagnostic" if generation >= (4, 0) else "DCGM GPU Diagnostic"
    if refusal:
        return _styled({top: {"version": found.version, "runtime_error": refusal}})
    body: dict[str, Any] = {top: {"test_categories": _categories(found, level, generation)}}
    if generation >= (4, 0):
        entities = [
            {"entity_id": i, "serial_num": serial, "device_id": _DEVICE_ID}
            for i, serial in enumerate(found.serials)
        ]
        body["entity_groups"] = [
            {"entity_group_id": 0, "entity_group": "GPU", "entities": entities}
        ]
        body["metadata"] = {
            "version": found.version,
            "Driver Version Detected": found.driver,
        }
    elif generation >= (3, 3):
        body["version"] = found.version
        body["Driver Version Detected"] = found.driver
        body["GPU Device IDs"] = [_DEVICE_ID for _ in found.serials]
        body["GPU Device Serials"] = {str(i): serial for i, serial in enumerate(found.serials)}
    return _styled(body)


def health_json(state: DeviceState, *, is_first: bool) -> str:
    """What `dcgmi health -c -j` prints; the first check only takes a baseline."""
    incidents = () if is_first else _incidents(state)
    body: dict[str, Any] = {"Overall Health": {"value": _worst(i.health for i in incidents)}}
    for gpu in sorted({incident.gpu for incident in incidents}):
        own = [incident for incident in incidents if incident.gpu == gpu]
        errors: dict[str, Any] = {}
        for system in dict.fromkeys(incident.system for incident in own):
            same = [incident for incident in own if incident.system == system]
            text = ", ".join(incident.text for incident in same)
            errors[system] = {
                "overflow": _pieces(text),
                "value": _worst(incident.health for incident in same),
            }
        entity = {
            "children": {"Errors": {"children": errors}},
            "value": _worst(i.health for i in own),
        }
        body.setdefault("GPU", {"children": {}})["children"][str(gpu)] = entity
    return _styled({"body": body, "header": ["Health Monitor Report"]})


def health_text(state: DeviceState, *, is_first: bool) -> str:
    """The same for people, shorter than the real table."""
    incidents = () if is_first else _incidents(state)
    lines = ["Health Monitor Report", f"Overall Health: {_worst(i.health for i in incidents)}"]
    lines += [f"GPU {i.gpu}: {i.system}: {i.health}: {i.text}" for i in incidents]
    return "\n".join(lines) + "\n"


def discovery_text(gpus: tuple[GpuState, ...]) -> str:
    """What `dcgmi discovery -l` prints."""
    line = "+" + "-" * 8 + "+" + "-" * 70 + "+"
    rows = [f"{len(gpus)} GPUs found.", line, f"| GPU ID | {'Device Information':<69}|"]
    rows.append(line.replace("-", "=") if gpus else line)
    for i, gpu in enumerate(gpus):
        told = (
            f"Name: {gpu.name}",
            f"PCI Bus ID: 0000{gpu.bus_id.upper()}",
            f"Device UUID: {gpu.uuid}",
        )
        rows += [f"| {i if n == 0 else '':<6} | {text:<69}|" for n, text in enumerate(told)]
        rows.append(line)
    rows.append("0 NvSwitches found.")
    return "\n".join(rows) + "\n"


def version_text(dcgm: DcgmState) -> str:
    """What `dcgmi --version` prints."""
    return f"\ndcgmi  version: {dcgm.version}\n\n"


def _generation(version: str) -> tuple[int, int]:
    major, minor, *_ = (*version.split("."), "0")
    return int(major), int(minor)


def _has_lost(state: DeviceState) -> bool:
    return any(gpu.behaviour is Behaviour.LOST for gpu in state.nvml.gpus)


def _refusal(state: DeviceState) -> str:
    if state.dcgm.is_busy:
        return "A diagnostic is already running. Try again when it has ended."
    if _has_lost(state):
        return "Error when executing the diagnostic: GPU is lost."
    return ""


def _categories(found: _Found, level: int, generation: tuple[int, int]) -> list[dict[str, Any]]:
    categories: dict[str, list[dict[str, Any]]] = {}
    for at, category, name, old_name in _PLUGINS:
        if at > level:
            continue
        tests = categories.setdefault(category, [])
        own = {result.gpu: result for result in found.results if result.test == name}
        count = len(found.serials)
        if generation >= (4, 0):
            tests.append(_test_of_4(name, own, count))
        elif name == "software":
            tests += [
                _software_before_4(each, own if each == _SOFTWARE_FAULT else {}, generation)
                for each in _SOFTWARE
            ]
        elif old_name:
            results = [_result_before_4(i, own.get(i), generation) for i in range(count)]
            shown = [r for r in results if r is not None or generation >= (3, 3)]
            tests.append({"name": old_name, "results": shown})
    return [{"category": name, "tests": tests} for name, tests in categories.items() if tests]


def _test_of_4(name: str, own: dict[int, DiagResult], count: int) -> dict[str, Any]:
    results = []
    for gpu in range(count):
        result = own.get(gpu)
        status = TestStatus.PASS if result is None else result.status
        if status is TestStatus.OMITTED:
            continue
        row: dict[str, Any] = {
            "entity_group_id": 0,
            "entity_group": "GPU",
            "entity_id": gpu,
            "status": status.value,
        }
        if result is not None and status is TestStatus.SKIP:
            row["info"] = [result.text]
        elif result is not None and status is not TestStatus.PASS:
            row["warnings"] = [_warning(result, "warning")]
        results.append(row)
    return {
        "name": name,
        "results": results,
        "test_summary": {"status": _summary(row["status"] for row in results)},
    }


def _summary(statuses: Iterable[str]) -> str:
    found = set(statuses)
    return next((word for word in ("Fail", "Warn", "Pass") if word in found), "Skip")


def _software_before_4(
    name: str, own: dict[int, DiagResult], generation: tuple[int, int]
) -> dict[str, Any]:
    """Level 1 shows one result only, and no GPU when all is well."""
    result = next((own[gpu] for gpu in sorted(own)), None)
    if result is None or result.status is TestStatus.OMITTED:
        return {"name": name, "results": [{"status": "Pass"}]}
    row: dict[str, Any] = {"status": result.status.value}
    if generation >= (3, 3):
        row = {"gpu_id": result.gpu, **row, "warnings": [_warning(result, "warnings")]}
    else:
        row["warnings"] = result.text
    return {"name": name, "results": [row]}


def _result_before_4(
    gpu: int, result: DiagResult | None, generation: tuple[int, int]
) -> dict[str, Any] | None:
    key = "gpu_id" if generation >= (3, 3) else "gpu_ids"
    if result is None:
        return {key: str(gpu), "status": "Pass"}
    if result.status is TestStatus.OMITTED:
        return None
    row: dict[str, Any] = {key: str(gpu), "status": result.status.value}
    if result.status is TestStatus.SKIP:
        row["info"] = result.text
    elif result.status is not TestStatus.PASS:
        is_new = generation >= (3, 3)
        row["warnings"] = [_warning(result, "warning")] if is_new else result.text
    return row


def _warning(result: DiagResult, key: str) -> dict[str, Any]:
    return {
        key: result.text,
        "error_id": result.error_id,
        "error_category": result.category,
        "error_severity": int(result.severity),
    }


def _incidents(state: DeviceState) -> tuple[HealthIncident, ...]:
    """By DCGM's own rules for values, then those that the lab adds."""
    found: list[HealthIncident] = []
    for i, gpu in enumerate(state.nvml.gpus):
        if gpu.behaviour is Behaviour.LOST:
            continue
        ecc, rows = gpu.ecc, gpu.remapped_rows
        if ecc is not None and ecc.volatile_uncorrected:
            text = (
                f"A DBE has been detected: {ecc.volatile_uncorrected} volatile DBEs in GPU {i}. "
                "Drain the GPU and reset it or reboot the node."
            )
            found.append(HealthIncident(gpu=i, system="Memory system", text=text))
        if rows is not None and rows.failure:
            text = f"GPU {i} had uncorrectable memory errors and row remapping failed. Run a field "
            text += "diagnostic on the GPU."
            found.append(HealthIncident(gpu=i, system="Memory system", text=text))
        down = [str(link) for link, each in enumerate(gpu.nvlinks) if not each.active]
        if down:
            text = f"GPU {i}'s NvLink link {', '.join(down)} is currently down."
            found.append(HealthIncident(gpu=i, system="NVLINK system", text=text))
    return (*found, *state.dcgm.incidents)


def _worst(healths: Iterable[str]) -> str:
    found = set(healths)
    return next((word for word in ("Failure", "Warning") if word in found), "Healthy")


def _pieces(text: str) -> list[str]:
    """Cut between words, as dcgmi does."""
    pieces = [""]
    for word in text.split():
        if pieces[-1] and len(pieces[-1]) + 1 + len(word) > OVERFLOW_WIDTH:
            pieces.append("")
        pieces[-1] = f"{pieces[-1]} {word}".strip()
    return pieces


def _styled(body: dict[str, Any]) -> str:
    """As jsoncpp's toStyledString: sorted keys, three blanks."""
    return json.dumps(body, indent=3, sort_keys=True) + "\n"
