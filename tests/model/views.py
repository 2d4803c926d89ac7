"""Nodes and pods for the tests of the pure model, healthy unless a test says otherwise.

Owns the builders and hypothesis strategies for hostile input; judges nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from workflows.model.detection.finding import FINDINGS_ANNOTATION
from workflows.model.node import Condition, NodeView, PodView
from workflows.model.policy import Policy, Pool, Rule

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
BOOT = "boot-1"
TYPES = ("GPUHealthy", "InterconnectHealthy", "NetworkHealthy", "HostHealthy", "Ready")
POLICY = Policy(pools=(Pool(name="training", selector={"pool": "training"}),))


def condition(
    type_: str,
    status: str = "True",
    reason: str = "Healthy",
    *,
    age: timedelta = timedelta(),
    changed: datetime = NOW - timedelta(days=1),
) -> Condition:
    return Condition(type_, status, reason, f"{reason} seen", NOW - age, changed)


def report(boot: str = BOOT, *findings: Mapping[str, Any]) -> str:
    """A findings annotation as the agent writes it."""
    return json.dumps({"v": 1, "boot": boot, "findings": list(findings)})


def finding(**changes: Any) -> dict[str, Any]:
    return {
        "id": "f-1",
        "source": "nvml",
        "device": "GPU-1",
        "code": "xid:79",
        "fault": "gpu-lost",
        "at": "2026-03-01T11:59:00+00:00",
        "certainty": "certain",
        "text": "GPU has fallen off the bus",
        **changes,
    }


HEALTHY = NodeView(
    name="node-1",
    uid="uid-1",
    resource_version="7",
    created=NOW - timedelta(days=30),
    labels={"pool": "training"},
    annotations={FINDINGS_ANNOTATION: report()},
    unschedulable=False,
    provider_id="aws:///i-1",
    boot_id=BOOT,
    system_uuid="ec2-1",
    machine_uuid="m-1",
    conditions={name: condition(name) for name in TYPES},
    gpus={"nvidia.com/gpu": 8},
    capacity={"nvidia.com/gpu": 8},
)


def node(**changes: Any) -> NodeView:
    """A healthy node, changed; `conditions` are laid over the healthy ones (None = absent)."""
    conditions = dict(HEALTHY.conditions)
    for name, given in changes.pop("conditions", {}).items():
        conditions.pop(name)
        if given is not None:
            conditions[name] = given
    annotations = {**HEALTHY.annotations, **changes.pop("annotations", {})}
    return replace(HEALTHY, conditions=conditions, annotations=annotations, **changes)


def pod(**changes: Any) -> PodView:
    """A running pod of a Job that uses GPUs."""
    base = PodView(
        namespace="jobs",
        name="train-0",
        uid="pod-1",
        phase="Running",
        deleting=False,
        running_containers=1,
        requests_gpu=True,
        owner_kind="Job",
        owner_name="train",
    )
    return replace(base, **changes)


def policy_with(*rules: Rule) -> Policy:
    return POLICY.model_copy(update={"rules": rules})


CHARACTERS = "aZ09 ._:/-\"'\\{}[]<>|*`\n\x00\x1b\x7fé²٣\u202e\u2028\ud800\U0001f600"
"""What breaks readers: quotes, markup, control, digits that are none, bidi, a lone surrogate."""
TEXT = st.text(st.sampled_from(CHARACTERS), max_size=30)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
"""Anything a JSON document may hold."""


LEFT_OUT = "<left out>"


def mutated(body: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """`body` with some fields replaced by anything, or left out."""

    def change(changes: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in {**body, **changes}.items() if v is not LEFT_OUT}

    fields = st.sampled_from(sorted(body))
    return st.dictionaries(fields, ANY_JSON | st.just(LEFT_OUT), max_size=3).map(change)
