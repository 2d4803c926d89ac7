"""Policies with the patience of a test.

Owns the policy that most tests run under: the built-in rules and faults with short times, and
pools whose budgets are as wide as a test wants. Talks to `workflows.model.policy` only, so that a
field it does not know fails here and not in a process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from workers.lab.kubelet.spec import POOL_LABEL
from workflows.model.policy import Policy
from workflows.model.policy_document import read_policy

DEBOUNCE_S = 1.0
"""Long enough that a fault which goes within it is seen as dismissed."""
LATE_S = 60.0
"""A node of the lab is not Ready once its Lease is 8 s old, which a loaded machine can bring about."""
PROBATION_S = 1.0
BOOT_DEADLINE_S = 30.0
DIAGNOSE_S = 15.0
"""The lab's dcgmi answers at once, unless a fault says otherwise."""
WAITS = ("await_reboot", "await_permit")
WIDE = {"reflex_quarantine": "100%", "confirmed_quarantine": "100%", "disruption": "100%"}


@dataclass(frozen=True)
class TestPool:
    """One pool: its nodes carry the lab's pool label."""

    __test__ = False

    name: str
    expected_gpus: int | None = 8
    budgets: Mapping[str, int | str] | None = None  # None = wide
    validation: Mapping[str, Any] | None = None  # None = only by hand
    admission: Mapping[str, Any] | None = None  # None = as built in


def policy_body(pools: Sequence[TestPool | str], **changes: Any) -> dict[str, Any]:
    """The policy as it stands in YAML.

    Args:
        pools: a text is a pool of that name with wide budgets.
        changes: top-level fields laid over; mappings are merged one level deep.
    """
    built_in = Policy().model_dump(mode="json")
    rules = [
        rule if rule["immediate"] else {**rule, "debounce_s": _debounce_s(rule)}
        for rule in built_in["rules"]
    ]
    body: dict[str, Any] = {
        "pools": [_pool(p if isinstance(p, TestPool) else TestPool(p)) for p in pools],
        "rules": rules,
        "faults": {
            name: {**row, "drain_deadline_s": 20, "recovery_wait_s": 5}
            for name, row in built_in["faults"].items()
        },
        "gate": {
            **built_in["gate"],
            "timeout_s": 10,
            "settle_s": 5,
            "diagnose_limits_s": [DIAGNOSE_S] * 4,
        },
        "timing": {
            **built_in["timing"],
            "boot_deadline_s": BOOT_DEADLINE_S,
            "probation_s": PROBATION_S,
            "node_task_deadline_s": 20,
        },
        "steps": {name: {"retry_initial_s": 1, "retry_maximum_s": 1} for name in WAITS},
    }
    for name, change in changes.items():
        old = body.get(name)
        body[name] = {**old, **change} if isinstance(old, dict) else change
    return body


def write_policy(path: Path, pools: Sequence[TestPool | str], **changes: Any) -> Policy:
    """Write the policy file for FLEETMEND_POLICY; what processes will read from it."""
    body = policy_body(pools, **changes)
    policy = read_policy(body)
    path.write_text(yaml.safe_dump(body, sort_keys=False))
    return policy


def _debounce_s(rule: Mapping[str, Any]) -> float:
    return LATE_S if rule["condition"] == "Ready" else DEBOUNCE_S


def _pool(pool: TestPool) -> dict[str, Any]:
    return {
        "name": pool.name,
        "selector": {POOL_LABEL: pool.name},
        "expected_gpus": pool.expected_gpus,
        "budgets": dict(WIDE if pool.budgets is None else pool.budgets),
        "validation": dict(pool.validation or {}),
        "admission": dict(pool.admission or {}),
    }
