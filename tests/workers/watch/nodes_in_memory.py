"""Nodes and policies as values, for tests of the judgement that need no cluster."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.harness.policies import policy_body
from workflows.model.detection.finding import FINDINGS_ANNOTATION
from workflows.model.node import NodeView, parse_node
from workflows.model.policy import Policy
from workflows.model.policy_document import read_policy
from workflows.model.remediation.arming import Arming, Entry

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
POOL = "a"
BOOT = "boot-1"
REPORT = json.dumps({"v": 1, "boot": BOOT, "findings": []})
"""What the agent says of the present boot; without it no condition of its counts."""


def policy(**changes: Any) -> Policy:
    """One pool, `a`, with wide budgets."""
    return read_policy(policy_body([POOL], **changes))


def armed(*pools: str) -> Arming:
    """These pools are armed (none named: `a`)."""
    return Arming(armed=tuple(Entry(pool, "test", NOW, "") for pool in pools or (POOL,)))


def node(
    *,
    name: str = "n",
    reason: str | None = None,
    status: str = "False",
    annotations: dict[str, str] | None = None,
    **body: Any,
) -> NodeView:
    """A Ready node of pool `a`, healthy, or with GPUHealthy as `status` and `reason` say."""
    at = (NOW - timedelta(seconds=10)).isoformat()
    conditions = [
        {"type": "Ready", "status": "True"},
        *(
            {
                "type": kind,
                "status": status if reason and kind == "GPUHealthy" else "True",
                "reason": (reason or "") if kind == "GPUHealthy" else "",
                "lastHeartbeatTime": at,
                "lastTransitionTime": at,
            }
            for kind in ("GPUHealthy", "InterconnectHealthy", "NetworkHealthy", "HostHealthy")
        ),
    ]
    metadata = {
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": "10",
        "creationTimestamp": "2026-11-01T00:00:00Z",
        "labels": {"fleetmend.io/pool": POOL, **body.get("labels", {})},
        "annotations": {FINDINGS_ANNOTATION: REPORT, **(annotations or {})},
        **body.get("metadata", {}),
    }
    return parse_node(
        {
            "metadata": metadata,
            "spec": body.get("spec", {}),
            "status": {
                "conditions": body.get("conditions", conditions),
                "nodeInfo": {"bootID": BOOT, "systemUUID": f"machine-{name}"},
            },
        }
    )
